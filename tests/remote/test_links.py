"""Connections: each call gets an answer, whatever happens to threads, loops, sockets and the client."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._remote import session
from batched._remote.frames import LEAST_TOGETHER, RESULT_ROW, Flag, FrameReader, Kind, frame, rows
from batched._remote.greeting import ClientGreeting, ServerGreeting
from batched._remote.link import Link
from batched._remote.tokens import proof
from batched._remote.values import Pickles
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, moment, turns_until, until
from tests.kit.loops import Nesting
from tests.kit.remote_server import ThreadServer, serving
from tests.kit.script import run_script
from tests.kit.threads import together

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")


def doubling(**options: Any) -> Any:
    """Return a function to serve."""
    return batched.dynamically(
        lambda items: [2 * item for item in items], **{"timeout_ms": 0, "name": "double"} | options
    )


@pytest.fixture
def bind(tmp_path: Path) -> str:
    """Where a server of this test listens."""
    return f"unix:{tmp_path}/s"


def link_threads() -> list[threading.Thread]:
    """Return the threads of connections."""
    return [
        each for each in threading.enumerate() if each.name.startswith(("batched: unix", "batched sends"))
    ]


def descriptors() -> int:
    """Return how many files are open here."""
    return len(list(Path("/proc/self/fd").iterdir()))


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


# -- the first calls -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("restless")
def test_calls_while_the_server_greets_are_answered(bind: str) -> None:
    """Some are begun before, some after, some in the middle: none is lost. It takes many turns to see."""
    with serving(bind, functions={"double": doubling()}):
        for _ in range(times(100, 20)):
            with batched.connect(bind) as client:
                barrier = threading.Barrier(8)

                def call(number: int) -> None:
                    barrier.wait(PATIENCE_S)
                    for each in range(5):
                        assert client.double(number * 10 + each) == 2 * (number * 10 + each)

                together(8, call)


@pytest.mark.usefixtures("restless")
def test_cancels_at_any_time_lose_no_other_call(bind: str) -> None:
    """Futures are cancelled by one thread while others begin theirs."""
    with serving(bind, functions={"double": doubling()}) as server, batched.connect(bind) as client:

        def call(number: int) -> None:
            for turn in range(times(300, 30)):
                futures = [client.double.submit(each) for each in range(10)]
                for each in futures[turn % 3 :: 3]:
                    each.cancel()
                for at, each in enumerate(futures):
                    if not each.cancelled():
                        assert each.result(PATIENCE_S) == 2 * at

        together(4, call)
        until(lambda: not server.on_loop(lambda: held_in(server)))


def test_without_a_wait_a_call_on_a_loop_fails_at_once(tmp_path: Path) -> None:
    """The first attempt fails before the call is noted: it is answered, and told what is missing."""
    client = batched.connect(f"unix:{tmp_path}/none", wait_s=0)
    no_server = "/none cannot be reached: .*; no server .* starts one, and wait_s= .* for it$"

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(batched.DisconnectedError, match=no_server):
                await asyncio.wait_for(client.double.acall(1), PATIENCE_S)

    asyncio.run(main())
    with pytest.raises(batched.DisconnectedError, match=no_server):
        client.double(1)


def test_each_call_waits_for_a_server_for_its_own_time(bind: str) -> None:
    """One that comes when others have waited long does not fail with them."""
    client = batched.connect(bind, wait_s=0.4)
    begun = time.monotonic()
    first = client.double.submit(1)
    with pytest.raises(batched.DisconnectedError):
        first.result(PATIENCE_S)
    assert 0.35 < time.monotonic() - begun < 5
    second = client.double.submit(1)
    threading.Event().wait(0.2)
    third = client.double.submit(2)
    assert isinstance(second.exception(PATIENCE_S), batched.DisconnectedError)
    with serving(bind, functions={"double": doubling()}):
        assert third.result(PATIENCE_S) == 4
    client.close()


def test_calls_wait_for_a_server_that_starts(bind: str) -> None:
    """From threads, and on a loop."""
    client = batched.connect(bind, wait_s=PATIENCE_S)
    future = client.double.submit(1)

    async def main() -> int:
        task = asyncio.ensure_future(client.double.acall(2))
        await moment(0.05)
        server.start()
        answer: int = await task
        return answer

    server = ThreadServer({"double": doubling()}, bind)
    assert asyncio.run(main()) == 4
    assert future.result(PATIENCE_S) == 2
    client.close()
    server.stop()
    server.join()


def test_deadlines_pass_while_a_server_is_awaited(bind: str) -> None:
    """In time, whether a thread, a task or a future waits for it."""
    client = batched.connect(bind, wait_s=PATIENCE_S)
    late = client.double.options(deadline_ms=50)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="deadline_ms=50"):
        late(1)
    with pytest.raises(TimeoutError, match="deadline_ms=50"):
        late.submit(1).result(PATIENCE_S)

    async def main() -> None:
        with pytest.raises(TimeoutError, match="deadline_ms=50"):
            await late.acall(1)

    asyncio.run(main())
    assert time.monotonic() - begun < 5
    client.close()


# -- refusals ------------------------------------------------------------------------------------------------


def answers(call: Any) -> BaseException | None:
    """Return the error of a call."""
    try:
        call()
    except BaseException as error:
        return error
    return None


def test_a_refusal_is_an_answer_for_threads_and_for_tasks() -> None:
    """It is not tried again for ever."""
    with serving("tcp:127.0.0.1:0", functions={"double": doubling()}, token="right") as server:
        bind = str(server.server.address)
        for token, why in [
            ("wrong", "the token of the client is not that of the server"),
            ("é", "the token of the client is not that of the server"),
        ]:
            client = batched.connect(bind, token=token)
            error = client.double.submit(1).exception(PATIENCE_S)
            assert isinstance(error, batched.DisconnectedError)
            assert why in str(error)

            async def main() -> None:
                with pytest.raises(batched.DisconnectedError, match=why):
                    await asyncio.wait_for(client.double.acall(1), PATIENCE_S)

            asyncio.run(main())
        with batched.connect(bind, token="right") as client:
            assert client.double(4) == 8
            assert asyncio.run(client.double.acall(5)) == 10


def test_a_client_that_only_says_that_it_knows_the_token_is_refused() -> None:
    """It is told so, and nothing that it sends is read as a call."""
    with serving("tcp:127.0.0.1:0", functions={"double": doubling()}, token="right") as server:
        for greeting in (ClientGreeting(), ClientGreeting(proof="right"), ClientGreeting(proof="é")):
            with socket.create_connection(server.server.address.where) as peer:
                peer.settimeout(PATIENCE_S)
                hello = b"".join(greeting.frame())
                peer.sendall(hello + hello + b"".join(frame(Kind.CALL, 1, 1, 0, pickle.dumps(1))))
                come = b""
                while data := peer.recv(65536):
                    come += data
                assert b"the token of the client is not that of the server" in come
                assert b"double" not in come


@pytest.mark.parametrize("knows", ["nothing", "a proof of another port", "its own token"])
def test_a_client_reads_nothing_of_a_program_that_took_the_port(knows: str) -> None:
    """It learns no token, and what it sends is not unpickled."""
    hurt: list[int] = []
    heard: list[bytes] = []

    class Bomb:
        def __reduce__(self) -> Any:
            return (hurt.append, (1,))

    def impostor(listener: socket.socket, port: int) -> None:
        with listener.accept()[0] as peer:
            heard.append(peer.recv(65536))
            nonce = json.loads(heard[0][20:])["nonce"]
            shown = {
                "nothing": "",
                "a proof of another port": proof("right", "server", port + 1, nonce, "n"),
                "its own token": proof("other", "server", port, nonce, "n"),
            }[knows]
            said = ServerGreeting(nonce="n" if shown else "", proof=shown, functions=[FUNCTION])
            peer.sendall(b"".join(said.frame()))
            peer.sendall(b"".join(frame(Kind.RESULT, 0, 1, 0, pickle.dumps(Bomb()))))
            while data := peer.recv(65536):
                heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=impostor, args=(listener, port))
        thread.start()
        client = batched.connect(f"tcp:127.0.0.1:{port}", token="right")
        with pytest.raises(batched.DisconnectedError, match="or another program listens there"):
            client.double("secret")
        thread.join(PATIENCE_S)
    assert not hurt
    assert b"right" not in b"".join(heard)
    assert b"secret" not in b"".join(heard)


@pytest.mark.parametrize("token", [None, ""])
def test_a_client_without_a_token_connects_to_no_port(token: str | None) -> None:
    """Any user of the machine may listen there, and its answers would be unpickled."""
    with pytest.raises(ValueError, match="tcp:127.0.0.1:9 can be .* by all users .*: give the token"):
        batched.connect("tcp:127.0.0.1:9", token=token)


def test_a_token_is_text() -> None:
    """The error does not show it."""
    token: Any = b"secret"
    with pytest.raises(TypeError, match="token must be a str, got bytes$"):
        batched.connect("tcp:127.0.0.1:9", token=token)


def test_a_server_at_a_socket_may_ask_for_a_token(bind: str) -> None:
    """The client is told so."""
    with serving(bind, functions={"double": doubling()}, token="right"):
        with (
            batched.connect(bind) as client,
            pytest.raises(batched.DisconnectedError, match="asks for a token: connect with token="),
        ):
            client.double(4)
        with batched.connect(bind, token="right") as client:
            assert client.double(4) == 8


def test_a_server_at_a_socket_may_have_no_token(bind: str) -> None:
    """The client that has one is told so: it is not that its token is wrong."""
    with (
        serving(bind, functions={"double": doubling()}),
        batched.connect(bind, token="right") as client,
        pytest.raises(batched.DisconnectedError, match=r"has no token: start it .* or connect without it"),
    ):
        client.double(4)


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, frame(Kind.HELLO, 0, 0, 0, b"hello")]
)
def test_a_program_that_is_no_server_is_called_so(bind: str, said: Any) -> None:
    """In threads and in tasks: no connection was lost."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(bind.removeprefix("unix:"))
    listener.listen()

    def answer() -> None:
        for _ in range(2):
            with listener.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(b"".join(said) if isinstance(said, list) else said)
                peer.recv(65536)

    text = f"what listens at {bind} is no server of batched"
    thread = threading.Thread(target=answer)
    thread.start()
    with listener, batched.connect(bind) as client:
        with pytest.raises(batched.DisconnectedError, match=text):
            client.double.submit(1).result(PATIENCE_S)
        with pytest.raises(batched.DisconnectedError, match=text):
            asyncio.run(asyncio.wait_for(client.double.acall(1), PATIENCE_S))
        thread.join(PATIENCE_S)


