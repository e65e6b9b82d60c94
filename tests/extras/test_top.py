"""`batched.top`: what functions do between two looks at a page of metrics."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import BadStatusLine, IncompleteRead, InvalidURL
from math import isnan
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

import batched
from batched.prometheus import Collector
from batched.top import Row, read, rows, table, top


def test_rows_are_what_has_happened_since_the_last_look() -> None:
    """Of each function; one that was idle has no sizes and times."""
    registry = CollectorRegistry()
    Collector(registry=registry)
    fn = batched.dynamically(list, batch_size=4, timeout_ms=0, name="top-list")
    idle = batched.dynamically(list, name="top-idle")
    fn([1] * 8)
    idle(1)
    before = read(generate_latest(registry).decode())
    fn([1] * 16)
    now = read(generate_latest(registry).decode())
    found = {row.name: row for row in rows(before, now, 2.0)}
    assert found["top-list"].items_per_s == 8
    assert found["top-list"].batch == 4
    assert found["top-list"].wait_p99_ms > 0
    assert isnan(found["top-idle"].batch)
    assert isnan(found["top-idle"].wait_p50_ms)
    fn.shutdown()
    idle.shutdown()


def test_it_is_shown_again_and_again_also_after_a_failure() -> None:
    """The service may restart meanwhile. A file or a pipe gets whole lines."""
    registry = CollectorRegistry()
    Collector(registry=registry)
    fn = batched.dynamically(list, timeout_ms=0, name="top-shown")
    pages = iter(["ok", "fail", "ok"])

    def fetch(_: str) -> str:
        if next(pages) == "fail":
            raise ConnectionError("refused")
        fn(1)
        return generate_latest(registry).decode()

    out = io.StringIO()
    top("URL", looks=2, console=Console(file=out, width=160), fetch=fetch, sleep=lambda _: None)
    assert "top-shown" in out.getvalue()
    assert out.getvalue().endswith("\n")
    fn.shutdown()


@pytest.mark.parametrize("name", ["app.embed_texts", "Embedder.embed_the_documents_of_all_tenants_[beta]"])
def test_names_and_figures_are_whole_in_a_terminal_of_80_columns(name: str) -> None:
    """Of which no line is longer: a long name takes several."""
    row = Row(name, 12_345.0, 63.9, 1024.0, 64.0, 8.19, 1050.0, 16.4, 0.98, 0.25, 130.0)
    out = io.StringIO()
    Console(file=out, width=80).print(table([row], "http://127.0.0.1:9100/metrics"))
    shown = out.getvalue().rpartition("─\n")[2].splitlines()
    assert "".join(line.split()[0] for line in shown) == name
    for figure in ("12,345", "63.9", "1,024", "64", "8.19", "1,050", "16.4", "98%", "0.25", "130"):
        assert f" {figure}" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("width", [20, 40, 60, 73, 74])
def test_the_name_is_there_however_narrow_the_terminal_is(width: int) -> None:
    """Of the figures, those that have no room are left out, and those that are there are whole."""
    out = io.StringIO()
    name = "app.embed_the_documents_of_all_tenants"
    row = Row(name, 780.0, 4.16, 6.0, 4.0, 4.1, 8.19, 5.03, 0.94, 0.0, 0.0)
    console = Console(file=out, width=width)
    console.print(table([row], "http://127.0.0.1:9100/metrics", width))
    shown = out.getvalue().rpartition("─\n")[2].splitlines()
    assert "".join(line.split()[0] for line in shown) == name
    figures = ["780", "4.16", "6", "4", "4.1", "8.19", "5.03", "94%", "0", "0"]
    there = shown[0].split()[1:]
    assert there == figures[: len(there)]
    assert (len(there) == len(figures)) == (width >= 74)
    assert "…" not in out.getvalue()


class Counted(dict[Any, Any]):
    """Figures that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return super().__iter__()

    def items(self) -> Any:
        self.times += 1
        return super().items()


def test_a_page_is_gone_through_as_often_for_many_functions_as_for_one() -> None:
    """Else a look at a service with hundreds of functions takes the square of their number."""

    def page(number: int) -> Counted:
        found = Counted()
        for at in range(number):
            found["batched_batchers", f"fn{at}", ""] = 1.0
            for bound in ("0.5", "1.0", "+Inf"):
                found["batched_wait_seconds_bucket", f"fn{at}", bound] = 1.0
        return found

    few, many = page(1), page(50)
    rows({}, few, 1.0)
    found = rows({}, many, 1.0)
    assert few.times == many.times
    assert [row.wait_p99_ms for row in found] == [500.0] * 50


