"""How long batches take, with the spread that was seen: it tells whether a call can be answered in time.

Sizes fall into levels: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12 ... items. Each level keeps the mean size of its
batches and the geometric mean of their times; these are the corners of a curve. What was not seen is taken to
be fast: a batch that is larger than all that ran takes as long as the largest, and a smaller one takes its
share of the smallest. So no call is given up for a guess, and the batch that runs tells.

Some batches may take many times as long as others, at random, as with any remote service. Their geometric
mean is a steady figure for any mixture of these; the arithmetic mean is larger by a factor that is learned
over hundreds of batches, of all sizes and of each level. So one batch that hangs, the longest, does not
count in it until another does. Batches that are no lessons, as they were like the last one, count in it too:
those that take long are lessons more often.

All levels follow, at once, when the last batches took longer, or shorter, than nearly all before them: that
is no mixture, the function has changed. Otherwise each batch moves its own level, and all levels by a
little. Both by the same figure, a logarithm: what lifts one size again and again is taken back by others,
so that no noise adds up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from math import exp, log, sqrt

from batched._policy.batch_cost import TOO_SHORT_S

_LEAST_BATCHES = 3  # batches: fewer tell nothing
_OWN = 1 / 64  # the weight of one batch in its level, at least, ...
_ALL = 1 / 128  # ... and in all levels
_FIRST = 0.5  # the variance of a guess at a level of which no batch ran yet, as a logarithm
_NOISE = 0.01  # the least variance of batches
_SPREAD = 1 / 16  # the weight of one batch in the spread
_JUMP = 0.5  # from one batch to the next, the least that counts as usual, as a logarithm
_USUAL = 3.0  # standard deviations: a jump from one batch to the next may be so large
_SAFE = 2.3  # standard deviations: chosen so that less than one executed item in a hundred is late
_HAND_OUT_S = 300e-6  # from the end of a batch until its callers have their answers
_FORGET = 256  # batches: a level of which there was none since is forgotten, as it may only have seemed slow
_RECENT = 64  # batches, beside which the last ones are seen
_SOON, _LATER = 3, 8  # batches in a row, beyond all of these or beyond three quarters, are a change
_BEYOND = log(1.25)  # by so much
_LONGEST = log(128.0)  # times what is usual: no batch counts for more
_MEMORY = 512  # the mean is that of about so many batches
_OTHERS = 8.0  # batches: the weight of all sizes in the mean of one level; more, the more batches differ


class ServiceTime:
    """Learns from batches that ran; then tells how long one of `size` items takes."""

    def __init__(self) -> None:
        self._batches = 0
        self.is_known: bool = False
        """Whether there were enough batches to tell anything."""
        self.speed: float = 1.0
        """Of late, relative to what the levels say."""
        self._least = self._most = 0  # sizes of batches that ran
        self._off = 0.0  # the logarithm of what the last batch took, relative to what was expected
        self._recent: deque[float] = deque(maxlen=_RECENT)  # that of each of the last batches
        self.caution: float = 0.0
        """How much the spread counts, from 0 to 1: all under overload, where lost time is lost calls."""
        self._variance = 0.0  # of what batches took, relative to what was expected
        self._noise = _NOISE  # the same, of mixtures too: how little one batch tells of its level
        self._levels: dict[int, _Level] = {}
        # The last ones, which may yet show a change, and by how much they moved their levels.
        self._unsure: deque[tuple[_Level, float, float]] = deque()
        self._usual_at = 0  # the last batch that was about as expected
        self._mean = _Mean()  # of what batches took, relative to what is usual
        # Batches like the last lesson, which were none: their size, number and time.
        self._passed_size = self._passed = 0
        self._passed_s = 0.0
        self._usual: _Curve = [], []  # the corners, by size
        self._before: _Curve = [], []  # those that were there before what may be a change
        # What batches take in the mean, by size, none faster than a smaller one; it is read elsewhere.
        self._curve: _Curve = [], []

    def passed(self, size: int, seconds: float) -> None:
        """Note a batch of `size` items that is no lesson, as it was like the last one."""
        if size == self._passed_size:
            self._passed += 1
            self._passed_s += seconds

    def ran(self, size: int, seconds: float) -> None:
        """Learn from a batch of `size` items."""
        if self._passed:
            self._learn_passed()
        self._passed_size = size
        self._batches += 1
        if self._batches == 1:  # it may load or compile something
            return
        seconds = max(seconds, TOO_SHORT_S)
        number = _level_of(size)
        level = self._levels.get(number)
        if self._levels:
            self._look_for_change(size, seconds)
        else:
            self._usual_at = self._batches
        if level is None:
            self._levels[number] = level = self._new_level(size, seconds)
        else:
            self._learn(level, size, log(seconds / _at(self._usual, size)))
        level.seen_at = self._batches
        self.is_known = self._batches >= _LEAST_BATCHES
        level.ratio = level.mean.value(self._mean.value(1.0, 0.0), _OTHERS * (1.0 + self._mean.spread()))
        if not self._batches % _FORGET:
            since = self._batches - _FORGET
            self._levels = {at: each for at, each in self._levels.items() if each.seen_at > since}
            for each in self._levels.values():
                each.seconds *= self.speed
            self.speed = 1.0
        self._draw()

    def _learn_passed(self) -> None:
        """Have the batches that were no lessons count in the mean."""
        number, self._passed = self._passed, 0
        seconds, self._passed_s = max(self._passed_s / number, TOO_SHORT_S), 0.0
        level = self._levels.get(_level_of(self._passed_size))
        if level is not None:
            off = log(seconds / _at(self._usual, self._passed_size))
            self._mean.add(off, number)
            level.mean.add(off, number)

    def _new_level(self, size: int, seconds: float) -> _Level:
        """Return the level of a first batch: the more batches differ, the less is one believed."""
        number = _level_of(size)
        guess, tells = seconds, 0
        if self._levels:
            guess = _at(self._usual, size)
            tells = self._levels[min(self._levels, key=lambda each: abs(each - number))].known
        level = _Level(size, guess / self.speed, tells, self._batches)
        level.add(size, log(seconds / guess), self._noise)
        return level

    def _look_for_change(self, size: int, seconds: float) -> None:
        """Look whether the last batches show the function to have changed; if so, follow.

        They are compared with what was usual before: a level that began amid a change tells nothing of it.
        Beyond the sizes of then, any cost from none to its share of an item more is as before.
        """
        sizes, usual = self._before
        least = most = _at(self._before, size)
        if not sizes[0] <= size <= sizes[-1]:
            end = 0 if size < sizes[0] else -1
            least, most = sorted((usual[end], usual[end] * size / sizes[end]))
        off = log(seconds / min(max(seconds, least), most))
        self._recent.append(off)
        change = self._change()
        if change:
            self._follow(change)
        if change or abs(off) <= _BEYOND or self._batches - self._usual_at > _RECENT:
            self._usual_at = self._batches
        if change:
            self._draw()

    def _learn(self, level: _Level, size: int, off: float) -> None:
        """Learn from a batch that took `off`, as a logarithm, longer than is usual for its size."""
        # From one batch to the next, and no more of it at once than was usual: a change is no spread.
        jump = min(abs(off - self._off), max(_JUMP, _USUAL * sqrt(self._variance)))
        self._variance += _SPREAD * (jump * jump / 2 - self._variance)
        self._off = off
        if len(self._unsure) == _SOON - 1:
            earlier, before, _ = self._unsure.popleft()
            self._mean.add(before)
            earlier.mean.add(before)
        self.speed *= exp(_ALL * off)
        usual = _at(self._usual, level.size)
        self._noise += max(1.0 / self._batches, _ALL) * (max(off * off, _NOISE) - self._noise)
        moved = level.add(size, off, self._noise)
        self._unsure.append((level, off, moved))
        level.seconds *= _at(self._usual, level.size) / usual  # the mean size has moved along the curve

    def _change(self) -> float:
        """Return by what the last batches show the function to have changed, as a logarithm; 0 if not at all.

        They took longer than all before them did; or, a few more, longer than three quarters of those. Or
        shorter.
        """
        recent = self._recent
        before = len(recent) - _SOON
        if before < _SOON:
            return 0.0
        last = [recent[-1 - back] for back in range(_SOON)]
        way = 1.0 if last[0] > 0.0 else -1.0
        least = min(way * off for off in last)
        if least <= _BEYOND:  # of what is usual: nearly always
            return 0.0
        if least > max(way * off for off in islice(recent, before)) + _BEYOND:
            return sum(last) / _SOON
        before = len(recent) - _LATER
        last = list(islice(recent, max(before, 0), None))
        if before < _LATER or min(way * off for off in last) <= _BEYOND:
            return 0.0
        others = sorted(way * off for off in islice(recent, before))
        if min(way * off for off in last) > others[-before // 4] + _BEYOND:
            return sum(last) / _LATER
        return 0.0

    def _follow(self, change: float) -> None:
        """Take all levels to be slower by so much, and the last batches not to have been."""
        self.speed *= exp(change)
        for level, off, moved in self._unsure:  # their steps were on the way to it
            level.move(-moved)
            self.speed *= exp(-_ALL * off)
        self._unsure = deque((level, off - change, 0.0) for level, off, _ in self._unsure)
        for level in self._levels.values():
            if level.began > self._usual_at:  # all that is known of it is how long it takes now
                level.seconds *= exp(-change)
        for back in range(1, _LATER + 1):
            if back > len(self._recent) or self._recent[-back] * change <= 0.0:
                break
            self._recent[-back] -= change
        for level in self._levels.values():
            level.known = min(level.known, _SOON)
            level.mean = _Mean()

    def _draw(self) -> None:
        """Draw the curves anew."""
        levels = [self._levels[each] for each in sorted(self._levels)]
        self._most = max(each.most for each in levels)
        self._least = min(each.least for each in levels)
        sizes = [each.size for each in levels]
        usual = [each.seconds * self.speed for each in levels]
        self._usual = self._before = sizes, usual
        if any(each.began > self._usual_at for each in levels):
            old = [at for at, each in enumerate(levels) if each.began <= self._usual_at]
            if old:
                self._before = [sizes[at] for at in old], [usual[at] for at in old]
        means = [each.ratio * at for each, at in zip(levels, usual, strict=True)]
        self._curve = sizes, _rising(means, [each.weight for each in levels])

    def seconds(self, size: int) -> float:
        """Return how long a batch of `size` items takes, on average; not before it `is_known`."""
        seen = min(max(size, self._least), self._most)
        return _at(self._curve, seen) * min(size / seen, 1.0)

    def safe_seconds(self, size: int) -> float:
        """Return what few batches exceed, as far as `caution` asks for it, handing the batch out included."""
        seen = min(max(size, self._least), self._most)
        seconds = _at(self._curve, seen) * min(size / seen, 1.0)
        return seconds * (1.0 + self.caution * _SAFE * sqrt(self._variance)) + _HAND_OUT_S


def _level_of(size: int) -> int:
    """Return the number of the level of `size`: two for each doubling."""
    below = size - 1
    bits = below.bit_length()
    return 2 * bits + (below >> (bits - 2) & 1) if bits > 1 else bits


_Curve = tuple[list[float], list[float]]  # sizes and seconds


def _at(curve: _Curve, size: float) -> float:
    """Return what a curve says of `size`: beyond its ends it is neither falling nor steeper than a share."""
    sizes, seconds = curve
    if len(sizes) == 1:
        return seconds[0]
    at = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    share = (size - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
    value = seconds[at - 1] * (1.0 - share) + seconds[at] * share  # no difference, which may round to nothing
    if size > sizes[-1]:
        return min(max(value, seconds[-1]), seconds[-1] * size / sizes[-1])
    if size < sizes[0]:
        return max(min(value, seconds[0]), seconds[0] * size / sizes[0])
    return value


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """Return the values, none less than the one before: those that fall have their mean, by their weights.

    The greatest so far would not do: of a size that ran but once, it may be far from the truth.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = value, weight, 1
        while pools and pools[-1][0] > pool[0]:
            before, its, number = pools.pop()
            both = its + pool[1]
            pool = (before * its + pool[0] * pool[1]) / both, both, number + pool[2]
        pools.append(pool)
    return [value for value, _, number in pools for _ in range(number)]


