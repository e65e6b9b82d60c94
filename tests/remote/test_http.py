"""The page beside a server: metrics of batchers and of clients, and whether it takes calls."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from socketserver import ThreadingTCPServer
from typing import Any

import pytest
from prometheus_client import Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import batched
from batched._remote.clients import Clients
from batched._remote.function import sentences
from batched._remote.link import WireTimes
from batched.prometheus import Collector
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.ports import free_port
from tests.kit.script import ROOT
from tests.kit.serving import command, served

Samples = dict[tuple[str, ...], float]
"""By the name of the metric and the values of its labels."""


def ask(port: int, path: str, **headers: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(port: int) -> Samples:
    """Scrape; no series may be there twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(ask(port, "/metrics")[1]):
        for sample in family.samples:
            key = (sample.name, *sample.labels.values())
            assert key not in found, key
            found[key] = sample.value
    return found


def of_clients(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the figures of each client."""
    found: dict[str, dict[str, float]] = {}
    for (name, *labels), value in samples.items():
        if name.startswith("batched_client_"):
            found.setdefault(labels[0], {})[name.removeprefix("batched_client_")] = value
    return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A batch function that holds its batches."""
    found = Gate(shut=True)
    yield found
    found.open()


@pytest.fixture
def port() -> int:
    """A port that nothing listens on."""
    return free_port()


def test_the_page_has_the_batchers_and_the_clients(gate: Gate, port: int) -> None:
    """Calls, those without an answer, connections and bytes by client; batches by function, as without it."""
    fn = batched.dynamically(gate, timeout_ms=0, name="on the page")
    with served(named(fn, "held"), http=f"127.0.0.1:{port}") as server:
        first, second = server.connect(), server.connect()
        futures = [first.held.submit("a" * 1000), second.held.submit(1), second.held.submit(2)]
        gate.wait_for_batch()
        until(lambda: sum(each["calls_total"] for each in of_clients(metrics(port)).values()) == 3)
        clients = sorted(of_clients(metrics(port)).values(), key=lambda each: each["calls_total"])
        assert [each["calls_total"] for each in clients] == [1, 2]
        assert [each["unanswered_calls"] for each in clients] == [1, 2]
        assert [each["connections"] for each in clients] == [1, 1]
        assert clients[0]["received_bytes_total"] > 1000 > clients[1]["received_bytes_total"] > 0
        gate.open()
        for each in futures:
            each.result(PATIENCE_S)
        found = metrics(port)
        assert found["batched_processed_items_total", "on the page"] == 3
        clients = [*of_clients(found).values()]
        assert {each["unanswered_calls"] for each in clients} == {0}
        assert min(each["sent_bytes_total"] for each in clients) > 0
        first.close()
        until(lambda: len(of_clients(metrics(port))) == 1)
        second.close()
        until(lambda: not of_clients(metrics(port)))


def named(fn: Any, name: str) -> Any:
    """Return the function, which clients call by this name."""
    fn.__name__ = name
    return fn


def test_health_is_as_long_as_it_takes_calls(gate: Gate, port: int) -> None:
    """While it drains, the page answers 503; afterwards nothing listens there."""
    fn = named(batched.dynamically(gate, timeout_ms=0), "held")
    with served(fn, http=f"127.0.0.1:{port}", drain_s=PATIENCE_S) as server:
        client = server.connect()
        future = client.held.submit(1)
        gate.wait_for_batch()
        assert ask(port, "/healthz") == (200, "serving\n")
        server.stop.set()
        until(lambda: ask(port, "/healthz") == (503, "draining\n"))
        assert ask(port, "/metrics")[0] == 200
        gate.open()
        assert future.result(PATIENCE_S) == 1
        client.close()
        server.end()
    with pytest.raises(urllib.error.URLError):
        ask(port, "/healthz")


def test_a_page_without_file_descriptors_waits_until_it_tries_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be asked to take the connection again at once, and take a processor from the model."""
    attempts: list[int] = []
    is_waiting, goes_on = threading.Event(), threading.Event()
    accept = ThreadingTCPServer.get_request

    def without_descriptors(server: ThreadingTCPServer) -> Any:
        attempts.append(1)
        if goes_on.is_set():
            return accept(server)
        if len(attempts) > 99:
            is_waiting.set()
        raise OSError(errno.EMFILE, "Too many open files")

    def wait(_: float) -> None:
        is_waiting.set()
        goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(ThreadingTCPServer, "get_request", without_descriptors)
    monkeypatch.setattr("batched._remote.http.sleep", wait, raising=False)
    with served(named(batched.dynamically(list), "same"), http=f"127.0.0.1:{port}"):
        probe = threading.Thread(target=ask, args=(port, "/healthz"))
        probe.start()
        assert is_waiting.wait(PATIENCE_S)
        assert len(attempts) == 1
        goes_on.set()
        probe.join(PATIENCE_S)
        assert (probe.is_alive(), len(attempts)) == (False, 2)


def test_other_requests(port: int) -> None:
    """Another path is not found; HEAD has no text; OpenMetrics is spoken to scrapers that ask for it."""
    fn = named(batched.dynamically(list, timeout_ms=0), "same")
    with served(fn, http=f"127.0.0.1:{port}"):
        assert ask(port, "/")[0] == 404
        assert ask(port, "/healthz?x=1")[0] == 200
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", method="HEAD")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert (answer.status, answer.read()) == (200, b"")
        text = ask(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]
        assert [family.name for family in openmetrics_families(text) if "client_calls" in family.name]


def test_a_format_that_cannot_be_read_is_answered_as_none(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Any process that reaches the port could else have errors logged, with a traceback for each request."""
    fn = named(batched.dynamically(list, timeout_ms=0), "same")
    with served(fn, http=f"127.0.0.1:{port}"):
        status, text = ask(port, "/metrics", Accept="application/openmetrics-text; version=new;;q=x")
    assert status == 200
    assert [family.name for family in text_string_to_metric_families(text) if "client_calls" in family.name]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_metrics_of_the_program_itself_are_there_once(port: int) -> None:
    """Those that the model's module has registered; it may have registered a collector of batchers too."""
    from prometheus_client import REGISTRY

    counter = Counter("tokens_of_the_model", "Tokens")
    collector = Collector()
    counter.inc(5)
    fn = named(batched.dynamically(list, timeout_ms=0, name="once"), "same")
    try:
        with served(fn, http=f"127.0.0.1:{port}") as server:
            client = server.connect()
            client.same(1)
            found = metrics(port)
            assert found["tokens_of_the_model_total",] == 5
            assert found["batched_processed_items_total", "once"] == 1
            client.close()
    finally:
        REGISTRY.unregister(counter)
        REGISTRY.unregister(collector)


def test_a_page_that_cannot_be_made_is_an_error_of_the_server(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector of the program raises: the log says so, and the other page goes on."""
    from prometheus_client import REGISTRY

    class Broken:
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> list[Any]:
            raise ValueError("of the collector")

    broken: Any = Broken()
    REGISTRY.register(broken)
    try:
        with served(named(batched.dynamically(list), "same"), http=f"127.0.0.1:{port}"):
            assert ask(port, "/metrics")[0] == 500
            assert ask(port, "/healthz")[0] == 200
    finally:
        REGISTRY.unregister(broken)
    assert "of the collector" in caplog.text


def test_without_prometheus_client_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything listens."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "batched.prometheus", raising=False)
    fn = named(batched.dynamically(list), "same")
    with pytest.raises(ImportError, match=r"pip install prometheus-client"):
        batched.serve(fn, bind="tcp:127.0.0.1:0", token="a", http="127.0.0.1:0")


def test_a_port_that_is_taken_is_one_line() -> None:
    """It names the page, not the socket of the calls."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        with command("model_of_test:double", "--http", taken) as server:
            assert server.ended() == 1
            assert len(server.log.splitlines()) == 1
            assert f"http://{taken}" in server.log


def test_the_command_says_where_the_page_is() -> None:
    """Also of a port that the system has chosen; `--verbose` logs clients that come and leave."""
    with command("model_of_test:double", "--http", "127.0.0.1:0", "--verbose") as server:
        line = server.until("served at")
        where = line.partition("metrics at http://")[2].partition("/")[0]
        assert ask(int(where.rpartition(":")[2]), "/healthz")[0] == 200
        address = line.partition("served at ")[2].partition(" by")[0]
        client = batched.connect(address, token=server.token)
        assert client.double(1) == 2
        client.close()
        server.until(" came")
        assert "1 calls" in server.until(" left")


# -- the figures of clients --------------------------------------------------------------------------------


@dataclass(eq=False)
class Connection:
    client: str
    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    unanswered: int = 0


def test_figures_of_a_client_do_not_fall_when_one_of_its_connections_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is forgotten with its last connection, and the log has what it did."""
    caplog.set_level(logging.DEBUG, "batched")
    clients = Clients()
    live = [Connection("a", 1, 10, 100, 1), Connection("a", 2, 20, 200, 0), Connection("b", 5)]
    unknown = Connection("")
    for each in live:
        clients.came(each.client)
    live.append(unknown)
    found = clients.figures(live)["a"]
    assert (found.connections, found.calls, found.unanswered) == (2, 3, 1)
    assert clients.figures(live)["b"].calls == 5
    ended = live.pop(0)
    clients.left(ended)
    found = clients.figures(live)["a"]
    assert (found.connections, found.calls, found.unanswered) == (1, 3, 0)
    assert (found.bytes_in, found.bytes_out) == (30, 300)
    clients.left(live.pop(0))
    clients.left(unknown)
    assert {client: each.calls for client, each in clients.figures(live).items()} == {"b": 5}
    assert [each.getMessage() for each in caplog.records] == [
        "client a came",
        "client b came",
        "client a left: 3 calls, 30 bytes in, 300 bytes out",
    ]
    clients.came("a")
    assert clients.figures([Connection("a", 1)])["a"].calls == 1


def test_figures_are_read_while_clients_come_and_leave() -> None:
    """From the thread of the page, without a lock."""
    clients = Clients()
    live: set[Any] = set()
    ends = threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not ends.is_set():
                clients.figures(live)
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(2000):
        each = Connection(str(turn % 7), 1)
        clients.came(each.client)
        live.add(each)
        if turn % 3:
            other = live.pop()
            clients.left(other)
    ends.set()
    reader.join(PATIENCE_S)
    assert failed == []


# -- explain -----------------------------------------------------------------------------------------------


def wire(calls: int, total_s: float, server_s: float) -> WireTimes:
    found = WireTimes()
    for _ in range(calls):
        found.add(total_s, server_s)
    return found


@pytest.mark.parametrize(
    ("times", "calls", "said"),
    [
        (wire(0, 0.0, 0.0), {"a": 0, "b": 0}, []),
        (wire(4, 0.0052, 0.005), {"a": 4, "b": 4}, ["5.2 ms on average", "5 ms of that", "takes 0.2 ms"]),
        (wire(0, 0.0, 0.0), {"a": 10}, ["No other process is connected"]),
        (wire(0, 0.0, 0.0), {"a": 950, "b": 50, "c": 0}, ["One of the 3 processes", "95%"]),
        (wire(0, 0.0, 0.0), {"a": 50, "b": 5}, []),
        (wire(0, 0.0, 0.0), {"a": 500, "b": 500}, []),
    ],
)
def test_what_the_way_costs_and_whether_a_server_pays(
    times: WireTimes, calls: dict[str, int], said: list[str]
) -> None:
    """Nothing is said of what is not known."""
    text = "\n".join(sentences(times, calls))
    assert [each for each in said if each not in text] == []
    assert bool(text) == bool(said)


def test_explain_asks_the_server() -> None:
    """Two clients of one process are two: each is told what its own calls take."""
    fn = named(batched.dynamically(list, timeout_ms=0), "same")
    with served(fn) as server:
        alone = server.connect()
        for _ in range(3):
            alone.same(1)
        text = alone.same.explain()
        assert "No other process" in text
        assert "A call of this process takes" in text
        other = server.connect()
        other.same(1)
        assert "No other process" not in alone.same.explain()
        other.close()
        alone.close()


FORKS = """
import os, signal
from batched._remote.http import Metrics, Page

page = Page(("127.0.0.1", 0), Metrics(dict))
begun, begins = os.pipe()
child = os.fork()
if not child:
    os.write(begins, b"x")
    signal.pause()
os.read(begun, 1)
try:
    page.close()
    again = Page(page.where, Metrics(dict))
    assert again.where == page.where
    again.close()
finally:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_server_does_not_keep_its_port() -> None:
    """As of a process pool: a later server may have it."""
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKS]
    subprocess.run(command, check=True, timeout=PATIENCE_S, env={**os.environ, "PYTHONPATH": str(ROOT)})
