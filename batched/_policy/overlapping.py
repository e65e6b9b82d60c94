"""Returning callers where several batches run at once: their cohorts overlap.

Which batch a caller was answered by is not known. So each cohort counts all calls that come within a fixed
cost after its answers. Where there are more of them soon after batches than there usually are, and in each
cohort about as many, they are callers that come back: calls that have nothing to do with the answers come at
any time, and the callers of other batches nearly so.
"""

# ruff: noqa: FURB136, PLR1730  calling min and max would cost as much as all else here

from __future__ import annotations

from collections.abc import Sequence

from batched._policy.batch_cost import TOO_SHORT_S
from batched._policy.cohorts import CYCLE, EDGES, FIRST_EDGE, LAST, MERGED, NEVER, SOME

# Chosen by simulation, where the results are flat around all of them.
_KEEP = 0.975  # of a cohort's weight, with every new one
_WIDTHS = (1 / 8, 1 / 8, 1 / 4, 1 / 2)  # from each edge to the next
_USUAL = 1.25  # times as many calls as there usually are: so many are no callers that come back
_MOST = 16  # cohorts at once; where there are more, some batches have none
_SURE = 0.05  # of a cohort: so many, at least, may not come back for what has been seen


class _Profile:
    """How many calls came after the answers of earlier cohorts, and when."""

    def __init__(self) -> None:
        self._cohorts = 0.0
        self._callers = 0.0
        self._came = [0.0] * LAST  # by an edge, but not by the one before
        self._squares = [0.0] * LAST  # of these numbers of each cohort
        self.back: list[float] = [0.0] * (LAST + 1)
        """Of a cohort's callers, the share that is back at 0.0 and at each edge."""

    def add(self, size: int, counts: list[int]) -> None:
        """Learn that so many calls came, by each edge, after the answers of a cohort of `size`."""
        self._cohorts = cohorts = _KEEP * self._cohorts + 1.0
        self._callers = callers = _KEEP * self._callers + size
        self._came = came = [_KEEP * old + new for old, new in zip(self._came, counts, strict=True)]
        self._squares = [_KEEP * old + new * new for old, new in zip(self._squares, counts, strict=True)]
        usual = sum(came)  # in a fixed cost
        late = came[-1] / _WIDTHS[-1]
        if late > usual:
            usual = late
        usual *= _USUAL
        back = 0.0
        self.back = shares = [0.0]
        for calls, square, width in zip(came, self._squares, _WIDTHS, strict=True):
            spread = square - calls * calls / cohorts
            more = calls - usual * width - (spread**0.5 if spread > 0.0 else 0.0)
            if more > 0.0:
                back += more / callers
            shares.append(back if back < 1.0 else 1.0)

    def back_by(self, age: float) -> float:
        """Return the share of a cohort's callers that is back so many fixed costs after their answers."""
        if age >= 1.0:
            return self.back[-1]
        index = int(age / FIRST_EDGE).bit_length()
        before, after = self.back[index], self.back[index + 1]
        return after - (after - before) * (EDGES[index] - age) / _WIDTHS[index]


class _Cohort:
    """The callers that one batch has answered."""

    __slots__ = ("answered_at", "back", "counts", "size")

    def __init__(self, answered_at: float, size: int) -> None:
        self.answered_at = answered_at
        self.size = size
        self.back = 0  # calls since that are more likely of this cohort than of others
        self.counts = [0] * LAST  # of all calls since


