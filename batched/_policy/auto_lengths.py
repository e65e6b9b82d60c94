"""Does the length of items cost time? Found out from samples, before the order is changed for it.

Batches that run are looked at now and then. Three explanations of what they take are held against each other:
by the longest item, as of a function that pads; by the sum of lengths, as of one that does not; and by the
number of items alone. Items of like length share batches from then on if two things are true. Padding takes a
good part of the time. And the longest item foretells what batches take so much better than the number does
that it is hardly chance, and better than the sum does.

Where batches all have a longest item of like length, they tell nothing. A few of them are put in order of
length then, and do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp
from typing import Any, Protocol

from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Lengths

_FIRST = 24  # so many batches are looked at one after another, ...
_LAST = 96  # ... or up to so many, while it may turn out that padding costs time, ...
_EVERY = 16  # ... and then each of so many
_ENOUGH = 12  # looks, ...
_LEAST_LOOKS = (
    4  # batches of several items, of which twice as many are among them; errors of the first do not count
)
_STEP = 1 / 24  # the means are those of about so many looks
_PAYS = 0.1  # of the time: as much as padding takes where it pays to do something about it
_PAYS_NOT = 0.05  # of the time: as little as all length takes where it does not pay any more
_WRONG = 0.1  # of the time, squared: an error so large that the function has changed
_BETTER = 0.9  # of the error: so much less where one explanation is better than the other
_CHANCE = 9.0  # twice the logarithm of 90: so much likelier are batches by the longest item than by number
_SLIGHT = 1e-3  # of the time, squared: errors smaller than that have other causes
_TRIED = 6  # batches, at most, are put in order of length to find out; or `_FIRST`, if it looks well


class Ran(Protocol):
    """A batch that has run; it was looked at if `padded` is not 0."""

    size: int
    real: int
    padded: int


class _Explanation:
    """What batches take by their number of items and one length, and how wrong that was beforehand."""

    def __init__(self) -> None:
        self.cost = LengthCost()
        self.error = 0.0  # squared, as a share of the time

    def ran(self, size: int, length: float, duration: float, fade: float) -> None:
        """Learn from a batch of several items."""
        cost = self.cost
        expected = cost.fixed + cost.each_of(length) * size
        error = min(abs(expected / duration - 1), 1.0)  # a batch that compiles something counts as one
        self.error += fade * (error * error - self.error)
        cost.add(size, length, duration)

    def beats(self, other: _Explanation, share: float = _BETTER) -> bool:
        """Whether its error is less than this share of the error of the `other`."""
        return self.error + _SLIGHT < share * (other.error + _SLIGHT)


class AutoLengths(Lengths):
    """Lengths that are looked at in samples, and all the time only where that pays."""

    felt_s: float = 200e-6  # a batch that takes less has no padding that is worth a look

    def __init__(
        self, length_of: Callable[[Any, int], float | None], *, sizes: Sequence[int] | None = None
    ) -> None:
        """Take the function that returns the length of an item of a call, or None if it has none."""
        super().__init__(reorders=False, padded=False, sizes=sizes)
        self._length_of = length_of
        self._left = 0  # batches until the next look
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing known."""
        self._by_longest, self._by_sum = _Explanation(), _Explanation()
        # Each item adds as much, or the more the more there are.
        self._by_number = (_Explanation(), _Explanation())
        self.cost = self._by_longest.cost
        self._use(pays=False)
        self.is_open = False
        self._share = 0.0  # of the time: what padding takes
        self._padding = 0.0  # of a batch in order of arrival
        self._looks = 0  # at batches of several items: only these tell of padding
        self._tried = 0  # of these: in order of length, though that is not used
        self._singles = 0  # looks at batches of one
        self._news = 0  # batches of one that are looked at until one of several is, after one that was not

    @property
    def _all(self) -> tuple[_Explanation, ...]:
        """The explanations, by the length that each takes: the longest, the mean, none, and the number."""
        return self._by_longest, self._by_sum, *self._by_number

    @property
    def _number(self) -> _Explanation:
        """The better explanation by the number of items alone."""
        linear, square = self._by_number
        return linear if linear.error < square.error else square

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
        if duration < self.felt_s:
            self.looks = self.is_open = False
            self._try(may=False)
            return
        if not batch.padded:  # it was not looked at, or has items without a length
            is_news = not self.looks and batch.size > 1 and self._singles > 0 and self._looks < _FIRST
            self._left = _EVERY if self.looks else self._left - 1
            self._news = _EVERY if is_news else 0
            self.looks = self._left <= 0 or is_news
            self.is_open = False
            self._try(may=False)
            return
        if batch.size == 1:
            self._ran_alone(batch, duration)
            return
        self._news = 0
        self._looks += 1
        self._tried += self.chooses and not self.is_used
        share = self._explain(batch, duration)
        self._decide()
        ours = self._by_longest
        least = min(self._by_sum.error, self._number.error + _SLIGHT)
        is_likely = self._looks < 2 * _LEAST_LOOKS or ours.error <= least
        self.is_open = not self.is_used and self._share > _PAYS and is_likely and self._looks < _LAST
        most = _FIRST if ours.beats(self._number) else _TRIED
        self._try(may=self.is_open and self._looks >= _LEAST_LOOKS and self._tried < most)
        grows = share > _PAYS and ours.beats(self._by_sum)  # other callers have come
        self.looks = self.is_used or self._looks < _FIRST or self.is_open or grows
        self._left = _EVERY

    def _explain(self, batch: Ran, duration: float) -> float:
        """Learn what explains the time of a batch of several items; return the share that padding takes."""
        size = batch.size
        longest, mean = batch.padded / size, batch.real / size
        fade = max(_STEP, 1 / self._looks)
        of_error = max(_STEP, 1 / max(self._looks - _LEAST_LOOKS, 1))
        for explanation, length in zip(self._all, (longest, mean, 0.0, size), strict=True):
            explanation.ran(size, length, duration, of_error)
        padding = 1 - batch.real / batch.padded
        if self.is_used:
            padding = 1.0  # in order of length little is left, but it would come back
        elif self.chooses:
            padding = self._padding
        else:
            self._padding += fade * (padding - self._padding)
        share = min(batch.padded * padding * self.cost.per_length / duration, 1.0)
        self._share += fade * (share - self._share)
        return share

    def _decide(self) -> None:
        """Use lengths where they are known to cost time, and begin anew where they are not any more."""
        ours, number = self._by_longest, self._number
        if self.is_used:
            if self._share < _PAYS_NOT or not ours.beats(number):
                self._begin()
        elif self._looks > 2 * _FIRST and min(ours.error, self._by_sum.error, number.error) > _WRONG:
            self._begin()
        elif self._looks >= 2 * _LEAST_LOOKS and self._looks + self._singles >= _ENOUGH:
            # Of errors that lie as normal ones do, so many of this share have that likelihood.
            chance = exp(-_CHANCE * max(_STEP, 1 / (self._looks - _LEAST_LOOKS)))
            explains = ours.beats(number, chance) and ours.beats(self._by_sum, min(_BETTER, chance**0.5))
            self._use(pays=self._share > _PAYS and explains)

    def _ran_alone(self, batch: Ran, duration: float) -> None:
        """Learn what length costs from a batch of one item."""
        self._singles += 1
        for explanation, length in zip(self._all, (batch.real, batch.real, 0.0, 1), strict=True):
            explanation.cost.add(1, length, duration)
        self._news -= 1
        self.looks = self.is_used or self._singles < _FIRST or self._news > 0
        self._left = _EVERY

    def _use(self, *, pays: bool) -> None:
        self.reorders = self.is_used = self.chooses = pays

    def _try(self, *, may: bool) -> None:
        """Have the next batch put in order of length, where batches tell nothing unless they are."""
        if not self.is_used:
            self.reorders = self.chooses = may
