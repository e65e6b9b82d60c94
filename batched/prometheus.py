"""All live batchers on a Prometheus page: `Collector()`, once. Needs `pip install prometheus-client`.

Every process has a page of its own. Under a server with several workers, such as gunicorn, a scrape would
show only the worker that happens to answer it, and the multi-process mode of `prometheus_client` takes no
collectors. So let each worker serve a page on a port of its own, and have Prometheus scrape them all:

    import prometheus_client  # in gunicorn.conf.py
    from batched.prometheus import Collector

    def post_fork(server, worker):
        registry = prometheus_client.CollectorRegistry()
        Collector(registry=registry)
        for port in range(9100, 9200):
            try:
                return prometheus_client.start_http_server(port, registry=registry)
            except OSError:  # another worker's
                pass
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any, TypeAlias

from batched._core.counters import Counters
from batched._core.stats import Distribution, Stats
from batched._drivers.event_loop import LoopDriver
from batched._drivers.fork_and_exit import live
from batched._drivers.thread import ThreadDriver
from batched._policy.lengths import Choice
from batched._policy.window import StartReason

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"batched.prometheus needs {_missing.name}: pip install prometheus-client", name=_missing.name
    ) from None

__all__ = ["Collector"]

Live: TypeAlias = "list[tuple[ThreadDriver | LoopDriver, Stats]]"
"""The batchers of one name."""
Totals: TypeAlias = "Counter[tuple[str, str]]"
"""Counts by metric and label: "" where a metric has no label, a bound or "sum" in a histogram."""

_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "accepted_items": ("Items taken from callers", lambda s: s.total_accepted),
    "processed_items": ("Items given to the batch function", lambda s: s.total_processed),
    "failed_items": ("Processed items that came back as an error", lambda s: s.total_failed),
    "cancelled_items": ("Items that were cancelled before execution", lambda s: s.total_cancelled),
    "expired_items": ("Items that were late before execution", lambda s: s.total_expired),
    "rejected_items": ("Items for which the queue had no room", lambda s: s.total_rejected),
    "refused_items": ("Items that would have been late, by the time of batches", lambda s: s.total_refused),
    "cached_items": ("Items answered by the cache or an equal one in flight", lambda s: s.total_cached),
    "real_elements": ("Elements, or units of length, that callers passed", lambda s: s.padding.real),
    "padded_elements": ("Elements that the batch function got, with padding", lambda s: s.padding.padded),
    "busy_seconds": (
        "Seconds of all batches, those that run included: its rate is how many slots are in use",
        lambda s: s.processing_time.sum + sum(s.running),
    ),
}
_LABELLED: dict[str, tuple[str, str, Iterable[str], Callable[[Stats], Mapping[str, float]]]] = {
    "batches": ("Runs of the batch function by why they started", "reason", StartReason, lambda s: s.closed),
    "chosen_batches": ("Runs, where lengths are known, by choice", "how", Choice, lambda s: s.chosen),
}
# Every bound is a series: so each is twice the one before, from 64 microseconds to 4.5 minutes, and up to
# 4,096 items. All of them are bounds of the buckets that are counted, so that the figures are exact.
_SECONDS = [1e-6 * 2.0**exponent for exponent in range(6, 29)]
_ITEMS = [2.0**exponent for exponent in range(13)]
_HISTOGRAMS: dict[str, tuple[str, list[float], Callable[[Stats], Distribution]]] = {
    "wait_seconds": ("From each item's call to the start of its batch", _SECONDS, lambda s: s.wait),
    "execution_seconds": ("A run of the batch function", _SECONDS, lambda s: s.processing_time),
    "batch_size_items": ("Items of a run", _ITEMS, lambda s: s.batch_size),
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


def _expected_waits_s(live: Live) -> list[float]:
    waits = [batcher.expected_wait_s(1) for batcher, _ in live]
    return [wait for wait in waits if wait is not None]


_GAUGES: dict[str, tuple[str, Callable[[Live], float | None]]] = {
    "batchers": ("Live batchers of this name", len),
    "slots": (
        "Batches that may run at once; of a batcher for event loops, on each loop",
        lambda live: sum(batcher.options.max_concurrent_batches for batcher, _ in live),
    ),
    "waiting_items": ("Items that wait", lambda live: sum(s.queue_size for _, s in live)),
    "running_items": ("Items in the batches that run", lambda live: sum(s.running_items for _, s in live)),
    "running_batches": ("Batches that run", lambda live: sum(len(s.running) for _, s in live)),
    "running_batch_age_seconds": (
        "For how long the oldest batch that runs has been running; 0 if none does",
        lambda live: max((age for _, s in live for age in s.running), default=0.0),
    ),
    "expected_wait_seconds": (
        "How long a call of one item would wait for its answer, once any had a deadline or this was read",
        lambda live: max(_expected_waits_s(live), default=None),
    ),
    "learned_batch_seconds": ("What a batch costs whatever its size, as learned", _mean_s("batch_ms")),
    "learned_item_seconds": ("What each item adds, as learned", _mean_s("item_ms")),
    "learned_length_seconds": (
        "What each item adds for every unit of the longest item's length, as learned",
        _mean_s("length_ms"),
    ),
    "learned_delay_seconds": (
        "For how long the last batches were held back for more calls",
        _mean_s("wait_ms"),
    ),
    "learned_capacity_items_per_second": (
        "Items a second of full batches, back to back, by what was learned",
        lambda live: _capacity([s.learned.capacity for _, s in live if s.learned is not None]),
    ),
    "fitting_items": (
        "The most items of a batch as far as memory is known to go",
        lambda live: min((s.fits_memory for _, s in live if s.fits_memory is not None), default=None),
    ),
}

_logger = logging.getLogger("batched")


class Collector:
    """Reads all live batchers when it is asked to, and only then.

    Batchers of one name, such as those of a method's instances, are one series: their figures are added up,
    but for the age of a batch, where the oldest counts, the learned seconds, which are means, and
    `fitting_items`, where the least counts.

    Prometheus takes a counter that falls for one that has begun anew. So what a batcher has counted stays in
    its series after it is gone, as long as another of its name lives; then the series ends. A batcher that
    came and went between two scrapes is not in it.

    Args:
        registry: Where to register; None for nowhere.

    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._histories: dict[int, _History] = {}
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without any figures, so that registering reads nothing."""
        return _families({}, {})

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all live batchers. One that cannot be read is logged, and left out."""
        # A forked child begins anew, as its batchers do: a thread of the parent may hold the parent's lock.
        history = self._histories.setdefault(os.getpid(), _History())
        with history.lock:
            batchers, counters = _read()
            return _families(batchers, history.totals(batchers, counters))