class _Mean:
    """The mean of what batches took, relative to what is usual: without the longest, which may have hung."""

    def __init__(self) -> None:
        self._sum = self._squares = self._batches = 0.0  # all fade
        self._longest = self._of_longest = 0.0  # of which this is the longest

    def add(self, off: float, number: int = 1) -> None:
        """Add so many batches that took so much longer, as a logarithm."""
        ratio = exp(min(off, _LONGEST))
        fade = (1.0 - 1.0 / _MEMORY) ** number
        self._sum = self._sum * fade + ratio * number
        self._squares = self._squares * fade + ratio * ratio * number
        self._batches = self._batches * fade + number
        self._longest *= fade
        self._of_longest *= fade
        if ratio > self._longest:
            self._longest, self._of_longest = ratio, 1.0

    def spread(self) -> float:
        """Return the variance of one batch, relative to the square of the mean."""
        return self._squares * self._batches / self._sum**2 - 1.0 if self._sum else 0.0

    def scale(self, factor: float) -> None:
        """Have it be relative to another time."""
        self._sum *= factor
        self._longest *= factor
        self._squares *= factor * factor

    def value(self, prior: float, weight: float) -> float:
        """Return the mean, in which a `prior` one counts for so many batches."""
        batches = self._batches - self._of_longest + weight
        if batches < 1.0:
            return prior
        return max(self._sum - self._longest + weight * prior, 0.0) / batches


