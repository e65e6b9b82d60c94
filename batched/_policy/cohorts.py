"""Returning callers: how soon they call again after an answer, and how long it pays to wait for them.

The callers that one batch has answered are a cohort. A cohort is judged by earlier ones: how large a share of
them had called again after which time. Calls that would have come without any answer, the background, are
subtracted. Times are measured in units of the fixed cost of a batch, which is what one caller less saves.
"""

# ruff: noqa: FURB136, PLR1730  calling min and max would cost as much as all else here

from __future__ import annotations

from collections.abc import Sequence

# Chosen by simulation, where the results are flat around all of them. Edges are in fixed costs.
_KEEP = 0.95  # of a cohort's weight, with every new one
_HEAVY = 1e100  # then weights are scaled down
EDGES = (1 / 8, 1 / 4, 1 / 2, 1.0)  # each twice the one before; no caller is awaited after the last edge
FIRST_EDGE, LAST = EDGES[0], len(EDGES)
NEVER = 1e-6  # of all callers: if fewer came later, none is expected
CYCLE = 1.4  # fixed costs that one more in a batch saves: a cohort that is together stays together
MERGED = 0.6  # more, if as many that wait as are to come are in one cohort from then on
SOME = 0.05  # calls: fewer are none


class _Profile:
    """A histogram of the times after which callers of earlier cohorts were back."""

    def __init__(self) -> None:
        self.weight = 0.0  # of all callers that were answered
        self.returns = [0.0] * LAST  # of the callers that were back by an edge, but not by the one before


class Cohorts:
    """The cohort of the last batch, and what earlier cohorts did."""

    def __init__(self) -> None:
        self.count = 0  # of earlier cohorts
        self.unit = 0.0  # the fixed cost when the cohort was answered; 0.0 if it was not known
        self.answered_at = 0.0
        self.size = 0  # callers that were answered
        self.back = 0  # calls since, within a unit
        self._late = 0  # calls since, after more than a unit
        self._step = 0.0  # the first edge, in seconds
        # Calls that come at fixed times look like returning ones, but only where other calls waited at the
        # end of a batch, or only where none did. So each case has a profile. Instead of the weight of old
        # cohorts falling, that of new ones grows.
        self._profiles = (_Profile(), _Profile())
        self._profile = self._profiles[0]  # the one that the cohort belongs to
        self._weight = 0.0  # of one caller of the cohort
        self._next_weight = 1.0  # of all callers of the next cohort
        self._background = 0.0  # calls that came too late to belong to a cohort ...
        self._background_s = 0.0  # ... and the seconds in which they did

    @property
    def missing(self) -> int:
        """The number of callers that are not back."""
        return self.size - self.back

    def begin(self, answered_at: float, size: int, unit: float, *, others_waited: bool) -> None:
        """Begin with the next cohort; `others_waited` while its batch ran."""
        if self.size:
            self.count += 1
            beyond = answered_at - self.answered_at - self.unit
            if beyond > 0.0:
                self._background = _KEEP * self._background + self._late
                self._background_s = _KEEP * self._background_s + beyond
        self.unit = unit
        self._step = unit * FIRST_EDGE
        self.answered_at = answered_at
        self.back = self._late = 0
        self.size = size = size if unit else 0
        if not size:
            return
        weight = self._next_weight
        if weight > _HEAVY:  # only the ratios of weights matter
            for profile in self._profiles:
                profile.weight /= weight
                profile.returns[:] = [back / weight for back in profile.returns]
            weight = 1.0
        self._profile = profile = self._profiles[others_waited]
        profile.weight += weight
        self._weight = weight / size
        self._next_weight = weight / _KEEP

    def forget(self) -> None:
        """Go on without a cohort: some of its calls have not been reported."""
        self.size = self.back = self._late = 0

    def arrived(self, times: Sequence[float]) -> None:
        """Learn that calls have come at these times."""
        answered_at, unit, step, weight = self.answered_at, self.unit, self._step, self._weight
        size, back, late, returns = self.size, self.back, self._late, self._profile.returns
        for time in times:
            since = time - answered_at
            if since >= unit:
                late += 1
            elif since >= 0.0 and back < size:
                back += 1
                returns[int(since / step).bit_length()] += weight
        self.back, self._late = back, late

    def due(self, calls: float, room: float, now: float, latest: float, late_s: float) -> float:
        """Return until when to wait for the rest of the cohort, but for `latest` at most; 0.0: not at all.

        So many `calls` wait already, there is `room` for more, and the wait ends `late_s` too late.
        """
        unit, answered_at = self.unit, self.answered_at
        if now - answered_at >= unit:
            return 0.0
        begin, end = (now - answered_at) / unit, (latest - answered_at) / unit
        due = self._best_wait(calls, room, begin, end, late_s / unit) if begin < end else 0.0
        return answered_at + due * unit if due else 0.0

    def _best_wait(self, calls: float, room: float, begin: float, latest: float, late: float) -> float:
        """Return what `due` does, in units from the answer on.

        A wait of `w` that brings `j` calls saves `j` fixed costs, and delays by `w` the calls that wait as
        well as those that are still to come.
        """
        index = int(begin / FIRST_EDGE).bit_length()
        edge = EDGES[index]
        returns = self._profile.returns
        share = returns[index] * (edge - begin) / (edge - EDGES[index - 1] if index else edge)
        later = share + sum(returns[index + 1 :])
        weight = self._profile.weight
        if later <= NEVER * weight:
            return 0.0
        # Of the callers of earlier cohorts so many were not back by now, and some of them never came.
        missing = self.missing
        each = missing / (weight - self._weight * missing - sum(returns) + later)
        background = self._background / self._background_s * self.unit if self._background_s else 0.0
        delayed = calls + each * later
        before: float = missing
        wait = best = due = 0.0
        while True:
            if edge > latest:
                share *= (latest - begin) / (edge - begin)
                edge = latest
            after = before - share * each
            middle = (before + after) / 2
            wait += (edge - begin) * (middle if middle < 1.0 else 1.0)  # it ends when all are back
            joiners = missing - after - background * wait
            if joiners > room:
                joiners = room
            if joiners > SOME:
                worth = CYCLE
                if after < 1.0:
                    worth += MERGED * (1.0 - after) * (calls / joiners if calls < joiners else 1.0)
                gain = worth * joiners - delayed * (wait + late * (after if after < 1.0 else 1.0))
                if gain > best:
                    best, due = gain, edge
            index += 1
            if after < SOME or edge >= latest or index == LAST:
                return due
            begin, before = edge, after
            edge, share = EDGES[index], returns[index]
