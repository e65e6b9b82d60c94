"""The frozen snapshot that `.stats` returns, and the table that it prints."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Any

from batched._policy.window import Learned, short


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram: how many values fell into each bucket; empty buckets are left out."""

    bounds: tuple[float, ...]
    """The upper bound of each bucket, in ascending order."""
    cumulative: tuple[int, ...]
    """For each bound, how many values are less than or equal to it."""
    growth: float
    """A bucket begins at its bound divided by this; 1 if each bucket holds one value only."""
    sum: float
    """The exact sum of all values."""
    min: float
    """The exact smallest value; 0 if there are none."""
    max: float
    """The exact largest value; 0 if there are none."""

    @property
    def count(self) -> int:
        """The number of values."""
        return self.cumulative[-1] if self.cumulative else 0

    @property
    def mean(self) -> float:
        """The exact mean of all values; 0 if there are none."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the value that `percent`% of all values do not exceed; 0 if there are none.

        It is as precise as the bucket that it falls into, and never outside `min` and `max`.
        """
        if not 0 <= percent <= 100:  # noqa: PLR2004
            raise ValueError(f"percent must be from 0 to 100, got {percent!r}")
        if not self.count:
            return 0.0
        rank = self.count * percent / 100
        at = bisect_left(self.cumulative, rank)
        below = self.cumulative[at - 1] if at else 0
        share = (rank - below) / (self.cumulative[at] - below)
        lower = self.bounds[at] / self.growth
        return min(max(lower + (self.bounds[at] - lower) * share, self.min), self.max)

    def at_most(self, bound: float) -> int:
        """Return how many values are at most `bound`; a bucket that contains `bound` is not counted."""
        buckets = bisect_right(self.bounds, bound)
        return self.cumulative[buckets - 1] if buckets else 0

    def since(self, earlier: Distribution) -> Distribution:
        """Return the values added since it was `earlier`; `min` and `max` are as precise as the buckets."""
        bounds: list[float] = []
        cumulative: list[int] = []
        for bound, count in zip(self.bounds, self.cumulative, strict=True):
            more = count - earlier.at_most(bound)
            if more > (cumulative[-1] if cumulative else 0):
                bounds.append(bound)
                cumulative.append(more)
        if not bounds:
            return Distribution((), (), self.growth, 0.0, 0.0, 0.0)
        least = max(bounds[0] / self.growth, self.min)
        most = min(bounds[-1], self.max)
        return Distribution(
            tuple(bounds), tuple(cumulative), self.growth, self.sum - earlier.sum, least, most
        )


