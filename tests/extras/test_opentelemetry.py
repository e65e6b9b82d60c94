"""Spans and metrics of OpenTelemetry: one span for each batch, linked to those of its callers and back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.refilled import Refilled, pieces_of, so_many
from tests.kit.script import run_script

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import Meter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batched._metrics import HISTOGRAMS
from batched.opentelemetry import BatchedInstrumentor, instrument, uninstrument

KNOWS_BOUNDS = "explicit_bucket_boundaries_advisory" in signature(Meter.create_histogram).parameters
"""Whether this version lets histograms say their bounds; the oldest ones do not."""


class Traces:
    """What has been traced, and a tracer for callers."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str) -> list[Any]:
        """Return the spans of a name that have ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def histograms(self, function: str) -> dict[str, Any]:
        """Return the histograms of a function."""
        return {
            metric.name: point
            for metric in self.metrics()
            for point in metric.data.data_points
            if point.attributes == {"name": function} and hasattr(point, "explicit_bounds")
        }

    def metrics(self) -> list[Any]:
        """Return all metrics of one collection."""
        data: Any = self.reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return [metric for scope in scopes for metric in scope.metrics]

    def figures(self) -> dict[tuple[str, str], float]:
        """Return each figure by metric and name of the function."""
        return {
            (metric.name, point.attributes["name"]): point.value
            for metric in self.metrics()
            for point in metric.data.data_points
            if set(point.attributes) == {"name"} and hasattr(point, "value")
        }


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Traces of all batches, until the test ends."""
    found = Traces()
    instrument(tracer_provider=found.provider, meter_provider=found.meters)
    yield found
    uninstrument()


def linked(span: Any) -> set[int]:
    """Return the ids of the spans that a span is linked to."""
    return {link.context.span_id for link in span.links}


def ids(spans: list[Any]) -> set[int]:
    """Return the ids of spans."""
    return {span.context.span_id for span in spans}


def same(items: list[Any]) -> list[Any]:
    """Return the items."""
    return items


async def same_on_loop(items: list[Any]) -> list[Any]:
    """Return the items, after a wait."""
    await asyncio.sleep(0)
    return items


@pytest.mark.parametrize("function", [same, same_on_loop])
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_tasks_and_their_batch_are_linked(
    traces: Traces, decorate: Callable[..., Any], function: Callable[..., Any]
) -> None:
    """Both ways, and a list has one link."""
    fn = decorate(function, batch_size=5, timeout_ms=60_000, adaptive=False, name="fn")

    async def ask(item: Any) -> None:
        with traces.tracer.start_as_current_span("request"):
            await fn.acall(item)

    async def main() -> None:
        await asyncio.gather(ask(1), ask(2), ask([3, 4, 5]))

    asyncio.run(main())
    (batch,) = traces.spans("batch fn")
    assert linked(batch) == ids(traces.spans("request"))
    assert [linked(each) for each in traces.spans("request")] == [ids([batch])] * 3
    assert batch.attributes["messaging.batch.message_count"] == 5
    assert batch.attributes["batched.batch.reason"] == "full"
    assert batch.parent is None


def test_threads_and_their_batch_are_linked(traces: Traces) -> None:
    """And what the function traces is inside of the batch."""
    gate = Gate(shut=True)

    def traced(items: list[int]) -> list[int]:
        with traces.tracer.start_as_current_span("inside"):
            return list(gate(items))

    fn = batched.dynamically(traced, timeout_ms=0, name="fn")
    with traces.tracer.start_as_current_span("request"):
        future = fn.submit(1)
    gate.open()
    future.result()
    fn.shutdown()
    (batch,), (inside,) = traces.spans("batch fn"), traces.spans("inside")
    assert linked(batch) == ids(traces.spans("request"))
    assert inside.parent.span_id == batch.context.span_id


def test_streams_have_a_span_from_the_first_piece_to_the_last(traces: Traces) -> None:
    """Of plain and asynchronous generators, also if they end early."""

    def count(items: list[int]) -> Iterator[list[int]]:
        for step in range(3):
            trace.get_current_span().add_event("step")
            yield [item + step for item in items]

    async def acount(items: list[int]) -> AsyncIterator[list[int]]:
        for pieces in count(items):
            yield pieces

    for function in (count, acount):
        fn = batched.dynamically(function, timeout_ms=0, name=function.__name__)
        assert list(fn.stream(1)) == [1, 2, 3]
        fn.shutdown()
        (span,) = traces.spans(f"batch {function.__name__}")
        assert len(span.events) == 3


