"""The histograms that runs and waits are counted in, behind the figures of `stats`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate
from math import inf

from batched._core.stats import Distribution

_SECONDS: tuple[float, ...] = tuple(1e-6 * 2.0 ** (index / 8) for index in range(8 * 60))  # 60 doublings
_SIZE_BITS = 12


class _Histogram:
    """Counts values in buckets, by the upper bound of each."""

    growth = 1.0
    """The `growth` of its `Distribution`."""

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
