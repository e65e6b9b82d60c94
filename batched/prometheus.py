"""All live batchers on a Prometheus page: call `Collector()` once. Needs `pip install prometheus-client`.

Each process has its own page. Under a server with several workers, such as gunicorn, a scrape would show only
the worker that happens to answer it, and the multi-process mode of `prometheus_client` does not support
collectors. So have each worker serve a page on its own port, and have Prometheus scrape all of them:

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
    "processed_items": ("Items that the batch function has processed", lambda s: s.total_processed),
    "failed_items": ("Processed items that were answered with an error", lambda s: s.total_failed),
    "cancelled_items": ("Items cancelled before they ran", lambda s: s.total_cancelled),
    "expired_items": ("Items that missed their deadline before they ran", lambda s: s.total_expired),
    "rejected_items": ("Items rejected because the queue had no room", lambda s: s.total_rejected),
    "refused_items": (
        "Items refused on arrival because they would have missed their deadline",
        lambda s: s.total_refused,
    ),
    "cached_items": ("Items answered by the cache or by an equal item in flight", lambda s: s.total_cached),
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
_LABELLED: dict[str, tuple[str, str, Iterable[str], Callable[[Stats], Mapping[str, float]]]] = {
    "batches": (
        "Runs of the batch function, by the reason for their start",
        "reason",
        StartReason,
        lambda s: s.closed,
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
_SECONDS = [1e-6 * 2.0**exponent for exponent in range(6, 29)]
_ITEMS = [2.0**exponent for exponent in range(13)]
_HISTOGRAMS: dict[str, tuple[str, list[float], Callable[[Stats], Distribution]]] = {
    "wait_seconds": ("Time from an item's call to the start of its batch", _SECONDS, lambda s: s.wait),
    "execution_seconds": ("Duration of a run of the batch function", _SECONDS, lambda s: s.processing_time),
    "batch_size_items": ("Items in a run of the batch function", _ITEMS, lambda s: s.batch_size),
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
    "batchers": ("Live batchers with this name", len),
    "slots": (
        "Batches that can run at once; for batchers of event loops, on each loop",
        lambda live: sum(batcher.options.max_concurrent_batches for batcher, _ in live),
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
        "Items per second in full batches, back to back, calculated from the learned costs",
        lambda live: _capacity([s.learned.capacity for _, s in live if s.learned is not None]),
    ),
    "fitting_items": (
        "The largest batch size known to fit in memory",
        lambda live: min((s.fits_memory for _, s in live if s.fits_memory is not None), default=None),
    ),
}

_logger = logging.getLogger("batched")


class Collector:
    """Reads all live batchers when it is scraped, and only then.

    Batchers with the same name, such as those of a method's instances, are one series: their figures are
    added up, except for the age of a batch (the oldest), the learned seconds (the mean) and `fitting_items`
    (the smallest).

    To Prometheus, a counter that goes down has restarted. So what a batcher has counted stays in its series
    after it is gone, as long as another batcher with that name is alive; then the series ends. A batcher that
    came and went between two scrapes is not included.

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
        """Return the metrics of all live batchers. A batcher that cannot be read is logged and left out."""
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
