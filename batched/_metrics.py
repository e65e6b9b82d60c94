"""The metrics of all live batchers, as tables: what Prometheus and OpenTelemetry show is made of these."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from batched._core.counters import Counters
from batched._core.options import Options
from batched._core.stats import Distribution, Stats
from batched._drivers.event_loop import LoopDriver
from batched._drivers.fork_and_exit import live, register
from batched._drivers.thread import ThreadDriver
from batched._drivers.worker_pool import FunctionShare, WorkerPool
from batched._logs import log_error
from batched._policy.lengths import Choice
from batched._policy.window import StartReason

Live: TypeAlias = "list[tuple[ThreadDriver | LoopDriver, Stats]]"
"""The batchers of one name."""
Totals: TypeAlias = "Counter[tuple[str, str]]"
"""Counts by metric and label: "" where a metric has no label, a bound or "sum" in a histogram."""

COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "accepted_items": ("Items taken from callers", lambda s: s.total_accepted),
    "processed_items": ("Items that the batch function has processed", lambda s: s.total_processed),
    "failed_items": ("Processed items that were answered with an error", lambda s: s.total_failed),
    "cancelled_items": ("Items cancelled before they ran", lambda s: s.total_cancelled),
    "expired_items": (
        "Items dropped before they ran because of their deadline: it had passed, or could no longer be met",
        lambda s: s.total_expired,
    ),
    "late_items": (
        "Processed items of which the deadline passed while they ran: their callers got a TimeoutError",
        lambda s: s.total_late,
    ),
    "rejected_items": ("Items rejected because the queue had no room", lambda s: s.total_rejected),
    "refused_items": (
        "Items refused on arrival because they would have missed their deadline",
        lambda s: s.total_refused,
    ),
    "cached_items": ("Items answered by the cache or by an equal item in flight", lambda s: s.total_cached),
    "copied_items": (
        "Copies of items that filled batches up to one of batch_sizes; no other figure counts them",
        lambda s: s.total_copies,
    ),
    "joined_items": ("Items that joined a batch while it ran (continuous)", lambda s: s.total_joined),
    "real_elements": ("Elements, or units of length, that callers passed", lambda s: s.padding.real),
    "padded_elements": (
        "Elements that the batch function was given, including padding",
        lambda s: s.padding.padded,
    ),
    "busy_seconds": (
        "Seconds spent in batches, running ones included; the rate is the number of slots in use",
        lambda s: s.processing_time.sum + sum(s.running),
    ),
}
LABELLED: dict[str, tuple[str, str, Iterable[str], Callable[[Stats], Mapping[str, float]]]] = {
    "batches": (
        "Runs of the batch function, by the reason for their start",
        "reason",
        StartReason,
        lambda s: s.closed,
    ),
    "stage_seconds": (
        "Seconds spent in each stage of batches, with the option `prepare` or `finish`",
        "stage",
        ("prepare", "function", "finish"),
        lambda s: {name: times.sum for name, times in s.stages.items()},
    ),
    "chosen_batches": (
        "Runs with known item lengths, by how their items were chosen",
        "how",
        Choice,
        lambda s: s.chosen,
    ),
}
# Every bound is a series: so each is twice the one before, from 64 microseconds to 4.5 minutes, and up to
# 4,096 items. All of them are bounds of the buckets that are counted, so that the figures are exact.
SECONDS = [1e-6 * 2.0**exponent for exponent in range(6, 29)]
ITEMS = [2.0**exponent for exponent in range(13)]
HISTOGRAMS: dict[str, tuple[str, list[float], Callable[[Stats], Distribution]]] = {
    "wait_seconds": ("Time from an item's call to the start of its batch", SECONDS, lambda s: s.wait),
    "execution_seconds": ("Duration of a run of the batch function", SECONDS, lambda s: s.processing_time),
    "batch_size_items": ("Items in a run of the batch function", ITEMS, lambda s: s.batch_size),
}


def _mean_s(what_ms: str) -> Callable[[Live], float | None]:
    def mean_s(live: Live) -> float | None:
        learned = [getattr(stats.learned, what_ms) for _, stats in live if stats.learned is not None]
        known = [value for value in learned if value is not None]
        return fmean(known) / 1000 if known else None

    return mean_s


def _capacity(known: list[float | None]) -> float | None:
    """Return what batchers can do together; None if of one of them that is not known."""
    capacities = [capacity for capacity in known if capacity is not None]
    return sum(capacities) if capacities and len(capacities) == len(known) else None


def _slots(options: Options) -> int:
    """Return how many batches can run at once."""
    if options.workers is not None:  # stages of one worker do not overlap
        return options.max_concurrent_batches
    stages = (options.prepare is not None) + (options.finish is not None)
    return options.max_concurrent_batches + stages


def _expected_waits_s(live: Live) -> list[float]:
    waits = [batcher.expected_wait_s(1) for batcher, _ in live]
    return [wait for wait in waits if wait is not None]


GAUGES: dict[str, tuple[str, Callable[[Live], float | None]]] = {
    "batchers": ("Live batchers with this name", len),
    "slots": (
        "Batches that can run at once, one in each stage; for batchers of event loops, on each loop",
        lambda live: sum(_slots(batcher.options) for batcher, _ in live),
    ),
    "waiting_items": ("Items in the queue", lambda live: sum(s.queue_size for _, s in live)),
    "running_items": ("Items in running batches", lambda live: sum(s.running_items for _, s in live)),
    "running_batches": ("Batches that are running", lambda live: sum(len(s.running) for _, s in live)),
    "running_batch_age_seconds": (
        "How long the oldest running batch has been running; 0 if none is",
        lambda live: max((age for _, s in live for age in s.running), default=0.0),
    ),
    "expected_wait_seconds": (
        "How long a call of one item would wait for its answer; learned from the first scrape or deadline on",
        lambda live: max(_expected_waits_s(live), default=None),
    ),
    "learned_batch_seconds": ("Learned cost of a batch of any size", _mean_s("batch_ms")),
    "learned_item_seconds": ("Learned cost of each item", _mean_s("item_ms")),
    "learned_length_seconds": (
        "Learned cost of each item for every unit of the longest item's length",
        _mean_s("length_ms"),
    ),
    "learned_delay_seconds": ("How long recent batches waited for more calls", _mean_s("wait_ms")),
    "learned_capacity_items_per_second": (
        "Items per second in full batches, back to back in each worker, calculated from the learned costs",
        lambda live: _capacity([s.learned.capacity for _, s in live if s.learned is not None]),
    ),
    "fitting_items": (
        "The most items in a batch since memory ran out, but for rare trials of more",
        lambda live: min((s.fits_memory for _, s in live if s.fits_memory is not None), default=None),
    ),
}

WORKERS: dict[str, tuple[str, Callable[[FunctionShare], float]]] = {
    "worker_batches": ("Batches that a shared worker has run, by function", lambda share: share.batches),
    "worker_busy_seconds": ("Seconds that these took", lambda share: share.seconds),
}


class Metric(NamedTuple):
    """A metric that is no histogram, with its figures by the values of its labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    figures: Iterable[tuple[tuple[str, ...], float]]
    is_gauge: bool = False