def test_a_generator_that_is_traced_is_told_what_has_changed(traces: Traces) -> None:
    """As one that is not."""
    told: list[Any] = []

    def count(items: list[int]) -> Iterator[list[int]]:
        told.append((yield items))
        told.append((yield items))

    async def acount(items: list[int]) -> AsyncIterator[list[int]]:
        told.append((yield items))
        told.append((yield items))

    for function in (count, acount):
        fn = batched.dynamically(function, timeout_ms=0, continuous=True, name="fn")
        assert list(fn.stream(1)) == [1, 1]
        fn.shutdown()
    assert told
    assert all(isinstance(change, batched.Change) for change in told)


def test_the_span_of_a_batch_that_is_refilled_has_links_to_those_that_join(traces: Traces) -> None:
    """And they to it."""

    async def asynchronous(items: list[Any]) -> AsyncIterator[list[Any]]:
        steps = rows(items)
        pieces = next(steps)
        while True:
            pieces = steps.send((yield pieces))  # type: ignore[attr-defined]

    for number in range(2):
        rows = Refilled(so_many, shut=True)
        function = asynchronous if number else rows
        fn = batched.dynamically(function, batch_size=1, timeout_ms=0, continuous=True, name=f"fn {number}")
        with traces.tracer.start_as_current_span(f"request {number}"):
            first = fn.stream(2)
            rows.wait_for_step()
            with traces.tracer.start_as_current_span(f"request {number}"):
                second = fn.stream(2)
                rows.open()
                assert [list(first), list(second)] == [pieces_of(2)] * 2
                fn.shutdown()
        (batch,) = traces.spans(f"batch fn {number}")
        requests = traces.spans(f"request {number}")
        assert linked(batch) == ids(requests)
        assert [linked(request) for request in requests] == [ids([batch])] * 2


def passes_stages(items: list[int]) -> list[int]:
    """Return what has been prepared."""
    trace.get_current_span().add_event("function")
    return items


async def apasses_stages(items: list[int]) -> list[int]:
    """Return the same, after a wait."""
    await asyncio.sleep(0)
    return passes_stages(items)


def noting(stage: str) -> Callable[[list[int]], list[int]]:
    """Return the function of a stage, which notes that in its span."""

    def note(items: list[int]) -> list[int]:
        trace.get_current_span().add_event(stage)
        return items

    return note


def on_workers(function: Callable[..., Any], **options: Any) -> Any:
    """Return `function` batched, on workers that others could share."""
    return batched.dynamically(function, workers=batched.Workers(2), **options)


@pytest.mark.parametrize(
    ("decorate", "function"),
    [
        (batched.dynamically, passes_stages),
        (batched.dynamically, apasses_stages),
        (aio.dynamically, apasses_stages),
        (on_workers, passes_stages),
        (on_workers, apasses_stages),
    ],
)
@pytest.mark.parametrize("stages", [["prepare", "finish"], ["prepare"], ["finish"]])
def test_a_batch_that_passes_stages_has_a_span_for_all_of_it_and_one_for_each(
    traces: Traces, decorate: Callable[..., Any], function: Callable[..., Any], stages: list[str]
) -> None:
    """Those of stages are inside of it, and are current in them; it has the name of the function."""
    fn = decorate(function, **{stage: noting(stage) for stage in stages}, name="fn")

    async def main() -> None:
        with traces.tracer.start_as_current_span("request"):
            assert await fn.acall([1, 2]) == [1, 2]
        await fn.aclose()

    asyncio.run(main())
    (batch,) = traces.spans("batch fn")
    assert linked(batch) == ids(traces.spans("request"))
    found = []
    for event in ["prepare", "function", "finish"]:
        if event in {"function", *stages}:
            (span,) = traces.spans("run fn" if event == "function" else f"{event} fn")
            assert [each.name for each in span.events] == [event]
            assert span.parent.span_id == batch.context.span_id
            found.append(span)
    assert batch.start_time <= found[0].start_time
    assert found[-1].end_time <= batch.end_time
    assert all(one.end_time <= other.start_time for one, other in pairwise(found))