def test_an_answer_that_comes_before_a_frame_that_cannot_be_read_is_one(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads and in tasks: only what comes later is lost."""
    bad = frame(Kind.RESULTS, 0, 3, 0, b"x")
    monkeypatch.setattr(
        session, "frame", lambda kind, *rest: frame(kind, *rest) + (bad if kind == Kind.RESULT else [])
    )
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:
        assert client.double.submit(1).result(PATIENCE_S) == 2
        assert asyncio.run(asyncio.wait_for(client.double.acall(2), PATIENCE_S)) == 4


@pytest.mark.parametrize("wait_s", [0, 1])
def test_what_a_server_says_before_it_ends_is_heard(
    bind: str, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """In threads and in tasks: though the client comes too late to greet it."""
    has_ended = threading.Semaphore(0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(bind.removeprefix("unix:"))
    listener.listen()

    def refuse() -> None:
        for _ in range(2):
            with listener.accept()[0] as peer:
                peer.sendall(b"".join(ServerGreeting(refusal="another user").frame()))
            has_ended.release()

    greeting = Link.greeting

    def late(self: Link, shown: str = "") -> bytes:
        assert has_ended.acquire(timeout=PATIENCE_S)
        return greeting(self, shown)

    monkeypatch.setattr(Link, "greeting", late)
    thread = threading.Thread(target=refuse)
    thread.start()
    with listener, batched.connect(bind, wait_s=wait_s) as client:
        with pytest.raises(batched.DisconnectedError, match="refused the connection: another user"):
            client.double.submit(1).result(PATIENCE_S)
        with pytest.raises(batched.DisconnectedError, match="refused the connection: another user"):
            asyncio.run(asyncio.wait_for(client.double.acall(1), PATIENCE_S))
        thread.join(PATIENCE_S)


def test_a_name_that_the_server_lacks_fails_alone(bind: str) -> None:
    """It says which functions there are, and calls of others on the same connection go on."""
    functions = {"double": doubling(), "triple": doubling()}
    with serving(bind, functions=functions), batched.connect(bind) as client:
        assert client.double(1) == 2
        with pytest.raises(LookupError, match="no function 'quadruple': it has double, triple"):
            client.quadruple(1)
        with pytest.raises(LookupError, match="no function 'quadruple'"):
            list(client.quadruple.stream(1))
        assert client.double.submit(3).result(PATIENCE_S) == 6

        async def main() -> None:
            with pytest.raises(LookupError, match="no function 'quadruple'"):
                await client.quadruple.acall(1)
            assert await client.triple.acall(4) == 8

        asyncio.run(main())


def test_a_call_longer_than_the_limit_is_refused_at_the_door(bind: str) -> None:
    """It says so, and the connection goes on; the same for an answer that the client does not take."""
    functions = {"double": doubling()}
    with serving(bind, functions=functions, max_frame_bytes=5000), batched.connect(bind) as client:
        with pytest.raises(ValueError, match="6[0-9]{3} bytes, and the server takes 5000 at most"):
            client.double(b"x" * 6000)

        async def main() -> None:
            with pytest.raises(ValueError, match="the server takes 5000 at most"):
                await client.double.acall("x" * 6000)
            assert await client.double.acall(b"x" * 4000) == b"x" * 8000

        asyncio.run(main())
        assert client.double("x") == "xx"


def test_calls_that_share_a_frame_are_no_longer_than_the_limit(bind: str) -> None:
    """Also where each character has four bytes."""
    texts = ["\U0001f600" * 4092 + f"{at:04}" for at in range(300)]

    async def main() -> list[int]:
        await client.count.acall("")
        return await asyncio.gather(*map(client.count.acall, texts))

    def count(items: list[str]) -> list[int]:
        return [*map(len, items)]

    functions = {"count": batched.dynamically(count, timeout_ms=0)}
    with serving(bind, functions=functions, max_frame_bytes=LEAST_TOGETHER), batched.connect(bind) as client:
        assert asyncio.run(main()) == [4096] * 300


def test_an_answer_longer_than_the_limit_fails_alone(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes as much as the server does by default."""
    monkeypatch.setattr(session, "MAX_FRAME_BYTES", 5000)
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:
        with pytest.raises(TypeError, match="the client takes 5000 at most"):
            client.double("x" * 4000)
        assert client.double("x") == "xx"


def test_an_error_longer_than_the_limit_fails_alone(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that arrives in its place says which one it was; the connection goes on."""
    monkeypatch.setattr(session, "MAX_FRAME_BYTES", 8000)

    def fail(items: list[Any]) -> list[Any]:
        raise KeyError("x" * 9000)

    functions = {"fail": batched.dynamically(fail, name="fail", timeout_ms=0), "double": doubling()}
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:
        assert client.double("x") == "xx"
        before = {*server.server.sessions}
        with pytest.raises(batched.BatchError, match="KeyError .* the client takes 8000 at most"):
            client.fail(1)
        assert client.double("x") == "xx"
        assert {*server.server.sessions} == before


# -- loops and threads ---------------------------------------------------------------------------------------


@needs_proc
def test_loops_one_after_another_leave_nothing_open(bind: str) -> None:
    """Each has a connection of its own, which ends with it, without a warning."""
    with serving(bind, functions={"double": doubling()}) as server, batched.connect(bind) as client:
        asyncio.run(client.double.acall(1))
        gc.collect()
        before = descriptors()
        for turn in range(20):
            assert asyncio.run(client.double.acall(turn)) == 2 * turn
        gc.collect()
        assert (
            descriptors() <= before + 2
        )  # both ends of one that the next loop, or the end of this one, closes
        until(lambda: server.sessions() <= 1)


def test_many_threads_with_loops_at_once(bind: str) -> None:
    """And threads without."""
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:

        async def main(number: int) -> None:
            answers = await asyncio.gather(*[client.double.acall(number * 100 + each) for each in range(20)])
            assert answers == [2 * (number * 100 + each) for each in range(20)]

        def run(number: int) -> None:
            for _ in range(times(30)):
                if number % 2:
                    asyncio.run(main(number))
                else:
                    assert client.double([number] * 3) == [2 * number] * 3

        together(8, run)


def test_a_loop_that_closes_with_calls_pending_leaves_nothing(bind: str) -> None:
    """The next loop has its answers; the server drops the calls of the first."""
    gate = Gate(shut=True)
    with serving(bind, functions={"held": batched.dynamically(gate, timeout_ms=0, batch_size=1)}) as server:
        client = batched.connect(bind)
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(client.held.acall(each)) for each in range(5)]
        loop.run_until_complete(moment(0.05))
        gate.wait_for_batch()
        for each in tasks:
            each.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
        del loop, tasks, each
        gc.collect()
        until(lambda: not server.sessions())
        gate.open()
        assert asyncio.run(client.held.acall(7)) == 7
        assert gate.batches[1:] == [[7]]
        client.close()
        until(lambda: not server.sessions())


def test_any_kind_of_loop(bind: str, run: Any) -> None:
    """asyncio, uvloop, debug: calls, streams, cancelled tasks, deadlines."""

    @batched.dynamically(timeout_ms=0)
    def pieces(items: list[int]) -> Any:
        for at in range(3):
            yield [(item, at) for item in items]

    gate = Gate(shut=True)
    functions = {
        "double": doubling(),
        "pieces": pieces,
        "held": batched.dynamically(gate, timeout_ms=0, batch_size=1),
    }
    with serving(bind, functions=functions) as server, batched.connect(bind) as client:

        async def main() -> None:
            assert await asyncio.gather(*map(client.double.acall, range(50))) == [
                2 * each for each in range(50)
            ]
            assert [piece async for piece in client.pieces.astream(5)] == [(5, 0), (5, 1), (5, 2)]
            tasks = [asyncio.ensure_future(client.held.acall(0))]
            await turns_until(lambda: gate.batches)
            tasks += [asyncio.ensure_future(client.held.acall(each)) for each in range(1, 3)]
            with pytest.raises(TimeoutError):
                await client.held.options(deadline_ms=30).acall(9)
            tasks[1].cancel()
            await turns_until(lambda: server.on_loop(lambda: held_in(server)) == 2)
            gate.open()
            assert await tasks[0] == 0
            assert await tasks[2] == 2

        run(main())
        assert [1] not in gate.batches
        assert [9] not in gate.batches


def test_a_call_that_follows_an_answer_waits_for_no_turn_of_the_loop(bind: str) -> None:
    """It is sent before the loop does what its task, or other tasks, have asked for meanwhile."""
    gate = Gate(shut=True)
    functions = {"double": doubling(), "held": batched.dynamically(gate, timeout_ms=0)}
    sent: list[object] = []

    def stand_still() -> None:
        try:
            gate.wait_for_batch()
            sent.extend(gate.batches)
        finally:
            gate.open()

    with serving(bind, functions=functions), batched.connect(bind) as client:

        async def main() -> None:
            await client.double.acall(1)
            asyncio.get_running_loop().call_soon(stand_still)
            assert await client.held.acall(2) == 2

        asyncio.run(main())
    assert sent == [[2]]


def test_a_call_that_follows_an_answer_asks_for_no_turn_of_the_loop(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent in the step that wakes its task, so a turn would find nothing to do."""
    asked: list[object] = []
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:

        async def main() -> None:
            await client.double.acall(0)
            loop = asyncio.get_running_loop()
            call_soon = loop.call_soon

            def noted(callback: Any, *args: Any, **named: Any) -> asyncio.Handle:
                asked.append(callback)
                return call_soon(callback, *args, **named)

            with monkeypatch.context() as patched:
                patched.setattr(loop, "call_soon", noted)
                for each in range(5):
                    assert await client.double.acall(each) == 2 * each

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert not asked


def test_a_task_may_run_its_loop_once_more_as_it_wakes(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nest_asyncio` has it: calls that are made there are sent, and their answers are read."""
    monkeypatch.setattr(asyncio, "_nest_patched", True, raising=False)
    loop = Nesting()
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:

        async def main() -> int:
            await client.double.acall(1)
            found: int = loop.nested(asyncio.wait_for(client.double.acall(2), PATIENCE_S))
            return found

        assert loop.run_until_complete(main()) == 4
    loop.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are of Python 3.12")
def test_eager_tasks(bind: str) -> None:
    """They call before their loop knows them."""
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:

        async def main() -> None:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
            assert await asyncio.gather(*map(client.double.acall, range(20))) == [
                2 * each for each in range(20)
            ]

        asyncio.run(main())


FUNCTION = {
    "name": "double",
    "streams": False,
    "maps_singly": False,
    "batch_size": 1,
    "max_queue_size": None,
    "max_pieces": 1,
}


def held_in(server: ThreadServer) -> int:
    """Return how many calls the server has not answered."""
    return sum(session.unanswered for session in server.server.sessions)


def has_answered(session: Any, number: int) -> bool:
    """Whether so many calls of a connection have been answered, or it reads no more of them."""
    is_read = session._has_room.is_set()  # noqa: SLF001
    return (session.calls >= number or not is_read) and not session.unanswered


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """As the loop of Windows is: it watches no sockets for others."""

    add_reader = asyncio.AbstractEventLoop.add_reader  # type: ignore[assignment]


def test_a_loop_that_watches_no_sockets_uses_the_connection_of_threads(bind: str) -> None:
    """The loop itself needs a reader of its own."""
    with serving(bind, functions={"double": doubling()}) as server, batched.connect(bind) as client:

        async def main() -> None:
            assert await asyncio.gather(*map(client.double.acall, range(20))) == [
                2 * each for each in range(20)
            ]
            with pytest.raises(TypeError):
                await client.double.acall(None)

        with asyncio.Runner(loop_factory=LoopWithoutReaders) as runner:
            runner.run(main())
        assert client.double(3) == 6
        assert server.sessions() == 1


def test_a_callback_that_would_wait_for_its_own_thread_is_told(bind: str) -> None:
    """A blocking call in the thread that reads the answers would wait for ever; `submit` is fine."""
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:
        found: Future[Any] = Future()
        inner: Future[Any] = Future()

        def callback(_: Future[Any]) -> None:
            client.double.submit(5).add_done_callback(lambda done: inner.set_result(done.result()))
            found.set_result(answers(lambda: client.double(1)))

        client.double.submit(1).add_done_callback(callback)
        error = found.result(PATIENCE_S)
        if error is not None:  # else the callback ran in the caller: the answer was there first
            assert isinstance(error, RuntimeError)
            assert "the thread that reads its answers" in str(error)
        assert inner.result(PATIENCE_S) == 10


def test_a_future_is_bytes_when_submit_returns(bind: str) -> None:
    """The caller may change its arrays, though there is no server yet, or no room in the socket."""
    numpy = pytest.importorskip("numpy")
    client = batched.connect(bind, wait_s=PATIENCE_S)
    arrays = [numpy.full(500_000, each) for each in range(6)]
    first = client.total.submit(arrays[0])
    arrays[0] += 1000
    total = batched.dynamically(lambda items: [int(each.sum()) for each in items], timeout_ms=0)
    with serving(bind, functions={"total": total}):
        assert first.result(PATIENCE_S) == 0
        futures = []
        for each in arrays[1:]:
            futures.append(client.total.submit(each))
            each[:] += 1000
        assert [each.result(PATIENCE_S) for each in futures] == [500_000 * each for each in range(1, 6)]
        together(4, lambda number: [client.total(arrays[1]) for _ in range(3)] and None)
        client.close()


# -- the end of a client -------------------------------------------------------------------------------------


def test_a_client_that_is_dropped_ends_its_threads_and_sockets(bind: str) -> None:
    """Without a collection of garbage; a function that is kept keeps its connections."""
    with serving(bind, functions={"double": doubling()}) as server:
        function = batched.connect(bind).double
        assert function(1) == 2
        assert server.sessions() == 1
        assert len(link_threads()) == 1
        del function
        gc.collect()
        until(lambda: not server.sessions() and not link_threads())


def test_a_client_that_is_dropped_by_its_loop_ends_its_socket(bind: str) -> None:
    """The loop goes on."""
    with serving(bind, functions={"double": doubling()}) as server:

        async def main() -> None:
            client = batched.connect(bind)
            assert await client.double.acall(1) == 2
            assert server.sessions() == 1
            del client
            gc.collect()
            await turns_until(lambda: not server.sessions())

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_client_with_calls_pending_lives_until_they_are_answered(bind: str) -> None:
    """The future is all that is kept."""
    gate = Gate(shut=True)
    with serving(bind, functions={"held": batched.dynamically(gate, timeout_ms=0)}) as server:
        future = batched.connect(bind).held.submit(1)
        gate.wait_for_batch()
        gc.collect()
        gate.open()
        assert future.result(PATIENCE_S) == 1
        del future
        gc.collect()
        until(lambda: not server.sessions())


def test_close_fails_what_waits_and_refuses_the_rest(bind: str) -> None:
    """From threads and on loops; twice is as good as once."""
    gate = Gate(shut=True)
    with serving(bind, functions={"held": batched.dynamically(gate, timeout_ms=0, batch_size=1)}) as server:
        with batched.connect(bind) as client:
            futures = [client.held.submit(each) for each in range(3)]

            async def main() -> None:
                task = asyncio.ensure_future(client.held.acall(9))
                await moment(0.02)
                gate.wait_for_batch()
                client.close()
                with pytest.raises(batched.DisconnectedError, match="was closed"):
                    await asyncio.wait_for(task, PATIENCE_S)
                with pytest.raises(batched.ClosedError, match="was closed and takes no more calls"):
                    await client.held.acall(1)

            asyncio.run(main())
            for each in futures:
                assert "was closed" in str(each.exception(PATIENCE_S))
        with pytest.raises(batched.ClosedError, match="was closed and takes no more calls"):
            client.held(1)
        until(lambda: not server.sessions() and not link_threads())
        gate.open()
    assert len(gate.batches) == 1


def test_close_ends_a_wait_for_a_server(bind: str) -> None:
    """At once."""
    client = batched.connect(bind, wait_s=600)
    future = client.double.submit(1)
    client.close()
    assert isinstance(future.exception(PATIENCE_S), batched.DisconnectedError)
    until(lambda: not link_threads())


def test_names_of_methods_can_be_functions(bind: str) -> None:
    """By item."""
    with serving(bind, functions={"close": doubling()}), batched.connect(bind) as client:
        assert client["close"](2) == 4
        with pytest.raises(AttributeError):
            client._private  # noqa: B018, SLF001


def test_too_many_threads_fail_the_call(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the next one."""
    with serving(bind, functions={"double": doubling()}), batched.connect(bind) as client:

        def start(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                client.double(1)
        assert client.double(1) == 2


# -- the process ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_connections_of_its_own(bind: str) -> None:
    """The server sees the end of the parent though the child lives; its answers go to the right process."""
    with serving(bind, functions={"double": doubling()}) as server:
        script = f"""
            import signal
            client = batched.connect({bind!r})
            assert client.double(1) == 2
            async def main():
                assert await client.double.acall(1) == 2
                reader, writer = os.pipe()
                child = os.fork()
                if not child:
                    os.close(1)
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    os.close(writer)
                    os.read(reader, 1)  # until the parent has ended
                    time.sleep(0.5)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                for _ in range(3):
                    assert await client.double.acall(2) == 4
                assert await asyncio.to_thread(client.double, 2) == 4
                child = os.fork()
                if not child:
                    found = []
                    def both():
                        found.append(asyncio.run(client.double.acall(5)))
                        found.append(client.double(4))
                    thread = threading.Thread(target=both)
                    thread.start()
                    thread.join(20)
                    os._exit(int(found != [10, 8]))
                assert os.waitpid(child, 0)[1] == 0
                assert await client.double.acall(3) == 6
            import warnings
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.run(main())
            assert client.double(3) == 6
            print("ok")
        """
        assert run_script(script) == "ok\n"
        until(lambda: not server.sessions())


@pytest.mark.parametrize("kind", ["futures", "thread", "stream"])
def test_a_process_ends_with_calls_pending(bind: str, kind: str) -> None:
    """It waits for no server, and says nothing; the server drops the calls."""
    gate = Gate(shut=True)

    @batched.dynamically(timeout_ms=0)
    def pieces(items: list[int]) -> Any:
        yield items
        gate(items)

    held = batched.dynamically(gate, timeout_ms=0, batch_size=1)
    with serving(bind, functions={"held": held, "pieces": pieces}) as server:
        script = f"""
            client = batched.connect({bind!r})
            kind = {kind!r}
            if kind == "futures":
                futures = [client.held.submit(each) for each in range(100)]
            elif kind == "thread":
                threading.Thread(target=client.held, args=(1,), daemon=True).start()
            else:
                stream = client.pieces.stream(1)
                next(stream)
            while not client._connections._of_threads or not client._connections._of_threads.has_sent:
                time.sleep(0.001)
            print("ok")
        """
        assert run_script(script) == "ok\n"
        until(lambda: not server.sessions())
        gate.open()
    assert len(gate.batches) <= 1


# -- answers from the thread of the worker -------------------------------------------------------------------


def test_the_only_answer_needs_no_turn_of_the_servers_loop(bind: str) -> None:
    """The worker sends it itself, while the loop stands still; what else comes waits for the loop."""
    gate = Gate(shut=True)
    with (
        serving(bind, functions={"held": batched.dynamically(gate, timeout_ms=0)}) as server,
        batched.connect(bind) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        goes_on, is_busy = threading.Event(), threading.Event()

        def busy() -> None:
            is_busy.set()
            assert goes_on.wait(PATIENCE_S)

        for _ in range(3):
            goes_on.clear(), is_busy.clear()
            alone = client.held.submit(1)
            gate.wait_for_batch()
            work = pool.submit(server.on_loop, busy)
            assert is_busy.wait(PATIENCE_S)
            gate.let_through()
            assert alone.result(PATIENCE_S) == 1
            goes_on.set()
            work.result(PATIENCE_S)
        gate.open()
        for error in (ValueError("one"), [1], "x" * 100_000):
            gate.answer = lambda items, error=error: [error] * len(items)
            if isinstance(error, ValueError):
                with pytest.raises(ValueError, match="one"):
                    client.held(1)
            else:
                assert client.held(1) == error


@pytest.mark.parametrize("item", [1, (1,)], ids=["in one frame", "a frame each"])
def test_calls_that_come_together_wake_the_servers_loop_once(
    bind: str, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is taken for one that is alone, which would be told of by itself."""
    function = batched.dynamically(lambda items: items, batch_size=8, timeout_ms=60_000, adaptive=False)
    woken: list[object] = []

    async def together_8(client: Any) -> None:
        for _ in range(3):
            woken.clear()
            calls = asyncio.gather(*[client.f.acall(item) for _ in range(8)])
            assert await asyncio.wait_for(calls, PATIENCE_S) == [item] * 8
            assert len(woken) == 1

    with serving(bind, functions={"f": function}) as server, batched.connect(bind) as client:
        loop = server._loop  # noqa: SLF001
        ask = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any) -> Any:
            woken.append(callback)
            return ask(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        asyncio.run(together_8(client))
        monkeypatch.undo()


def test_a_call_that_is_alone_is_kept_by_nothing(bind: str) -> None:
    """Not by a cycle either: what a failed batch held is free at once."""

    class Tensor:
        pass

    tensors: list[weakref.ref[Tensor]] = []

    def fail(items: list[Any]) -> list[Any]:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        raise ValueError(items)

    function = batched.dynamically(fail, name="fail", timeout_ms=0)
    with serving(bind, functions={"fail": function}), batched.connect(bind) as client:
        gc.disable()
        try:
            for _ in range(3):
                with pytest.raises(ValueError, match="1"):
                    client.fail(1)
            until(lambda: [tensor() for tensor in tensors] == [None] * 3)
        finally:
            gc.enable()


def raw_client(bind: str) -> socket.socket:
    """Return a socket that has greeted the server, and reads nothing."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(PATIENCE_S)
    peer.connect(bind.removeprefix("unix:"))
    peer.sendall(b"".join(ClientGreeting(client="raw").frame()))
    return peer


def test_answers_of_workers_and_of_the_loop_are_whole(bind: str) -> None:
    """Also where the client does not read, so that there is room for a part only; then it reads all."""
    answer = "x" * 4000
    function = batched.dynamically(lambda items: [answer] * len(items), timeout_ms=0)
    with serving(bind, functions={"f": function}) as server:
        peer = raw_client(bind)
        until(server.sessions)
        (session,) = server.server.sessions
        number = 0
        while session._has_room.is_set():  # noqa: SLF001  # of a client that does not read its answers nothing is read
            number += 1
            peer.sendall(b"".join(frame(Kind.CALL, 1, number, 0, pickle.dumps(number))))
            if number % 10:  # else the next one comes meanwhile
                until(partial(has_answered, session, number))
        reader = FrameReader()
        numbers, answers = list[int](), list[str]()
        while len(answers) < number:
            for each in reader.filled(peer.recv_into(reader.room())):
                if each.kind == Kind.RESULT:
                    numbers.append(each.number)
                    answers.append(pickle.loads(each.payload))
                elif each.kind == Kind.RESULTS:
                    read, payload = rows(RESULT_ROW, each)
                    numbers += [each for each, _ in read]
                    answers += Pickles().load_plain(payload)
        peer.close()
    assert sorted(numbers) == list(range(1, number + 1))
    assert set(answers) == {answer}


@pytest.mark.usefixtures("restless")
def test_answers_of_workers_at_any_time_are_lost_in_no_case(bind: str) -> None:
    """Callers that are alone now and then; some leave, with their connection."""
    with serving(bind, functions={"double": doubling()}) as server:

        def call(number: int) -> None:
            for turn in range(times(100)):
                with batched.connect(bind, wait_s=PATIENCE_S) as client:
                    futures = [client.double.submit(number)]
                    futures += [client.double.submit(each) for each in range(turn % 3)]
                    if turn % 5 == 0:
                        futures.pop(0).cancel()
                    if turn % 7 == 0:
                        continue
                    assert client.double(turn) == 2 * turn
                    for each in futures:
                        each.result(PATIENCE_S)

        together(4, call)
        until(lambda: not server.sessions())


@pytest.mark.parametrize("closes", [False, True])
def test_a_transport_has_little_of_a_large_answer(bind: str, *, closes: bool) -> None:
    """It copies what it has no room for. All is sent as the client reads, also if the server closes."""
    answer = bytes(range(256)) * (1 << 15)
    function = batched.dynamically(lambda items: [answer] * len(items), timeout_ms=0)
    with serving(bind, functions={"f": function}) as server:
        peer = raw_client(bind)
        until(server.sessions)
        (held,) = server.server.sessions
        calls = [b"".join(frame(Kind.CALL, 1, number, 0, pickle.dumps(number))) for number in (1, 2)]
        peer.sendall(b"".join(calls))
        until(lambda: held.calls == 2 and not held.unanswered and not held._has_room.is_set())  # noqa: SLF001
        transport: Any = held._transport  # noqa: SLF001
        assert server.on_loop(transport.get_write_buffer_size) <= len(answer) / 8
        if closes:
            server.on_loop(held.close)
        reader = FrameReader()
        answers = list[bytes]()
        while len(answers) < len(calls):
            come = reader.filled(peer.recv_into(reader.room()))
            answers += [pickle.loads(each.payload) for each in come if each.kind == Kind.RESULT]
        if closes:
            assert not peer.recv(1)
        peer.close()
    assert answers == [answer, answer]


def test_pieces_wait_until_those_before_are_with_the_transport(bind: str) -> None:
    """Not only until the transport has room, which the rest of an earlier piece takes."""
    piece, many = bytes(1 << 22), 4
    made, goes_on = list[int](), threading.Event()

    def pieces(items: list[int]) -> Any:
        for each in range(many):
            assert not each or goes_on.wait(PATIENCE_S)
            made.append(each)
            yield [piece] * len(items)

    function = batched.dynamically(pieces, timeout_ms=0)
    with serving(bind, functions={"f": function}) as server:
        peer = raw_client(bind)
        until(server.sessions)
        (held,) = server.server.sessions

        def unsent() -> int:
            return server.on_loop(lambda: sum(map(len, held._unsent)))  # type: ignore[no-any-return]  # noqa: SLF001

        peer.sendall(b"".join(frame(Kind.CALL, Flag.STREAM, 1, 0, pickle.dumps(((1,), {})))))
        until(lambda: not held._has_room.is_set())  # noqa: SLF001
        goes_on.set()
        # The second piece is written before it is known that it has to wait; the third one is there too.
        until(lambda: len(made) == many and unsent() > len(piece))
        reader, kinds = FrameReader(), list[int]()
        while (left := unsent()) > len(piece):
            assert left < 2 * len(piece)
            kinds += [each.kind for each in reader.filled(peer.recv_into(reader.room()))]
        while Kind.RESULT not in kinds:
            kinds += [each.kind for each in reader.filled(peer.recv_into(reader.room()))]
        peer.close()
    assert kinds.count(Kind.PIECE) == many
