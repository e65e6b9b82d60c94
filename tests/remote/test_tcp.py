"""Loopback TCP with a token, which all systems have: calls, faults and ends, as through a unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import batched
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, moment, until
from tests.kit.script import PROLOGUE, ROOT
from tests.kit.serving import TOKEN, Served, command, served
from tests.kit.threads import together

BIND = "tcp:127.0.0.1:0"


@batched.dynamically(timeout_ms=0)
def double(items: list[Any]) -> list[Any]:
    """Return each item twice."""
    return [2 * item for item in items]


@batched.dynamically(timeout_ms=0)
def pieces(items: list[int]) -> Iterator[list[int]]:
    """Count to each item."""
    for each in range(max(items)):
        yield [each] * len(items)


@pytest.fixture
def server() -> Iterator[Served]:
    """Serve the functions above on a port."""
    with served(double, pieces, bind=BIND, token=TOKEN) as found:
        yield found


def test_all_ways_to_call(server: Served) -> None:
    """From threads, futures and tasks; in lists, maps and streams; with more bytes than a socket takes."""
    big = bytes(1_000_000)
    with server.connect() as client:
        assert client.double(4) == 8
        assert client.double([1, 2]) == [2, 4]
        assert client.double.submit("a").result(PATIENCE_S) == "aa"
        assert list(client.double.map(range(100))) == list(range(0, 200, 2))
        assert list(client.pieces.stream(3)) == [0, 1, 2]
        assert client.double(big) == 2 * big
        assert client.double.stats.total_processed >= 100

        async def main() -> None:
            assert await asyncio.gather(*map(client.double.acall, range(100))) == list(range(0, 200, 2))
            assert [each async for each in client.double.amap(range(10))] == list(range(0, 20, 2))
            assert [each async for each in client.pieces.astream(3)] == [0, 1, 2]
            assert await client.double.acall(big) == 2 * big

        asyncio.run(main())
        together(8, lambda number: [client.double(number) for _ in range(times(200))])


def test_deadlines_and_cancels_reach_the_server() -> None:
    """What is late, or left, never runs."""
    gate = Gate(shut=True)
    with served(
        batched.dynamically(gate, name="f", batch_size=1, timeout_ms=0), bind=BIND, token=TOKEN
    ) as server:
        client = server.connect()
        first = client.f.submit(0)
        gate.wait_for_batch()
        with pytest.raises(TimeoutError, match="deadline_ms=50"):
            client.f.options(deadline_ms=50)(1)
        client.f.submit(2).cancel()

        async def main() -> None:
            with pytest.raises(TimeoutError, match="deadline_ms=50"):
                await client.f.options(deadline_ms=50).acall(3)

        asyncio.run(main())
        until(lambda: client.f.stats.queue_size == 0)
        gate.open()
        assert first.result(PATIENCE_S) == 0
        assert client.f(4) == 4
        assert gate.batches == [[0], [4]]
        client.close()


def test_the_death_of_a_server_fails_what_waits(tmp_path: Any) -> None:
    """At once, in threads, futures and tasks; the next server at the port has later calls."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        bind = f"tcp:127.0.0.1:{free.getsockname()[1]}"
    token = tmp_path / "token"
    arguments = ("model_of_test:double", "model_of_test:held", "--bind", bind, "--token-file", str(token))
    with command(*arguments) as server:
        server.until("served at")
        client = batched.connect(bind, token=token.read_text().strip(), wait_s=PATIENCE_S)
        futures = [server.hold(client), *[client.held.submit(each) for each in range(100)]]

        async def main() -> list[Any]:
            tasks = [asyncio.ensure_future(client.held.acall(each)) for each in range(100)]
            await moment(0.05)
            server.process.kill()
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)

        errors = [*asyncio.run(main()), *[each.exception(PATIENCE_S) for each in futures]]
        assert {type(each) for each in errors} == {batched.DisconnectedError}
        server.process.wait(PATIENCE_S)
    with command(*arguments):
        assert client.double(2) == 4
        assert asyncio.run(client.double.acall(3)) == 6
        client.close()