@pytest.mark.parametrize("stage", ["prepare", "run", "finish"])
@pytest.mark.parametrize(
    ("decorate", "function"), [(batched.dynamically, passes_stages), (aio.dynamically, apasses_stages)]
)
def test_a_stage_that_fails_ends_the_span_of_its_batch(
    traces: Traces, decorate: Callable[..., Any], function: Callable[..., Any], stage: str
) -> None:
    """And is noted in both."""

    def fail(items: list[int]) -> list[int]:
        raise ValueError("unlucky")

    async def afail(items: list[int]) -> list[int]:
        raise ValueError("unlucky")

    options: dict[str, Any] = {"prepare": list, "finish": list}
    if stage == "run":
        function = fail if decorate is batched.dynamically else afail
    else:
        options[stage] = fail
    fn = decorate(function, **options, name="fn")

    async def main() -> None:
        with pytest.raises(ValueError, match="unlucky"):
            await fn.acall(1)
        await fn.aclose()

    asyncio.run(main())
    (batch,), (failed,) = traces.spans("batch fn"), traces.spans(f"{stage} fn")
    for span in (batch, failed):
        assert not span.status.is_ok
        assert "unlucky" in span.events[-1].attributes["exception.message"]
        assert span.attributes["error.type"] == "ValueError"


def test_a_batch_that_all_callers_leave_between_two_stages_has_a_span_that_ends(traces: Traces) -> None:
    """Its function does not run."""
    gate = Gate(shut=True)
    fn = batched.dynamically(passes_stages, prepare=lambda items: list(gate(items)), timeout_ms=0, name="fn")
    future = fn.submit(1)
    gate.wait_for_batch()
    assert future.cancel()
    gate.open()
    fn.shutdown()
    assert len(traces.spans("prepare fn")) == len(traces.spans("batch fn")) == 1
    assert not traces.spans("run fn")


def test_an_item_that_fails_after_its_caller_has_left_has_no_class_of_an_error(traces: Traces) -> None:
    """No caller has the error any more, and "NoneType" is not one."""
    gate = Gate(lambda items: [ValueError(item) for item in items], shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, name="fn")
    future = fn.submit(1)
    gate.wait_for_batch()
    assert future.cancel()
    assert fn.stats.total_batches == 0  # the batcher has taken note of it by now
    gate.open()
    fn.shutdown()
    (batch,) = traces.spans("batch fn")
    assert (batch.attributes["batched.batch.failed"], batch.attributes.get("error.type")) == (1, None)


@pytest.mark.parametrize("named", [False, True])
def test_a_function_of_several_parameters_has_its_own_name(traces: Traces, named: bool) -> None:
    """Also if a caller gives them by name."""

    def pairs(lefts: list[int], rights: list[int]) -> list[int]:
        return lefts

    fn = batched.dynamically(pairs, name="fn")
    assert (fn(1, rights=2) if named else fn(1, 2)) == 1
    fn.shutdown()
    assert len(traces.spans("batch fn")) == 1


def fails(items: list[int]) -> Any:
    """Fail as a plain function does."""
    raise ValueError("unlucky")


async def fails_later(items: list[int]) -> Any:
    """Fail as a coroutine function does."""
    raise ValueError("unlucky")


def fails_amid(items: list[int]) -> Any:
    """Fail after a first piece."""
    yield items
    raise ValueError("unlucky")


async def fails_later_amid(items: list[int]) -> Any:
    """Fail after a first piece, on an event loop."""
    yield items
    raise ValueError("unlucky")


@pytest.mark.parametrize("function", [fails, fails_later, fails_amid, fails_later_amid])
def test_the_type_of_an_error_is_noted(traces: Traces, function: Callable[[list[int]], Any]) -> None:
    """By the name that OpenTelemetry has for it, so that a backend groups batches by it."""
    fn = batched.dynamically(function, timeout_ms=0, name="fn")
    with pytest.raises(ValueError, match="unlucky"):
        fn(1)
    fn.shutdown()
    (batch,) = traces.spans("batch fn")
    assert batch.attributes["error.type"] == "ValueError"


