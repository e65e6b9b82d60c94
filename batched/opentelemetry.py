"""Traces and metrics of all batched functions: call `instrument()`. Needs `pip install opentelemetry-api`.

Each batch has a span, with a link to the span of each of its callers, and these have a link to it. Where a
batch passes stages, each of them has a span inside of it.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable
from contextlib import AbstractContextManager, aclosing, closing, suppress
from contextvars import Context as Variables
from functools import partial
from inspect import isasyncgen, isgenerator
from typing import Any
from weakref import WeakSet

from batched._api.function import DecoratedFunction
from batched._core.batch import Batch
from batched._core.batch_record import BatchRecord
from batched._core.call import Call
from batched._core.change import Change
from batched._core.halves import Aside
from batched._drivers.listeners import ignore, listen
from batched._locks import Freed, Guard
from batched._logs import log_error
from batched._metrics import HISTOGRAMS, History, Metric, metrics, printable, read_workers
from batched._parts.stages import Steps

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter
    from opentelemetry.trace import Link, Span, SpanContext, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"batched.opentelemetry needs {_missing.name}: pip install opentelemetry-api", name=_missing.name
    ) from None

__all__ = ["BatchedInstrumentor", "instrument", "uninstrument"]

_changing = Guard()
_own: list[Callable[..., Any]] = []  # `run` of batches
_told: list[Callable[[BatchRecord], object]] = []
_failed: list[None] = []  # one if tracing has failed


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Have each batch traced from now on, and the metrics of all batchers read.

    The span of a batch is current in the function, also in its event loop's tasks, so that spans of other
    libraries are its children. It has no parent, as it belongs to several requests. The span of a batch that
    passes stages lasts until the end of the last stage, and has a child for each stage. A batch that runs
    again in parts has a span for each part. A second call of `instrument` changes nothing.

    Args:
        tracer_provider: Where spans go; the global one by default.
        meter_provider: Where metrics go: those of `batched.prometheus`. The global one by default.

    """
    with Freed(_changing.lock), _changing.lock:
        if _own:
            return
        _failed.clear()
        tracer = trace.get_tracer("batched", tracer_provider=tracer_provider)
        _own.append(Batch.run)
        Batch.run = _traces(Batch.run, tracer)  # type: ignore[method-assign, assignment]
        meter = get_meter("batched", meter_provider=meter_provider)
        _measure(meter)
        _told.append(_histograms(meter))
        listen(_told[0])


def uninstrument() -> None:
    """Trace no further batches, and tell histograms of none. Other metrics end with their provider."""
    with Freed(_changing.lock), _changing.lock:
        if _own:
            Batch.run = _own.pop()  # type: ignore[method-assign]
            ignore(_told.pop())
            for each in [*_traced]:
                each.end()


