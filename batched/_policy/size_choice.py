"""How many items to take where a batch has one of a few sizes: fewer, or all of them and some copies.

Of 5 items and the sizes 4 and 8, either 4 run and then 1, or all 5 run at once with 3 copies. What counts is
the time until all that wait have run: that of one batch of 8, or those of a batch of 4 and of the next one.
The time of each size is the mean of its batches, as far as there were enough of them. Until then batches are
filled up: that is one run, and all callers have their answers at its end. Now and then such a batch is taken
as if the other choice were better, so that the times of smaller sizes become known, and stay true.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf

from batched._policy.size_times import Seen

_TRIAL = 16  # batches that are filled up, from one trial to the next, while times are not known
_RETRIAL = 512  # the same, once they are
_SURE = 0.97  # of the time: two runs that save less are not worth their hand-out


class SizeChoice:
    """The sizes that a batch may have, in ascending order, and what each takes; none if it may have any."""

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self.begin(sizes)

    def begin(self, sizes: tuple[int, ...]) -> None:
        """Begin with these sizes, and nothing learned."""
        self.sizes: tuple[int, ...] = sizes
        self._times = {size: Seen() for size in sizes}
        self._filled_up = 0  # batches, since the last trial

    @property
    def smallest(self) -> int:
        """The fewest items that the function is given."""
        return self.sizes[0] if self.sizes else 1

    def size_of(self, items: int) -> int:
        """Return the size in which so many items run: how many the function is given."""
        sizes = self.sizes
        return sizes[min(bisect_left(sizes, items), len(sizes) - 1)] if sizes else items

    def at_most(self, items: int) -> int:
        """Return the largest size that so many items fill; 0 if they fill none."""
        if not self.sizes:
            return items
        at = bisect_right(self.sizes, items)
        return self.sizes[at - 1] if at else 0

    def ran(self, size: int, seconds: float) -> None:
        """Learn from a batch of one of the sizes."""
        if seconds > 0.0 and size in self._times:
            self._times[size].add(size, seconds)

    def seconds(self, size: int) -> float | None:
        """Return what a batch of this size takes, None if that is not known."""
        seen = self._times[size]
        return seen.seconds if seen.is_known else None

    def choose(self, items: int) -> int:
        """Return how many of so many items to take: all, or as many as fill a size."""
        size, filled = self.size_of(items), self.at_most(items)
        if filled in {0, items}:
            return items
        at_once = self.seconds(size)
        in_turn = self._in_turn(items)
        if at_once is not None and in_turn is not None:
            if in_turn < _SURE * at_once:
                return filled
            return filled if self._tries(_RETRIAL) else items
        return filled if self._tries(_TRIAL) else items

    def _in_turn(self, items: int) -> float | None:
        """Return what a batch that is filled and those of the rest take, None if that is not known."""
        total, best = 0.0, inf
        first = True
        while items:
            filled = self.at_most(items)
            if not first or not filled:
                up = self.seconds(self.size_of(items))
                if up is not None:
                    best = min(best, total + up)
            if not filled:
                break
            takes = self.seconds(filled)
            if takes is None:
                break
            times = 1 if first else items // filled
            first = False
            total += times * takes
            items -= times * filled
        else:
            best = min(best, total)
        return None if best == inf else best

    def _tries(self, gap: int) -> bool:
        self._filled_up += 1
        if self._filled_up < gap:
            return False
        self._filled_up = 0
        return True
