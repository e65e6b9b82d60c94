"""Servers and clients that die, hang, or send rubbish: each call has its answer, and no other one is hurt."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._remote import session
from batched._remote.frames import CALL_ROW, Flag, Kind, frame, frame_of_rows
from batched._remote.greeting import ClientGreeting
from batched._remote.server import Server
from batched._remote.values import Pickles
from tests.kit.effort import times
from tests.kit.functions import plain_echo
from tests.kit.gate import PATIENCE_S, Gate, moment, turns_until, until
from tests.kit.remote_server import ThreadServer, process_serving, serving
from tests.kit.script import PROLOGUE, ROOT, run_script
from tests.kit.threads import together

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")


@pytest.fixture
def bind(tmp_path: Path) -> str:
    """Where a server of this test listens."""
    return f"unix:{tmp_path}/server.sock"


# -- the death of a server -----------------------------------------------------------------------------------


async def tasks_until(client: Any, number: int, begun: threading.Event, killed: threading.Event) -> list[Any]:
    """Call from so many tasks, and read from a few streams; return what they raise."""

    async def consume() -> None:
        async for _ in client.pieces.astream(1):
            pass

    tasks = [asyncio.ensure_future(client.held.acall([each] * 3)) for each in range(number)]
    tasks += [asyncio.ensure_future(consume()) for _ in range(10)]
    await moment(0.2)
    begun.set()
    await asyncio.to_thread(killed.wait, PATIENCE_S)
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)


def test_the_death_of_a_server_fails_all_that_waits_at_once(tmp_path: Path, bind: str) -> None:
    """1,000 calls of threads, futures, tasks and streams; later ones are for its successor."""
    client = batched.connect(bind, wait_s=5)
    with process_serving(tmp_path, "held", "pieces", "double") as server, ThreadPoolExecutor(100) as pool:
        begun, killed = threading.Event(), threading.Event()
        blocked = [pool.submit(client.held, each) for each in range(60)]
        streams = [client.pieces.stream(each) for each in range(20)]
        assert next(streams[0]) == "0 first"  # others may wait for a batch of their own
        futures = [client.held.submit(each) for each in range(600)]
        loop = pool.submit(asyncio.run, tasks_until(client, 300, begun, killed))
        assert begun.wait(PATIENCE_S)
        server.kill()
        begin = time.monotonic()
        killed.set()
        errors = [each.exception(PATIENCE_S) for each in [*futures, *blocked]]
        errors += loop.result(PATIENCE_S)
        for each in streams:
            with pytest.raises(batched.DisconnectedError):
                list(each)
        assert time.monotonic() - begin < 5  # some milliseconds; the machine may be busy
        assert {type(each) for each in errors} == {batched.DisconnectedError}
        assert len(errors) == 970
    with process_serving(tmp_path, "held", "double"):
        assert client.double(4) == 8
        assert asyncio.run(client.double.acall(4)) == 8
    client.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_map_ends_with_its_server_though_it_keeps_errors(tmp_path: Path, bind: str, is_lost: bool) -> None:
    """An endless source would have an error for each of its elements."""
    with batched.connect(bind, wait_s=0.1) as client:
        kept = client.double.options(return_exceptions=True)

        async def main() -> None:
            with pytest.raises(batched.DisconnectedError):
                async with asyncio.timeout(PATIENCE_S):
                    await anext(kept.amap(itertools.repeat(1)))

        with process_serving(tmp_path, "double") if is_lost else nullcontext() as server:
            if server is not None:
                assert client.double(1) == 2  # it is connected

            def endless() -> Iterator[int]:
                if server is not None:
                    server.kill()
                yield from itertools.repeat(1)

            with pytest.raises(batched.DisconnectedError):
                next(kept.map(endless()))
        asyncio.run(main())


FORKS = """
import os, signal, time
import batched

@batched.dynamically(timeout_ms=0)
def child(items):
    pid = os.fork()
    if not pid:
        signal.pause()
    return [pid] * len(items)