class _History:
    """The figures of earlier scrapes, so that no counter falls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._counters: dict[Counters, str] = {}  # of the batchers that lived then, which these outlive
        self._gone: dict[str, Totals] = {}
        self._told: dict[str, Totals] = {}

    def totals(self, batchers: dict[str, Live], counters: dict[Counters, str]) -> dict[str, Totals]:
        """Return the totals of each name, those of batchers that are gone included."""
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


def _read() -> tuple[dict[str, Live], dict[Counters, str]]:
    """Return the live batchers by name, and the name of each one's counters."""
    batchers: dict[str, Live] = {}
    counters: dict[Counters, str] = {}
    for batcher in live():
        if isinstance(batcher, ThreadDriver | LoopDriver):
            name = batcher.name.encode(errors="backslashreplace").decode()  # the page is UTF-8
            counters[batcher.counters] = name
            try:
                stats = batcher.stats
            except Exception:
                _logger.exception("%s: could not read its stats", batcher.name)
            else:
                batchers.setdefault(name, []).append((batcher, stats))
    return batchers, counters


def _last_stats(counters: Counters) -> Stats:
    """Return the last figures of a batcher that is gone; the items that it left behind count as cancelled."""
    stats = counters.snapshot(waiting=0, running=[], again=0, fits=None, best=None, learned=None)
    executed_or_late = stats.total_processed + stats.total_expired
    return replace(stats, total_cancelled=stats.total_accepted - executed_or_late)


def _totals(stats: Stats) -> Totals:
    totals: dict[tuple[str, str], Any] = {
        (metric, ""): read(stats) for metric, (_, read) in _COUNTERS.items()
    }
    for metric, (_, _, _, read_counts) in _LABELLED.items():
        totals |= {(metric, value): count for value, count in read_counts(stats).items()}
    for metric, (_, bounds, read_values) in _HISTOGRAMS.items():
        found = read_values(stats)
        totals |= {(metric, str(bound)): found.at_most(bound) for bound in bounds}
        totals |= {(metric, "+Inf"): found.count, (metric, "sum"): found.sum}
    return Counter(totals)


def _families(batchers: dict[str, Live], totals: dict[str, Totals]) -> Iterator[Metric]:
    for metric, (text, _) in _COUNTERS.items():
        counter = CounterMetricFamily(f"batched_{metric}", text, labels=["name"])
        for name, figures in totals.items():
            counter.add_metric([name], figures[metric, ""])
        yield counter
    for metric, (text, label, values, _) in _LABELLED.items():
        counter = CounterMetricFamily(f"batched_{metric}", text, labels=["name", label])
        for (name, figures), value in product(totals.items(), values):
            counter.add_metric([name, value], figures[metric, value])
        yield counter
    for metric, (text, bounds, _) in _HISTOGRAMS.items():
        histogram = HistogramMetricFamily(f"batched_{metric}", text, labels=["name"])
        for name, figures in totals.items():
            buckets = [(bound, figures[metric, bound]) for bound in (*map(str, bounds), "+Inf")]
            histogram.add_metric([name], buckets, figures[metric, "sum"])
        yield histogram
    for metric, (text, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"batched_{metric}", text, labels=["name"])
        for name, each in batchers.items():
            if (figure := read(each)) is not None:
                gauge.add_metric([name], figure)
        yield gauge
