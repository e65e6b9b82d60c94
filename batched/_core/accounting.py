"""What a batch counts, once it has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batched._core.batch import Batch
    from batched._core.call import Slice
    from batched._core.counters import Counters

__all__ = ["Accounting"]


class Accounting:
    """Counts batches. Every item is counted as processed once: when its last run has ended."""

    __slots__ = ("counters",)

    def __init__(self, counters: Counters) -> None:
        self.counters = counters  # several batchers may count together

    def ran(self, batch: Batch, started: float, now: float) -> None:
        """Count a run of `batch`, whatever came of it."""
        counters = self.counters
        counters.ran(batch.reason, batch.size, now - started)
        counters.real += batch.real
        counters.padded += batch.padded

    def ended(self, batch: Batch, started: float, now: float) -> None:
        """Count the last run of `batch`, and its items."""
        self.ran(batch, started, now)
        self.counters.failed += batch.failed
        self.left(batch.slices, started)

    def left(self, slices: list[Slice], started: float) -> None:
        """Count items of a batch that has `started`, which will not run again."""
        counters = self.counters
        for call, start, stop in slices:
            counters.processed += stop - start
            counters.waited(started - call.arrived, stop - start)
