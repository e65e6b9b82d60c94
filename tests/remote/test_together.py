"""Calls of one frame in a server: they are queued together, and answered together."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._remote import session
from batched._remote.frames import joined
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.remote_server import serving
from tests.kit.script import run_script

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")

FRAMES = 4.0
"""Of the package, for each call of many, in the event loop of the server."""

FRAMES_WITH_DEADLINE = 10.0
"""Likewise, with a deadline: most of them find out whether the call can be in time."""

COUNT = """
import asyncio, json, pathlib, tempfile
from tests.kit.remote_server import ThreadServer

seen = []

def note(frame, event, _):
    if event == "call" and frame.f_globals.get("__name__", "").startswith("batched."):
        seen.append(threading.get_ident())

function = batched.dynamically(lambda items: items, timeout_ms=0, name="same")
with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as folder:
    bind = f"unix:{folder}/s"
    threading.setprofile(note)
    server = ThreadServer({"same": function}, bind).start()
    threading.setprofile(None)
    loop = server.on_loop(threading.get_ident)
    with batched.connect(bind) as client:

        async def ask():
            same = client.same.options(**json.loads(OPTIONS))
            found = []
            for _ in range(20):
                seen.clear()
                await asyncio.gather(*[same.acall(str(at)) for at in range(64)])
                found.append(seen.count(loop) / 64)
            return min(found)

        print(json.dumps(asyncio.run(ask())))
    server.stop()
    server.join()
"""


def frames_of_a_call(options: Mapping[str, Any]) -> float:
    """Return how many frames of the package a call of many with these options takes in the loop."""
    found: float = json.loads(run_script(f"OPTIONS = {json.dumps(options)!r}\n{COUNT}", counts_memory=True))
    return found


def test_a_call_of_many_passes_few_functions_in_the_loop_of_the_server() -> None:
    """What is done once for a frame is not done for each call."""
    assert frames_of_a_call({}) <= FRAMES


def test_a_deadline_that_a_client_watches_is_not_watched_in_the_server_too() -> None:
    """Its client says that a call is late; so calls with deadlines are answered together, too."""
    assert frames_of_a_call({"deadline_ms": 60_000}) <= FRAMES_WITH_DEADLINE


@pytest.mark.skipif(os.name != "posix", reason="a worker writes to a socket as to a file")
@pytest.mark.parametrize("deadline_ms", [None, 1000 * PATIENCE_S])
def test_a_call_that_comes_alone_is_answered_by_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_ms: float | None
) -> None:
    """To wake the loop for one answer takes longer; it does so if it writes at the same time."""
    by_loop: list[int] = []
    answered = session.Session.answered

    def note(of: session.Session, calls: list[Any]) -> None:
        by_loop.append(len(calls))
        answered(of, calls)

    monkeypatch.setattr(session.Session, "answered", note)
    function = batched.dynamically(list, timeout_ms=0)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        fn = client.f.options(deadline_ms=deadline_ms)
        assert [fn(at) for at in range(20)] == [*range(20)]
    assert sum(by_loop) < 20


async def all_of(acall: Any, values: list[Any]) -> list[Any]:
    """Return the answers of calls that are made in one turn, so in one frame, or their errors."""
    calls = [acall(value) for value in values]
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)


def test_a_call_that_is_refused_fails_alone(tmp_path: Path) -> None:
    """Of a frame; the other calls share a batch."""
    gate = Gate(shut=True)
    known = {"a": 1, "b": 1}
    function = batched.dynamically(gate, timeout_ms=0, batch_size=8, group_by=known.__getitem__)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        first = client.f.submit("a")
        gate.wait_for_batch()

        async def main() -> list[Any]:
            asking = asyncio.create_task(all_of(client.f.acall, ["a", "x", "b", "y", "a"]))
            await asyncio.to_thread(until, lambda: function.stats.queue_size == 3)
            gate.open()
            return await asking

        answers = asyncio.run(main())
        assert first.result(PATIENCE_S) == "a"
    assert [type(answer) for answer in answers] == [str, batched.BatchError, str, batched.BatchError, str]
    assert gate.batches == [["a"], ["a", "b", "a"]]


def test_calls_that_find_no_room_are_refused_one_by_one(tmp_path: Path) -> None:
    """Those that have come first are answered."""
    gate = Gate(shut=True)
    function = batched.dynamically(gate, timeout_ms=0, batch_size=1, max_queue_size=3)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        first = client.f.submit(0)
        gate.wait_for_batch()

        async def main() -> list[Any]:
            asking = asyncio.create_task(all_of(client.f.acall, [1, 2, 3, 4, 5]))
            await asyncio.to_thread(until, lambda: function.stats.total_rejected == 2)
            gate.open()
            return await asking

        answers = asyncio.run(main())
        assert first.result(PATIENCE_S) == 0
    assert answers[:3] == [1, 2, 3]
    assert [type(answer) for answer in answers[3:]] == [batched.QueueFullError] * 2


def test_calls_of_a_client_that_does_not_know_the_deadline_yet_have_it(tmp_path: Path) -> None:
    """The first calls of a connection are sent before the server has said which deadline they have."""
    gate = Gate(shut=True)
    function = batched.dynamically(gate, timeout_ms=0, batch_size=1, default_deadline_ms=20)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        try:
            answers = asyncio.run(all_of(client.f.acall, [1, 2, 3]))
        finally:
            gate.open()
    assert [type(answer) for answer in answers] == [TimeoutError] * 3


def test_calls_of_a_function_that_was_shut_down_are_all_refused(tmp_path: Path) -> None:
    """None of a frame is left without an answer."""
    function = batched.dynamically(list, timeout_ms=0)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        assert client.f(0) == 0
        function.shutdown()
        answers = asyncio.run(all_of(client.f.acall, [1, 2, 3]))
    assert [type(answer) for answer in answers] == [batched.ClosedError] * 3


def test_answers_of_a_batch_are_sent_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that cannot share a frame, where no other call of the connection waits."""
    sent: list[int] = []

    def note(parts: list[Any]) -> list[Any]:
        sent.append(len(parts))
        return joined(parts)

    monkeypatch.setattr(session, "joined", note)
    gate = Gate(shut=True)
    function = batched.dynamically(gate, timeout_ms=0)
    bind = f"unix:{tmp_path}/s"
    values = [{"at": at} for at in range(20)]
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        first = client.f.submit({})
        gate.wait_for_batch()

        async def main() -> list[Any]:
            asking = asyncio.create_task(all_of(client.f.acall, values))
            await asyncio.to_thread(until, lambda: function.stats.queue_size == len(values))
            gate.open()
            return await asking

        answers = asyncio.run(main())
        assert first.result(PATIENCE_S) == {}
    assert answers == values
    assert max(sent) == 2 * len(values)  # a head and a payload each


class Odd:
    """A result that raises what it likes, whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise LookupError("of no class")

    def __reduce__(self) -> Any:
        return str, ("odd",)


@pytest.mark.parametrize("others", [[], [1, 2]], ids=["alone", "with others"])
def test_a_result_that_refuses_attributes_in_its_own_way_is_sent(tmp_path: Path, others: list[int]) -> None:
    """It is asked for none to find out whether it can share a frame."""
    odd = object.__new__(Odd)
    function = batched.dynamically(lambda items: [item or odd for item in items], timeout_ms=0)
    bind = f"unix:{tmp_path}/s"
    with serving(bind, functions={"f": function}), batched.connect(bind) as client:
        assert client.f(1) == 1
        assert asyncio.run(all_of(client.f.acall, [0, 0, *others])) == ["odd", "odd", *others]