@dataclass(frozen=True, slots=True)
class Padding:
    """How much padding the function was given."""

    real: int
    """Elements that callers passed."""
    padded: int
    """Elements that the function was given: those of callers plus the padding."""
    batches: int = 0
    """Batches of several items in which lengths were measured: only these show padding."""

    @property
    def waste_percent(self) -> float:
        """The share of padding in what the function was given, in percent; 0 if it was given nothing."""
        return 100 * (1 - self.real / self.padded) if self.padded else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a batcher has done so far. All counts are items, unless they say runs, batches or places.

    At every moment `total_accepted` is the sum of `queue_size`, `running_items`, `total_processed`,
    `total_cancelled` and `total_expired`. Printed, it is a table. A finalizer or a signal handler that
    interrupts the batcher's own work may see a call that is being moved twice, or not at all.
    """

    queue_size: int
    """Items in the queue; those of a caller that has left may count until the next batch is chosen."""
    running_items: int
    """Items in batches that are running."""
    running: tuple[float, ...]
    """How many seconds each running batch has been running: all that a health check needs."""
    total_accepted: int
    """Accepted from callers."""
    total_processed: int
    """In batches that have finished, failed or not."""
    total_failed: int
    """Items of `total_processed` that were answered with an error."""
    total_cancelled: int
    """Dropped before they ran: the caller left, the list that they belong to had failed, or another tenant
    needed their room."""
    total_expired: int
    """Dropped before they ran because of their deadline: it had passed, or could no longer be met."""
    total_given_up: int = 0
    """Items of `total_expired` that were dropped before their deadline, because it could not be met."""
    total_late: int = 0
    """Items of `total_processed` of which the deadline passed while they ran: their callers got a
    `TimeoutError`. Items that `cache` has several callers wait for are late once no caller waits any more."""
    total_rejected: int
    """Not accepted because the queue had no room. Items that made room for another tenant count here and in
    `total_cancelled`."""
    total_refused: int
    """Not accepted because, with the time that batches take, they would have missed their deadline."""
    total_cached: int
    """Answered by a `cache` or `request_cache`, or by an equal item in flight; not counted as accepted."""
    total_batches: int
    """Runs of the batch function, including failed ones."""
    total_divided: int
    """Runs that failed and were retried in halves, not those of a worker that was restarted."""
    total_copies: int = 0
    """Copies of items that filled batches up to one of `batch_sizes`; they count nowhere else."""
    total_joined: int = 0
    """Items that joined a batch while it ran. With `continuous=True` each step counts as a batch."""
    occupancy: float | None = None
    """The share of places that were taken in steps while calls were in the queue; None if there was none."""
    total_places: int = 0
    """The places in these steps, of which `occupancy` is the share."""
    avg_batch_size: float
    """`total_processed` per run; with `continuous=True`, the items per step."""
    avg_processing_time: float
    """Seconds per run."""
    closed: dict[str, int]
    """How many batches started for each `StartReason`; the counts add up to `total_batches`."""
    chosen: dict[str, int]
    """How many batches were chosen by each `Choice`, if the lengths of items are known."""
    learned: Learned | None
    """What has been learned; None until then, and where no batch waits to be filled: with `adaptive=False`,
    `timeout_ms=0`, `batch_size=1` or `continuous=True`.

    Each event loop learns on its own: these are the figures of the loop that has answered the most batches,
    even after it has ended.
    """
    wait: Distribution
    """Seconds from each item's call to the start of its batch."""
    processing_time: Distribution
    """Seconds per run."""
    stages: dict[str, Distribution] = field(default_factory=dict)
    """Seconds per run in each stage: `"prepare"`, `"function"`, `"finish"`. Empty without such an option.

    `processing_time` is the three together, without what a batch waits between them.
    """
    batch_size: Distribution
    """Items per run."""
    apart_time: float
    """Seconds of runs with room for queued items that had another key, other columns or another layout."""
    padding: Padding
    """How much padding the function was given, in elements of arrays or, for lists, in units of `length`."""
    isolation_paused: bool
    """Whether retries in halves are paused: no item of a failed batch succeeded, and nothing has since."""
    batch_error: str | None = None
    """The last error of a batch that failed although each of its items succeeded on retry; None if none did.

    No single item is at fault: the function fails on several items together.
    """
    fits_memory: int | None
    """The most items in a batch since memory ran out, but for rare trials of more; None if it never did."""
    best_batch_size: int | None
    """The largest batch size in use, if a smaller one than `batch_size` has turned out faster; else None."""
    configured: Stats | None = None
    """The figures at the moment when `configure` last changed options; None if it never did."""

    @property
    def copies_percent(self) -> float:
        """The share of copies in the items that the function was given, in percent; 0 if there were none."""
        return (
            100 * self.total_copies / (self.total_copies + self.batch_size.sum) if self.total_copies else 0.0
        )

    def since_configured(self) -> Stats:
        """Return the figures of batches that have ended since options were last changed.

        Totals of items are what has been counted since. What is known about lengths (`chosen`, `padding`)
        stays, because it does not depend on options that can be changed.
        """
        before = self.configured
        if before is None:
            return self
        totals: dict[str, Any] = {
            each.name: getattr(self, each.name) - getattr(before, each.name)
            for each in fields(self)
            if each.name.startswith("total_")
        }
        places, batches = totals["total_places"], totals["total_batches"]
        batch_size = self.batch_size.since(before.batch_size)
        processing_time = self.processing_time.since(before.processing_time)
        has_steps = self.avg_batch_size == self.batch_size.mean  # or no batch ran again
        return replace(
            self,
            **totals,
            occupancy=(_taken(self) - _taken(before)) / places if places else None,
            avg_batch_size=batch_size.mean if has_steps else totals["total_processed"] / (batches or 1),
            avg_processing_time=processing_time.mean,
            closed=_more(self.closed, before.closed),
            wait=self.wait.since(before.wait),
            processing_time=processing_time,
            stages={
                name: times.since(before.stages[name]) if name in before.stages else times
                for name, times in self.stages.items()
            },
            batch_size=batch_size,
            apart_time=self.apart_time - before.apart_time,
            configured=None,
        )

    def _rows_of_options(self) -> Iterator[tuple[str, str]]:
        """Yield the rows that are there with some options only."""
        if self.total_copies:
            share = f"{self.copies_percent:.1f}% of what the function was given"
            yield "copies", f"{self.total_copies} ({share})"
        if self.total_joined:
            taken = ""
            if self.occupancy is not None:
                taken = f"; {100 * self.occupancy:.1f}% of places taken while calls waited"
            yield "joined", f"{self.total_joined}{taken}"
        if self.stages:
            each = ", ".join(f"{name} {short(times.mean * 1000)}" for name, times in self.stages.items())
            yield "stages, mean", f"{each} ms"

    def __str__(self) -> str:
        return "\n".join(f"{name:<18}  {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it."""
        cell = "<td style='text-align: left'>"
        rows = [
            f"<tr>{cell}{escape(name)}</td>{cell}{escape(value)}</td></tr>" for name, value in self._rows()
        ]
        return f"<table>{''.join(rows)}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        """Return the table: what is shown, and how."""
        late = f", {self.total_late} late" if self.total_late else ""
        closed = ", ".join(f"{count} {reason}" for reason, count in self.closed.items())
        rows = [
            ("queued", f"{self.queue_size}"),
            ("running", f"{self.running_items}{_running_for(self.running)}"),
            ("accepted", f"{self.total_accepted}"),
            ("processed", f"{self.total_processed}, {self.total_failed} failed{late}"),
            ("cancelled, expired", f"{self.total_cancelled}, {self.total_expired}"),
            ("rejected, refused", f"{self.total_rejected} (queue full), {self.total_refused} (too late)"),
            ("cached", f"{self.total_cached}"),
            ("batches", f"{self.total_batches} ({closed})" if closed else f"{self.total_batches}"),
            ("items per batch", _row(self.batch_size, 1, "")),
            ("wait", _row(self.wait, 1000, " ms")),
            ("processing", _row(self.processing_time, 1000, " ms")),
        ]
        rows += self._rows_of_options()
        if self.apart_time:
            total = self.processing_time.sum
            rows.append(("kept apart by key", f"{short(self.apart_time)} s of {short(total)} s"))
        if self.padding.padded:
            padding = self.padding
            rows.append(("padding", f"{padding.waste_percent:.1f}% of {padding.padded} elements"))
        if self.chosen:
            rows.append(("chosen by", ", ".join(f"{count} {how}" for how, count in self.chosen.items())))
        if self.total_divided:
            failed = f"{self.total_divided} failed {'batch' if self.total_divided == 1 else 'batches'}"
            paused = "; paused until something succeeds" if self.isolation_paused else ""
            rows.append(("retried in halves", f"{failed}{paused}"))
        if self.batch_error is not None:
            rows.append(("fails only batched", self.batch_error))
        if self.fits_memory is not None:
            rows.append(("fits in memory", f"{self.fits_memory} items"))
        if self.best_batch_size is not None:
            rows.append(("best batch size", f"{self.best_batch_size}"))
        if self.learned is not None:
            rows.append(("learned", str(self.learned)))
        return rows


def _running_for(ages: tuple[float, ...]) -> str:
    """Return in how many batches items run, and for how long; nothing if none runs."""
    if not ages:
        return ""
    batches = "1 batch" if len(ages) == 1 else f"{len(ages)} batches"
    return f" in {batches}, for {', '.join(f'{short(age)} s' for age in ages)}"


def _more(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Return what has been counted since it was `before`."""
    more = {name: count - before.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in more.items() if count}


def _row(values: Distribution, scale: float, unit: str) -> str:
    figures = {
        "mean": values.mean,
        **{f"p{p}": values.percentile(p) for p in (50, 90, 99)},
        "max": values.max,
    }
    return ", ".join(f"{name} {short(value * scale)}" for name, value in figures.items()) + unit


def _taken(stats: Stats) -> float:
    return (stats.occupancy or 0.0) * stats.total_places
