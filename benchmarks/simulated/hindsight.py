"""The most calls that any rule can answer on time, where all arrivals are known beforehand: a bound.

All calls are of one item and have the same time until their deadline, and a batch of n items takes
`seconds(n)`. Then some best schedule has these three properties, as calls can change places, and batches can
start earlier:

- Its batches take calls in order of arrival: where an older call runs in a later batch than a younger one,
  the two may change places, as the older one was there, and the younger one has the later deadline.
- A batch of n calls that starts at s has the n oldest calls that have come by s, are still to be served, and
  have their deadline at s + seconds(n) or later.
- A call that a batch has passed over is never served: it would have been late already.

So the server's future depends on two numbers only: when it is free, and which is the oldest call that is not
passed over. Dynamic programming finds the most calls on time from each such state, from the last moment
backwards.

Time is on a grid. Arrivals, deadlines and durations are rounded down to it, so each schedule of the exact
times, its starts rounded down, is one of the grid: what is found is never less than the exact optimum. A full
batch takes a whole number of steps, and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["most_on_time"]

Numbers: TypeAlias = "NDArray[np.integer[Any]]"
_STEPS = 100  # of a full batch
_EXACT = 1e-9  # a time that is a multiple of the step, but for the last bits, is that multiple


@dataclass(frozen=True)
class _Sizes:
    """Sizes of batches that take the same number of steps."""

    steps: int
    least: int
    most: int


def most_on_time(
    arrivals: Sequence[float],
    deadline_s: float,
    seconds: Callable[[int], float],
    batch_size: int,
    steps: int = _STEPS,
) -> int:
    """Return how many calls, at most, are answered within `deadline_s` of their sorted `arrivals`.

    Raises `ValueError` if a batch takes less than one of `steps`, into which a full batch is divided.
    """
    if not arrivals:
        return 0
    step = seconds(batch_size) / steps
    came = _rounded(np.asarray(arrivals), step)
    due = _rounded(np.asarray(arrivals) + deadline_s, step)
    lasting = [int(_rounded(np.asarray(seconds(size)), step)) for size in range(1, batch_size + 1)]
    if min(lasting) < 1:
        raise ValueError(f"a batch of 1 takes {seconds(1)} s, less than a step of {step} s")
    # Of sizes that take the same time, the largest that can be had is the best.
    sizes = [
        _Sizes(lasts, (some := [size for _, size in group])[0], some[-1])
        for lasts, group in groupby(zip(lasting, range(1, batch_size + 1), strict=True), lambda pair: pair[0])
    ]
    return _Table(came, due, sizes).most()


def _rounded(times: NDArray[np.floating[Any]], step: float) -> Numbers:
    found: Numbers = np.floor(times / step + _EXACT).astype(np.int64)
    return found


class _Table:
    """The most calls on time from each moment on, by the oldest call that is not passed over.

    It has the rows of as many moments as the longest batch takes, and one.
    """

    def __init__(self, came: Numbers, due: Numbers, sizes: list[_Sizes]) -> None:
        self._sizes = sizes
        self._first, self._last = int(came[0]), int(due[-1])
        moments = np.arange(self._last + sizes[-1].steps + 2)
        self._come: list[int] = np.searchsorted(came, moments, "right").tolist()  # by each moment
        self._alive: list[int] = np.searchsorted(due, moments, "left").tolist()  # the oldest not yet late
        self._rows: Numbers = np.zeros((sizes[-1].steps + 1, len(came) + 1), np.int32)

    def most(self) -> int:
        """Return the most from the first moment on."""
        for moment in range(self._last, self._first - 1, -1):
            self._fill(moment)
        return int(self._row(self._first)[0])

    def _row(self, moment: int) -> Numbers:
        return cast("Numbers", self._rows[moment % len(self._rows)])

    def _fill(self, moment: int) -> None:
        come = self._come[moment]
        oldest = min(self._alive[moment + self._sizes[0].steps], come)
        best = self._row(moment + 1)[oldest : come + 1].copy()  # the server waits
        for sizes in self._sizes:
            start = max(oldest, self._alive[moment + sizes.steps])
            if come - start >= sizes.least:
                self._serve(best, sizes, self._row(moment + sizes.steps), (oldest, start, come))
        row = self._row(moment)
        # A call may be passed over at any time.
        row[oldest : come + 1] = np.maximum.accumulate(best[::-1])[::-1]
        row[:oldest] = row[oldest]

    def _serve(self, best: Numbers, sizes: _Sizes, then: Numbers, between: tuple[int, int, int]) -> None:
        """Note in `best`, whose first call is `oldest`, where batches of the calls from `start` on lead."""
        oldest, start, come = between
        end = come - sizes.most + 1  # of the calls with which a batch of the most begins
        if end > start:
            part = best[start - oldest : end - oldest]
            np.maximum(part, then[start + sizes.most : come + 1] + sizes.most, out=part)
        if sizes.most > sizes.least:  # a batch of all that have come
            rest = np.arange(max(start, end), come - sizes.least + 1)
            part = best[max(start, end) - oldest : come - sizes.least + 1 - oldest]
            np.maximum(part, come - rest + then[come], out=part)