class _Level:
    """Batches of about one size."""

    def __init__(self, size: int, seconds: float, tells: int, began: int) -> None:
        self._batches = 0
        self.began = began
        self.size = float(size)  # the mean
        self.least = self.most = size
        self.seconds = seconds  # what is usual, before the speed
        self.tells = tells  # batches, of the guess that it begins with
        self.known = 0
        """Of how many batches `seconds` is the mean, but for a guess."""
        self.mean = _Mean()
        self.ratio = 1.0  # of the mean to what is usual
        self.seen_at = 0

    @property
    def weight(self) -> float:
        """How much it tells, beside other levels."""
        return min(float(self._batches), 1.0 / _OWN)

    def add(self, size: int, off: float, variance: float) -> float:
        """Learn from one more batch, `off` from what is usual, as those are by their `variance`.

        Returns by how much that moves what is usual, as a logarithm.
        """
        self.least, self.most = min(self.least, size), max(self.most, size)
        self._batches += 1
        if self._batches == 2 and off < -max(log(2.0), _USUAL * sqrt(variance)):  # noqa: PLR2004
            self.known = 0  # the first may have compiled something
        self.known += 1
        guess = 1.0 / (_FIRST / variance + 1.0 / self.tells) if self.tells else 0.0
        weight = max(1.0 / (self.known + guess), _OWN)
        self.size += max(1.0 / self._batches, _OWN) * (size - self.size)
        self.move(weight * off)
        return weight * off

    def move(self, by: float) -> None:
        """Take what is usual to be longer by so much, as a logarithm.

        What was usual at first was a guess, so the mean of those batches stays what it was.
        """
        self.seconds *= exp(by)
        if self.known * _OWN < 1.0:
            self.mean.scale(exp(-by))
