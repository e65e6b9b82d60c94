"""Traces and metrics reach a collector of OpenTelemetry, which says what it has got: rotel, from PyPI."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import batched
from batched._metrics import COUNTERS
from tests.kit.gate import PATIENCE_S
from tests.kit.ports import free_port
from tests.kit.service import until

# Libraries are imported where they are used: this module is read where they are not installed.
pytestmark = [pytest.mark.libraries, pytest.mark.timeout(200)]


class Collector:
    """A collector in a process of its own, with a log of what it receives."""

    def __init__(self, folder: Path) -> None:
        import rotel

        self.log = folder / "log"
        http, grpc = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}/v1"
        command = [
            str(Path(rotel.__file__).with_name("rotel-agent")),
            "start",
            f"--otlp-http-endpoint=127.0.0.1:{http}",
            f"--otlp-grpc-endpoint=127.0.0.1:{grpc}",
            "--exporter=blackhole",
            "--debug-log=traces",
            "--debug-log=metrics",
            "--debug-log-verbosity=detailed",
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        until(lambda: "Starting Rotel" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def spans(self) -> list[str]:
        """Return the text of each span that has arrived."""
        found = self.log.read_text().partition("ResourceMetrics #0")[0]
        return found.split("Span #")[1:]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A collector, until the test ends."""
    found = Collector(tmp_path)
    yield found
    found.process.kill()
    found.process.wait(PATIENCE_S)


def field(span: str, name: str) -> str:
    """Return a field of a span, as the collector has written it."""
    line = next(line for line in span.splitlines() if line.strip().startswith(name))
    return line.partition(":")[2].strip()


def test_a_collector_gets_spans_with_their_links_and_all_metrics(collector: Collector) -> None:
    """A batch with its stages inside, and the request that it is linked to."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from batched.opentelemetry import instrument, uninstrument

    traces = TracerProvider()
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.url}/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.url}/metrics"))])
    instrument(tracer_provider=traces, meter_provider=meters)
    try:
        fn = batched.dynamically(list, finish=list, name="collected")
        with traces.get_tracer("test").start_as_current_span("request"):
            assert fn([1, 2, 3]) == [1, 2, 3]
        assert traces.force_flush()
        until(lambda: len(collector.spans()) == 4)
        assert meters.force_flush()
    finally:
        uninstrument()
        traces.shutdown()
        meters.shutdown()
    spans = {field(span, "Name"): span for span in collector.spans()}
    assert sorted(spans) == ["batch collected", "finish collected", "request", "run collected"]
    batch, request = spans["batch collected"], spans["request"]
    for stage in ("run collected", "finish collected"):
        assert field(spans[stage], "Parent ID") == field(batch, "ID")
    assert "messaging.batch.message_count: Int(3)" in batch
    for one, other in ((batch, request), (request, batch)):
        assert f"-> ID: {field(other, 'ID')}" in one.partition("SpanLink")[2]
    metrics = [*COUNTERS, "waiting_items"]  # a figure that is not known yet is not sent
    until(lambda: all(f"Name: batched.{metric}\n" in collector.log.read_text() for metric in metrics))
    fn.shutdown()
