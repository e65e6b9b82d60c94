"""Ends and successors: a server that is told to end answers what has come, and no caller notices."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._remote.addresses import identity, listen
from batched._remote.greeting import ServerGreeting
from batched._remote.served import Served
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, moment, until
from tests.kit.ports import free_port
from tests.kit.remote_server import ProcessServer, ThreadServer, process_serving, serving

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")
RATE = 200
"""Calls a second."""


@pytest.fixture
def bind(tmp_path: Path) -> str:
    """Where the servers of this test listen."""
    return f"unix:{tmp_path}/server.sock"


def test_no_call_is_lost_while_servers_take_turns(tmp_path: Path, bind: str) -> None:
    """200 calls a second, from threads and tasks, while one server after another takes the path over."""
    over = threading.Event()
    served: Counter[int] = Counter()
    counting = threading.Lock()

    def thread(client: Any) -> int:
        calls = 0
        while not over.wait(10 / RATE):
            answer = client.process(1)
            with counting:
                served[answer] += 1
            calls += 1
        return calls

    async def tasks(client: Any) -> int:
        async def task() -> int:
            calls = 0
            while not over.is_set():
                answer = await client.process.acall(1)
                with counting:
                    served[answer] += 1
                calls += 1
                await moment(10 / RATE)
            return calls

        return sum(await asyncio.gather(*[task() for _ in range(5)]))

    servers = [ProcessServer(tmp_path, "process")]
    try:
        with batched.connect(bind, wait_s=PATIENCE_S) as client, ThreadPoolExecutor(6) as pool:
            work = [pool.submit(thread, client) for _ in range(5)] + [pool.submit(asyncio.run, tasks(client))]
            try:
                for _ in range(times(100, 20)):
                    servers.append(ProcessServer(tmp_path, "process"))
                    assert servers[-2].end() == 0
                    until(lambda: served[servers[-1].process.pid] > 5)
            finally:
                over.set()
            assert sum(each.result(PATIENCE_S) for each in work) == served.total()
            assert set(served) == {each.process.pid for each in servers}
    finally:
        for each in servers:
            each.kill()


def test_a_server_alone_is_replaced_without_a_lost_call(tmp_path: Path, bind: str) -> None:
    """The old one ends before the new one starts: calls wait for it."""
    over = threading.Event()

    def thread(client: Any) -> None:
        while not over.wait(0.005):
            assert client.double(2) == 4

    async def tasks(client: Any) -> None:
        while not over.is_set():
            assert await client.double.acall(2) == 4
            await moment(0.005)

    with batched.connect(bind, wait_s=PATIENCE_S) as client, ThreadPoolExecutor(4) as pool:
        work = [pool.submit(thread, client) for _ in range(3)] + [pool.submit(asyncio.run, tasks(client))]
        try:
            for _ in range(times(30)):
                with process_serving(tmp_path, "double") as server:
                    assert client.double(1) == 2
                    assert server.end() == 0
                    assert not server.path.exists()
        finally:
            with process_serving(tmp_path, "double"):
                over.set()
                for each in work:
                    each.result(PATIENCE_S)


def test_an_end_answers_what_has_come(bind: str) -> None:
    """Queued calls run; the path is gone first; the clients leave; and then it ends."""
    gate = Gate(shut=True)
    server = ThreadServer({"held": batched.dynamically(gate, timeout_ms=0, batch_size=1)}, bind).start()
    client = batched.connect(bind)
    futures = [client.held.submit(each) for each in range(5)]
    gate.wait_for_batch()
    until(lambda: server.on_loop(lambda: sum(each.unanswered for each in server.server.sessions)) == 5)
    server.stop()
    until(lambda: not Path(bind.removeprefix("unix:")).exists())
    gate.open()
    assert [each.result(PATIENCE_S) for each in futures] == list(range(5))
    server.join()
    client.close()


def test_clients_without_calls_leave_at_once(bind: str) -> None:
    """Of threads, and of a loop; the server waits for no time to pass."""
    server = ThreadServer({"double": batched.dynamically(list, timeout_ms=0)}, bind, drain_s=600).start()
    client = batched.connect(bind)
    assert client.double(1) == 1

    async def main() -> None:
        assert await client.double.acall(1) == 1
        assert server.sessions() == 2
        server.stop()
        await asyncio.to_thread(server.join)

    asyncio.run(main())
    client.close()


def test_an_end_waits_for_so_long_only(bind: str) -> None:
    """A client that does not leave, and a call that takes too long, are given up after `drain_s`."""
    gate = Gate(shut=True)
    server = ThreadServer(
        {"held": batched.dynamically(gate, timeout_ms=0, batch_size=1)}, bind, drain_s=0.2
    ).start()
    client = batched.connect(bind)
    futures = [client.held.submit(each) for each in range(5)]
    gate.wait_for_batch()
    idle = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    idle.connect(bind.removeprefix("unix:"))
    begun = time.monotonic()
    server.stop()
    for each in futures:
        assert isinstance(each.exception(PATIENCE_S), batched.DisconnectedError)
    assert time.monotonic() - begun < 5
    gate.open()
    server.join()
    idle.close()
    client.close()
    assert len(gate.batches) == 1


def test_a_successor_keeps_its_path(bind: str) -> None:
    """The one that ends removes its own socket only."""
    path = Path(bind.removeprefix("unix:"))
    functions = {"double": batched.dynamically(list, timeout_ms=0)}
    first = ThreadServer(functions, bind).start()
    with serving(bind, functions=functions), batched.connect(bind) as client:
        first.stop()
        first.join()
        assert path.exists()
        assert client.double(1) == 1
    assert not path.exists()
    assert list(path.parent.iterdir()) == []


def test_a_successor_keeps_its_path_however_soon_it_takes_it(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come before the first server has begun to serve."""
    path = bind.removeprefix("unix:")
    successors: list[Any] = []

    def then_taken(*where: Any) -> Any:
        found = listen(*where)
        successors.extend((listen(*where), identity(path)))
        return found

    monkeypatch.setattr("batched._remote.server.listen", then_taken)
    with serving(bind, functions={"double": batched.dynamically(list, timeout_ms=0)}):
        pass
    successor, own = successors
    with successor:
        assert identity(path) == own


