"""Batches that failed and run again in halves, and the size that fits into memory."""

from __future__ import annotations

from collections import deque

from batched._core.batch import Batch
from batched._core.call import Call, Slice
from batched._core.halves import Half, halves_of, one_ahead, singles_of
from batched._core.memory_limit import MemoryLimit
from batched._policy.isolation import Isolation, Pause
from batched._policy.one_by_one import OneByOne
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.result_count import ResultCount
from batched._policy.surroundings import is_of_surroundings


class Retries:
    """The halves of batches that failed, which run before any other batch.

    Of a half that fails, the other half runs before its own halves do. So one that works is found early: that
    tells an item which fails from an outage. After an outage, a single item comes first.
    """

    __slots__ = ("_behind", "_one_by_one", "_pause", "_results", "batches", "is_watching", "memory")

    def __init__(self) -> None:
        self.batches: deque[Half] = deque()
        self.memory: MemoryLimit = MemoryLimit()
        self._pause = Pause()
        self._one_by_one = OneByOne()
        self._results = ResultCount()
        self._behind: dict[Batch, Half] = {}  # what waits, by what runs ahead of it
        self.is_watching: bool = False
        """Whether it matters that a batch works."""

    @property
    def is_paused(self) -> bool:
        """Whether failed batches are not divided: no item of one has worked, and nothing has since."""
        return self._pause.is_on

    def note_failure(self, batch: Batch, error: BaseException, duration: float, *, isolates: bool) -> bool:
        """Note that `batch` raised `error` after `duration` seconds; return whether to run it in halves."""
        isolation = batch.isolation
        self.is_watching = True
        if batch.is_misanswered:
            self._results.was_wrong(batch.returned)
        elif batch.size > 1 and is_out_of_memory(error):
            self.memory.exceeded(batch.size)
            return True
        # Whatever the items are, the function returns what it must not.
        divides = (
            isolates and batch.is_divisible and isinstance(error, Exception) and not batch.is_misanswered
        )
        if isolation is None:
            return divides and not self._pause.is_on and not is_of_surroundings(error)
        isolation.failed(
            error, duration, batch.size, is_single=not batch.is_divisible or batch.is_misanswered
        )
        if isolation.found_nothing:
            self._pause.found_nothing()
        if isolation.has_found:
            self._one_by_one.end()
        return divides and not isolation.is_given_up

    def note_success(self, batch: Batch, duration: float, most: int) -> BaseException | None:
        """Note that `batch` has worked. No batch will have more than `most` items.

        Returns what a batch has raised that ran again in parts until each of its items has worked.
        """
        self._pause.worked(is_part=batch.isolation is not None or batch in self._behind)
        self._results.was_right(batch.size)
        raised = self._note_part(batch, batch.isolation, duration)
        if not batch.failed:
            self.memory.ran(batch.size, most)
        self.release(batch)
        is_searching = batch.isolation is not None or self._pause.is_wary or bool(self._behind)
        is_learning = self.memory.limit is not None or self._one_by_one.is_alert
        self.is_watching = is_searching or is_learning or self._results.doubted is not None
        return raised

    def _note_part(self, batch: Batch, isolation: Isolation | None, duration: float) -> BaseException | None:
        """Note that `batch` has worked, perhaps as a part; return what `note_success` does."""
        is_single = not batch.is_divisible
        if isolation is None or not isolation.failures:  # it has run before any larger batch did
            self._one_by_one.worked(duration, is_single=is_single)
        if isolation is None:
            return None
        raised = isolation.error
        isolation.worked(duration, batch.size, is_single=is_single)
        return raised if isolation.has_ended_well and self._one_by_one.searched(isolation) else None

    def add(self, batch: Batch, error: BaseException, duration: float) -> list[Slice]:
        """Have the halves of `batch`, which raised `error` after `duration` seconds, run next.

        Returns the slices that are not wanted any more, which are left out.
        """
        gone = _pruned(batch)
        isolation = batch.isolation
        begins = isolation is None and batch.size and not is_out_of_memory(error)
        if begins:
            isolation = Isolation(batch.size, duration, batch.units, error)
            if gone:  # before it began
                isolation.lost(0)
        if self._one_by_one.is_on if begins else isolation is not None and isolation.prefers_singles:
            halves = singles_of(batch, error, isolation)
        else:
            halves = halves_of(batch, error, isolation)
        is_wary = self._pause.is_wary if begins else isolation is not None and isolation.begins_small
        while is_wary and halves and halves[0].is_divisible:
            halves[:1] = halves_of(halves[0], error, isolation)  # until the first is a single item
        at = 1 if isinstance(batch, Half) and batch.precedes_other_half and self.batches else 0
        for half in reversed(halves):
            self.batches.insert(at, half)
        self.release(batch)
        return gone

    def to_run(self, batch: Batch, *, isolates: bool) -> Batch:
        """Return what runs first of `batch`, which has just been taken: most often all of it."""
        is_new = isolates and not isinstance(batch, Half)
        if is_new and self._pause.is_on:
            return self._ahead(batch)
        parts: list[Half] = []
        if batch.size == self._results.doubted:
            parts = halves_of(batch, batch.error if isinstance(batch, Half) else None, batch.isolation)
        elif is_new and batch.is_divisible and not self._one_by_one.tries:
            parts = singles_of(batch, None, Isolation(batch.size, self._one_by_one.failed_s, batch.units))
        if not parts:
            return batch
        self.batches.extendleft(reversed(parts[1:]))
        return parts[0]

    def _ahead(self, batch: Batch) -> Batch:
        """Return what runs of `batch` during a pause: all of it, or one call alone.

        Then the others wait until it has ended.
        """
        number = len(batch.slices) if batch.has_several else batch.size
        at = self._pause.ahead(number) if batch.is_divisible else None
        if at is None:
            return batch
        first, others = one_ahead(batch, at)
        self._behind[first] = others
        return first

    def release(self, batch: Batch) -> None:
        """Have the others run next of which `batch`, which has ended, was ahead."""
        others = self._behind.pop(batch, None)
        if others is not None:
            self.batches.append(others)

    def given_up(self, batch: Batch, error: BaseException) -> list[Half]:
        """Remove and return what is not to run, as `batch`, a half or ahead of others, raised `error`."""
        isolation = batch.isolation
        if isolation is not None and isolation.is_given_up:
            rest = [half for half in self.batches if half.isolation is isolation]
            for half in rest:
                self.batches.remove(half)
            return rest
        if self._pause.is_on and not is_out_of_memory(error) and not all(call.left for call in batch.calls):
            others = self._behind.pop(batch, None)
            return [] if others is None else [others]
        return []

    def prune(self, most: int) -> list[Slice]:
        """Have a half come first that is wanted, of `most` items at most; return what is not wanted."""
        gone: list[Slice] = []
        while self.batches:
            first = self.batches[0]
            gone += _pruned(first)
            if 0 < first.size <= most:
                break
            self.batches.popleft()
            self.batches.extendleft(reversed(halves_of(first, first.error, first.isolation)))
        return gone

    def clear(self) -> None:
        """Forget all that is to run."""
        self.batches.clear()
        self._behind.clear()

    def waiting(self) -> list[Batch]:
        """Return what is to run again, or behind others."""
        return [*self.batches, *self._behind.values()]

    @property
    def items(self) -> int:
        """How many items are to run again, or behind others."""
        return sum(batch.size for batch in (*self.batches, *self._behind.values()))

    def calls(self) -> list[Call]:
        """Return the calls that have such items."""
        return [call for batch in (*self.batches, *self._behind.values()) for call in batch.calls]


def _pruned(batch: Batch) -> list[Slice]:
    """Remove and return the slices that are not wanted any more; a search that they are a part of ends."""
    gone = batch.prune()
    if gone and batch.isolation is not None:
        batch.isolation.lost(sum(stop - start for _, start, stop in gone))
    return gone