class OverlappingCohorts:
    """The cohorts of the last batches, and what earlier ones did. It stands in the place of `Cohorts`."""

    def __init__(self) -> None:
        self.count: int = 0  # of earlier cohorts
        self.unit: float = 0.0  # the fixed cost when the last cohort was answered; 0.0 if it was not known
        self.answered_at: float = 0.0
        self._cohorts: list[_Cohort] = []  # the last one first
        self._profile = _Profile()

    @property
    def missing(self) -> int:
        """The number of callers that are not back."""
        return sum([cohort.size - cohort.back for cohort in self._cohorts])

    @property
    def returning(self) -> float:
        """The share of callers that come back soon."""
        return self._profile.back[-1]

    def begin(self, answered_at: float, size: int, unit: float, *, others_waited: bool) -> None:  # noqa: ARG002
        """Begin with another cohort; `others_waited` is for one cohort at a time."""
        self.unit = unit = unit if unit >= TOO_SHORT_S else 0.0
        self.answered_at = answered_at
        if unit and size and len(self._cohorts) < _MOST:
            self._cohorts.insert(0, _Cohort(answered_at, size))

    def forget(self) -> None:
        """Go on without a cohort: some of its calls have not been reported."""
        self._cohorts.clear()

    def arrived(self, times: Sequence[float]) -> None:
        """Learn that calls, one at least, have come at these times."""
        unit, back = self.unit, self._profile.back
        step = unit * FIRST_EDGE
        for time in times:
            most = -1.0
            likeliest = None
            for cohort in self._cohorts:
                since = time - cohort.answered_at
                if 0.0 <= since < unit:
                    index = int(since / step).bit_length()
                    cohort.counts[index] += 1
                    missing = cohort.size - cohort.back
                    likely = missing * (back[index + 1] - back[index]) / _WIDTHS[index]
                    if missing and likely > most:
                        most, likeliest = likely, cohort
            if likeliest is not None:
                likeliest.back += 1
        cohorts = self._cohorts
        while cohorts and times[-1] - cohorts[-1].answered_at >= unit:  # all of its calls have been reported
            cohort = cohorts.pop()
            self.count += 1
            self._profile.add(cohort.size, cohort.counts)

    def due(self, calls: float, room: float, now: float, latest: float, late_s: float) -> float:
        """Return until when to wait for the rest of the cohorts, but for `latest` at most; 0.0: not at all.

        So many `calls` wait already, there is `room` for more, and the wait ends `late_s` too late.
        """
        unit, profile = self.unit, self._profile
        if not unit:  # the last batch took no time that is known
            return 0.0
        last = profile.back[-1]
        awaited: list[tuple[float, float, float]] = []  # by cohort: age, each share, share that is back
        expected = 0.0
        for cohort in self._cohorts:
            missing = cohort.size - cohort.back
            age = (now - cohort.answered_at) / unit
            if missing and age < 1.0:
                back = profile.back_by(age)
                rest = 1.0 - back
                each = missing / (rest if rest > _SURE else _SURE)
                awaited.append((age, each, back))
                expected += each * (last - back)
        if expected <= NEVER or latest <= now:
            return 0.0
        wait = self._best_wait(awaited, expected, calls, room, (latest - now) / unit, late_s / unit)
        return now + wait * unit if wait else 0.0

    def _best_wait(  # noqa: PLR0913, PLR0917
        self,
        awaited: list[tuple[float, float, float]],
        expected: float,
        calls: float,
        room: float,
        longest: float,
        late: float,
    ) -> float:
        """Return what `due` does, in fixed costs from now on; it ends at an edge of the last cohort."""
        back_by = self._profile.back_by
        delayed = calls + expected
        youngest = awaited[0][0]
        after = expected
        begin = wait = best = due = 0.0
        for edge in EDGES:
            end = edge - youngest
            if end <= 0.0:
                continue
            if end > longest:
                end = longest
            before = after
            after = expected - sum([each * (back_by(age + end) - back) for age, each, back in awaited])
            middle = (before + after) / 2
            wait += (end - begin) * (middle if middle < 1.0 else 1.0)  # it ends when all are back
            joiners = expected - after
            if joiners > room:
                joiners = room
            if joiners > SOME:
                worth = CYCLE
                if after < 1.0:
                    worth += MERGED * (1.0 - after) * (calls / joiners if calls < joiners else 1.0)
                gain = worth * joiners - delayed * (wait + late * (after if after < 1.0 else 1.0))
                if gain > best:
                    best, due = gain, end
            if after < SOME or end >= longest:
                break
            begin = end
        return due
