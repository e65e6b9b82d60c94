"""Batches that failed and run again in halves, and the size that fits into memory."""

from __future__ import annotations

from collections import deque

from batched._core.batch import Batch
from batched._core.call import Call, Slice
from batched._core.memory_limit import MemoryLimit, is_out_of_memory


class Retries:
    """The halves of batches that failed, which run before any other batch."""

    __slots__ = ("batches", "memory")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.memory = MemoryLimit()

    def note_failure(self, batch: Batch, error: BaseException, *, isolates: bool) -> bool:
        """Note that `batch` raised `error`; return whether it is to run again in halves."""
        if is_out_of_memory(error):
            self.memory.exceeded(batch.size)
            return True
        return isolates and isinstance(error, Exception)

    def add(self, batch: Batch) -> None:
        """Have the halves of `batch` run next."""
        self.batches.extendleft(reversed(batch.halves()))

    def prune(self) -> list[Slice]:
        """Remove and return the slices without a caller, up to the first half that has one."""
        gone: list[Slice] = []
        while self.batches:
            gone += self.batches[0].prune()
            if self.batches[0].size:
                break
            self.batches.popleft()
        return gone

    def clear(self) -> None:
        """Forget all halves."""
        self.batches.clear()

    @property
    def items(self) -> int:
        """How many items are to run again."""
        return sum(batch.size for batch in self.batches)

    def calls(self) -> list[Call]:
        """Return the calls of the halves."""
        return [call for batch in self.batches for call in batch.calls]