class BatchedInstrumentor:
    """What the command `opentelemetry-instrument` finds."""

    def instrument(self, **options: Any) -> None:
        """Do what `instrument` does."""
        known = {name: options.get(name) for name in ("tracer_provider", "meter_provider")}
        instrument(**known)

    def uninstrument(self, **_: Any) -> None:
        """Do what `uninstrument` does."""
        uninstrument()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what is needed besides."""
        return ()


# -- spans ------------------------------------------------------------------------------------------------


class _Traced:
    """The span of a batch, until its record is told or the batch is gone."""

    __slots__ = ("__weakref__", "span")

    def __init__(self, span: Span) -> None:
        self.span: Span | None = span

    def told(self, record: BatchRecord | None) -> None:
        """End the span with what has become of the batch; of one that was refilled its steps have told."""
        if (span := self.span) is None or record is None:
            self.end()
            return
        span.set_attribute("batched.batch.waited_ms", record.waited_ms)
        if record.padding:
            span.set_attribute("batched.batch.padding", record.padding)
        if record.runs_again:
            span.set_attribute("batched.batch.runs_again", value=True)
        if record.failed and record.error is None:
            span.set_attribute("batched.batch.failed", record.failed)
            if record.item_error is not None:
                span.set_attribute("error.type", type(record.item_error).__qualname__)
            span.set_status(StatusCode.ERROR, f"{record.failed} of {record.size} items failed")
        if record.error is not None and not isinstance(record.error, CancelledError):  # the loop ends
            _quietly(_note_error, span, record.error)
        self.end()

    def end(self) -> None:
        """End the span, if it has not ended."""
        span, self.span = self.span, None
        if span is not None:
            _quietly(span.end)

    __del__ = end


_traced: WeakSet[_Traced] = WeakSet()
"""The spans that have not ended."""


def _traces(run: Callable[..., Any], tracer: Tracer) -> Callable[[Batch, Any], Any]:
    def traced(batch: Batch, collator: Any) -> Any:
        """Run a batch inside of a span."""
        if isinstance(batch, Aside):  # a warm-up, of which nothing is told
            return run(batch, collator)
        name = _name_of(batch.slices[0][0].function)
        span = _begin(batch, name, tracer)
        with _current(span):
            outputs = run(batch, collator)
        if isinstance(outputs, Steps):
            outputs.around = partial(_step, span, tracer, name)
            return outputs
        if isgenerator(outputs):
            return _steps(span, outputs, batch)
        if isasyncgen(outputs):
            return _asteps(span, outputs, batch)
        return _awaited(span, outputs) if _is_awaitable(outputs) else outputs

    return traced


def _is_awaitable(outputs: Any) -> bool:
    return type(outputs) is not list and hasattr(type(outputs), "__await__")


def _begin(batch: Batch, name: str, tracer: Tracer) -> Span:
    """Begin the span of a batch, which ends when the record of that is told."""
    callers = _callers(batch.calls)
    span = _started(
        tracer,
        f"batch {name}",
        context=Context(),
        links=[Link(context) for _, context in callers],
        attributes={
            "batched.function": name,
            "batched.batch.reason": str(batch.reason),
            "messaging.batch.message_count": batch.size,
        },
    )
    _link_back(span, callers)
    found = _Traced(span)
    batch.told = found.told
    _traced.add(found)
    if not _own:  # just now it was said to trace no more
        found.end()
    return span


def _name_of(function: Any) -> str:
    """Return the name of a decorated function, around which others may be."""
    while not isinstance(function, DecoratedFunction):
        if not hasattr(function, "_function"):
            return getattr(function.__wrapped__, "__qualname__", "a function")
        function = function._function  # noqa: SLF001
    return function._name  # noqa: SLF001


def _quietly(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return what a part of tracing does; None if it fails, as a batch and its callers are not to fail too.

    Processors, samplers and the spans of callers are not ours, and an error may not even have a text.
    """
    try:
        return work(*args, **named)
    except Exception:  # noqa: BLE001  logged
        if not _failed:
            _failed.append(None)
            log_error("a batch could not be traced; further failures are not logged")
        return None


def _started(tracer: Tracer, name: str, **options: Any) -> Span:
    span: Span | None = _quietly(tracer.start_span, name, **options)
    return trace.INVALID_SPAN if span is None else span


def _callers(calls: list[Call]) -> list[tuple[Span, SpanContext]]:
    """Return the spans in which the callers of `calls` have called."""
    found: dict[int, tuple[Span, SpanContext]] = {}
    for call in calls:
        variables: Variables = call.caller_context()
        span = variables.run(trace.get_current_span)
        context: SpanContext | None = _quietly(span.get_span_context)
        if context is not None and context.is_valid:
            found[context.span_id] = span, context
    return [*found.values()]


def _link_back(span: Span, callers: list[tuple[Span, SpanContext]]) -> None:
    context = span.get_span_context()
    if context.is_valid:
        for each, _ in callers:
            _quietly(_link, each, context)


def _link(span: Span, context: SpanContext) -> None:
    if span.is_recording():
        span.add_link(context)


def _link_joined(span: Span, batch: Batch, change: Change[Any] | None) -> None:
    """Link the span of a batch that is refilled with those of the callers of what has joined."""
    if change:
        callers = _callers(batch.calls[-len(change.joined) :] if change.joined else [])
        for _, context in callers:
            _quietly(span.add_link, context)
        _link_back(span, callers)


