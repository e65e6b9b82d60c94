"""The Prometheus page of all live batchers, read as Prometheus reads it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import batched
from batched._core.counters import Counters
from batched._policy.window import StartReason
from batched.prometheus import Collector
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import driver_of
from tests.kit.metrics_page import check_identities, check_nothing_falls, expected, is_cumulative, page
from tests.kit.script import run_script


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

    def learns(fn: Any) -> bool:
        """Have it called so often that no larger size is tried yet, of which nothing would be known."""
        for _ in range(60):
            flavour.call(fn, x=np.ones((1, 2)))
            learned = fn.stats.learned
            if learned is not None and learned.capacity is not None:
                return True
        return False

    for attempt in range(20):  # where the machine is busy, times tell little
        arrays = flavour.decorate_arrays(double, name=f"{name} arrays {attempt}", unpad_outputs=True)
        flavour.call(arrays, {"x": [np.ones(1), np.ones(3), np.ones(2)]})
        if learns(arrays):
            break
    cached = flavour.decorate(list, name=f"{name} cached", length=len, cache={})
    for word in ("a", "bc", "a"):
        flavour.call(cached, word)
    until(lambda: not arrays.stats.running and not cached.stats.running)
    figures = page(registry)
    of_arrays = figures[f"{name} arrays {attempt}"]
    for fn, found in ((arrays, of_arrays), (cached, figures[f"{name} cached"])):
        said = expected(fn.stats)
        assert {key: found[key] for key in said} == said
        check_identities(found)
    assert of_arrays["fitting_items",] == 1
    assert of_arrays["learned_capacity_items_per_second",] > 0
    assert of_arrays["padded_elements_total",] > 0
    assert figures[f"{name} cached"]["cached_items_total",] == 1
    assert figures[f"{name} cached"]["chosen_batches_total", "arrival"] == 2


def test_stages_have_their_seconds_and_a_slot_each(registry: CollectorRegistry, name: str) -> None:
    """Without stages the figures are there, and are zero. A worker of several has one batch in all stages."""
    fn = batched.dynamically(list, prepare=list, finish=list, name=f"{name} staged")
    pooled = batched.dynamically(list, prepare=list, name=f"{name} pooled", workers=batched.Workers(2))
    plain = batched.dynamically(list, name=f"{name} plain")
    fn([1, 2]), plain(1), pooled(1)
    figures = page(registry)
    assert figures[f"{name} pooled"]["slots",] == 2
    assert figures[f"{name} pooled"]["stage_seconds_total", "prepare"] > 0
    of_stages, of_plain = figures[f"{name} staged"], figures[f"{name} plain"]
    for stage, seconds in fn.stats.stages.items():
        assert of_stages["stage_seconds_total", stage] == seconds.sum
        assert of_plain["stage_seconds_total", stage] == 0
    assert (of_stages["slots",], of_plain["slots",]) == (3, 1)


def test_what_was_never_seen_has_no_figure(registry: CollectorRegistry, name: str) -> None:
    """Nothing learned and no limit of memory are no series; what counts begins at zero."""
    fn = batched.dynamically(list, name=name, timeout_ms=0)
    assert fn.stats.learned is None
    figures = page(registry)[name]
    assert not [key for key in figures if key[0].startswith(("learned", "fitting"))]
    assert {value for key, value in figures.items() if is_cumulative(key)} == {0}
    assert len([key for key in figures if key[0] == "batches_total"]) == len(StartReason)


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
    driver_of(fn).name = name
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


def test_nothing_is_read_unless_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registering asks no batcher, though the registry wants to know all names; a scrape asks each once."""
    fn = batched.dynamically(list, name="asked", timeout_ms=0)
    fn(1)
    asked: list[int] = []
    counters = driver_of(fn).counters
    snapshot = Counters.snapshot

    def counted(self: Counters, **named: Any) -> Any:
        if self is counters:
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


