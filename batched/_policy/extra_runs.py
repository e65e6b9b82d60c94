"""How much longer the function is busy as batches fail and run again in parts."""

from __future__ import annotations

_WEIGHT = 1 / 16  # the weight of one first run
_OWN = 0.75  # of its batch's extra runs are over, on average, when a call has its answer


class ExtraRuns:
    """The time of all runs, relative to what the first runs of the batches were expected to take."""

    def __init__(self) -> None:
        self._first = self._all = 0.0  # seconds, which fade
        self.factor = 1.0
        """The time of all runs of a batch, relative to that of one."""
        self.left_s = 0.0  # what the search in progress is expected to take

    @property
    def until_answer(self) -> float:
        """The time until a call has its answer, relative to that of one run of its batch."""
        return 1.0 + max(self.factor - 1.0, 0.0) * _OWN

    def ran(self, expected: float, seconds: float, *, divided: bool) -> None:
        """Note the first run of a batch, which took so many seconds, and failed if it is `divided`."""
        fade = 1.0 - _WEIGHT
        self._first = self._first * fade + expected
        self._all = self._all * fade + seconds
        self._relate()
        if divided:
            self.left_s += max(self.factor * expected - seconds, 0.0)

    def ran_again(self, seconds: float, expected: float) -> None:
        """Note a run of a part."""
        self._all += seconds
        self._relate()
        self.left_s = max(self.left_s - max(seconds, expected), 0.0)

    def _relate(self) -> None:
        if self._first:
            self.factor = max(self._all / self._first, _WEIGHT)

    def left(self, waiting: float) -> float:
        """Return what is left of searches, of which parts of so many seconds wait."""
        self.left_s = max(self.left_s, waiting) if waiting else 0.0
        return self.left_s
