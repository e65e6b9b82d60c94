"""Does the length of items cost time? Found out from samples, before any order is changed for it.

Batches that run are looked at now and then. Items of like length share batches from then on if two things are
true. What batches take is explained by padding to the longest item, and better so than by the sum of lengths,
as of a function that does not pad. And padding takes a good part of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Lengths

_FELT_S = 200e-6  # a batch that takes less has no padding that is worth a look
_FIRST = 24  # so many batches are looked at one after another, ...
_LAST = 96  # ... or up to so many, while it may turn out that padding costs time, ...
_EVERY = 16  # ... and then each of so many
_ENOUGH = 12  # looks, ...
_FEW = 4  # batches of several items, of which twice as many are among them; errors of the first do not count
_STEP = 1 / 24  # the means are those of about so many looks
_PAYS = 0.1  # of the time: as much as padding takes where it pays to do something about it
_PAYS_NOT = 0.05  # of the time: as little as all length takes where it does not pay any more
_WRONG = 0.1  # of the time, squared: an error so large that the function has changed
_BETTER = 0.9  # of the error: so much less where one explanation is better than the other


class Ran(Protocol):
    """A batch that has run; it was looked at if `padded` is not 0."""

    size: int
    real: int
    padded: int


class AutoLengths(Lengths):
    """Lengths that are looked at in samples, and all the time only where that pays."""

    def __init__(self, length_of: Callable[[Any, int], float | None]) -> None:
        """Take the function that returns the length of an item of a call, or None if it has none."""
        super().__init__(reorders=False, padded=False)
        self._length_of = length_of
        self._left = 0  # batches until the next look
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing known."""
        self.cost = LengthCost()
        self._use(pays=False)
        self.is_open = False
        self._of_sum = LengthCost()  # where a batch takes as long as the lengths add up to
        self._errors = [0.0, 0.0]  # of both costs, squared, as shares of the time
        self._share = 0.0  # of the time: what padding takes
        self._looks = 0  # at batches of several items: only these tell of padding
        self._singles = 0  # looks at batches of one
        self._news = 0  # batches of one that are looked at until one of several is, after one that was not

    def at(self, call: Any, place: int) -> float:
        """Return the length of an item of `call`; 0 if it has none."""
        return self._length_of(call, place) or 0.0

    def look(self, slices: Iterable[tuple[Any, int, int]]) -> tuple[float, float]:
        """Return the longest and the total length of items; 0 if one of them has none."""
        length_of = self._length_of
        longest = total = 0.0
        for call, start, stop in slices:
            for place in range(start, stop):
                length = length_of(call, place)
                if length is None:
                    return 0.0, 0.0
                total += length
                longest = max(longest, length)
        return longest, total

    def ran(self, batch: Ran, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        if duration < _FELT_S:
            self.looks = self.is_open = False
            return
        if not batch.padded:  # it was not looked at, or has items without a length
            is_news = not self.looks and batch.size > 1 and self._singles > 0 and self._looks < _FIRST
            self._left = _EVERY if self.looks else self._left - 1
            self._news = _EVERY if is_news else 0
            self.looks = self._left <= 0 or is_news
            self.is_open = False
            return
        if batch.size == 1:
            self._ran_alone(batch, duration)
            return
        self._news = 0
        longest, mean = batch.padded / batch.size, batch.real / batch.size
        self._looks += 1
        fade = max(_STEP, 1 / self._looks)
        for at, (cost, length) in enumerate(((self.cost, longest), (self._of_sum, mean))):
            expected = cost.fixed + cost.each_of(length) * batch.size
            error = min(abs(expected / duration - 1), 1.0)  # a batch that compiles something counts as one
            self._errors[at] += max(fade, 1 / max(self._looks - _FEW, 1)) * (error * error - self._errors[at])
            cost.add(batch.size, length, duration)
        # Where lengths are used little padding is left, but it would come back.
        wasted = batch.padded if self.reorders else batch.padded - batch.real
        share = min(wasted * self.cost.per_length / duration, 1.0)
        self._share += fade * (share - self._share)
        if self.reorders:
            if self._share < _PAYS_NOT:
                self._begin()
        elif self._looks > 2 * _FIRST and min(self._errors) > _WRONG:
            self._begin()
        elif self._looks >= 2 * _FEW and self._looks + self._singles >= _ENOUGH:
            self._use(pays=self._share > _PAYS and self._errors[0] < _BETTER * self._errors[1])
        is_likely = self._looks < 2 * _FEW or self._errors[0] < self._errors[1]
        self.is_open = not self.reorders and self._share > _PAYS and is_likely and self._looks < _LAST
        grows = share > _PAYS and self._errors[0] < _BETTER * self._errors[1]  # other callers have come
        self.looks = self.reorders or self._looks < _FIRST or self.is_open or grows
        self._left = _EVERY

    def _ran_alone(self, batch: Ran, duration: float) -> None:
        """Learn what length costs from a batch of one item."""
        self._singles += 1
        for cost in (self.cost, self._of_sum):
            cost.add(1, batch.real, duration)
        self._news -= 1
        self.looks = self.reorders or self._singles < _FIRST or self._news > 0
        self._left = _EVERY

    def _use(self, *, pays: bool) -> None:
        self.reorders = self.is_used = pays
