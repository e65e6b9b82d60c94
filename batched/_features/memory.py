"""Batches that do not fit into memory run again in halves, and later ones have no more items than fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batched._core.batch import Batch
from batched._core.halves import Half, halves_of
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._policy.memory_limit import MemoryLimit
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.search import Search
from batched._policy.size_choice import SizeChoice


class FitsMemory(Feature):
    """Knows the size that fits into memory, once a batch has run out of it.

    Of functions that stream no larger size is tried later: a batch that has begun cannot run again.
    """

    def __init__(self, sizes: SizeChoice) -> None:
        self._sizes = sizes
        self.memory: MemoryLimit = MemoryLimit()

    def configure(self, options: Options) -> None:
        """Follow new options."""
        self._most = options.batch_size
        self._follow()

    def _follow(self) -> None:
        self.limit = self._whole(self.memory.limit)
        is_at_rest = self.limit is None or self.river.options.streams
        self.have(*(("failed",) if is_at_rest else ("failed", "ended")))

    def _whole(self, items: int | None) -> int | None:
        """Return the largest size that the function may be given, of at most so many items."""
        return None if items is None else self._sizes.at_most(items) or self._sizes.smallest

    def failed(self, batch: Batch, error: BaseException, started: float, now: float) -> bool:
        """Have `batch` run again in halves if it did not fit, and can."""
        size = self._sizes.size_of(batch.size)
        if size == self._sizes.smallest or batch.is_misanswered or not is_out_of_memory(error):
            return False
        self.memory.exceeded(size)
        self._follow()
        self.river.resize()
        if batch.begun or not self.river.can_repeat(batch):
            return False
        search = batch.search
        if hasattr(batch, "blames_worker"):  # each such run has its worker made anew, which may take long
            search = search or Search(batch.size, now - started, batch.units)  # the error blames no item
            self._divide_waiting(size)
            search.restarted()
            if search.is_given_up:
                batch.search = search
                return False
        self.river.prune(batch, started)
        self.river.run_again(batch, self._parts_of(batch, error, size, search))
        return True

    def _divide_waiting(self, size: int) -> None:
        """Divide the halves that wait and are as large as what did not fit: each would break a worker."""
        first = self.river.first
        for half in [each for each in first if type(each) is Half and each.size > 1]:
            if self._sizes.size_of(half.size) >= size:
                first.replace(half, self._parts_of(half, half.error, size, half.search))

    def _parts_of(
        self, batch: Batch, error: BaseException | None, size: int, search: Search | None
    ) -> list[Half]:
        """Return parts of `batch`: with each, the function is given fewer items than `size`."""
        parts: list[Half] = []
        for half in halves_of(batch, error, search):
            too_large = half.size > 1 and self._sizes.size_of(half.size) >= size
            parts += self._parts_of(half, error, size, search) if too_large else [half]
        return parts

    def ended(self, run: Run) -> None:
        """Note that a batch has fitted."""
        if run.error is None and not run.batch.failed:
            before, size = self.limit, self._sizes.size_of(run.batch.size)
            if size == before:  # as much as it may have: the next larger size may be some way off
                size = max(size, self.memory.limit or 0)
            self.memory.ran(size, self._most)
            self._follow()
            if self.limit != before:
                self.river.resize()

    def lessons(self) -> Mapping[str, Any]:
        """Return the most items that fit, as far as they are known."""
        return {"fits": self._whole(self.memory.fits)}
