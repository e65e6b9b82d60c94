"""Batches that failed and run again in halves, and the size that fits into memory."""

from __future__ import annotations

from collections import deque

from batched._core.batch import Batch
from batched._core.call import Call, Slice
from batched._core.halves import Half, halves_of, one_ahead
from batched._core.memory_limit import MemoryLimit
from batched._policy.isolation import Isolation, Pause
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.surroundings import is_of_surroundings


class Retries:
    """The halves of batches that failed, which run before any other batch.

    Of a half that fails, the other half runs before its own halves do. So one that works is found early: that
    tells an item which fails from an outage. After an outage, a single item comes first.
    """

    __slots__ = ("_behind", "_pause", "batches", "is_watching", "memory")

    def __init__(self) -> None:
        self.batches: deque[Half] = deque()
        self.memory: MemoryLimit = MemoryLimit()
        self._pause = Pause()
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
        if batch.size > 1 and is_out_of_memory(error):
            self.memory.exceeded(batch.size)
            return True
        divides = isolates and batch.is_divisible and isinstance(error, Exception)
        if isolation is None:
            return divides and not self._pause.is_on and not is_of_surroundings(error)
        isolation.failed(error, duration, is_single=not batch.is_divisible)
        if isolation.found_nothing:
            self._pause.found_nothing()
        return divides and not isolation.is_given_up

    def note_success(self, batch: Batch, duration: float, most: int) -> None:
        """Note that `batch` has worked. No batch will have more than `most` items."""
        self._pause.worked(is_part=batch.isolation is not None or batch in self._behind)
        if batch.isolation is not None:
            batch.isolation.worked(duration)
        if not batch.failed:
            self.memory.ran(batch.size, most)
        self.release(batch)
        is_searching = batch.isolation is not None or self._pause.is_wary or bool(self._behind)
        self.is_watching = is_searching or self.memory.limit is not None

    def add(self, batch: Batch, error: BaseException, duration: float) -> list[Slice]:
        """Have the halves of `batch`, which raised `error` after `duration` seconds, run next.

        Returns the slices that are not wanted any more, which are left out.
        """
        gone = batch.prune()
        isolation = batch.isolation
        begins = isolation is None and batch.size and not is_out_of_memory(error)
        if begins:
            isolation = Isolation(batch.size, duration)
        halves = halves_of(batch, error, isolation)
        is_wary = self._pause.is_wary if begins else isolation is not None and isolation.begins_small
        while is_wary and halves and halves[0].is_divisible:
            halves[:1] = halves_of(halves[0], error, isolation)  # until the first is a single item
        at = 1 if isinstance(batch, Half) and batch.precedes_other_half and self.batches else 0
        for half in reversed(halves):
            self.batches.insert(at, half)
        self.release(batch)
        return gone

    def ahead(self, batch: Batch) -> Batch:
        """Return what runs of `batch`, which has just been taken: most often all of it.

        During a pause that may be one call alone. The others wait until it has ended.
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
            gone += first.prune()
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