def exits(items: list[int]) -> Any:
    """Fail with what is no `Exception`, as a plain function."""
    raise SystemExit(3)


async def exits_later(items: list[int]) -> Any:
    """Fail with what is no `Exception`, on an event loop."""
    raise SystemExit(3)


def exits_amid(items: list[int]) -> Any:
    """Fail with what is no `Exception` after a first piece."""
    yield items
    raise SystemExit(3)


@pytest.mark.parametrize("function", [exits, exits_later, exits_amid])
def test_an_error_that_is_no_exception_is_noted_as_others_are(
    traces: Traces, function: Callable[[list[int]], Any]
) -> None:
    """Its callers get it as well."""
    fn = batched.dynamically(function, timeout_ms=0, name="fn")
    with pytest.raises((SystemExit, batched.BatchError)):
        fn(1)
    fn.shutdown()
    (batch,) = traces.spans("batch fn")
    assert not batch.status.is_ok
    assert [event.attributes["exception.type"] for event in batch.events] == ["SystemExit"]
    assert batch.attributes["error.type"] == "SystemExit"


def test_a_stream_that_its_caller_leaves_is_no_error(traces: Traces) -> None:
    """Its generator is closed amid its work."""

    def endless(items: list[int]) -> Iterator[list[int]]:
        while True:
            yield items

    fn = batched.dynamically(endless, timeout_ms=0, name="fn")
    pieces = fn.stream(1)
    next(pieces)
    pieces.close()
    fn.shutdown()
    (batch,) = traces.spans("batch fn")
    assert batch.status.is_unset
    assert not batch.events


def test_errors_are_noted(traces: Traces) -> None:
    """One that is raised with its text, those in the place of results with their number."""

    def some_fail(items: list[int]) -> list[Any]:
        if 13 in items:
            raise ValueError("unlucky")
        return [KeyError(item) if item == 7 else item for item in items]

    fn = batched.dynamically(some_fail, timeout_ms=0, name="fn")
    with pytest.raises(ValueError, match="unlucky"):
        fn(13)
    fn.options(return_exceptions=True)([7, 8])
    fn.shutdown()
    raised, returned = traces.spans("batch fn")
    assert not raised.status.is_ok
    assert "unlucky" in raised.events[0].attributes["exception.message"]
    assert raised.attributes["error.type"] == "ValueError"
    assert returned.attributes["error.type"] == "KeyError"
    assert returned.attributes["batched.batch.failed"] == 1
    assert not returned.status.is_ok


def test_a_span_ends_with_what_on_batch_is_told(traces: Traces) -> None:
    """How long its oldest call waited, how much of it is padding, and whether it runs again."""
    gate = Gate(lambda items: [1 / item for item in items], shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, name="fn")
    first = fn.submit(1)
    gate.wait_for_batch()
    futures = [fn.submit(item) for item in (1, 0)]
    gate.open()
    assert isinstance(futures[1].exception(PATIENCE_S), ZeroDivisionError)
    assert (first.result(PATIENCE_S), futures[0].result(PATIENCE_S)) == (1, 1)
    fn.shutdown()
    spans = traces.spans("batch fn")
    again = [span.attributes.get("batched.batch.runs_again") for span in spans]
    assert again == [None, True, None, None]
    assert [span.attributes.get("error.type") for span in spans] == [
        "ZeroDivisionError" if fails else None for fails in (False, True, False, True)
    ]
    assert spans[1].attributes["batched.batch.waited_ms"] > 0


def test_a_warm_up_has_no_span(traces: Traces) -> None:
    """As it is no batch in `stats`."""
    fn = batched.dynamically(same, batch_sizes=(1,), timeout_ms=0, name="fn")
    fn.warm_up(1)
    assert fn(1) == 1
    fn.shutdown()
    assert len(traces.spans("batch fn")) == 1