def test_clients_that_have_connected_are_served_by_a_server_that_ends(bind: str) -> None:
    """They had a connection, so they are not sent away without an answer."""
    server = ThreadServer({"double": batched.dynamically(list, timeout_ms=0)}, bind).start()
    clients = [batched.connect(bind, wait_s=PATIENCE_S) for _ in range(20)]
    futures = [each.double.submit(at) for at, each in enumerate(clients)]
    server.stop()
    with serving(bind, functions={"double": batched.dynamically(list, timeout_ms=0)}):
        assert [each.result(PATIENCE_S) for each in futures] == list(range(20))
        server.join()
    for each in clients:
        each.close()


@pytest.mark.parametrize("how", ["close", "shutdown", "cancel", "aclose"])
def test_the_end_of_a_client_is_also_that_of_calls_to_a_server_that_ends(bind: str, how: str) -> None:
    """These are answered by the old server, while further calls go to its successor."""
    gate = Gate(shut=True)
    first = ThreadServer({"held": batched.dynamically(gate, timeout_ms=0, batch_size=1)}, bind).start()
    client = batched.connect(bind, wait_s=PATIENCE_S)
    fn = client.held
    future = fn.submit("old")
    gate.wait_for_batch()
    second = {"held": batched.dynamically(lambda items: ["successor"] * len(items), timeout_ms=0)}
    with serving(bind, functions=second), ThreadPoolExecutor(1) as pool:
        first.stop()
        until(lambda: not client._connections._of_threads.takes_calls)  # noqa: SLF001
        assert fn("new") == "successor"
        if how == "close":
            client.close()
            assert "was closed" in str(future.exception(PATIENCE_S))
        elif how == "cancel":
            fn.shutdown(cancel_futures=True)
            with pytest.raises(CancelledError):
                future.result(PATIENCE_S)
        else:
            ends = fn.shutdown if how == "shutdown" else lambda: asyncio.run(fn.aclose())
            is_answered = pool.submit(lambda: (ends(), future.done())[1])
            until(lambda: fn._driver.closed)  # noqa: SLF001
            gate.open()
            assert is_answered.result(PATIENCE_S)
            assert future.result() == "old"
        gate.open()
        client.close()
        first.join()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_loop_that_stood_still_meanwhile_loses_no_call(bind: str, kind: str) -> None:
    """The loop has not seen the end of the server when its next call is made: that is for the successor."""
    functions = {"double": batched.dynamically(list, timeout_ms=0)}
    token = None if kind == "unix" else "t"
    bind = bind if kind == "unix" else f"tcp:127.0.0.1:{free_port()}"
    first = ThreadServer(functions, bind, drain_s=0.05, token=token).start()
    client = batched.connect(bind, wait_s=PATIENCE_S, token=token)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        assert loop.run_until_complete(client.double.acall(1)) == 1
        first.stop()
        first.join()
        with serving(bind, functions=functions, token=token):
            assert loop.run_until_complete(client.double.acall(2)) == 2
            assert loop.run_until_complete(client.double.acall(3)) == 3
            client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_server_well(tmp_path: Path, bind: str, number: signal.Signals) -> None:
    """With its clients connected."""
    with process_serving(tmp_path, "double") as server, batched.connect(bind) as client:
        assert client.double(1) == 2
        server.signal(number)
        assert server.process.wait(PATIENCE_S) == 0
        assert not server.path.exists()