def test_a_second_one_says_that_one_is_enough(registry: CollectorRegistry) -> None:
    """As in a cell of a notebook that is run again, or an app that is made for each test."""
    with pytest.raises(ValueError, match="Duplicate") as caught:
        Collector(registry)
    assert any("Create it once, or give each app a registry" in note for note in caught.value.__notes__)
    other = CollectorRegistry()
    Collector(other)
    fn = batched.dynamically(list)  # with no batcher alive a page is empty
    assert fn(1) == 1
    assert page(other)


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


@pytest.mark.thread_unsafe(reason="a page has the workers of all threads")
def test_shared_workers_have_metrics_of_their_own(registry: CollectorRegistry, name: str) -> None:
    """What each has run, by function, and whether it has its state."""
    with batched.Workers(["a", "b"], name=f"workers of {name}") as workers:
        fn = batched.dynamically(list, name=name, timeout_ms=0, workers=workers)
        text = generate_latest(registry).decode()
        assert f'batched_worker_ready{{worker="a",workers="workers of {name}"}} 0.0' in text
        workers.start()
        fn(1)
        until(lambda: workers.stats.functions)  # counted once its caller has been woken
        text = generate_latest(registry).decode()
        assert f'batched_worker_ready{{worker="a",workers="workers of {name}"}} 1.0' in text
        ran = sum(figure for key, figure in page(registry)[name].items() if key[0] == "worker_batches_total")
        assert ran == 1


@pytest.mark.thread_unsafe(reason="a page has the workers of all threads")
def test_a_page_shows_workers_whatever_their_names(registry: CollectorRegistry, name: str) -> None:
    """A name that UTF-8 cannot say is written with an escape; it does not make an error of the whole page."""
    with batched.Workers(["a\ud800b"], name=f"{name}\ud800") as workers:
        fn = batched.dynamically(list, name=f"of {name}\ud800", timeout_ms=0, workers=workers)
        assert fn([1]) == [1]
        until(lambda: workers.stats.functions)  # counted once its caller has been woken
        text = generate_latest(registry).decode()
    labels = [f"{name}\\\\ud800", "a\\\\ud800b", f"of {name}\\\\ud800"]
    assert f'batched_worker_ready{{worker="{labels[1]}",workers="{labels[0]}"}} 1.0' in text
    of_function = f'name="{labels[2]}",worker="{labels[1]}",workers="{labels[0]}"'
    assert f"batched_worker_batches_total{{{of_function}}} 1.0" in text


@pytest.mark.thread_unsafe(reason="a page has the workers of all threads")
def test_workers_of_the_same_name_are_ready_when_each_is(registry: CollectorRegistry, name: str) -> None:
    """It is 1 or 0, however many there are; those that were shut down are not waited for."""

    def is_ready() -> str:
        line = f'batched_worker_ready{{worker="0",workers="{name}"}} '
        return generate_latest(registry).decode().partition(line)[2][:3]

    with batched.Workers(1, name=name) as one, batched.Workers(1, name=name) as other:
        one.start()
        assert is_ready() == "0.0"
        other.start()
        assert is_ready() == "1.0"
        one.shutdown()
        assert is_ready() == "1.0"


def test_workers_that_were_shut_down_are_not_said_to_lack_their_state(
    registry: CollectorRegistry, name: str
) -> None:
    """Else an alert would fire for models that a service has exchanged, while anything refers to them."""
    workers = batched.Workers(["a", "b"], name=f"workers of {name}")
    fn = batched.dynamically(list, name=name, timeout_ms=0, workers=workers)
    fn(1)
    until(lambda: workers.stats.functions)  # counted once its caller has been woken
    workers.shutdown()
    assert f'workers="workers of {name}"' in generate_latest(registry).decode()
    assert f'batched_worker_ready{{worker="a",workers="workers of {name}"}}' not in (
        generate_latest(registry).decode()
    )
    again = batched.Workers(["a"], name=f"workers of {name}")
    assert (
        f'batched_worker_ready{{worker="a",workers="workers of {name}"}} 0.0'
        in generate_latest(registry).decode()
    )
    again.shutdown()
