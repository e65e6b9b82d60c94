"""The Prometheus page of all live batchers, read as Prometheus reads it, and the dashboard drawn from it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import batched
from batched import aio, inference
from batched._core.counters import Counters
from batched._core.stats import Stats
from batched._drivers.thread import ThreadDriver
from batched._policy.window import StartReason
from batched.prometheus import Collector
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, turns_until, until
from tests.test_lifecycle import run as run_script

DASHBOARD = Path(__file__).parents[1] / "examples" / "embedding_service_dashboard.json"

Figures = dict[tuple[str, ...], float]
"""Of one batcher's name: by the metric, and the value of a second label if there is one."""


@pytest.fixture
def name() -> str:
    """A name that no batcher of another test has, which may not have been collected yet."""
    return f"name {next(numbers)}"


numbers = count()


@pytest.fixture
def registry() -> CollectorRegistry:
    """A page of its own for each test."""
    registry = CollectorRegistry()
    Collector(registry)
    return registry


def page(registry: CollectorRegistry) -> dict[str, Figures]:
    """Scrape, and return what the page says of each name; no series may be there twice."""
    figures: dict[str, Figures] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            of_name = figures.setdefault(labels.pop("name"), {})
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
    return key[0].endswith(("_total", "_bucket", "_count", "_sum"))


def check_nothing_falls(before: dict[str, Figures], after: dict[str, Figures]) -> None:
    """Whatever is counted grows, of all names that are on both pages."""
    for name in before.keys() & after.keys():
        for key, value in before[name].items():
            assert not is_cumulative(key) or after[name][key] >= value, (name, key)


def expected(stats: Stats) -> Figures:
    """What the page should say of a single batcher at rest."""
    totals = ("accepted", "processed", "failed", "cancelled", "expired", "rejected", "cached")
    figures: Figures = {(f"{what}_items_total",): getattr(stats, f"total_{what}") for what in totals}
    figures["waiting_items",] = stats.queue_size
    figures["running_items",] = stats.running_items
    figures["running_batches",] = len(stats.running)
    figures["real_elements_total",] = stats.padding.real
    figures["padded_elements_total",] = stats.padding.padded
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
        figures["learned_batch_seconds",] = stats.learned.batch_ms / 1000
        figures["learned_item_seconds",] = stats.learned.item_ms / 1000
        figures["learned_length_seconds",] = stats.learned.length_ms / 1000
        figures["learned_delay_seconds",] = stats.learned.wait_ms / 1000
        figures["learned_capacity_items_per_second",] = stats.learned.capacity
    return figures


def test_the_page_says_what_the_stats_say(flavour: Flavour, registry: CollectorRegistry, name: str) -> None:
    """Of every flavour, while a batch runs and afterwards."""
    gate = Gate(lambda xs: [ValueError() if x == 2 else x for x in xs], shut=True)
    fn = flavour.decorate(gate, name=name, batch_size=4, timeout_ms=0, max_queue_size=4)
    running = flavour.start(fn, [1, 2, 3, 4])
    gate.wait_for_batch()
    waiting = flavour.start(fn, [5, 6])
    during = page(registry)[name]
    check_identities(during)
    assert (during["running_items",], during["waiting_items",]) == (4, 2)
    assert (during["running_batches",], during["batchers",], during["slots",]) == (1, 1, 1)
    assert 0 < during["running_batch_age_seconds",] <= during["busy_seconds_total",]
    assert during["busy_seconds_total",] < PATIENCE_S
    with pytest.raises(batched.QueueFullError):
        flavour.call(fn, [7, 8, 9])
    gate.open()
    assert waiting.result(PATIENCE_S) == [5, 6]
    assert isinstance(running.exception(PATIENCE_S), ValueError)
    until(lambda: not fn.stats.running)
    after = page(registry)[name]
    check_identities(after)
    check_nothing_falls({name: during}, {name: after})
    said = expected(fn.stats)
    assert {key: after[key] for key in said} == said
    assert (after["failed_items_total",], after["rejected_items_total",]) == (1, 3)
    assert (after["batch_size_items_bucket", "2.0"], after["batch_size_items_bucket", "4.0"]) == (1, 2)
    assert after["running_batch_age_seconds",] == 0
    flavour.close(fn)
    assert page(registry)[name] == after