@pytest.mark.parametrize("ends", ["by itself", "left", "with an error", "with too many pieces"])
def test_the_span_of_a_batch_that_is_refilled_ends_with_it(traces: Traces, ends: str) -> None:
    """Though there is a record of each of its steps."""
    may_go_on = threading.Event()

    def steps(items: list[int]) -> Iterator[list[int]]:
        yield items
        assert may_go_on.wait(PATIENCE_S)
        change = yield items
        if ends == "with an error":
            raise ValueError("unlucky")
        while ends == "left" and not change.left:
            change = yield items
        if ends == "with too many pieces":
            yield [*items, 1]

    fn = batched.dynamically(steps, timeout_ms=0, continuous=True, name="fn")
    pieces = fn.stream(1)
    next(pieces)
    assert not traces.spans("batch fn")
    may_go_on.set()
    if ends == "left":
        pieces.close()
    elif ends == "by itself":
        assert list(pieces) == [1]
    else:
        with pytest.raises((ValueError, batched.BatchError)):
            list(pieces)
    until(lambda: traces.spans("batch fn"))  # a stream is told of its end as soon as that is known
    (batch,) = traces.spans("batch fn")
    types = {"with an error": "ValueError", "with too many pieces": "BatchError"}
    assert batch.attributes.get("error.type") == types.get(ends)
    fn.shutdown()


def too_many(items: list[int]) -> list[int]:
    """Return a result too many."""
    return [*items, 0]


async def too_many_later(items: list[int]) -> list[int]:
    """Return a result too many, on an event loop."""
    return [*items, 0]


def too_many_pieces(items: list[int]) -> Any:
    """Yield a piece too many, after a step that is right."""
    yield items
    yield [*items, 0]


async def too_many_pieces_later(items: list[int]) -> Any:
    """Yield a piece too many, after a step that is right, on an event loop."""
    yield items
    yield [*items, 0]


@pytest.mark.parametrize("stages", [{}, {"prepare": same}, {"finish": same}])
@pytest.mark.parametrize("function", [too_many, too_many_later, too_many_pieces, too_many_pieces_later])
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_a_wrong_number_of_results_is_noted(
    traces: Traces,
    decorate: Callable[..., Any],
    function: Callable[..., Any],
    stages: dict[str, Any],
) -> None:
    """It is an error of the batch, though the function has raised nothing."""
    if "pieces" in function.__name__ and stages:
        pytest.skip("a stream passes no stages")
    fn = decorate(function, timeout_ms=0, name="fn", **stages)

    async def main() -> None:
        with pytest.raises(batched.BatchError):
            await fn.acall(1)
        await fn.aclose()

    asyncio.run(main())
    (batch,) = traces.spans("batch fn")
    assert not batch.status.is_ok
    assert batch.attributes["error.type"] == "BatchError"


def test_metrics_are_those_of_prometheus(traces: Traces) -> None:
    """Read when they are collected; a counter does not fall."""
    fn = batched.dynamically(same, timeout_ms=0, name="counted")
    fn([1, 2, 3])
    assert traces.figures()["batched.processed_items", "counted"] == 3
    assert traces.figures()["batched.waiting_items", "counted"] == 0
    fn(4)
    assert traces.figures()["batched.processed_items", "counted"] == 4
    fn.shutdown()


def test_metrics_have_the_names_of_those_of_prometheus(traces: Traces) -> None:
    """All of them: those of workers that functions share, too."""
    pytest.importorskip("prometheus_client")
    from batched.prometheus import Collector

    with batched.Workers(["a"], name="gpus") as workers, batched.Workers(["b"], name="not ready"):
        fn = batched.dynamically(same, timeout_ms=0, name="shared", workers=workers)
        fn(1)
        until(lambda: workers.stats.functions)

        def differ() -> set[str]:
            names = {metric.name for metric in traces.metrics()}
            shown = [family.name for family in Collector(None).collect() if family.samples]
            return names ^ {f"batched.{each.removeprefix('batched_')}" for each in shown}

        until(lambda: not differ())  # batchers of other tests may be going
        found = [each for each in traces.metrics() if each.name == "batched.worker_batches"]
        (point,) = [each for each in found[0].data.data_points if each.attributes["workers"] == "gpus"]
        assert (point.value, point.attributes["worker"], point.attributes["name"]) == (1, "a", "shared")
        points = [point for metric in traces.metrics() for point in metric.data.data_points]
        assert bool not in {type(getattr(point, "value", 0)) for point in points}  # exporters cannot write it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_counters_of_a_forked_child_begin_at_zero() -> None:
    """As its batchers do: what the parent counted is told by the parent. This goes on."""
    run_script(
        """
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from batched.opentelemetry import instrument
        reader = InMemoryMetricReader()
        instrument(meter_provider=MeterProvider([reader]))

        def processed():
            found = reader.get_metrics_data().resource_metrics
            metrics = [metric for each in found for scope in each.scope_metrics for metric in scope.metrics]
            (found,) = [metric for metric in metrics if metric.name == "batched.processed_items"]
            return sum(point.value for point in found.data.data_points)

        double([1, 2, 3])
        assert processed() == 3
        pid = os.fork()
        if pid == 0:
            assert processed() == 0, processed()
            double(1)
            assert processed() == 1, processed()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        double(1)
        assert processed() == 4, processed()
        """
    )