def _current(span: Span) -> AbstractContextManager[Span]:
    """Do what is inside in a span that goes on."""
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def _note_error(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")


def _step(span: Span, tracer: Tracer, name: str, step: str, work: Callable[[], Any]) -> Any:
    """Take a step of a batch with stages: it has a span, inside of that of the batch."""
    inside = trace.set_span_in_context(span, Context())
    span = _started(tracer, f"{step} {name}", context=inside)
    try:
        with _current(span):
            outputs = work()
    except BaseException as error:
        _quietly(_note_error, span, error)
        _quietly(span.end)
        raise
    if _is_awaitable(outputs):
        return _stage(span, outputs)
    _quietly(span.end)
    return outputs


async def _stage(span: Span, work: Any) -> Any:
    try:
        return await _awaited(span, work)
    except (GeneratorExit, CancelledError):  # the loop ends
        raise
    except BaseException as error:
        _quietly(_note_error, span, error)
        raise
    finally:
        _quietly(span.end)


async def _awaited(span: Span, work: Any) -> Any:
    with _current(span):
        return await work


def _steps(span: Span, steps: Any, batch: Batch) -> Generator[Any, Any]:
    change: Change[Any] | None = None
    with _current(span), closing(steps), suppress(StopIteration):
        while True:
            change = yield steps.send(change)
            _link_joined(span, batch, change)


async def _asteps(span: Span, steps: Any, batch: Batch) -> AsyncGenerator[Any, Any]:
    change: Change[Any] | None = None
    with _current(span), suppress(StopAsyncIteration):
        async with aclosing(steps):
            while True:
                change = yield await steps.asend(change)
                _link_joined(span, batch, change)


# -- metrics ----------------------------------------------------------------------------------------------


class _Figures:
    """The figures of all batchers, read once for all metrics of one collection."""

    def __init__(self) -> None:
        self._history = History()
        # Not the batchers: they would be kept until the next collection, which would find them again.
        self._metrics: dict[str, Metric] = {}

    def observe(self, name: str, _: CallbackOptions, *, reads: bool) -> Iterable[Observation]:
        """Return the figures of a metric, as far as they are known."""
        if reads:
            found = metrics(*self._history.read(), *read_workers())
            self._metrics = {metric.name: metric for metric in found}
        if (metric := self._metrics.get(name)) is None:
            return []
        return [
            Observation(figure, dict(zip(metric.labels, labels, strict=True)))
            for labels, figure in metric.figures
        ]


def _measure(meter: Meter) -> None:
    """Have the metrics that can be read at any time read when they are collected."""
    figures = _Figures()
    for at, metric in enumerate(metrics({}, {}, {}, {})):
        reads = at == 0  # instruments are asked in the order in which they were made
        create = meter.create_observable_gauge if metric.is_gauge else meter.create_observable_counter
        told = partial(figures.observe, metric.name, reads=reads)
        create(f"batched.{metric.name}", [told], description=metric.text)


def _histograms(meter: Meter) -> Callable[[BatchRecord], None]:
    """Return what notes a batch in the histograms."""
    waits, seconds, sizes = (
        _histogram(meter, f"batched.{metric}", text, bounds)
        for metric, (text, bounds, _) in HISTOGRAMS.items()
    )

    def note(record: BatchRecord) -> None:
        labels = {"name": printable(record.name)}
        for wait_ms in record.waits_ms:
            waits.record(wait_ms / 1000, labels)
        seconds.record(record.took_ms / 1000, labels)
        sizes.record(record.size, labels)

    return note


def _histogram(meter: Meter, name: str, text: str, bounds: list[float]) -> Histogram:
    """Return a histogram that has these bounds, unless a view says others; the oldest APIs have no bounds."""
    try:
        return meter.create_histogram(name, description=text, explicit_bucket_boundaries_advisory=bounds)
    except TypeError:
        return meter.create_histogram(name, description=text)