def test_arrays_lengths_and_what_was_learned_are_there(
    flavour: Flavour, registry: CollectorRegistry, name: str
) -> None:
    """Padding by elements, how batches were chosen, costs in seconds, what fits into memory, cache hits."""

    def double(features: dict[str, np.ndarray]) -> np.ndarray:
        if len(features["x"]) > 2:
            raise MemoryError
        return features["x"] * 2

    arrays = flavour.decorate_arrays(double, name=f"{name} arrays", unpad_outputs=True)
    flavour.call(arrays, {"x": [np.ones(1), np.ones(3), np.ones(2)]})
    for _ in range(10):
        flavour.call(arrays, x=np.ones((1, 2)))
    cached = flavour.decorate(list, name=f"{name} cached", length=len, cache={})
    for word in ("a", "bc", "a"):
        flavour.call(cached, word)
    until(lambda: not arrays.stats.running and not cached.stats.running)
    figures = page(registry)
    for fn, kind in ((arrays, "arrays"), (cached, "cached")):
        said = expected(fn.stats)
        assert {key: figures[f"{name} {kind}"][key] for key in said} == said
        check_identities(figures[f"{name} {kind}"])
    assert figures[f"{name} arrays"]["fitting_items",] == 1
    assert figures[f"{name} arrays"]["learned_capacity_items_per_second",] > 0
    assert figures[f"{name} arrays"]["padded_elements_total",] > 0
    assert figures[f"{name} cached"]["cached_items_total",] == 1
    assert figures[f"{name} cached"]["chosen_batches_total", "arrival"] == 2


def test_what_was_never_seen_has_no_figure(registry: CollectorRegistry, name: str) -> None:
    """Nothing learned and no limit of memory are no series; what counts begins at zero."""
    fn = batched.dynamically(list, name=name, timeout_ms=0)
    assert fn.stats.learned is None
    figures = page(registry)[name]
    assert not [key for key in figures if key[0].startswith(("learned", "fitting"))]
    assert {value for key, value in figures.items() if is_cumulative(key)} == {0}
    assert len([key for key in figures if key[0] == "batches_total"]) == 10


def test_openmetrics_says_the_same(registry: CollectorRegistry) -> None:
    """The stricter format, with its stricter parser."""
    fn = batched.dynamically(list, name='open "metrics"', timeout_ms=0)
    fn([1, 2, 3])
    text = openmetrics.generate_latest(registry).decode()
    strict = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in openmetrics_families(text)
        for sample in family.samples
    }
    plain = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    mine = [key for key in plain if ("name", 'open "metrics"') in key]
    assert len(mine) > 50
    assert {key: strict[key] for key in mine} == {key: plain[key] for key in mine}