def test_histograms_are_those_of_prometheus() -> None:
    """With its bounds; also of a function that has run before, and until instrumenting ends."""
    traces = Traces()
    fn = batched.dynamically(same, batch_size=2, timeout_ms=0, name="before")
    fn([1, 2, 3, 4, 5])
    instrument(tracer_provider=traces.provider, meter_provider=traces.meters)
    fn([1, 2, 3])
    fn(4)
    uninstrument()
    fn(5)
    fn.shutdown()
    found = traces.histograms("before")
    assert {name: each.count for name, each in found.items()} == {
        f"batched.{metric}": 3 for metric in HISTOGRAMS
    }
    if KNOWS_BOUNDS:
        for metric, (_, bounds, _) in HISTOGRAMS.items():
            assert list(found[f"batched.{metric}"].explicit_bounds) == bounds
    sizes = found["batched.batch_size_items"]
    assert (sizes.sum, sizes.min, sizes.max) == (4, 1, 2)
    assert 0 < found["batched.execution_seconds"].sum < PATIENCE_S
    assert 0 < found["batched.wait_seconds"].sum < PATIENCE_S


def test_an_api_that_knows_no_bounds_has_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they have those that the SDK gives them."""
    create = Meter.create_histogram

    def without_bounds(meter: Any, name: str, unit: str = "", description: str = "") -> Any:
        return create(meter, name, unit, description)

    monkeypatch.setattr(Meter, "create_histogram", without_bounds)
    found = Traces()
    instrument(tracer_provider=found.provider, meter_provider=found.meters)
    try:
        fn = batched.dynamically(same, timeout_ms=0, name="plain")
        fn(1)
        fn.shutdown()
        assert {each.count for each in found.histograms("plain").values()} == {1}
    finally:
        uninstrument()


def test_callers_without_a_span_have_no_link_and_instrumenting_may_end() -> None:
    """The command of OpenTelemetry finds an object that does the same."""
    found = Traces()
    instrumentor = BatchedInstrumentor()
    instrumentor.instrument(tracer_provider=found.provider, meter_provider=found.meters, skip_dep_check=True)
    instrumentor.instrument(tracer_provider=found.provider)
    fn = batched.dynamically(same, timeout_ms=0, name="fn")
    fn(1)
    instrumentor.uninstrument()
    fn(2)
    fn.shutdown()
    (span,) = found.spans("batch fn")
    assert not span.links
    assert instrumentor.instrumentation_dependencies() == ()


@pytest.mark.parametrize("kind", ["plain", "async", "stages"])
def test_the_span_of_a_batch_that_runs_as_instrumenting_ends_has_its_end(kind: str) -> None:
    """By the time that its caller has its answer, as ever: not when the worker forgets the batch."""
    found, gate = Traces(), Gate(shut=True)

    async def on_loop(items: list[int]) -> list[int]:
        held: list[int] = gate(items)
        return held

    instrument(tracer_provider=found.provider, meter_provider=found.meters)
    options: dict[str, Any] = {"finish": list} if kind == "stages" else {}
    fn: Any = batched.dynamically(on_loop if kind == "async" else gate, name="fn", **options)
    try:
        future = fn.submit(1)
        gate.wait_for_batch()
        uninstrument()
        gate.open()
        assert future.result(PATIENCE_S) == 1
        assert len(found.spans("batch fn")) == 1
    finally:
        gate.open()
        fn.shutdown()
        uninstrument()


class Failing(SpanProcessor):
    """Fails when spans of batches start, or end."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._fail(span, "start")

    def on_end(self, span: Any) -> None:
        self._fail(span, "end")

    def _fail(self, span: Any, at: str) -> None:
        if at == self._at and span.name != "request":
            raise LookupError("of a processor")


