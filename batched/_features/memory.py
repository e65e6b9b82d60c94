"""Batches that do not fit into memory run again in halves, and later ones have no more items than fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batched._core.batch import Batch
from batched._core.halves import halves_of
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._core.river import River
from batched._policy.memory_limit import MemoryLimit
from batched._policy.out_of_memory import is_out_of_memory


class FitsMemory(Feature):
    """Knows the size that fits into memory, once a batch has run out of it."""

    def __init__(self) -> None:
        self.memory: MemoryLimit = MemoryLimit()

    def begin(self, river: River, options: Options) -> None:
        """Go on with what is known, for a new queue."""
        super().begin(river, options)
        self._most = options.batch_size
        self._follow()

    def configure(self, options: Options) -> None:
        """Follow new options."""
        self._most = options.batch_size

    def _follow(self) -> None:
        self.limit = self.memory.limit
        hooks = ("failed",) if self.limit is None else ("failed", "ended")
        if hooks != self.hooks:
            self.have(*hooks)

    def failed(self, batch: Batch, error: BaseException, started: float, now: float) -> bool:
        """Have `batch` run again in halves if it did not fit."""
        if batch.size == 1 or batch.is_misanswered or not is_out_of_memory(error):
            return False
        self.memory.exceeded(batch.size)
        self._follow()
        self.river.resize()
        if not self.river.can_repeat(batch):
            return False
        self.river.prune(batch, started)
        self.river.run_again(batch, halves_of(batch, error, batch.search), error, started, now)
        return True

    def ended(self, run: Run) -> None:
        """Note that a batch has fitted."""
        if run.error is None and not run.batch.failed:
            self.memory.ran(run.size, self._most)
            if self.memory.limit != self.limit:
                self._follow()
                self.river.resize()

    def lessons(self) -> Mapping[str, Any]:
        """Return the most items that fit, as far as they are known."""
        return {"fits": self.memory.limit}
