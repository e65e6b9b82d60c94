"""The page of metrics, read as Prometheus reads it, and what it should say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from batched._core.stats import Stats

Figures = dict[tuple[str, ...], float]
"""Of one batcher's name: by the metric, and the value of a second label if there is one."""


def page(registry: CollectorRegistry) -> dict[str, Figures]:
    """Scrape, and return what the page says of each name; no series may be there twice."""
    figures: dict[str, Figures] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            of_name = figures.setdefault(labels.pop("name", ""), {})
            key = (sample.name.removeprefix("batched_"), *labels.values())
            assert key not in of_name, sample
            of_name[key] = sample.value
    return figures


def check_identities(figures: Figures) -> None:
    """Every item accepted is somewhere, and the histograms are whole."""
    ended = sum(figures[f"{how}_items_total",] for how in ("processed", "cancelled", "expired"))
    pending = figures["waiting_items",] + figures["running_items",]
    assert figures["accepted_items_total",] == pending + ended
    assert figures["failed_items_total",] <= figures["processed_items_total",]
    assert figures["late_items_total",] <= figures["processed_items_total",]
    assert figures["real_elements_total",] <= figures["padded_elements_total",]
    for metric in ("wait_seconds", "execution_seconds", "batch_size_items"):
        buckets = [(float(key[1]), value) for key, value in figures.items() if key[0] == f"{metric}_bucket"]
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts)
        assert max(buckets)[0] == float("inf")
        assert counts[-1] == figures[f"{metric}_count",]
    batches = sum(count for key, count in figures.items() if key[0] == "batches_total")
    assert batches == figures["execution_seconds_count",] == figures["batch_size_items_count",]
    assert figures["busy_seconds_total",] >= figures["execution_seconds_sum",] * 0.999999


def is_cumulative(key: tuple[str, ...]) -> bool:
    """Whether the figure only grows."""
    return key[0].endswith(("_total", "_bucket", "_count", "_sum"))


def check_nothing_falls(before: dict[str, Figures], after: dict[str, Figures]) -> None:
    """Whatever is counted grows, of all names of which both pages have a batcher.

    The figures of shared workers name functions that are gone, too, such as those of other tests.
    """
    for name in before.keys() & after.keys():
        if ("batchers",) not in after[name]:
            continue
        for key, value in before[name].items():
            assert not is_cumulative(key) or after[name][key] >= value, (name, key)


def expected(stats: Stats) -> Figures:
    """What the page should say of a single batcher at rest."""
    totals = ("accepted", "processed", "failed", "cancelled", "expired", "late", "rejected", "cached")
    figures: Figures = {(f"{what}_items_total",): getattr(stats, f"total_{what}") for what in totals}
    figures["waiting_items",] = stats.queue_size
    figures["running_items",] = stats.running_items
    figures["running_batches",] = len(stats.running)
    figures["real_elements_total",] = stats.padding.real
    figures["padded_elements_total",] = stats.padding.padded
    figures["copied_items_total",] = stats.total_copies
    figures["joined_items_total",] = stats.total_joined
    figures["busy_seconds_total",] = stats.processing_time.sum
    figures |= {("batches_total", reason): count for reason, count in stats.closed.items()}
    figures |= {("chosen_batches_total", how): count for how, count in stats.chosen.items()}
    seconds = [1e-6 * 2.0**exponent for exponent in range(6, 29)]  # from 64 microseconds to 268 seconds
    histograms = {
        "wait_seconds": (stats.wait, seconds),
        "execution_seconds": (stats.processing_time, seconds),
        "batch_size_items": (stats.batch_size, [2.0**exponent for exponent in range(13)]),
    }
    for metric, (values, bounds) in histograms.items():
        figures[f"{metric}_count",] = values.count
        figures[f"{metric}_sum",] = values.sum
        figures[f"{metric}_bucket", "+Inf"] = values.count
        for bound in bounds:
            up_to = [count for of, count in zip(values.bounds, values.cumulative, strict=True) if of <= bound]
            figures[f"{metric}_bucket", str(bound)] = max(up_to, default=0)
    if stats.fits_memory is not None:
        figures["fitting_items",] = stats.fits_memory
    if stats.learned is not None:
        figures["learned_delay_seconds",] = stats.learned.wait_ms / 1000
        for name in ("batch", "item", "length"):
            cost_ms = getattr(stats.learned, f"{name}_ms")
            if cost_ms is not None:  # what is not known has no series
                figures[f"learned_{name}_seconds",] = cost_ms / 1000
        if stats.learned.capacity is not None:
            figures["learned_capacity_items_per_second",] = stats.learned.capacity
    return figures