def once(items: list[int]) -> Iterator[list[int]]:
    """Yield the items."""
    yield items


@pytest.mark.parametrize("kind", ["plain", "async", "stages", "stream"])
@pytest.mark.parametrize("at", ["start", "end"])
def test_a_batch_whose_span_fails_is_answered_all_the_same(
    traces: Traces, at: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs once, and one line of the log says so."""
    traces.provider.add_span_processor(Failing(at))
    function = {"async": same_on_loop, "stream": once}.get(kind, same)
    stages: dict[str, Any] = {"prepare": list, "finish": list} if kind == "stages" else {}
    fn: Any = batched.dynamically(function, timeout_ms=0, name="fn", **stages)
    with fn, traces.tracer.start_as_current_span("request"):
        answers = [fn([1, 2]) for _ in range(2)]
    assert answers == [[[1, 2]] if kind == "stream" else [1, 2]] * 2
    assert fn.stats.total_batches == 2
    (line,) = caplog.records
    assert line.getMessage() == "a batch could not be traced; further failures are not logged"
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], LookupError)


class Broken(trace.NonRecordingSpan):
    """A span of a caller that can be given no link."""

    def is_recording(self) -> bool:
        return True

    def add_link(self, *_: Any) -> None:
        raise LookupError("of a caller")


class Nameless(Broken):
    """A span of a caller that says nothing of itself."""

    def get_span_context(self) -> trace.SpanContext:
        raise LookupError("of a caller")


@pytest.mark.parametrize("kind", [Broken, Nameless])
def test_the_span_of_one_caller_does_not_fail_those_of_others(traces: Traces, kind: type[Broken]) -> None:
    """Nor do these lose their links."""
    fn = batched.dynamically(same, batch_size=2, timeout_ms=60_000, adaptive=False, name="fn")
    with fn:
        with trace.use_span(kind(trace.SpanContext(1, 2, is_remote=False))):
            broken = fn.submit(1)
        with traces.tracer.start_as_current_span("request"):
            assert fn.submit(2).result(PATIENCE_S) == 2
        assert broken.result(PATIENCE_S) == 1
    (batch,), (request,) = traces.spans("batch fn"), traces.spans("request")
    assert request.context.span_id in linked(batch)
    assert linked(request) == ids([batch])


@pytest.mark.parametrize("kind", [Broken, Nameless])
def test_the_span_of_a_caller_that_joins_does_not_fail_those_of_others(
    traces: Traces, kind: type[Broken]
) -> None:
    """The batch has begun with them."""
    rows = Refilled(so_many, shut=True)
    fn = batched.dynamically(rows, batch_size=1, timeout_ms=0, continuous=True, name="fn")
    with fn:
        first = fn.stream(2)
        rows.wait_for_step()
        with trace.use_span(kind(trace.SpanContext(1, 2, is_remote=False))):
            second = fn.stream(2)
        rows.open()
        assert [list(first), list(second)] == [pieces_of(2)] * 2
    assert len(rows.began) == 1


class Unspeakable(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise LookupError("of an error")


@pytest.mark.parametrize("prepare", [None, list])
def test_an_error_without_a_text_reaches_its_caller(traces: Traces, prepare: Any) -> None:
    """It is in the span by its class."""

    def fails(items: list[int]) -> list[int]:
        raise Unspeakable

    fn: Any = batched.dynamically(fails, timeout_ms=0, name="fn", prepare=prepare)
    with fn, pytest.raises(Unspeakable):
        fn(1)
    (batch,) = traces.spans("batch fn")
    assert batch.attributes["error.type"] == "Unspeakable"