def test_connections_that_are_accepted_too_late_lose_no_call(bind: str) -> None:
    """The server is busy while they connect and it is told to end: the successor has their calls."""
    functions = {"double": batched.dynamically(list, timeout_ms=0)}
    for _ in range(times(50)):
        first = ThreadServer(functions, bind).start()
        clients = [batched.connect(bind, wait_s=PATIENCE_S) for _ in range(10)]
        goes_on, is_busy = threading.Event(), threading.Event()

        def busy(goes_on: threading.Event = goes_on, is_busy: threading.Event = is_busy) -> None:
            is_busy.set()
            goes_on.wait(PATIENCE_S)

        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(first.on_loop, busy)
            assert is_busy.wait(PATIENCE_S)
            first.stop()
            futures = [each.double.submit(at) for at, each in enumerate(clients)]
            goes_on.set()
            work.result(PATIENCE_S)
        with serving(bind, functions=functions):
            assert [each.result(PATIENCE_S) for each in futures] == list(range(10))
            first.join()
            for each in clients:
                each.close()


@pytest.mark.parametrize("in_tasks", [False, True])
def test_a_call_that_had_no_room_goes_to_the_successor(bind: str, in_tasks: bool) -> None:
    """Nothing of it was sent to the server that died; what was sent to it fails."""
    path = bind.removeprefix("unix:")
    function = batched.dynamically(lambda items: [2 * item for item in items], timeout_ms=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        client = batched.connect(bind, wait_s=PATIENCE_S)
        work: list[Any] = []

        async def tasks() -> list[Any]:
            large = asyncio.ensure_future(client.double.acall(bytes(3_000_000)))
            await asyncio.to_thread(begun.acquire)
            small = asyncio.ensure_future(client.double.acall("x"))
            await asyncio.sleep(0)
            await asyncio.to_thread(begun.release)
            return await asyncio.gather(large, small, return_exceptions=True)

        begun = threading.Semaphore(0)
        with ThreadPoolExecutor(3) as pool:
            if in_tasks:
                work = [pool.submit(asyncio.run, tasks())]
            else:
                work = [pool.submit(client.double, bytes(3_000_000))]
            with listener.accept()[0] as peer:
                peer.settimeout(PATIENCE_S)
                peer.recv(65536)
                described = Served("double", function, when_changed=int).described()
                peer.sendall(b"".join(ServerGreeting(functions=[asdict(described)]).frame()))
                peer.recv(1000)  # of the large call: the rest has no room
                if in_tasks:
                    begun.release()
                    threading.Event().wait(0.05)
                    begun.acquire()
                else:
                    work.append(pool.submit(client.double, "x"))
                    until(lambda: len(client._connections._of_threads._sent) == 2)  # noqa: SLF001
                server = ThreadServer({"double": function}, bind).start()
            errors = (
                work[0].result(PATIENCE_S)
                if in_tasks
                else [work[0].exception(PATIENCE_S), work[1].result(PATIENCE_S)]
            )
        assert isinstance(errors[0], batched.DisconnectedError)
        assert errors[1] == "xx"
        client.close()
        server.stop()
        server.join()


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="needs ports that servers share")
def test_no_call_is_lost_while_servers_of_tcp_take_turns() -> None:
    """The new one listens at the port of the old one, which then ends."""
    over = threading.Event()
    function = batched.dynamically(lambda items: [2 * item for item in items], timeout_ms=0)
    first = ThreadServer({"double": function}, "tcp:127.0.0.1:0", token="t").start()
    bind = str(first.server.address)
    servers = [first]

    def thread(number: int) -> int:
        calls = 0
        while not over.wait(1 / RATE):
            with batched.connect(
                bind, token="t", wait_s=PATIENCE_S
            ) as client:  # new connections all the time
                assert client.double(number) == 2 * number
            assert kept.double(number) == 2 * number
            calls += 1
        return calls

    async def tasks() -> int:
        calls = 0
        while not over.is_set():
            assert await kept.double.acall(3) == 6
            calls += 1
            await moment(1 / RATE)
        return calls

    kept = batched.connect(bind, token="t", wait_s=PATIENCE_S)
    with kept, ThreadPoolExecutor(4) as pool:
        work = [pool.submit(thread, each) for each in range(3)] + [pool.submit(asyncio.run, tasks())]
        try:
            for _ in range(times(100)):
                servers.append(ThreadServer({"double": function}, bind, token="t").start())
                servers[-2].stop()
                servers[-2].join()
                until(servers[-1].sessions)
        finally:
            over.set()
        assert all(each.result(PATIENCE_S) for each in work)
    servers[-1].stop()
    servers[-1].join()