CLIENT = """
client = batched.connect({address!r}, token={token!r})
futures = [client.f.submit(each) for each in range(500)]
while client.f.stats.queue_size < 499:
    time.sleep(0.01)
print("queued", flush=True)
time.sleep(600)
"""


def test_the_death_of_a_client_drops_what_has_not_started() -> None:
    """Its calls that wait never run."""
    gate = Gate(shut=True)
    with served(
        batched.dynamically(gate, name="f", batch_size=1, timeout_ms=0), bind=BIND, token=TOKEN
    ) as server:
        script = PROLOGUE + CLIENT.format(address=server.address, token=TOKEN)
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "queued\n"
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        with server.connect() as client:
            until(lambda: client.f.stats.queue_size == 0)
            gate.open()
            assert client.f(7) == 7
        assert len(gate.batches) <= 3  # the one that ran, perhaps one that had been taken, and this


def test_rubbish_closes_its_own_connection_only(server: Served) -> None:
    """Also what stands where a proof of the token should."""
    host, port = server.address.removeprefix("tcp:").rsplit(":", 1)
    with server.connect() as client:
        assert client.double(1) == 2
        for turn in range(times(100)):
            with suppress(ConnectionError), socket.create_connection((host, int(port)), PATIENCE_S) as peer:
                peer.sendall([b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"", bytes(30)][turn % 4])
                with suppress(OSError):  # it has been closed
                    peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass
            assert client.double(turn) == 2 * turn


def test_many_clients_at_once(server: Served) -> None:
    """Each with a connection for threads and one for a loop."""

    def use(number: int) -> None:
        for _ in range(times(20)):
            with server.connect() as client:
                assert client.double(number) == 2 * number
                assert asyncio.run(client.double.acall(number)) == 2 * number

    together(8, use)


def test_a_server_that_ends_answers_what_has_come() -> None:
    """Its clients then wait for the next one at the port, which is free from the moment it is told to end."""
    gate = Gate(shut=True)
    first = batched.dynamically(gate, name="f", batch_size=1, timeout_ms=0)

    @batched.dynamically(timeout_ms=0)
    def f(items: list[int]) -> list[int]:
        return [-item for item in items]

    with served(first, bind=BIND, token=TOKEN, drain_s=PATIENCE_S) as server, ThreadPoolExecutor(1) as pool:
        client = server.connect(wait_s=PATIENCE_S)
        futures = [client.f.submit(each) for each in range(5)]
        gate.wait_for_batch()
        until(lambda: client.f.stats.queue_size == 4)
        ends = pool.submit(server.end)
        link: Any = client._connections._of_threads  # noqa: SLF001
        until(lambda: not link.takes_calls)
        with served(f, bind=server.address, token=TOKEN):
            assert client.f(3) == -3
            assert not any(each.done() for each in futures)
            gate.open()
            assert [each.result(PATIENCE_S) for each in futures] == list(range(5))
            ends.result(PATIENCE_S)
        client.close()


def test_a_program_that_waits_for_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens at the port, and says nothing."""
    monkeypatch.setattr("batched._remote.client._STILL_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = batched.connect(f"tcp:127.0.0.1:{silent.getsockname()[1]}", token=TOKEN, wait_s=0.05)
        with pytest.raises(batched.DisconnectedError, match=r"not greeted within 0\.1 s"):
            client.double(1)

        async def main() -> None:
            with pytest.raises(batched.DisconnectedError, match=r"not greeted within 0\.1 s"):
                await asyncio.wait_for(client.double.acall(1), PATIENCE_S)

        asyncio.run(main())
        client.close()


def test_threads_go_on_while_others_begin(server: Served) -> None:
    """Callers that share the first connection of a client."""
    for _ in range(times(50)):
        with server.connect() as client:
            barrier = threading.Barrier(4)

            def call(number: int, client: Any = client, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(PATIENCE_S)
                assert client.double(number) == 2 * number

            together(4, call)
