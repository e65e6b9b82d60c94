"""Counters of one batcher, and the frozen snapshot that `.stats` returns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a batcher has done so far. All counts are items, except `total_batches`.

    At every moment `total_accepted` is the sum of `queue_size`, `running_items`, `total_processed`,
    `total_cancelled` and `total_expired`.
    """

    queue_size: int
    """Waiting; a caller that has left may count until the next batch is chosen."""
    running_items: int
    """In the batch that runs."""
    total_accepted: int
    """Taken from callers."""
    total_processed: int
    """Given to the batch function, whatever came of it."""
    total_failed: int
    """Those of `total_processed` that came back as an error."""
    total_cancelled: int
    """Left before execution: the caller went, or the list they belong to had failed."""
    total_expired: int
    """Left before execution because of their deadline."""
    total_batches: int
    """Runs of the batch function, failed ones too."""
    avg_batch_size: float
    """Items per run."""
    avg_processing_time: float
    """Seconds per run."""


class Counters:
    """The running totals behind `Stats`."""

    __slots__ = ("batches", "busy_s", "cancelled", "expired", "failed", "processed")

    def __init__(self) -> None:
        self.processed = 0
        self.failed = 0
        self.cancelled = 0
        self.expired = 0
        self.batches = 0
        self.busy_s = 0.0

    def snapshot(self, *, accepted: int, waiting: int, running: int) -> Stats:
        """Return the totals so far as they are now."""
        runs = self.batches or 1
        return Stats(
            queue_size=waiting,
            running_items=running,
            total_accepted=accepted,
            total_processed=self.processed,
            total_failed=self.failed,
            total_cancelled=self.cancelled,
            total_expired=self.expired,
            total_batches=self.batches,
            avg_batch_size=self.processed / runs,
            avg_processing_time=self.busy_s / runs,
        )