def metrics(
    batchers: Mapping[str, Live],
    totals: Mapping[str, Totals],
    workers: Mapping[tuple[str, str, str, str], float],
    ready: Mapping[tuple[str, str], int],
) -> Iterator[Metric]:
    """Return all metrics but the histograms, of what `History.read` and `read_workers` return."""
    for metric, (text, _) in COUNTERS.items():
        yield Metric(metric, text, ("name",), [((name,), of[metric, ""]) for name, of in totals.items()])
    for metric, (text, label, values, _) in LABELLED.items():
        counts = [((name, str(each)), of[metric, each]) for name, of in totals.items() for each in values]
        yield Metric(metric, text, ("name", label), counts)
    for metric, (text, figure_of) in GAUGES.items():
        found = [((name,), figure_of(each)) for name, each in batchers.items()]
        known = [(labels, figure) for labels, figure in found if figure is not None]
        yield Metric(metric, text, ("name",), known, is_gauge=True)
    for metric, (text, _) in WORKERS.items():
        shares = [(tuple(labels), figure) for (of, *labels), figure in workers.items() if of == metric]
        yield Metric(metric, text, ("workers", "worker", "name"), shares)
    text = "Whether a shared worker has its state: 1 or 0"
    yield Metric("worker_ready", text, ("workers", "worker"), [*ready.items()], is_gauge=True)


