"""The frozen snapshot that `.stats` returns, and the table that it prints."""

from __future__ import annotations

from dataclasses import dataclass

from batched._core.distribution import Distribution
from batched._policy.window import Learned, short

__all__ = ["Padding", "Stats"]


@dataclass(frozen=True, slots=True)
class Padding:
    """What padding has cost."""

    real: int
    """Elements that callers passed."""
    padded: int
    """Elements that the function was given: those of callers, and the padding."""

    @property
    def waste_percent(self) -> float:
        """The share of padding in what the function was given, in percent; 0 if it was given nothing."""
        return 100 * (1 - self.real / self.padded) if self.padded else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a batcher has done so far. All counts are items, except `total_batches`.

    At every moment `total_accepted` is the sum of `queue_size`, `running_items`, `total_processed`,
    `total_cancelled` and `total_expired`. Printed, it is a table.
    """

    queue_size: int
    """Waiting; those of a caller that has left may count until the next batch is chosen."""
    running_items: int
    """In the batches that run."""
    running: tuple[float, ...]
    """For how many seconds each batch that runs has been running: a health check needs no more."""
    total_accepted: int
    """Taken from callers."""
    total_processed: int
    """Given to the batch function, whether it failed or not."""
    total_failed: int
    """Items of `total_processed` that came back as an error."""
    total_cancelled: int
    """Left before execution: the caller went, or the list they belong to had failed."""
    total_expired: int
    """Left before execution because of their deadline."""
    total_rejected: int
    """Not taken from callers, for want of room in the queue."""
    total_cached: int
    """Answered by the cache, or by an equal item in flight; not counted as accepted."""
    total_batches: int
    """Runs of the batch function, failed ones too."""
    avg_batch_size: float
    """`total_processed` per run."""
    avg_processing_time: float
    """Seconds per run."""
    closed: dict[str, int]
    """How many batches started for which `StartReason`; all together they are `total_batches`."""
    chosen: dict[str, int]
    """How many batches were chosen by which `Choice`, where the lengths of items are known."""
    learned: Learned | None
    """What it has learned; None before, and with `adaptive=False` or `timeout_ms=0`.

    Event loops that each batch for their own callers learn apart: it is what the loop has learned which has
    answered the most batches.
    """
    wait: Distribution
    """Seconds from each item's call to the start of its batch."""
    processing_time: Distribution
    """Seconds per run."""
    batch_size: Distribution
    """Items per run."""
    padding: Padding
    """How much of what the function was given was padding, or will be.

    In elements of arrays, and in the units of `length` for lists.
    """
    fits_memory: int | None
    """The most items of a batch as far as memory is known to go; None if it has never run out."""

    def __str__(self) -> str:
        closed = ", ".join(f"{count} {reason}" for reason, count in self.closed.items()) or "none"
        ages = ", ".join(f"{short(age)} s" for age in self.running) or "none"
        rows = [
            ("waiting", f"{self.queue_size}"),
            ("running", f"{self.running_items} (batches since: {ages})"),
            ("accepted", f"{self.total_accepted}"),
            ("processed", f"{self.total_processed}, {self.total_failed} of them failed"),
            ("cancelled, expired", f"{self.total_cancelled}, {self.total_expired}"),
            ("rejected, cached", f"{self.total_rejected}, {self.total_cached}"),
            ("batches", f"{self.total_batches} ({closed})"),
            ("items per batch", _row(self.batch_size, 1, "")),
            ("wait", _row(self.wait, 1000, " ms")),
            ("processing", _row(self.processing_time, 1000, " ms")),
        ]
        if self.padding.padded:
            padding = self.padding
            rows.append(("padding", f"{padding.waste_percent:.1f} % of {padding.padded} elements"))
        if self.chosen:
            rows.append(("chosen by", ", ".join(f"{count} {how}" for how, count in self.chosen.items())))
        if self.fits_memory is not None:
            rows.append(("fits into memory", f"{self.fits_memory} items"))
        if self.learned is not None:
            rows.append(("learned", str(self.learned)))
        return "\n".join(f"{name:<18}  {value}" for name, value in rows)


def _row(values: Distribution, scale: float, unit: str) -> str:
    figures = {
        "mean": values.mean,
        **{f"p{p}": values.percentile(p) for p in (50, 90, 99)},
        "max": values.max,
    }
    return ", ".join(f"{name} {short(value * scale)}" for name, value in figures.items()) + unit