def test_what_cannot_be_read_at_first_is_an_error() -> None:
    """And so is a time that does not pass."""

    def fetch(_: str) -> str:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        top("URL", fetch=fetch)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"every_s must be above 0, and at most .*, got {wrong}"):
            top("URL", every_s=wrong)
    with pytest.raises(ValueError, match="looks must be at least 1, got 0"):
        top("URL", looks=0)


@pytest.mark.parametrize(
    "found",
    [
        '{"json": {"a": [1, 2]}}',
        "{",
        "foo",
        BadStatusLine("SSH-2.0"),
        IncompleteRead(b"", 3),
        InvalidURL("/a b"),
    ],
    ids=str,
)
def test_what_is_no_page_of_metrics_is_an_error_of_one_kind(found: str | Exception) -> None:
    """At the first look; later it is shown instead of the figures."""
    looks = iter(["", found])

    def fetch(_: str) -> str:
        page = next(looks)
        if isinstance(page, Exception):
            raise page
        return page

    out = io.StringIO()
    top("URL", looks=1, console=Console(file=out, width=200), fetch=fetch, sleep=lambda _: None)
    assert "URL cannot be read: that is no page of metrics" in out.getvalue()
    looks = iter([found])
    with pytest.raises(OSError, match="that is no page of metrics"):
        top("URL", fetch=fetch)


@pytest.fixture
def service() -> Iterator[Callable[..., str]]:
    """Return what has a service answer once, and returns its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(page: bytes, *, goes_on: bool) -> None:
            client, _ = server.accept()
            with client, suppress(OSError):  # the reader has enough
                client.recv(1000)
                client.sendall(b"HTTP/1.1 200 OK\r\n" + page)
                while goes_on:
                    client.sendall(b"# more\n")

        def serve(page: bytes, *, goes_on: bool = False) -> str:
            Thread(target=answer, args=(page,), kwargs={"goes_on": goes_on}, daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}/metrics"

        yield serve


def test_a_page_that_does_not_end_is_given_up(
    service: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a stream of events: each part of it comes in time."""
    monkeypatch.setattr("batched.top._PATIENCE_S", 0.1)
    with pytest.raises(TimeoutError, match=r"the page has not ended after 0.1 s"):
        top(service(b"\r\n", goes_on=True), looks=1)


def test_a_page_that_ends_too_early_is_none(service: Callable[..., str]) -> None:
    """Its figures would be taken for all that there are."""
    with pytest.raises(OSError, match=r"no page of metrics \(IncompleteRead"):
        top(service(b"Content-Length: 100\r\n\r\nup 1\n"), looks=1)


@pytest.mark.parametrize("url", ["127.0.0.1:9100/metrics", "http://127.0.0.1:9100/metrics"])
def test_the_scheme_of_the_address_may_be_left_out(url: str) -> None:
    """As with curl: `urlopen` took the host for a scheme, and said only that it is unknown."""
    asked: list[str] = []

    def fetch(address: str) -> str:
        asked.append(address)
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        top(url, fetch=fetch)
    assert asked == ["http://127.0.0.1:9100/metrics"]


def test_a_page_of_others_is_said_to_have_no_figures() -> None:
    """With what is to be served there."""
    out = io.StringIO()
    page = "# TYPE up gauge\nup 1.0\n"
    console = Console(file=out, width=160)
    top("URL", looks=1, console=console, fetch=lambda _: page, sleep=lambda _: None)
    assert "URL has no figures of batched functions: serve those of batched.prometheus" in out.getvalue()


@pytest.mark.parametrize("metric", ["processed_items_total", "batch_size_items_sum", "wait_seconds_bucket"])
def test_a_service_that_has_restarted_shows_what_it_has_done_since(metric: str) -> None:
    """One counter is lower than at the last look, so none goes on from there; other functions do."""
    name = f"top-restarted-{metric}"
    registry = CollectorRegistry()
    Collector(registry=registry)
    fn = batched.dynamically(list, batch_size=4, timeout_ms=0, name=name)
    other = batched.dynamically(list, timeout_ms=0, name=f"{name}-not")
    fn([1] * 8)
    other([1] * 8)
    page = read(generate_latest(registry).decode())
    before = {
        key: value + 100 if key[:2] == (f"batched_{metric}", name) else value for key, value in page.items()
    }
    found = {row.name: row for row in rows(before, page, 2.0)}
    row, goes_on = found[name], found[f"{name}-not"]
    assert (row.items_per_s, row.batch) == (4, 4)
    assert row.wait_p50_ms > 0
    assert goes_on.items_per_s == 0
    assert isnan(goes_on.batch)
    fn.shutdown()
    other.shutdown()
