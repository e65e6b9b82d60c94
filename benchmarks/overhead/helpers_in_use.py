"""The time of a call with `on_batch`, spans, metrics, a `batched.deadline` block, `Batching`, beside none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import batched
from batched.asgi import Batching
from benchmarks.kit.bare import echo
from benchmarks.kit.callers import Call, around_synchronously, round_trips
from benchmarks.kit.measure import Effort, one_core
from benchmarks.kit.ours import dynamically
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import Row
from benchmarks.kit.turns import Contender, Turns, Unavailable, using

__all__ = ["ROWS"]

_TRIPS = (2_000, 50)


def _trip(call: Call, effort: Effort) -> float:
    return around_synchronously(call, effort.of(*_TRIPS))


def _with(**options: Any) -> Contender:
    @contextmanager
    def opened() -> Iterator[Call]:
        with dynamically(echo, **options) as fn:
            yield fn

    return using(opened, _trip)


def _tell(_: batched.BatchRecord) -> None:
    """Do nothing with a batch."""


def _in_a_span(*, is_traced: bool, has_metrics: bool = False) -> Contender:
    """Return a contender that calls inside of a span, which is linked to each batch if batches are traced.

    With metrics, each batch counts in the histograms.
    """

    @contextmanager
    def opened() -> Iterator[tuple[Call, Any, Any]]:
        try:
            from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  an extra
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
                SimpleSpanProcessor,
                SpanExporter,
                SpanExportResult,
            )
        except ModuleNotFoundError as missing:
            raise Unavailable(f"there is no {missing.name}") from missing

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
                return SpanExportResult.SUCCESS

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
        meters = MeterProvider([InMemoryMetricReader()] if has_metrics else [])
        with dynamically(echo) as fn:
            yield fn, provider, meters
        meters.shutdown()

    def measure(made: tuple[Call, Any, Any], effort: Effort) -> float:
        from batched.opentelemetry import instrument, uninstrument  # noqa: PLC0415

        fn, provider, meters = made
        if is_traced:  # for this turn only: it holds for all functions
            instrument(tracer_provider=provider, meter_provider=meters)
        try:
            with provider.get_tracer("benchmark").start_as_current_span("request"):
                return _trip(fn, effort)
        finally:
            uninstrument()

    return using(opened, measure)


def in_a_block(is_used: bool, trips: int) -> float:  # noqa: FBT001  from JSON
    """Return the round trip of a call, in a block with a deadline if that `is_used`."""
    with dynamically(echo) as fn, one_core():

        def call(item: Any) -> Any:
            with batched.deadline(60_000) if is_used else nullcontext():
                return fn(item)

        return around_synchronously(call, trips)


def of_a_request(is_used: bool, trips: int) -> float:  # noqa: FBT001
    """Return the round trip of a request to an application, in the middleware if that `is_used`."""
    with dynamically(echo) as fn, one_core():

        async def bare(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            found = await fn.acall(scope["item"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": found})

        app: Any = Batching(bare, deadline_ms=60_000) if is_used else bare

        async def ask(item: Any) -> Any:
            parts: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
            sent: list[Any] = []

            async def receive() -> Any:
                if parts:
                    return parts.pop()
                return await asyncio.Event().wait()  # until the client leaves

            async def send(message: Any) -> None:
                sent.append(message)

            await app({"type": "http", "headers": [], "path": "/", "item": item}, receive, send)
            return sent[-1]["body"]

        return asyncio.run(round_trips(ask, trips))


_ON_BATCH = {"ours": _with(on_batch=_tell), "none": _with()}
_TRACED = {"ours": _in_a_span(is_traced=True), "none": _in_a_span(is_traced=False)}
_METERED = {
    "ours": _in_a_span(is_traced=True, has_metrics=True),
    "none": _in_a_span(is_traced=False),
}
_BLOCK = {"ours": Alone(in_a_block, (True, _TRIPS)), "none": Alone(in_a_block, (False, _TRIPS))}
_REQUEST = {"ours": Alone(of_a_request, (True, _TRIPS)), "none": Alone(of_a_request, (False, _TRIPS))}

_TRIP = "idle sync round trip, one core"
ROWS = (
    Row("on_batch / none", f"{_TRIP}, each batch told", Turns(_ON_BATCH, inside=one_core), "none"),
    Row("opentelemetry / none", f"{_TRIP}, each batch with a span", Turns(_TRACED, inside=one_core), "none"),
    Row("traces, metrics / none", f"{_TRIP}, and histograms", Turns(_METERED, inside=one_core), "none"),
    Row("deadline block / none", f"{_TRIP}, each call in a block", Turns(_BLOCK, rounds=11), "none"),
    Row("asgi.Batching / none", "request to a bare app, idle, one core", Turns(_REQUEST, rounds=11), "none"),
)
