"""The size at which full batches are fastest, found by batches that ran and by rare trials.

Where full batches take longer than the same items in smaller ones, smaller ones are better: padding that no
option tells of, caches that overflow, a device that works in tiles. What counts is the time of an item in
batches of a size, the cost of handing the batch out included.

*Learned for free.* Sizes fall into levels: up to 1, 2, 4, 8 ... items. Each level has two means: of batches
as they come, and of those with as many items as the level allows, which is what a limit of this size would
give. Both fade, and have a standard error. The first batch of a level may compile something and does not
count.

*Tried.* Where a backlog fills batches, only one size is seen. So now and then a batch has fewer items, down
to the next power of two, or more, up to the next. In such a flood it goes further down as soon as a smaller
size may be better: the trial is of the size that may be best, by its mean and by what that may be off. At
first trials take turns with other batches, so that both are judged in the same minute; once it is sure which
size is better, the gap to the next trial doubles each time. A trial costs the time that it took beyond that
of its items in other batches. Trials have 2 % of the worker's time, and none starts that is expected to cost
more than is left of it, or to take a good part of the time that a call with a deadline has left.

*Decided.* A smaller size is chosen if its items take less than those of all larger batches do, and a larger
one if it is surely better. Two halves of a batch, one after the other, answer their items a quarter of a
batch earlier on average, if they take no longer together; if they take a little longer, all later calls wait
for that until the worker has time to spare. So of two sizes the larger one has to save about `idle / busy /
8` of the time of an item, with the shares of the worker's time: nothing where calls always wait, as in a
closed loop, and 8 % where it is busy for 60 % of its time.

*Kept.* A decision needs more than the noise explains, so a good size is rarely left by chance, and the trials
that follow correct a mistake. If batches become slower or faster than those of their level were, all is
forgotten but the size: it is compared anew. Short batches are not compared: handing them out takes as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, sqrt

from batched._policy.batch_cost import OVERHEAD_S
from batched._policy.size_times import LEAST_BATCHES, OUTLIER, Seen

SHORT_S = 500e-6  # a full batch that takes no longer costs little more than handing it out

# Chosen by simulation (`benchmarks/simulated/harm.py`), where the results are flat around most of them.
_BUDGET = 0.02  # of the worker's time, for trials
_OF_DEADLINE = 1 / 16  # of the time until the next deadline: a trial is never expected to take more
_SAVED = 64  # batches: what is left of the budget never pays for more
_SHORTER = 1 / 8  # of the share of idle time: what twice the size has to save
_DOUBLING = 0.1  # of the time of an item: twice the size never has to save more
_LOAD = 256  # batches, of which is known how long the worker was idle between them
_PAUSE = 4  # batches: a longer pause counts for no more
# In standard errors:
_SMALLER = 1.2  # ... of a reason to choose a smaller size
_LARGER = 1.5  # ... to choose a larger one, while there is time to spare
_CROWDED = 0.45  # ... and without it, as capacity counts then
_SPARE = 4.0  # times the idle time, as long as the busy time: enough time to spare
_SURE = 3.0  # ... to try ever more rarely
_PRECISE = 0.01  # of what an item takes: with a lower standard error, more trials tell nothing
_FAR = 1 / 4  # of the time of an item: sizes about half as large that are worse by that need no trial
_FIRST = 32  # batches before the first trial
_GAP = 2  # batches from one trial to the next, at first
_MOVED = 16  # ... at most, once the size has changed
_RAREST = 1024
# The gap to the next trial grows by that:
_UNDECIDED = 1.005  # ... while it is not sure which size is better
_RARER = 2.0  # ... once it is
_MUCH_RARER = 8.0  # ... once it is sure that one is better by far
_EACH = 8  # batches from one decision to the next, if there was no trial
_COMPILED = 2.0  # times what was expected
_WEIGHT = 1 / 16  # of one batch in the drift
_CHANGED = 0.2  # of the time of a batch: a function that has changed by less has not changed
_CHANGED_SURE = 6.0  # standard errors
_SETTLED = 32  # batches of a level: then a change shows


class BestSize:
    """The most items of a batch, up to `most`: told of batches that ran, and asked for trials."""

    def __init__(self, most: int, fixed: Sequence[int] | None = None) -> None:
        self.most = most
        self.fixed = fixed
        """The only sizes that a batch may have; then these are the levels."""
        self._top = (most - 1).bit_length() if fixed is None else len(fixed) - 1
        self._use(self._top)
        self.is_due: bool = False
        """Whether `try_size` is to be asked."""
        self.is_at_rest: bool = False
        """Whether batches are too short to be compared."""
        self._batches = 0
        self._sizes: set[int] = set()  # that batches have had
        self._ended = 0.0
        self._usual_s = 2 * SHORT_S  # that a batch takes, where it is short
        self._busy_s = self._idle_s = 0.0  # per batch
        self._credit = 0.0  # seconds that trials may take
        self._trial: tuple[int, int, float] | None = None  # level, size, what an item is expected to take
        self._noise = 0.1  # the mean square of what batches took more or less than expected, relative to that
        self._forget()

    def _forget(self) -> None:
        """Go on with the size in use, and nothing learned."""
        levels = range(self._top + 1)
        self._larger = [Seen() for _ in levels]
        self._full = [Seen() for _ in levels]
        self._gap = [float(_GAP)] * (self._top + 1)
        self._next = [float(max(self._batches, _FIRST))] * (self._top + 1)
        self._drift = 1.0  # what the last batches took, relative to what was expected

    def _use(self, level: int) -> None:
        self._at = level  # that of the size in use
        self.size: int = self._size_of(level)
        """The most items of a batch."""

    def _size_of(self, level: int) -> int:
        return min(1 << level, self.most) if self.fixed is None else self.fixed[level]

    def _level_of(self, size: int) -> int:
        return (size - 1).bit_length() if self.fixed is None else bisect_left(self.fixed, size)

    # -- trials -----------------------------------------------------------------------------------------

    def try_size(self, items: int, fits: int, spare_s: float = inf) -> int | None:
        """Return the size of a trial, None if there is none.

        So many `items` wait, so many fit into a batch, and the next deadline is in `spare_s` seconds.
        """
        size = min(items, self.size, fits)
        usual = self._larger[self._level_of(size)]
        level = self._level_above_trial(size)
        if level and self._batches >= self._next[level]:
            less = self._size_of(level - 1)
            if self._is_known_worse(level):
                self._postpone(level, _RARER)
            elif self._may_try(level, less, usual, self._full[level - 1], spare_s):
                return less
            else:
                return None  # a trial of a larger size would spend what is saved for this one
        up = self._at + 1
        if items > size and up <= self._top and self._batches >= self._next[up]:
            more = min(items if self.fixed is None else self.most, self._size_of(up), fits)
            if more > size and self._may_try(up, more, self._full[up - 1], self._larger[up], spare_s):
                return more
        return None

    def _level_above_trial(self, size: int) -> int:
        """Return the level above the smaller size that is next to be tried, where batches have `size` items.

        In a flood, where they have as many as they may, that size is the one that may be best.
        """
        if size != self.size:
            return self._level_of(size)
        level, usual, least, may_be = self._at, self._larger[self._at], inf, 0.0
        for above in range(level, 0, -1):
            half = self._full[above - 1]
            if half.batches >= 1:  # else it may be as good as the next larger one
                may_be = half.each - _SMALLER * half.error(self._noise)
            if self._batches >= self._next[above] and may_be < least:
                level, least = above, may_be
            if min(half.batches, usual.batches) < 1 or may_be >= usual.each:
                break
        return level

    def _is_known_worse(self, level: int) -> bool:
        """Whether batches below `level` were so much worse as they came that no trial is needed."""
        small, large = self._larger[level - 1], self._larger[level]
        if self._full[level - 1].is_known or small.batches < 2 * LEAST_BATCHES or not large.is_known:
            return False
        apart = small.each - large.each
        return apart > _SURE * self._error(small, large) and apart > _FAR * large.each

    def _may_try(self, level: int, size: int, usual: Seen, tried: Seen, spare_s: float) -> bool:
        """Begin with a trial unless it is expected to take too long."""
        if usual.batches < 1:
            return False
        if tried.batches >= 1:
            longer = size * (tried.each - usual.each)
        else:  # a smaller batch takes no less, and a larger one at most as the square of its size
            ratio = size / usual.size
            longer = usual.seconds * (1.0 - ratio if ratio < 1.0 else ratio * ratio - ratio)
        if longer > self._credit or longer + usual.seconds > _OF_DEADLINE * spare_s:
            return False
        self._trial = level, size, usual.each
        return True

    # -- what is learned --------------------------------------------------------------------------------

    def ran(self, size: int, started: float, now: float) -> None:
        """Learn from a batch of `size` items that has ended `now`."""
        seconds = now - started + OVERHEAD_S
        idle = started - self._ended - OVERHEAD_S
        self._ended = now
        self._usual_s += (min(seconds, 2 * SHORT_S) - self._usual_s) / _SETTLED
        self.is_at_rest = self._usual_s < SHORT_S and self._at == self._top
        if self.is_at_rest:
            self.is_due = False
            return
        # A long pause counts as a few batches: a night without calls says little about the morning.
        self._idle_s += (min(max(idle, 0.0), _PAUSE * seconds) - self._idle_s) / _LOAD
        self._busy_s += (seconds - self._busy_s) / _LOAD
        self._batches += 1
        self._credit = min(self._credit + _BUDGET * seconds, _SAVED * seconds)
        level = self._level_of(size)
        if level > self._top:  # `batch_size` has changed since it was taken
            return
        trial, self._trial = self._trial, None
        if trial is not None and trial[1] != size:  # it has failed, or its callers have left
            trial = None
        is_new = size not in self._sizes
        self._sizes.add(size)
        seen = self._larger[level]
        # The first batch of a size that takes that long has compiled something for it.
        if not (is_new and seen.batches > 0 and seconds > _COMPILED * seen.each * size):
            self._note_drift(seen, size, seconds)
            seen.add(size, seconds)
            if size == self._size_of(level):
                self._full[level].add(size, seconds)
        if trial is not None:
            self._credit -= seconds - size * trial[2]
            self._plan(trial[0])
        if trial is not None or not self._batches % _EACH:
            self._decide()
        down = self._level_above_trial(size if trial is None else self.size)
        up = min(self._at + 1, self._top)
        self.is_due = self._credit > 0.0 and self._batches >= min(self._next[down], self._next[up])

    def _note_drift(self, seen: Seen, size: int, seconds: float) -> None:
        """Forget what was learned if the function has become slower or faster."""
        if not seen.is_known:
            return
        ratio = min(seconds / (seen.each * size), OUTLIER)
        self._noise += ((ratio - 1.0) ** 2 - self._noise) / (2 * _SETTLED)
        if seen.batches < _SETTLED:
            return
        self._drift += _WEIGHT * (ratio - self._drift)
        squared = max(self._noise, seen.variance / seen.seconds**2) * _WEIGHT / (2 - _WEIGHT)
        if abs(self._drift - 1.0) > max(_CHANGED, _CHANGED_SURE * sqrt(squared)):
            self._forget()

    def _plan(self, level: int) -> None:
        """Set when the next trial is, between `level` and the one below."""
        small, large = self._full[level - 1], self._larger[level]
        longer = _UNDECIDED
        if small.is_known and large.is_known:
            error = self._error(small, large)
            apart = abs(small.each * self._price(level - 1) - large.each * self._price(level))
            if apart > _SURE * error or error < _PRECISE * large.each:
                longer = _MUCH_RARER if apart > max(_SURE * error, _FAR * large.each) else _RARER
        self._postpone(level, longer)

    def _postpone(self, level: int, longer: float) -> None:
        self._gap[level] = min(longer * self._gap[level], _RAREST)
        self._next[level] = self._batches + self._gap[level]

    # -- what is decided --------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Change the size if another one is better."""
        level = self._best_smaller()
        if level is None:
            level = self._best_larger()
        if level is None:
            return
        self._use(level)
        for near in range(self._top + 1):  # what the size in use is compared with now
            self._gap[near] = min(self._gap[near], _MOVED)
            self._next[near] = min(self._next[near], self._batches + self._gap[near])

    def _best_smaller(self) -> int | None:
        """Return the level of the best smaller size, None if it is not better than larger batches now."""
        known = [level for level in range(self._at + 1) if self._larger[level].is_known]
        prices = {
            level: seen.each * self._price(level)
            for level in range(max(known, default=0))  # a limit that no batch exceeds would change nothing
            if (seen := self._limited_to(level)) is not None
        }
        best = min(prices, key=prices.__getitem__, default=self._at)
        larger = [(level, self._larger[level]) for level in known if level > best]
        if not larger:
            return None
        items = sum(seen.items for _, seen in larger)
        now = sum(seen.each * self._price(level) * seen.items for level, seen in larger) / items
        errors = [seen.error(self._noise) * seen.items / items for _, seen in larger]
        seen = self._limited_to(best)
        assert seen is not None  # noqa: S101  for the type
        error = sqrt(sum(error**2 for error in errors) + seen.error(self._noise) ** 2)
        return best if prices[best] + _SMALLER * error < now else None

    def _best_larger(self) -> int | None:
        """Return the level of the largest size that is surely better than the one in use, None if none is."""
        full = self._full[self._at]
        if not full.is_known:
            return None
        now = full.each * self._price(self._at)
        sure = max(_LARGER * min(1.0, _SPARE * self._idle_s / self._busy_s), _CROWDED)
        for level in range(self._top, self._at, -1):
            seen = self._larger[level]
            if seen.is_known and seen.each * self._price(level) + sure * self._error(seen, full) < now:
                return level
        return None

    def _limited_to(self, level: int) -> Seen | None:
        """Return what is known of batches of at most the size of `level`, None if that is too little."""
        full, about = self._full[level], self._larger[level]
        if full.is_known:
            return full
        return about if about.batches >= 2 * LEAST_BATCHES else None

    def _error(self, one: Seen, other: Seen) -> float:
        """Return the standard error of the difference of what an item takes."""
        return sqrt(one.error(self._noise) ** 2 + other.error(self._noise) ** 2)

    def _price(self, level: int) -> float:
        """Return what a second is worth in batches of this level: the larger, the later they answer."""
        doublings = level if self.fixed is None else (self.fixed[level] - 1).bit_length()
        return 1.0 + doublings * min(_SHORTER * self._idle_s / self._busy_s, _DOUBLING)
