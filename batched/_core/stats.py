"""What a batcher counts, and the frozen snapshot that `.stats` returns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import inf

__all__ = [
    "CHOICES",
    "REASONS",
    "Counters",
    "Distribution",
    "Learned",
    "Padding",
    "Sizes",
    "Stats",
    "Times",
]

_SECONDS: tuple[float, ...] = tuple(1e-6 * 2.0 ** (index / 8) for index in range(8 * 60))  # nothing is longer
_SIZE_BITS = 12
_RUNS = 256  # counted at once, ...
_WAITS = 512  # ... as are the waits of items: together they take a fraction of the time
REASONS: tuple[str, ...] = (
    "full",
    "callers back",
    "nobody expected",
    "waited",
    "trial",
    "window",
    "deadline",
    "crowded",
    "drain",
    "retry",
)

CHOICES: tuple[str, ...] = ("arrival", "length")


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many values fell where: buckets, of which only those that hold a value are kept."""

    bounds: tuple[float, ...]
    """The upper bound of each bucket, in ascending order."""
    cumulative: tuple[int, ...]
    """How many values are at most the bound."""
    growth: float
    """A bucket begins at its bound divided by this: 1 where a bucket holds equal values only."""
    sum: float
    """The sum of all values, exactly."""
    min: float
    """The least value, exactly; 0 if there are none."""
    max: float
    """The greatest value, exactly; 0 if there are none."""

    @property
    def count(self) -> int:
        """How many values there are."""
        return self.cumulative[-1] if self.cumulative else 0

    @property
    def mean(self) -> float:
        """The mean of all values, exactly; 0 if there are none."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the value that `percent` % of all values are at most; 0 if there are none.

        It is as precise as the bucket that it falls into, and never outside of `min` and `max`.
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
        """Return how many values are at most `bound`, leaving out those of a bucket that it divides."""
        buckets = bisect_right(self.bounds, bound)
        return self.cumulative[buckets - 1] if buckets else 0


@dataclass(frozen=True, slots=True)
class Padding:
    """What padding has cost."""

    real: int
    """Elements that callers passed."""
    padded: int
    """Elements that the function was given: those, and the padding."""

    @property
    def waste_percent(self) -> float:
        """The share of padding in what the function was given, in percent; 0 if it was given nothing."""
        return 100 * (1 - self.real / self.padded) if self.padded else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a batcher has learned of its function and its callers."""

    batch_ms: float
    """What a batch costs whatever its size, in milliseconds: what calls that share one save."""
    item_ms: float
    """What each item adds, in milliseconds."""
    wait_ms: float
    """For how many milliseconds the last batches were held back for company, on average."""
    length_ms: float = 0.0
    """What each item adds for every unit of the longest item's length, in milliseconds."""
    capacity: float
    """The items a second of full batches, back to back, by these costs."""

    def __str__(self) -> str:
        length = f" and {_short(self.length_ms)} ms a unit of length" if self.length_ms else ""
        return (
            f"{_short(self.batch_ms)} ms a batch + {_short(self.item_ms)} ms an item{length}, so at most "
            f"{self.capacity:,.0f} items/s; held back for {_short(self.wait_ms)} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a batcher has done so far. All counts are items, except `total_batches`.

    At every moment `total_accepted` is the sum of `queue_size`, `running_items`, `total_processed`,
    `total_cancelled` and `total_expired`. Printed, it is a table.
    """

    queue_size: int
    """Waiting; a caller that has left may count until the next batch is chosen."""
    running_items: int
    """In the batches that run."""
    running: tuple[float, ...]
    """For how many seconds each batch that runs has been running: a health check needs no more."""
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
    """How many batches started for which reason; all together they are `total_batches`.

    "full"; "callers back": all callers of the last batch have called again; "nobody expected" who was worth a
    wait; "waited" as long as it was worth; "trial": early on, so that batches of several sizes are seen;
    "window": the oldest item was `timeout_ms` old; "deadline": half of a call's was spent; "drain": it was
    shutting down; "crowded": others waited for room in the queue; "retry": half of a batch that had failed.
    """
    chosen: dict[str, int]
    """How the items of batches were chosen, where their lengths are known.

    "arrival": in order, for padding costs next to nothing; "length": the oldest and those of like length, for
    padding costs more.
    """
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
        ages = ", ".join(f"{_short(age)} s" for age in self.running) or "none"
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
    return ", ".join(f"{name} {_short(value * scale)}" for name, value in figures.items()) + unit


def _short(value: float) -> str:
    """Return three digits of `value`, or more of a large one, but never a power of ten for it."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"  # noqa: PLR2004


class Histogram:
    """Counts values in buckets, by the upper bound of each; `growth` is that of a `Distribution`."""

    __slots__ = ("_counts", "_growth", "_max", "_min", "_sum")

    def __init__(self, growth: float) -> None:
        self._growth = growth
        self._counts: defaultdict[float, int] = defaultdict(int)
        self._sum = 0.0
        self._min = inf
        self._max = 0.0

    def _saw(self, least: float, greatest: float, total: float) -> None:
        self._min = min(self._min, least)
        self._max = max(self._max, greatest)
        self._sum += total

    def snapshot(self) -> Distribution:
        """Return the counts so far."""
        bounds = sorted(self._counts)
        cumulative = tuple(accumulate(self._counts[bound] for bound in bounds))
        least = self._min if bounds else 0.0
        return Distribution(tuple(bounds), cumulative, self._growth, self._sum, least, self._max)


class Sizes(Histogram):
    """Counts sizes one by one up to 4,096, and above, so that memory is bounded, to 0.05 %."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(growth=1)

    def add(self, size: int, times: int = 1) -> None:
        """Count `size` so many times."""
        self._saw(size, size, size * times)
        below = size - 1
        dropped = max(below.bit_length() - _SIZE_BITS, 0)
        self._counts[((below >> dropped) + 1) << dropped] += times


class Times(Histogram):
    """Counts seconds in eight buckets for each doubling; the first is up to a microsecond."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(growth=2 ** (1 / 8))

    def add(self, values: list[float], times: int = 1) -> None:
        """Count each of `values` so many times: sorted, as there are fewer buckets than values."""
        if not values:
            return
        total = sum(values) * times
        values.sort()
        self._saw(values[0], values[-1], total)
        first, last = bisect_left(_SECONDS, values[0]), bisect_left(_SECONDS, values[-1])
        at = 0
        for bound in _SECONDS[first : last + 1]:
            after = bisect_right(values, bound, at)
            if after > at:
                self._counts[bound] += (after - at) * times
                at = after


class Counters:
    """The running totals behind `Stats`."""

    __slots__ = (
        "_batch_size",
        "_closed",
        "_processing_time",
        "_runs",
        "_wait",
        "_waited",
        "accepted",
        "cached",
        "cancelled",
        "chosen",
        "expired",
        "failed",
        "padded",
        "processed",
        "real",
        "rejected",
    )

    def __init__(self) -> None:
        self.processed = 0
        self.accepted = 0
        self.failed = 0
        self.rejected = 0
        self.cached = 0
        self.cancelled = 0
        self.expired = 0
        self.real = 0
        self.padded = 0
        self.chosen: dict[str, int] = dict.fromkeys(CHOICES, 0)
        self._closed: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._batch_size = Sizes()
        self._processing_time = Times()
        self._wait = Times()
        self._runs: list[tuple[str, int, float, float | None]] = []
        self._waited: list[float] = []

    def unqueued(self, cached: int, expired: int) -> None:
        """Count the items of a call that was answered before anything of it was queued."""
        self.cached += cached
        self.accepted += expired
        self.expired += expired

    def ran(self, reason: str, size: int, duration: float, waited: float | None = None) -> None:
        """Count a run of the function that has started for a `reason`, with `size` items.

        All of them have `waited` so long, unless `waits` is told of each.
        """
        runs = self._runs
        runs.append((reason, size, duration, waited))
        if len(runs) == _RUNS:
            self._count_runs()

    def ran_full(self, size: int, durations: list[float], waited: list[float]) -> None:
        """Count runs that started because there were `size` items, all of which had waited as long."""
        runs = len(durations)
        self._closed["full"] += runs
        self._batch_size.add(size, runs)
        self._processing_time.add(durations)
        self._wait.add(waited, size)

    def waits(self, seconds: list[float]) -> None:
        """Count how long items of a batch have waited."""
        waited = self._waited
        waited += seconds
        if len(waited) >= _WAITS:
            self._count_waits()

    def _count_waits(self) -> None:
        waited, self._waited = self._waited, []
        self._wait.add(waited)

    def _count_runs(self) -> None:
        runs, self._runs = self._runs, []
        if not runs:
            return
        reasons, sizes, durations, waits = zip(*runs, strict=True)
        for reason, times in Counter(reasons).items():
            self._closed[reason] += times
        for size, times in Counter(sizes).items():
            self._batch_size.add(size, times)
        self._processing_time.add(list(durations))
        alike: defaultdict[int, list[float]] = defaultdict(list)  # by how many have waited so long
        for size, waited in zip(sizes, waits, strict=True):
            if waited is not None:
                alike[size].append(waited)
        for size, each in alike.items():
            self._wait.add(each, size)

    def snapshot(
        self,
        *,
        waiting: int,
        running: list[tuple[int, float]],
        again: int,
        fits: int | None,
        learned: Learned | None,
    ) -> Stats:
        """Return the totals so far.

        `running` are the batches that run: their items, and seconds since; `again` are the items of those
        that are about to run again, in parts.
        """
        self._count_runs()
        self._count_waits()
        batch_size = self._batch_size.snapshot()
        processing_time = self._processing_time.snapshot()
        return Stats(
            queue_size=waiting,
            running_items=sum(items for items, _ in running) + again,
            running=tuple(age for _, age in running),
            total_accepted=self.accepted,
            total_processed=self.processed,
            total_failed=self.failed,
            total_cancelled=self.cancelled,
            total_expired=self.expired,
            total_rejected=self.rejected,
            total_cached=self.cached,
            total_batches=batch_size.count,
            avg_batch_size=self.processed / batch_size.count if batch_size.count else 0.0,
            avg_processing_time=processing_time.mean,
            closed={reason: count for reason, count in self._closed.items() if count},
            chosen={how: count for how, count in self.chosen.items() if count},
            learned=learned,
            wait=self._wait.snapshot(),
            processing_time=processing_time,
            batch_size=batch_size,
            padding=Padding(self.real, self.padded),
            fits_memory=fits,
        )