class History:
    """The figures of earlier scrapes, so that no counter falls."""

    def __init__(self) -> None:
        self.after_fork()
        register(self)

    def after_fork(self) -> None:
        """Begin anew, as batchers do in a child: a thread of the parent may hold the parent's lock."""
        self._lock = threading.Lock()
        self._counters: dict[Counters, str] = {}  # of the batchers that lived then, which these outlive
        self._gone: dict[str, Totals] = {}
        self._told: dict[str, Totals] = {}

    def read(self) -> tuple[dict[str, Live], dict[str, Totals]]:
        """Return the live batchers, and the totals of each name, those of batchers that are gone included."""
        with self._lock:
            batchers, counters = _read()
            return batchers, self._totals(batchers, counters)

    def _totals(self, batchers: dict[str, Live], counters: dict[Counters, str]) -> dict[str, Totals]:
        for ended, name in self._counters.items():
            if ended not in counters:
                self._gone[name] = self._gone.get(name, Counter()) + _totals(_last_stats(ended))
        self._counters = counters
        self._gone = {name: self._gone.get(name, Counter()) for name in batchers}
        told = {}
        for name, each in batchers.items():
            totals = sum((_totals(stats) for _, stats in each), self._gone[name])
            # The larger figures: a closed event loop may have taken along what only it had counted.
            told[name] = totals | self._told.get(name, Counter())
        self._told = told
        return told


def printable(name: str) -> str:
    """Return a name as UTF-8 can say it, which pages and protocols are in."""
    return name.encode(errors="backslashreplace").decode()


def _read() -> tuple[dict[str, Live], dict[Counters, str]]:
    """Return the live batchers by name, and the name of each one's counters."""
    batchers: dict[str, Live] = {}
    counters: dict[Counters, str] = {}
    for batcher in live():
        if isinstance(batcher, ThreadDriver | LoopDriver):
            name = printable(batcher.name)
            counters[batcher.counters] = name
            try:
                stats = batcher.stats
            except Exception:  # noqa: BLE001  logged
                log_error("%s: could not read its stats", batcher.name)
            else:
                batchers.setdefault(name, []).append((batcher, stats))
    return batchers, counters


def read_workers() -> tuple[Counter[tuple[str, str, str, str]], dict[tuple[str, str], int]]:
    """Return the figures of shared workers, those of the same name added up, and whether they are ready.

    Of workers that were shut down, only the figures.

    By metric, the name of the workers, of the worker, and of the function; by the name of the workers, and of
    the worker. Of several with the same name each must be ready.
    """
    totals: Counter[tuple[str, str, str, str]] = Counter()
    ready: dict[tuple[str, str], int] = {}
    for pool in live():
        if not isinstance(pool, WorkerPool):
            continue
        for worker in pool.workers:
            if worker.current is not None or not pool.closed:  # after its shutdown it needs no state
                key = printable(pool.name), printable(worker.name)
                ready[key] = min(ready.get(key, 1), int(worker.current is not None))  # a bool is no figure
            for function, share in [*worker.served.items()]:
                labels = printable(pool.name), printable(worker.name), printable(function)
                for metric, (_, figure_of) in WORKERS.items():
                    totals[metric, *labels] += figure_of(share)  # type: ignore[assignment]
    return totals, ready


def _last_stats(counters: Counters) -> Stats:
    """Return the last figures of a batcher that is gone; the items that it left behind count as cancelled."""
    stats = counters.snapshot()
    executed_or_late = stats.total_processed + stats.total_expired
    return replace(stats, total_cancelled=stats.total_accepted - executed_or_late)


def _totals(stats: Stats) -> Totals:
    totals: dict[tuple[str, str], Any] = {(metric, ""): read(stats) for metric, (_, read) in COUNTERS.items()}
    for metric, (_, _, _, read_counts) in LABELLED.items():
        totals |= {(metric, value): count for value, count in read_counts(stats).items()}
    for metric, (_, bounds, read_values) in HISTOGRAMS.items():
        found = read_values(stats)
        totals |= {(metric, str(bound)): found.at_most(bound) for bound in bounds}
        totals |= {(metric, "+Inf"): found.count, (metric, "sum"): found.sum}
    return Counter(totals)
