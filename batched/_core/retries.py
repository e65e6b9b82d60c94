"""Batches that failed and run again in halves, and the size that fits into memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from batched._core.memory_limit import MemoryLimit, is_out_of_memory

if TYPE_CHECKING:
    from batched._core.accounting import Accounting
    from batched._core.batch import Batch
    from batched._core.call import Call

__all__ = ["Retries"]


class Retries:
    """The halves of batches that failed, which run before any other batch."""

    __slots__ = ("_batches", "memory")

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self.memory = MemoryLimit()

    def may_help(self, batch: Batch, error: BaseException, *, isolates: bool) -> bool:
        """Whether `batch`, which raised `error`, is to run again in halves. Notes that memory ran out."""
        if is_out_of_memory(error):
            self.memory.exceeded(batch.size)
            return True
        return isolates and isinstance(error, Exception)

    def add(self, batch: Batch) -> None:
        """Have the halves of `batch` run next."""
        self._batches.extendleft(reversed(batch.halves()))

    def has_next(self, now: float, accounting: Accounting) -> bool:
        """Whether a half is to run at `now`; counts and forgets the items whose callers have left."""
        while self._batches:
            accounting.left(self._batches[0].prune(), now)
            if self._batches[0].size:
                return True
            self._batches.popleft()
        return False

    def pop(self) -> Batch | None:
        """Remove and return the next half, None if there is none."""
        return self._batches.popleft() if self._batches else None

    def clear(self) -> None:
        """Forget all halves."""
        self._batches.clear()

    @property
    def items(self) -> int:
        """How many items are to run again."""
        return sum(batch.size for batch in self._batches)

    def calls(self) -> list[Call]:
        """Return the calls of the halves."""
        return [call for batch in self._batches for call in batch.calls]

    def fitting(self, size: int) -> int:
        """Return the largest batch size up to `size` that fits into memory, as far as is known."""
        return size if self.memory.limit is None else min(size, self.memory.limit)

    def fitted(self, size: int, most: int) -> bool:
        """Note that a batch of `size` fitted, where `most` is allowed; return whether a limit is known."""
        if self.memory.limit is None:
            return False
        self.memory.ran(size, most)
        return True