@batched.dynamically(timeout_ms=0)
def held(items):
    time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_death_of_a_server_is_seen_though_a_child_of_it_lives(tmp_path: Path, bind: str) -> None:
    """As of a process pool: it has no connection of a client open, and listens to none."""
    (tmp_path / "functions.py").write_text(FORKS)
    with (
        process_serving(tmp_path, "child", "held", PYTHONWARNINGS="ignore") as server,
        batched.connect(bind, wait_s=0.2) as client,
    ):
        orphan = client.child.submit(1).result(PATIENCE_S)
        try:
            future = client.held.submit(1)
            server.kill()
            with pytest.raises(batched.DisconnectedError, match="was lost"):
                future.result(PATIENCE_S)
            with pytest.raises(batched.DisconnectedError, match="cannot be reached: .* refused"):
                client.held.submit(1).result(PATIENCE_S)
        finally:
            os.kill(orphan, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_server_may_use_the_numbers_of_its_files(tmp_path: Path) -> None:
    """One that closes all files and opens others, as a daemon does, finds them so in a child of its own."""
    script = f"""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        ready = threading.Event()
        options = dict(bind="unix:{tmp_path}/s.sock", when_ready=lambda _: ready.set())
        threading.Thread(target=batched.serve, args=(double,), kwargs=options, daemon=True).start()
        ready.wait(20)
        client = batched.connect(options["bind"])
        assert client.double(1) == 2
        child = os.fork()
        if not child:
            os.closerange(3, 100)
            files = [os.open("{tmp_path}", os.O_RDONLY) for _ in range(50)]
            grandchild = os.fork()
            if not grandchild:
                os._exit(len({{os.fstat(file).st_ino for file in files}}))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        print("kinds of files:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_script(script) == "kinds of files: 1\n"


def test_calls_to_a_dead_server_fail_within_their_wait(tmp_path: Path, bind: str) -> None:
    """Each of them, for as long as it is dead, from threads and from tasks; then they reach another one."""
    client = batched.connect(bind, wait_s=0.2)
    with process_serving(tmp_path, "double"):
        assert client.double(1) == 2

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(batched.DisconnectedError, match="cannot be reached|was lost"):
                await asyncio.wait_for(client.double.acall(1), PATIENCE_S)

    for _ in range(3):
        with pytest.raises(batched.DisconnectedError, match="cannot be reached|was lost"):
            client.double.submit(1).result(PATIENCE_S)
    asyncio.run(main())
    with process_serving(tmp_path, "double"):
        assert client.double(1) == 2
    client.close()


def test_a_server_killed_again_and_again_answers_or_fails_each_call(tmp_path: Path, bind: str) -> None:
    """Nothing hangs: callers in threads and tasks go on through all of it."""
    over = threading.Event()
    counts = {"answered": 0, "lost": 0}
    client = batched.connect(bind, wait_s=PATIENCE_S)

    def thread(number: int) -> None:
        while not over.is_set():
            try:
                assert client.double(number) == 2 * number
                counts["answered"] += 1
            except batched.DisconnectedError:
                counts["lost"] += 1

    async def tasks() -> None:
        async def task(number: int) -> None:
            while not over.is_set():
                with suppress(batched.DisconnectedError):
                    assert await asyncio.wait_for(client.double.acall(number), PATIENCE_S) == 2 * number

        await asyncio.gather(*map(task, range(8)))

    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(thread, each) for each in range(4)] + [pool.submit(asyncio.run, tasks())]
        for _ in range(times(30)):
            with process_serving(tmp_path, "double"):
                before = counts["answered"]
                until(lambda: counts["answered"] > before + 20)
        with process_serving(tmp_path, "double"):
            over.set()
            for each in work:
                each.result(PATIENCE_S)
    client.close()


def test_a_server_that_hangs_keeps_no_call_beyond_its_deadline(tmp_path: Path, bind: str) -> None:
    """Stopped before the connection, and after it."""
    with process_serving(tmp_path, "double") as server:
        client, fresh = batched.connect(bind), batched.connect(bind)
        assert client.double(1) == 2
        server.signal(signal.SIGSTOP)
        begin = time.monotonic()
        for each in (client, fresh):
            late = each.double.options(deadline_ms=100)
            with pytest.raises(TimeoutError, match="deadline_ms=100"):
                late(1)

            async def main() -> None:
                found = await asyncio.gather(*map(late.acall, range(20)), return_exceptions=True)
                assert {type(error) for error in found} == {TimeoutError}

            asyncio.run(main())
        assert time.monotonic() - begin < 5
        big = bytes(1_000_000)  # more than a socket takes: the rest is the work of a thread
        with pytest.raises(TimeoutError, match="deadline_ms=100"):
            client.double.options(deadline_ms=100)(big)
        future = client.double.submit(3)
        server.signal(signal.SIGCONT)
        assert future.result(PATIENCE_S) == 6
        assert asyncio.run(fresh.double.acall(2)) == 4
        client.close()
        fresh.close()


def test_a_server_that_hangs_is_waited_for_so_long_only(
    tmp_path: Path, bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever only its event loop can answer, before the connection and after it: greetings, and questions.

    Calls of a server that has greeted wait for the function, as in one process; futures that are late do not.
    """
    monkeypatch.setattr("batched._remote.client._STILL_S", 0.3)
    with process_serving(tmp_path, "double") as server:
        client, fresh = (batched.connect(bind, wait_s=0.1) for _ in range(2))
        assert client.double(1) == 2
        server.signal(signal.SIGSTOP)
        asks: list[Callable[[Any], Any]] = [
            lambda fn: fn.stats,
            lambda fn: fn.explain(),
            lambda fn: fn.shapes(),
            lambda fn: fn.expected_wait_ms(3),
        ]
        with ThreadPoolExecutor(8) as pool:  # at once: each waits for its time
            asked = [pool.submit(ask, each.double) for each in (client, fresh) for ask in asks]
            for each in asked:
                with pytest.raises(batched.DisconnectedError, match=r"within 0\.3 s: .*wait_s= of connect"):
                    each.result(PATIENCE_S)
        future = fresh.double.submit(1)
        assert isinstance(future.exception(PATIENCE_S), batched.DisconnectedError)

        async def main() -> None:
            greeting = r"cannot be reached: .*has not greeted within 0\.3 s"
            with pytest.raises(batched.DisconnectedError, match=greeting):
                await asyncio.wait_for(fresh.double.acall(1), PATIENCE_S)

        asyncio.run(main())
        waiting = client.double.submit(3)
        late = [client.double.options(deadline_ms=allowed_ms).submit(4) for allowed_ms in (1, 100)]
        for each in late:
            with pytest.raises(TimeoutError, match="deadline_ms="):
                each.result(PATIENCE_S)
        server.signal(signal.SIGCONT)
        assert waiting.result(PATIENCE_S) == 6
        assert fresh.double(2) == 4
        assert asyncio.run(fresh.double.acall(2)) == 4
        assert fresh.double.stats.total_processed >= 3
        client.close()
        fresh.close()


# -- the death of a client -----------------------------------------------------------------------------------


CLIENT = """
client = batched.connect({bind!r})
futures = [client.noted.submit(each) for each in range(500)]
async def main():
    tasks = [asyncio.ensure_future(client.noted.acall(each)) for each in range(500)]
    await asyncio.sleep(0.1)
    print("queued", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@contextmanager
def client_process(bind: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a client in a process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(script.format(bind=bind))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_the_death_of_a_client_drops_what_has_not_started(bind: str) -> None:
    """Of 1,000 calls that are queued; those of others are answered."""
    gate = Gate(shut=True)
    with serving(bind, functions={"noted": batched.dynamically(gate, timeout_ms=0, batch_size=1)}) as server:
        with client_process(bind, CLIENT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "queued\n"
            until(
                lambda: (
                    server.on_loop(lambda: sum(each.unanswered for each in server.server.sessions)) == 1000
                )
            )
            process.kill()
            process.wait(PATIENCE_S)
            until(lambda: not server.sessions())
        gate.open()
        with batched.connect(bind) as client:
            assert client.noted(7) == 7
        assert len(gate.batches) <= 3  # the one that ran, perhaps one that had been taken, and this


def test_cancelled_calls_are_dropped(bind: str) -> None:
    """Tasks, futures, streams that are left."""
    gate = Gate(shut=True)
    functions = {"noted": batched.dynamically(gate, timeout_ms=0, batch_size=1)}
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        first = client.noted.submit(-1)
        gate.wait_for_batch()
        futures = [client.noted.submit(each) for each in range(100)]

        async def main() -> None:
            tasks = [asyncio.ensure_future(client.noted.acall(each)) for each in range(100)]
            await asyncio.sleep(0)
            for each in [*futures, *tasks]:
                each.cancel()
            await asyncio.wait(tasks)
            await turns_until(lambda: server.on_loop(unanswered) == 1)

        def unanswered() -> int:
            return sum(each.unanswered for each in server.server.sessions)

        asyncio.run(main())
        gate.open()
        assert first.result(PATIENCE_S) == -1
        assert gate.batches == [[-1]]


def test_a_future_that_runs_past_its_deadline_is_answered_late(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in one process, for as long as the server is there, though it says nothing of its own."""
    monkeypatch.setattr("batched._remote.client._STILL_S", 0.3)
    gate = Gate(shut=True)
    asked: list[bytes] = []
    answered = Server.answered

    @batched.dynamically(timeout_ms=0)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    def note(self: Server, question: bytes, served: Any) -> Any:
        asked.append(question)
        return answered(self, question, served)

    monkeypatch.setattr(Server, "answered", note)
    with serving(bind, functions={"held": held}), batched.connect(bind) as client:
        future = client.held.options(deadline_ms=50).submit(1)
        until(lambda: asked or future.done())
        while future.done():  # on a busy machine it may be late before it runs
            future = client.held.options(deadline_ms=50).submit(1)
            until(lambda future=future: asked or future.done())
        gate.open()
        assert future.result(PATIENCE_S) == 1


@contextmanager
def standing_still(server: ThreadServer) -> Iterator[None]:
    """Have the event loop of a server do nothing; its functions run."""
    stands_still, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands_still.set()
        goes_on.wait(PATIENCE_S)

    thread = threading.Thread(target=server.on_loop, args=(stand_still,))
    thread.start()
    try:
        assert stands_still.wait(PATIENCE_S)
        yield
    finally:
        goes_on.set()
        thread.join(PATIENCE_S)


def test_a_late_future_ends_if_its_server_stands_still_only_later(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the server has said that it is there, it is asked again."""
    monkeypatch.setattr("batched._remote.client._STILL_S", 0.3)
    gate = Gate(shut=True)
    is_asked = threading.Event()
    answered = Server.answered

    def note(self: Server, question: bytes, served: Any) -> Any:
        is_asked.set()
        return answered(self, question, served)

    monkeypatch.setattr(Server, "answered", note)
    functions = {"held": batched.dynamically(gate, timeout_ms=0)}
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        future = client.held.options(deadline_ms=50).submit(1)
        until(lambda: is_asked.is_set() or future.done())
        while future.done():  # on a busy machine it may be late before it runs
            future = client.held.options(deadline_ms=50).submit(1)
            until(lambda future=future: is_asked.is_set() or future.done())
        with standing_still(server):
            assert isinstance(future.exception(PATIENCE_S), TimeoutError)
        gate.open()


def test_a_late_future_ends_though_another_function_is_shut_down(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait for the answer to one question, whether the server is there."""
    monkeypatch.setattr("batched._remote.client._STILL_S", 0.5)
    functions = {name: batched.dynamically(plain_echo, timeout_ms=0) for name in ("first", "second")}
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        assert client.first(1) == 1
        with standing_still(server):
            client.first.options(deadline_ms=1).submit(1)  # is late first, and asks
            late = client.second.options(deadline_ms=20).submit(1)
            with pytest.raises(TimeoutError):
                client.second.options(deadline_ms=100)(1)
            client.first.shutdown(cancel_futures=True)
            assert isinstance(late.exception(PATIENCE_S), TimeoutError)


def test_calls_that_were_late_before_a_server_read_them_never_run(bind: str) -> None:
    """It stood still for longer than their deadlines: those of threads, of tasks, of a map."""
    gate = Gate(shut=True)
    stands, goes_on = threading.Event(), threading.Event()
    functions = {
        "noted": batched.dynamically(gate, timeout_ms=0, batch_size=1),
        "echo": batched.dynamically(plain_echo, timeout_ms=0),
    }

    def stand_still() -> None:
        stands.set()
        goes_on.wait(PATIENCE_S)

    async def main() -> None:
        assert await client.echo.acall(1) == 1
        still = asyncio.ensure_future(asyncio.to_thread(server.on_loop, stand_still))
        await asyncio.to_thread(stands.wait, PATIENCE_S)
        late = client.noted.options(deadline_ms=500, return_exceptions=True)
        of_threads = [asyncio.to_thread(late, 1), asyncio.to_thread(list, late.map(range(4)))]
        of_tasks = [late.acall([2, 3]), *map(late.acall, range(20))]
        *found, mapped = await asyncio.gather(*of_tasks, *of_threads, return_exceptions=True)
        assert {type(each) for each in [*found, *mapped]} == {TimeoutError}
        goes_on.set()
        await still
        assert await client.echo.acall(2) == 2  # it comes after the calls of the tasks
        assert await asyncio.to_thread(client.echo, 3) == 3  # and this after those of the threads

    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        first = client.noted.submit(-1)
        gate.wait_for_batch()
        asyncio.run(main())
        gate.open()
        assert first.result(PATIENCE_S) == -1
        assert client.noted(7) == 7
        assert gate.batches == [[-1], [7]]
        assert client.noted.stats.total_expired == 22 + 1 + 4


# -- rubbish -------------------------------------------------------------------------------------------------


def hello(**said: Any) -> bytes:
    """Return the bytes of a greeting."""
    return b"".join(ClientGreeting(client="rubbish", **said).frame())


def a_call(
    number: int = 1, payload: bytes | None = None, place: int = 0, kind: int = Kind.CALL, flags: int = 1
) -> bytes:
    """Return the bytes of a call."""
    return b"".join(frame(kind, flags, number, place, Pickles().dump(3)[0] if payload is None else payload))


def several(numbers: list[int], values: Any) -> bytes:
    """Return the bytes of a frame of several calls."""
    rows = [CALL_ROW.pack(number, Flag.ONE, 0.0, 0.0) for number in numbers]
    return bytes(frame_of_rows(Kind.CALLS, 0, rows, [Pickles().dump(values)[0]]))


BAD: list[bytes] = [
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    a_call(),
    hello()[:-1],
    hello() + hello(),
    hello(version=99) + a_call(),
    hello(protocol="msgpack") + a_call(),
    hello() + a_call(place=77),
    hello() + a_call(1) + a_call(1),
    hello() + several([1, 1], ["x", "y"]),
    hello() + several([1, 2], ["x"]),
    hello() + several([1, 2], 7),
    hello() + a_call(kind=99),
    hello() + a_call(kind=Kind.RESULT),
    hello() + a_call(kind=Kind.ASK, payload=b"\xff"),
    hello() + a_call(kind=Kind.ASK, payload=b"nonsense"),
    hello() + a_call(kind=Kind.CANCEL, number=5),
    hello() + a_call(payload=b"no pickle"),
    hello() + a_call(payload=b""),
    hello() + a_call(flags=2, payload=b"abc"),
    hello() + a_call(flags=255),
    hello() + a_call(flags=128),
    hello() + b"\xff" * 5000,
    hello() + (1 << 31).to_bytes(4, "little") + bytes(16),
    b"\xff" * 100_000,
    hello()[:4] + bytes(60_000),
]


def test_rubbish_closes_its_own_connection_only(
    tmp_path: Path, bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """300 connections with it, while others call; at the end the server has no connection too many."""
    rng = random.Random(0)
    with (
        serving(bind, functions={"double": batched.dynamically(lambda items: items, timeout_ms=0)}) as server,
        batched.connect(bind) as client,
    ):
        over = threading.Event()

        def others(number: int) -> None:
            if number:
                while not over.is_set():
                    assert client.double(number) == number
                return
            try:
                for turn in range(300):
                    data = bytearray(BAD[turn % len(BAD)] + rng.randbytes(rng.choice([0, 10, 1000])))
                    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                        peer.connect(bind.removeprefix("unix:"))
                        peer.settimeout(PATIENCE_S)
                        try:
                            peer.sendall(data)
                            if turn % 3 == 0:
                                peer.shutdown(socket.SHUT_WR)
                                while peer.recv(65536):
                                    pass
                        except (BrokenPipeError, ConnectionResetError):
                            pass
            finally:
                over.set()

        together(3, others)
        until(lambda: server.sessions() == 1)
    assert not [each for each in caplog.records if each.name == "asyncio" or each.levelname == "ERROR"]


def test_a_client_that_does_not_read_is_not_read(bind: str) -> None:
    """Its calls stop being taken; those of others go on; and it is read again when it reads."""
    answer = bytes(300_000)
    big = batched.dynamically(lambda items: [answer] * len(items), timeout_ms=0)
    double = batched.dynamically(lambda items: [2 * item for item in items], timeout_ms=0)
    with serving(bind, functions={"big": big, "double": double}) as server, batched.connect(bind) as client:
        assert client.double(1) == 2
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(bind.removeprefix("unix:"))
        peer.settimeout(0.2)
        peer.sendall(hello())
        sent = 0
        filler = b"x" * 1000
        with suppress(TimeoutError):
            while sent < 5000:
                sent += 1
                peer.sendall(a_call(sent, Pickles().dump(filler)[0]))
        taken = max(each.calls for each in server.server.sessions)
        assert taken < sent < 5000
        for each in range(20):
            assert client.double(each) == 2 * each
        assert asyncio.run(client.double.acall(1)) == 2
        assert len(client.big(1)) == 300_000
        peer.settimeout(PATIENCE_S)
        until(lambda: peer.recv(1 << 20) and max(each.calls for each in server.server.sessions) > taken)
        peer.close()
        until(lambda: server.sessions() <= 1)


@pytest.mark.parametrize("step", ["dump_plain", "dump"])
def test_a_server_without_memory_for_answers_ends_the_connection(
    bind: str, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their calls would wait for ever; those of other connections go on."""
    functions = {
        "f": batched.dynamically(plain_echo, name="f", batch_size=4, timeout_ms=60_000, adaptive=False),
        "g": batched.dynamically(plain_echo, name="g", timeout_ms=0),
    }

    class WithoutMemory(Pickles):
        def dump_plain(self, values: list[Any]) -> list[Any]:
            return super().dump_plain(values) if step == "dump" else no_memory()

        def dump(self, value: Any) -> Any:
            return super().dump(value) if step == "dump_plain" else no_memory()

    def no_memory() -> Any:
        raise MemoryError

    async def calls(client: Any, item: Any) -> list[Any]:
        asked = asyncio.gather(*[client.f.acall(item) for _ in range(4)], return_exceptions=True)
        return await asyncio.wait_for(asked, PATIENCE_S)

    with serving(bind, functions=functions) as server, batched.connect(bind) as other:
        assert other.g(1) == 1
        known = {*server.server.sessions}
        with batched.connect(bind) as client:

            async def main() -> list[Any]:
                assert await client.g.acall(1) == 1
                for each in {*server.server.sessions} - known:
                    each._codec = WithoutMemory()  # noqa: SLF001
                return await calls(client, 1 if step == "dump_plain" else (1,))

            assert {*map(type, asyncio.run(main()))} == {batched.DisconnectedError}
        assert other.g(2) == 2
    assert "MemoryError" in caplog.text


def test_answers_that_fail_to_be_sent_close_their_connection_only(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a fault of this library: the calls would wait for ever, and the server try again without a pause."""
    gate = Gate(shut=True)

    @batched.dynamically(batch_size=4, timeout_ms=60_000)
    def held(items: list[int]) -> list[int]:
        gate(items)
        return items

    answered = session.Session.answered

    def fail(self: session.Session, calls: list[Any]) -> None:
        if any(call.results == 3 for call in calls):
            raise ZeroDivisionError
        answered(self, calls)

    monkeypatch.setattr(session.Session, "answered", fail)
    with (
        serving(bind, functions={"held": held}),
        batched.connect(bind) as client,
        batched.connect(bind) as other,
    ):
        futures = [client.held.submit(item) for item in (1, 2, 3)]
        fine = other.held.submit(4)
        gate.wait_for_batch()
        gate.open()
        for future in futures:
            assert isinstance(future.exception(PATIENCE_S), batched.DisconnectedError)
        assert fine.result(PATIENCE_S) == 4
        assert client.held([5, 6, 7, 8]) == [5, 6, 7, 8]


def test_a_client_that_does_not_read_is_left_at_the_end(bind: str) -> None:
    """What it has not read by then is not sent, and its connection is not kept."""
    big = batched.dynamically(lambda items: [bytes(3_000_000)] * len(items), timeout_ms=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        with serving(bind, functions={"big": big}, drain_s=0.0) as server:
            peer.connect(bind.removeprefix("unix:"))
            peer.sendall(hello() + a_call(1, Pickles().dump("x")[0]))
            until(lambda: any(each.bytes_out > 3_000_000 for each in server.server.sessions.copy()))
        peer.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            while peer.recv(1 << 20):
                pass


def test_a_connection_that_does_not_greet_is_closed(
    bind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may say nothing, or half of a greeting; clients that have greeted stay."""
    functions = {"same": batched.dynamically(lambda items: items, timeout_ms=0)}
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        assert client.same(1) == 1
        monkeypatch.setattr(session, "GREETING_S", 0.05)
        for said in (b"", hello()[:10]):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(bind.removeprefix("unix:"))
                peer.settimeout(PATIENCE_S)
                peer.sendall(said)
                with suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
        assert caplog.text.count("it has not greeted in 0.05 s") == 2
        (before,) = server.server.sessions
        assert client.same(2) == 2
        assert server.server.sessions == {before}


# -- many ----------------------------------------------------------------------------------------------------


def test_a_thousand_connections_at_once(tmp_path: Path, bind: str) -> None:
    """Each calls, and all are answered."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("the system allows too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        with process_serving(tmp_path, "double"):
            peers = []
            for _ in range(1000):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                peer.settimeout(PATIENCE_S)
                peer.connect(bind.removeprefix("unix:"))
                peers.append(peer)
            for at, peer in enumerate(peers):
                peer.sendall(hello() + a_call(1, Pickles().dump(at)[0]))
            for at, peer in enumerate(peers):
                data = b""
                while Pickles().dump(2 * at)[0] not in data:
                    come = peer.recv(65536)
                    assert come
                    data += come
                peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_without_file_descriptors_says_so_and_goes_on(
    bind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes clients again when it has some, and does not fill the log until then."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    double = batched.dynamically(lambda items: [2 * item for item in items])
    with serving(bind, functions={"double": double}), batched.connect(bind, wait_s=PATIENCE_S) as client:
        with socket.socket(socket.AF_UNIX) as peer:
            free = os.dup(peer.fileno())
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                peer.connect(bind.removeprefix("unix:"))
                until(lambda: caplog.records)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.double.submit(4).result(PATIENCE_S) == 8
    assert {each.message.partition("\n")[0] for each in caplog.records} == {
        "socket.accept() out of system resource"
    }
    assert len(caplog.records) < 10
