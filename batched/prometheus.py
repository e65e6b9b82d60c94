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

from collections.abc import Iterable, Iterator

from batched._metrics import HISTOGRAMS, History, Metric, Totals, metrics, read_workers

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"batched.prometheus needs {_missing.name}: pip install prometheus-client", name=_missing.name
    ) from None

__all__ = ["Collector"]


class Collector:
    """Reads all live batchers when it is scraped, and only then.

    Batchers with the same name, such as those of a method's instances, are one series: their figures are
    added up, except for the age of a batch (the oldest), the expected wait (the longest), the learned seconds
    (the mean) and `fitting_items` (the smallest).

    To Prometheus, a counter that goes down has restarted. So what a batcher has counted stays in its series
    after it is gone, as long as another batcher with that name is alive; then the series ends. A batcher that
    came and went between two scrapes is not included. Workers that functions share have metrics of their own.

    Args:
        registry: Where to register; None for nowhere.

    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        self._history = History()
        if registry is None:
            return
        try:
            registry.register(self)
        except ValueError as error:  # each of its names is registered already
            error.add_note(
                "One Collector reads all batchers of the process, and this registry seems to have one. "
                "Create it once, or give each app a registry of its own: "
                "registry=prometheus_client.CollectorRegistry()"
            )
            raise

    def describe(self) -> Iterable[Family]:
        """Return the metrics without any figures, so that registering reads nothing."""
        return [*map(_family, metrics({}, {}, {}, {})), *_histograms({})]

    def collect(self) -> Iterable[Family]:
        """Return the metrics of all live batchers. A batcher that cannot be read is logged and left out."""
        batchers, totals = self._history.read()
        return [*map(_family, metrics(batchers, totals, *read_workers())), *_histograms(totals)]


def _family(metric: Metric) -> Family:
    kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
    family = kind(f"batched_{metric.name}", metric.text, labels=metric.labels)
    for labels, figure in metric.figures:
        family.add_metric(labels, figure)
    return family


def _histograms(totals: dict[str, Totals]) -> Iterator[Family]:
    for metric, (text, bounds, _) in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(f"batched_{metric}", text, labels=["name"])
        for name, figures in totals.items():
            buckets = [(bound, figures[metric, bound]) for bound in (*map(str, bounds), "+Inf")]
            histogram.add_metric([name], buckets, figures[metric, "sum"])
        yield histogram
