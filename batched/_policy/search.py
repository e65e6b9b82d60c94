"""Is it an item, or the surroundings? Whether a batch that failed is worth running again in parts."""

from __future__ import annotations

from math import ceil, log2
from random import Random

from batched._policy.surroundings import is_of_surroundings

_MORE_FAILURES = 3  # in a row than the halvings that single out one item
_TIMES_ITS_OWN = 4  # what failures may cost, in the time of the batch itself ...
_TIMES_OF_PARTS = 3  # ... and that of each part that works
_DOUBTS = 2  # parts that fail, and none that works: then single items run next
_TOGETHER = 0.5  # of the batches during a pause run as a whole
_NO_CHANCE = 4  # items that fail, each alone, and none that works
_ALWAYS_ALLOWED_S = 0.25  # failures that take no longer in all are no outage that a caller would feel
_FEW_ALONE = 4  # items that work alone, while every larger part fails


class Search:
    """The search for the items that make a batch fail, and what it has cost so far.

    It is given up once failures in a row, or their cost, are more than single items would explain. Runs that
    work cost nothing: they would have been needed in any case.
    """

    def __init__(
        self,
        size: int,
        duration: float,
        units: int = 0,
        error: BaseException | None = None,
        *,
        is_try: bool = False,
    ) -> None:
        """Begin with a batch of `size` items in so many `units`, which has raised `error` after `duration` s.

        A unit is a single item, or a list that is answered as a whole. Without an error, the batch has yet to
        run, one unit at a time. Of one that `is_try` one unit runs ahead of the others.
        """
        self.error = error
        """What the batch has raised, until the search ends: the traceback leads to the items."""
        self.is_try = is_try
        self.duration = duration
        self.units = units
        self.failures = 0 if error is None else 1  # of parts that have several units, and of the batch itself
        self.parts_worked: int = 0  # of several units
        self.is_given_up: bool = False
        self._items_left = size
        self._alone = 0  # units that have worked, each alone
        self._has_worked = False
        self._unlike = self.failures  # of those, since an item was lost: no item is to blame for these
        self._in_a_row = 0
        self._singles = 0
        self._restarts = 0
        self._spent_s = 0.0
        self._most_in_a_row = ceil(log2(size)) + _MORE_FAILURES
        self._left_s = max(_TIMES_ITS_OWN * duration, _ALWAYS_ALLOWED_S)

    def worked(self, duration: float, items: int = 0, *, is_single: bool = False) -> None:
        """Note that a part of so many `items` has worked."""
        self.ended(items)
        self._alone += is_single
        self.parts_worked += not is_single
        self._has_worked = True
        self._in_a_row = 0
        self._left_s += _TIMES_OF_PARTS * duration

    def ended(self, items: int) -> None:
        """Note that so many items do not run again."""
        self._items_left -= items
        if self._items_left <= 0:
            self.error = None

    def lost(self, items: int) -> None:
        """Note that so many items do not run again, as no caller wants them: one may be to blame."""
        self.ended(items)
        self._unlike = 0

    def failed(
        self,
        error: BaseException,
        duration: float,
        items: int = 0,
        *,
        is_single: bool = False,
        blames_worker: bool = False,
    ) -> None:
        """Note that a part has raised `error`; one that `is_single` is found, which is no step astray.

        Where it `blames_worker`, no other surroundings are to blame, whatever the error is.
        """
        if is_single:
            self.ended(items)
        self.failures += not is_single
        self._unlike += not is_single
        self._in_a_row += not is_single
        self._singles += is_single
        self._spent_s += duration
        self._left_s -= duration
        is_long = self._in_a_row >= self._most_in_a_row and self._spent_s > _ALWAYS_ALLOWED_S
        is_outage = not blames_worker and is_of_surroundings(error)
        if is_long or self._left_s <= 0.0 or is_outage:
            self._give_up()

    def restarted(self) -> None:
        """Note that a part has had its worker made anew, which may take long: it does not come often."""
        self._restarts += 1
        if self._restarts >= self._most_in_a_row:
            self._give_up()

    def _give_up(self) -> None:
        """End the search: what has yet to run gets the error that it has met."""
        self.is_given_up = True
        self.error = None

    @property
    def has_ended_well(self) -> bool:
        """Whether all items have worked in the end: then none of them has made the batch fail."""
        return self._items_left <= 0 and self._unlike > 0 and not self._singles and not self.is_given_up

    @property
    def runs(self) -> int:
        """How often the function has run, with the batch itself."""
        return self.failures + self.parts_worked + self._alone + self._singles

    @property
    def has_found(self) -> bool:
        """Whether an item has failed alone, which is why the batch has failed."""
        return self.failures > 0 and self._singles > 0

    @property
    def prefers_singles(self) -> bool:
        """Whether the rest is to run one by one: items work alone, and never together."""
        return self._alone >= _FEW_ALONE and not self._singles and not self.parts_worked

    @property
    def begins_small(self) -> bool:
        """Whether a single item is to run next: it works more often than a part, and that ends all doubt."""
        return not self._has_worked and self._in_a_row >= _DOUBTS

    @property
    def found_nothing(self) -> bool:
        """Whether no item has worked of so many that it is no item that makes batches fail."""
        return not self._has_worked and (self.is_given_up or self._singles >= _NO_CHANCE)


class Pause:
    """Whether failed batches are not divided, as in an outage.

    It begins when a search has found nothing, and ends when anything works. Else items that fail would keep
    it up, where each batch has one. So of about every other batch one call runs ahead, alone. If it fails, so
    would its batch: that has failed, and an outage takes no longer than without. Where one item of five
    fails, it works four times of five. Not of each batch, as a function may fail for single items only; and
    by chance, as calls that fail may come in some order.

    From then on, until a whole batch works, each search begins with single items, as larger parts would fail
    and end it.
    """

    def __init__(self) -> None:
        self.is_on: bool = False
        self.is_wary: bool = False
        """Whether a search begins with a single item."""
        self._random: Random | None = None

    def found_nothing(self) -> None:
        """Begin, unless it is on."""
        if not self.is_on:
            self.is_on = self.is_wary = True
            self._random = self._random or Random(1)  # noqa: S311  no secret

    def worked(self, *, is_part: bool) -> None:
        """End: a batch has worked, or a part of one."""
        self.is_on = False
        self.is_wary = self.is_wary and is_part

    def ahead(self, number: int) -> int | None:
        """Return which of so many is to run ahead of the others in the next batch, None if none is."""
        if not self.is_on or self._random is None or self._random.random() < _TOGETHER:
            return None
        return self._random.randrange(number)
