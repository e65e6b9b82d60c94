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


class Isolation:
    """The search for the items that make a batch fail, and what it has cost so far.

    It is given up once failures in a row, or their cost, are more than single items would explain. Runs that
    work cost nothing: they would have been needed in any case.
    """

    def __init__(self, size: int, duration: float) -> None:
        """Begin with a batch of `size` items that has failed after `duration` seconds."""
        self.is_given_up: bool = False
        self._has_worked = False
        self._in_a_row = 0
        self._singles = 0
        self._spent_s = 0.0
        self._most_in_a_row = ceil(log2(size)) + _MORE_FAILURES
        self._left_s = max(_TIMES_ITS_OWN * duration, _ALWAYS_ALLOWED_S)

    def worked(self, duration: float) -> None:
        """Note that a part has worked."""
        self._has_worked = True
        self._in_a_row = 0
        self._left_s += _TIMES_OF_PARTS * duration

    def failed(self, error: BaseException, duration: float, *, is_single: bool = False) -> None:
        """Note that a part has raised `error`; one that `is_single` is found, which is no step astray."""
        self._in_a_row += not is_single
        self._singles += is_single
        self._spent_s += duration
        self._left_s -= duration
        is_long = self._in_a_row >= self._most_in_a_row and self._spent_s > _ALWAYS_ALLOWED_S
        if is_long or self._left_s <= 0.0 or is_of_surroundings(error):
            self.is_given_up = True

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