ODD_NAMES = ["<lambda>", 'say "hi"', "back\\slash", "two\nlines", "Grüße 漢字", "{a=1}", "", "a\ud800b"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_are_escaped(name: str, registry: CollectorRegistry) -> None:
    """They come out of the page as they went in, but for what cannot be written as UTF-8."""
    fn = batched.dynamically(list, timeout_ms=0)
    fn._find().name = name
    shown = name.encode(errors="backslashreplace").decode()
    before = page(registry)[shown]["processed_items_total",]
    fn([1, 2])
    assert page(registry)[shown]["processed_items_total",] == before + 2


def test_names_are_those_of_the_functions(registry: CollectorRegistry) -> None:
    """Of a local one, of a lambda and of a method, without where they were defined."""

    class Local:
        @batched.dynamically(timeout_ms=0)
        def method(self, items: list[int]) -> list[int]:
            return items

    local, nameless = Local(), batched.dynamically(lambda items: items, timeout_ms=0)
    assert (local.method(1), nameless(2)) == (1, 2)
    assert {"Local.method", "<lambda>"} <= page(registry).keys()


class Model:
    """Each instance has a batcher of its own, all of one name."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.answer = gate or list

    @batched.dynamically(name="merged", batch_size=8, timeout_ms=0)
    def embed(self, items: list[int]) -> list[int]:
        return self.answer(items)  # type: ignore[no-any-return]


def use(models: list[Model], items: list[int]) -> None:
    for model in models:
        assert model.embed(items) == items


def drop(models: list[Model]) -> None:
    """Have models collected, and their batchers with their threads."""
    batchers = [weakref.ref(model.embed._find()) for model in models]
    models.clear()
    until(lambda: gc.collect() is not None and not any(batcher() for batcher in batchers))


def test_batchers_of_one_name_are_one_series(registry: CollectorRegistry) -> None:
    """A hundred instances: sums, and the age of the oldest batch."""
    gate = Gate(shut=True)
    models = [Model() for _ in range(98)] + [Model(gate), Model(gate)]
    use(models[:98], [1, 2, 3])
    futures = [model.embed.submit(1) for model in models[98:]]
    for _ in range(2):
        gate.wait_for_batch()
    running = models[98].embed._find().batcher.running.since
    for batch in running:
        running[batch] -= 1000  # as if it had been running for so long
    figures = page(registry)["merged"]
    check_identities(figures)
    assert (figures["batchers",], figures["slots",], figures["running_batches",]) == (100, 100, 2)
    assert (figures["accepted_items_total",], figures["processed_items_total",]) == (296, 294)
    assert figures["batch_size_items_bucket", "4.0"] == figures["batch_size_items_count",] == 98
    assert figures["batch_size_items_sum",] == 294
    assert 1000 < figures["running_batch_age_seconds",] < 1000 + PATIENCE_S
    assert figures["busy_seconds_total",] > 1000
    gate.open()
    assert [futures.pop().result(PATIENCE_S) for _ in range(2)] == [1, 1]  # a future refers to its batcher
    del running, batch
    drop(models)
    assert "merged" not in page(registry)


def test_counters_do_not_fall_when_a_batcher_is_gone(registry: CollectorRegistry) -> None:
    """What it has counted stays, after the last scrape too, while another of its name lives; then all go."""
    stays, goes = [Model()], [Model(), Model()]
    use([*stays, *goes], [1, 2])
    before = page(registry)
    assert before["merged"]["processed_items_total",] == 6
    use(goes[:1], [3, 4, 5])
    drop(goes)
    after = page(registry)
    check_nothing_falls(before, after)
    check_identities(after["merged"])
    assert (after["merged"]["processed_items_total",], after["merged"]["batchers",]) == (9, 1)
    assert after["merged"]["batch_size_items_sum",] == 9
    use(stays, [6])
    assert page(registry)["merged"]["processed_items_total",] == 10
    drop(stays)
    assert "merged" not in page(registry)
    again = [Model()]
    use(again, [1])
    assert page(registry)["merged"]["processed_items_total",] == 1
    drop(again)


@pytest.mark.parametrize("then", ["lives", "goes too"])
def test_counters_do_not_fall_with_a_closed_event_loop(
    registry: CollectorRegistry, name: str, then: str
) -> None:
    """Whose running batch, and callers, go with it; whether the batcher goes with it or not."""

    async def endless(items: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return items

    decorated = [aio.dynamically(endless, name=name, batch_size=1, timeout_ms=0) for _ in range(2)]
    assert [fn.stats.total_accepted for fn in decorated] == [0, 0]
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(decorated[1](item)) for item in (1, 2)]
    loop.run_until_complete(turns_until(lambda: decorated[1].stats.running))
    before = page(registry)
    for task in tasks:
        task._log_destroy_pending = False  # the tasks are this test's own
    loop.close()
    del loop, tasks, task
    if then == "goes too":
        decorated.pop()
    gc.collect()
    assert before[name]["running_batches",] == 1
    assert before[name]["busy_seconds_total",] > 0
    after = page(registry)
    check_nothing_falls(before, after)
    check_identities(after[name])
    assert after[name]["cancelled_items_total",] == 2
    assert after[name]["batchers",] == len(decorated)


def test_pages_are_whole_while_everything_happens(registry: CollectorRegistry, name: str) -> None:
    """Threads and loops call, cancel, are late, fail; batchers come and go: no scrape raises or is untrue."""
    shared = batched.dynamically(
        failing, name=f"{name} shared", batch_size=8, timeout_ms=0.2, max_queue_size=30
    )
    arrays = inference.dynamically(lambda f: f["x"] * 2, name=f"{name} arrays", timeout_ms=0)
    looped = aio.dynamically(failing_async, name=f"{name} looped", batch_size=4, timeout_ms=0, cache={})
    brief = partial(brief_lives, f"{name} brief")
    threads = [brief, brief, partial(call, shared, arrays), partial(call, shared, arrays)]
    jobs = [*threads, lambda: asyncio.run(call_in_tasks(looped))]
    with ThreadPoolExecutor(len(jobs) + 1) as pool:
        running = [pool.submit(job) for job in jobs]

        def scrape() -> None:
            before: dict[str, Figures] = {}
            scrapes = 0
            while scrapes < 3 or not all(job.done() for job in running):
                after = {of: figures for of, figures in page(registry).items() if of.startswith(f"{name} ")}
                for figures in after.values():
                    check_identities(figures)
                check_nothing_falls(before, after)
                before = after
                scrapes += 1
                wait(running, timeout=1e-3)  # else they would hardly get their turn

        other = pool.submit(scrape)  # as a second Prometheus would
        scrape()
        for job in (other, *running):
            job.result(PATIENCE_S)
    until(lambda: not shared.stats.queue_size and not shared.stats.running)
    last = page(registry)
    assert last[f"{name} arrays"]["processed_items_total",] == 300
    said = expected(shared.stats)
    assert {key: last[f"{name} shared"][key] for key in said} == said


def brief_lives(name: str) -> None:
    for life in range(15):
        fn = batched.dynamically(failing, name=name, timeout_ms=0)
        assert fn.submit([1, 2, 3]).result(PATIENCE_S) == [1, 2, 3]
        if life % 2:
            fn.shutdown(wait=False)


def call(shared: Any, arrays: Any) -> None:
    for turn in range(150):
        arrays(x=np.ones((1, 1 + turn % 3)))
        with suppress(batched.QueueFullError):
            future = shared.submit(turn)
            if turn % 5 == 0:
                future.cancel()
        with suppress(batched.QueueFullError, TimeoutError, ValueError):
            shared.options(deadline_ms=turn % 3 + 0.01)([turn] * (turn % 12 + 1))


async def call_in_tasks(looped: Any) -> None:
    for turn in range(60):
        calls = [asyncio.create_task(looped(item)) for item in range(turn, turn + 5)]
        if turn % 4 == 0:
            calls[0].cancel()
        await asyncio.wait(calls, timeout=PATIENCE_S)
        errors = [call.exception() for call in calls if not call.cancelled()]
        assert all(error is None or isinstance(error, ValueError) for error in errors)


def failing(items: list[int]) -> list[int]:
    if 13 in items:
        raise ValueError("13")
    return items


async def failing_async(items: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return failing(items)


def test_a_broken_batcher_leaves_the_others_their_page(
    registry: CollectorRegistry, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged; its series pauses, or stands still if others share it, until it can be read."""
    alone = batched.dynamically(list, name=f"{name} alone", timeout_ms=0)
    broken, whole = (batched.dynamically(list, name=name, timeout_ms=0) for _ in range(2))
    for fn in (alone, broken, whole):
        fn([1, 2])
    before = page(registry)
    stats: Any = ThreadDriver.stats
    unreadable = {alone._find(), broken._find()}

    def read(driver: ThreadDriver) -> Stats:
        result: Stats = stats.fget(driver)
        return 1 / 0 if driver in unreadable else result  # type: ignore[return-value]

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger="batched"):
        patch.setattr(ThreadDriver, "stats", property(read))
        for _ in range(2):
            during = page(registry)
            check_nothing_falls(before, during)
            assert f"{name} alone" not in during
            assert during[name]["processed_items_total",] == 4
            assert during[name]["batchers",] == 1
    assert f"{name} alone: its stats could not be read" in caplog.text
    broken(3)
    after = page(registry)
    check_nothing_falls(before, after)
    assert after[f"{name} alone"]["processed_items_total",] == 2
    assert after[name]["processed_items_total",] == 5


