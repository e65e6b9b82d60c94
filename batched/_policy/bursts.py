"""Bursts: calls that come so close together that the next one is worth a wait.

A call that finds the function idle may be the first of a burst. Then what counts is how likely another call
follows closely, and how soon.
"""

from __future__ import annotations

from collections.abc import Sequence

from batched._policy.cohorts import SOME

# Chosen by simulation, where the results are flat around all of them.
_CLOSE = 1 / 16  # of a fixed cost: calls at most so far apart are of one burst, ...
_QUIET = 3.0  # ... which is over when no call has come for so many of its mean gaps
_ALONE = 4  # calls in a row that were not close to the one before: no bursts any more
_LONGEST = 8.0  # fixed costs: a longer gap, such as a night, counts as this one
_GAPS = 32  # so many at a time are learned from, ...
_OLD_GAPS = 1 / 2  # ... and so much counts what earlier ones told


class Bursts:
    """The gaps between calls, and those of them within a burst."""

    def __init__(self) -> None:
        self.last = 0.0  # when the last call came
        self._new_gaps = 0  # that have not been learned from ...
        self._gaps_since = 0.0  # ... and since when
        self._gaps = 0.0
        self._gaps_s = 0.0
        self._close = 0.0  # gaps within a burst
        self._close_s = 0.0
        self._alone = 0  # calls in a row that were not close to the one before
        self._items = 0.0  # fewer items wait for the next call of a burst, ...
        self._quiet_s = 0.0  # ... so long after the last one

    def arrived(self, times: Sequence[float], unit: float) -> None:
        """Learn that calls have come at these times, where the fixed cost is `unit`."""
        last, alone, near = self.last, self._alone, unit * _CLOSE
        close = 0
        close_s = 0.0
        for time in times:
            gap = time - last
            if gap > 0.0:
                last = time
            else:
                gap = 0.0  # two threads have queued their calls in the other order
            if gap < near:
                close += 1
                close_s += gap
                alone = 0
            else:
                alone += 1
        self.last, self._alone = last, alone
        if close:
            self._close += close
            self._close_s += close_s
        self._new_gaps += len(times)

    def due(self, items: int) -> float:
        """Return until when `items` that wait should wait for the next call; 0.0: not at all."""
        return self.last + self._quiet_s if items < self._items and self._alone < _ALONE else 0.0

    @property
    def rate(self) -> float:
        """How many calls come in a second of late; 0.0 until that is known."""
        return self._gaps / self._gaps_s if self._gaps_s else 0.0

    @property
    def has_news(self) -> bool:
        """Whether enough calls have come to `learn` from."""
        return self._new_gaps >= _GAPS

    def learn(self, unit: float, late_s: float, items_per_call: float) -> None:
        """Learn how many items should wait for the next call of a burst; a wait ends `late_s` too late."""
        new, passed = self._new_gaps, self.last - self._gaps_since
        self._gaps += new
        self._gaps_s += min(passed, _LONGEST * unit * new)
        self.forget()
        self._items = 0.0
        if self._close > SOME and self._close_s and self._gaps_s:  # where no cost is known, gaps have no time
            gap = self._close_s / self._close
            likely = self._close / self._gaps - gap * self._gaps / self._gaps_s  # more than would come anyway
            self._quiet_s = _QUIET * gap
            wait = likely * gap + (1.0 - likely) * (self._quiet_s + late_s)
            self._items = likely * (unit / wait - 1.0) * items_per_call
        self._gaps *= _OLD_GAPS
        self._gaps_s *= _OLD_GAPS
        self._close *= _OLD_GAPS
        self._close_s *= _OLD_GAPS

    def forget(self) -> None:
        """Go on without the gaps that have not been learned from."""
        self._new_gaps = 0
        self._gaps_since = self.last
