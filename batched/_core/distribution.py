"""Distributions of sizes and of seconds: counted in buckets, so that memory is bounded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import inf

__all__ = ["Distribution", "Sizes", "Times"]

_SECONDS: tuple[float, ...] = tuple(1e-6 * 2.0 ** (index / 8) for index in range(8 * 60))  # nothing is longer
_SIZE_BITS = 12


@dataclass(frozen=True, slots=True)
class Distribution:
    """The counts of values in buckets; only buckets that hold a value are kept."""

    bounds: tuple[float, ...]
    """The upper bound of each bucket, in ascending order."""
    cumulative: tuple[int, ...]
    """How many values are at most the bound."""
    growth: float
    """A bucket begins at its bound divided by this: 1 where a bucket holds equal values only."""
    sum: float
    """The sum of all values, exactly."""
    min: float
    """The least value, exactly; 0 if there are none."""
    max: float
    """The greatest value, exactly; 0 if there are none."""

    @property
    def count(self) -> int:
        """How many values there are."""
        return self.cumulative[-1] if self.cumulative else 0

    @property
    def mean(self) -> float:
        """The mean of all values, exactly; 0 if there are none."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the value that `percent` % of all values are at most; 0 if there are none.

        It is as precise as the bucket that it falls into, and never outside of `min` and `max`.
        """
        if not 0 <= percent <= 100:  # noqa: PLR2004
            raise ValueError(f"percent must be from 0 to 100, got {percent!r}")
        if not self.count:
            return 0.0
        rank = self.count * percent / 100
        at = bisect_left(self.cumulative, rank)
        below = self.cumulative[at - 1] if at else 0
        share = (rank - below) / (self.cumulative[at] - below)
        lower = self.bounds[at] / self.growth
        return min(max(lower + (self.bounds[at] - lower) * share, self.min), self.max)

    def at_most(self, bound: float) -> int:
        """Return how many values are at most `bound`, without the values of a bucket that it divides."""
        buckets = bisect_right(self.bounds, bound)
        return self.cumulative[buckets - 1] if buckets else 0


class _Histogram:
    """Counts values in buckets, by the upper bound of each."""

    growth = 1.0
    """That of a `Distribution`."""

    def __init__(self) -> None:
        self._counts: defaultdict[float, int] = defaultdict(int)
        self._sum = 0.0
        self._min = inf
        self._max = 0.0

    def _saw(self, least: float, greatest: float, total: float) -> None:
        self._min = min(self._min, least)
        self._max = max(self._max, greatest)
        self._sum += total

    def snapshot(self) -> Distribution:
        """Return the counts so far."""
        bounds = sorted(self._counts)
        cumulative = tuple(accumulate(self._counts[bound] for bound in bounds))
        least = self._min if bounds else 0.0
        return Distribution(tuple(bounds), cumulative, self.growth, self._sum, least, self._max)


class Sizes(_Histogram):
    """Counts sizes one by one up to 4,096, and above, so that memory is bounded, to 0.05 %."""

    def add(self, size: int, times: int = 1) -> None:
        """Count `size` so many times."""
        self._saw(size, size, size * times)
        below = size - 1
        dropped = max(below.bit_length() - _SIZE_BITS, 0)
        self._counts[((below >> dropped) + 1) << dropped] += times


class Times(_Histogram):
    """Counts seconds in eight buckets for each doubling; the first is up to a microsecond."""

    growth = 2 ** (1 / 8)

    def add(self, values: list[float], times: int = 1) -> None:
        """Count each of `values` so many times: sorted, as there are fewer buckets than values."""
        if not values:
            return
        total = sum(values) * times
        values.sort()
        self._saw(values[0], values[-1], total)
        first, last = bisect_left(_SECONDS, values[0]), bisect_left(_SECONDS, values[-1])
        at = 0
        for bound in _SECONDS[first : last + 1]:
            after = bisect_right(values, bound, at)
            if after > at:
                self._counts[bound] += (after - at) * times
                at = after
