"""How long batches take, with the spread that was seen: it tells whether a call can be answered in time.

Sizes fall into levels: 1, 2, 3 to 4, 5 to 8 ... items. Each level keeps the mean size and time of its
batches; these are the corners of a curve. What was not seen is taken to be fast: a batch that is larger
than all that ran takes as long as the largest, and a smaller one takes its share of the smallest. So no
call is given up for a guess, and the batch that runs tells.

All levels share one speed, which follows within ten batches when the function becomes slower or faster. One
batch that hangs counts as if it took four times as long.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import exp, log, sqrt

from batched._policy.batch_cost import TOO_SHORT_S

_FEW = 3  # batches: fewer tell nothing
_MEMORY = 16  # the mean of a level is that of about so many batches
_FOLLOW = 1 / 16  # the weight of one batch in the speed of all, ...
_DOUBLES = 3  # ... which doubles so often with each in a row that is slower, or faster, than expected
_CHANGED = 0.5  # the logarithm of a change: such a batch tells of the function, not of its size
_OUTLIER = 4.0  # times the expected: no batch counts for more
_SPREAD = 1 / 16  # the weight of one batch in the spread
_USUAL = 3.0  # standard deviations: a jump from one batch to the next may be so large
_SAFE = 2.3  # standard deviations: chosen so that less than one executed item in a hundred is late
_HAND_OUT_S = 300e-6  # from the end of a batch until its callers have their answers
_FORGET = 256  # batches: a level of which there was none since is forgotten, as it may only have seemed slow


class ServiceTime:
    """Learns from batches that ran; then tells how long one of `size` items takes."""

    def __init__(self) -> None:
        self._batches = 0
        self.speed: float = 1.0
        """Of late, relative to what the levels say."""
        self._least = self._most = 0  # sizes of batches that ran
        self._off = 0.0  # the logarithm of what the last batch took, relative to what was expected
        self._alike = 0  # batches in a row that were all slower, or all faster, than the spread explains
        self.caution: float = 0.0
        """How much the spread counts, from 0 to 1: all under overload, where lost time is lost calls."""
        self._variance = 0.0  # of what batches took, relative to what was expected
        self._levels: dict[int, _Level] = {}
        # Their sizes and times at this speed, by size, none faster than a smaller one; it is read elsewhere.
        self._curve: tuple[list[float], list[float]] = [], []

    @property
    def is_known(self) -> bool:
        """Whether there were enough batches to tell anything."""
        return self._batches >= _FEW

    def ran(self, size: int, seconds: float) -> None:
        """Learn from a batch of `size` items."""
        self._batches += 1
        if self._batches == 1:  # it may load or compile something
            return
        seconds = max(seconds, TOO_SHORT_S)
        number = (size - 1).bit_length()
        level = self._levels.get(number)
        if level is None:
            self._levels[number] = _Level(size, seconds / self.speed)
        else:
            expected = self.seconds(size)
            seconds = min(seconds, _OUTLIER * expected)
            off = log(seconds / expected)
            # From one batch to the next, and no more of it at once than was usual: a change is no spread.
            jump = min(abs(off - self._off), max(_CHANGED, _USUAL * sqrt(self._variance)))
            self._variance += _SPREAD * (jump * jump / 2 - self._variance)
            self._alike = self._alike + 1 if off * self._off > 0.0 and off * off > self._variance else 0
            self._off = off
            self.speed *= exp(_FOLLOW * 2 ** min(self._alike, _DOUBLES) * off)
            if abs(off) < _CHANGED:
                level.add(size, seconds / self.speed)
        self._levels[number].seen_at = self._batches
        if not self._batches % _FORGET:
            since = self._batches - _FORGET
            self._levels = {at: each for at, each in self._levels.items() if each.seen_at > since}
            for each in self._levels.values():  # else noise takes the speed to 0 or to infinity in the end
                each.seconds *= self.speed
            self.speed = 1.0
        levels = [self._levels[each] for each in sorted(self._levels)]
        self._most = max(each.most for each in levels)
        self._least = min(each.least for each in levels)
        self._curve = (
            [each.size for each in levels],
            list(accumulate((each.seconds * self.speed for each in levels), max)),
        )

    def seconds(self, size: int) -> float:
        """Return how long a batch of `size` items takes, on average; not before it `is_known`."""
        sizes, seconds = self._curve
        seen = min(max(size, self._least), self._most)
        value = seconds[0]
        if len(sizes) > 1:
            at = min(max(bisect_left(sizes, seen), 1), len(sizes) - 1)
            each = (seconds[at] - seconds[at - 1]) / (sizes[at] - sizes[at - 1])
            value = max(seconds[at - 1] + each * (seen - sizes[at - 1]), TOO_SHORT_S)
        return value * min(size / seen, 1.0)

    def safe_seconds(self, size: int) -> float:
        """Return what few batches exceed, as far as `caution` asks for it, handing the batch out included."""
        return self.seconds(size) * (1.0 + self.caution * _SAFE * sqrt(self._variance)) + _HAND_OUT_S


class _Level:
    """Batches of about one size."""

    __slots__ = ("_batches", "least", "most", "seconds", "seen_at", "size")

    def __init__(self, size: int, seconds: float) -> None:
        self._batches = 1
        self.size = float(size)  # the mean
        self.least = self.most = size
        self.seconds = seconds  # the mean
        self.seen_at = 0

    def add(self, size: int, seconds: float) -> None:
        """Learn from one more batch."""
        self.least, self.most = min(self.least, size), max(self.most, size)
        self._batches += 1
        if self._batches == 2 and seconds < self.seconds / 2:  # noqa: PLR2004  the first may compile something
            self.size, self.seconds = float(size), seconds
        weight = max(1.0 / self._batches, 1.0 / _MEMORY)
        self.size += weight * (size - self.size)
        self.seconds += weight * (seconds - self.seconds)