def test_nothing_is_read_unless_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering asks no batcher, though the registry wants to know all names; a scrape asks each once."""
    fn = batched.dynamically(list, name="asked", timeout_ms=0)
    fn(1)
    asked: list[int] = []
    snapshot = Counters.snapshot

    def counted(self: Counters, **named: Any) -> Any:
        if self is fn._find().counters:
            asked.append(1)
        return snapshot(self, **named)

    monkeypatch.setattr(Counters, "snapshot", counted)
    registry = CollectorRegistry(auto_describe=True)
    collector = Collector(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Collector(registry)
    assert not asked
    page(registry)
    assert len(asked) == 1
    registry.unregister(collector)
    assert page(registry) == {}


def test_it_registers_by_default_or_not_at_all() -> None:
    """With prometheus_client's own registry, or none; every metric that it collects it has described."""
    assert inspect.signature(Collector).parameters["registry"].default is REGISTRY
    unregistered = Collector(registry=None)
    described = [(family.name, family.type, family.documentation) for family in unregistered.describe()]
    assert described == [(f.name, f.type, f.documentation) for f in unregistered.collect()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_page_of_its_own() -> None:
    """It begins at zero, also when a scrape was under way; the parent's goes on."""
    run_script(
        """
        from prometheus_client import CollectorRegistry, generate_latest
        from batched.prometheus import Collector
        registry = CollectorRegistry()
        collector = Collector(registry)

        def processed():
            page = generate_latest(registry).decode()
            return page.partition('batched_processed_items_total{name="double"} ')[2].partition("\\n")[0]

        double([1, 2, 3])
        other = batched.dynamically(lambda items: items, name="double", timeout_ms=0)
        other([4, 5])
        assert processed() == "5.0"
        del other
        for under_way in (False, True):
            if under_way:
                collector._histories[os.getpid()].lock.acquire()
            pid = os.fork()
            if pid == 0:
                assert processed() == "0.0", processed()
                double(1)
                assert processed() == "1.0", processed()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        collector._histories[os.getpid()].lock.release()
        double(1)
        assert processed() == "6.0", processed()
        """
    )


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    """And the rest of the library needs it not."""
    output = run_script(
        """
        sys.modules["prometheus_client"] = None
        import batched.aio.inference
        assert double(1) == 2
        try:
            import batched.prometheus
        except ImportError as error:
            print(error)
        """
    )
    assert output == "batched.prometheus needs prometheus_client: pip install prometheus-client\n"


# -- the dashboard -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dashboard() -> Any:
    """The dashboard, as Grafana would import it."""
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def test_the_dashboard_explains_every_reason_to_start_a_batch(dashboard: Any) -> None:
    """By the names that the metric has."""
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"] == "Why batches start")
    assert [reason for reason in StartReason if f"{reason}: " not in panel["description"]] == []


def expressions(dashboard: Any) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_dashboard_draws_all_that_is_on_the_page_and_nothing_else(dashboard: Any) -> None:
    """Every metric that it asks for exists, with the labels asked for, and none is forgotten."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = {family.name: family for family in Collector(None).describe()}
    samples = {f"{name}{suffix}": name for name, f in families.items() for suffix in suffixes[f.type]}
    labels = {name: {"name"} for name in families}
    labels["batched_batches"] = {"name", "reason"}
    labels["batched_chosen_batches"] = {"name", "how"}
    drawn = set()
    for expression in expressions(dashboard):
        asked = re.findall(r"\bbatched_\w+", expression)
        assert asked, expression
        assert set(asked) <= samples.keys(), expression
        drawn |= {samples[metric] for metric in asked}
        for by in re.findall(r"by \(([^)]*)\)", expression):
            metric = asked[0]
            known = labels[samples[metric]] | ({"le"} if metric.endswith("_bucket") else set())
            assert set(by.split(", ")) <= known, expression
        counters = [metric for metric in asked if metric.endswith(("_total", "_bucket", "_sum", "_count"))]
        assert expression.count("rate(") == len(counters), (
            "counters are read by their rate, gauges as they are"
        )
        assert expression.count("(") == expression.count(")")
        assert expression.count('{name=~"$name"}') == len(asked)
    assert drawn == families.keys()


def test_the_dashboard_is_one_that_grafana_imports(dashboard: Any) -> None:
    """Its keys, its variables, and panels that are placed side by side."""
    assert dashboard["title"]
    assert dashboard["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["name"]["query"] == "label_values(batched_batchers, name)"
    assert variables["name"]["multi"]
    assert variables["name"]["includeAll"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"])))
    assert used - {"__rate_interval"} == variables.keys()
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells: Counter[tuple[int, int]] = Counter()
    for panel in panels:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "s", "percentunit"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert all(target["legendFormat"] for target in panel["targets"])
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells.update((x, y) for x in columns for y in rows)
    assert max(cells.values()) == 1
