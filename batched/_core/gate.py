"""Which of the batches that have run are lessons: where nothing new is to be learned, one of eight or 64."""

from __future__ import annotations

from math import inf

from batched._core.batch import Batch

_OF_ALIKE = 8  # of so many batches that are alike, one is a lesson
_OF_SHORT = 64  # of so many short ones, where the call of a learner takes a good part of their time
_LONE = 8  # batches in a row of calls that come one at a time: then nothing is new
SHORT_S = 200e-6
"""A batch that takes less tells little of sizes and lengths."""
_SLOWER = 2.0


class Gate:
    """Tells all that learn from lessons of a batch, or none of them.

    The window is no such learner while it holds batches back: it hears of each batch.

    While they are at rest, batches that are short are alike, and so are those in the midst of a list. While
    calls come one at a time, so are those of one call. But none that takes longer than the last lesson.
    """

    __slots__ = ("_at_rest", "_least_s", "_lone", "_passes", "_size", "ended", "short_passes")

    def __init__(self) -> None:
        self.short_passes: int = 0
        """So many more short batches are no lessons. Of these it is not asked: they are counted down."""
        self.ended: float = -inf
        """When the last batch ended."""
        self._at_rest = False  # whether all that learn are
        self._passes = 0  # so many more of those that are alike are no lessons
        self._size = 0  # of the last lesson
        self._lone = 0  # batches in a row of one call each, which came after the one before had ended
        self._least_s = 0.0  # batches that take as long are no more like it

    def opens(self, batch: Batch, started: float, now: float) -> bool:
        """Return whether `batch`, which has ended, is a lesson."""
        seconds = now - started
        call, start, _ = batch.slices[0]
        is_of_one = len(batch.slices) == 1
        is_amid_list = is_of_one and start > 0
        is_lone = is_of_one and call.size == batch.size and call.arrived >= self.ended
        self._lone = self._lone + 1 if is_lone else 0
        self.ended = now
        if self._passes:
            is_alike = batch.size == self._size and seconds < self._least_s
            if is_alike and (self._lone > _LONE or (is_amid_list and self._at_rest)):
                self._passes -= 1
                return False
        self._passes = _OF_ALIKE - 1 if seconds < SHORT_S or is_lone or is_amid_list else 0
        self._size = batch.size
        self._least_s = _SLOWER * seconds
        return True

    def taught(self, seconds: float, *, at_rest: bool) -> None:
        """Note that all have learned from a lesson that took so long, and whether all are `at_rest` now."""
        self._at_rest = at_rest
        if not at_rest:
            self.short_passes = 0
        elif seconds < SHORT_S:  # a longer one says nothing of those
            self.short_passes = _OF_SHORT - 1
            self._passes = 0
