"""Ctrl-C at the bytecodes of a call through a socket: later calls are answered."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import batched
from tests.kit.effort import is_thorough
from tests.kit.gate import PATIENCE_S, Gate, turns_until
from tests.kit.interrupts import Interrupt
from tests.kit.remote_server import serving

pytestmark = [
    pytest.mark.thread_unsafe(reason="it traces its thread"),
    pytest.mark.skipif(
        sys.version_info[:2] == (3, 12),
        reason="CPython 3.12 may crash where one thread is traced and the server's runs the same code",
    ),
    pytest.mark.usefixtures("untraced"),
    # Where a Ctrl-C comes as a finalizer runs, Python can only show it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STRIDE = 1 if is_thorough() else 41
"""One in so many bytecodes is interrupted."""

WAYS: dict[str, Callable[[Any], Any]] = {
    "call": lambda fn: fn(1),
    "submit": lambda fn: fn.submit(1).result(PATIENCE_S),
    "cancel": lambda fn: fn.submit(1).cancel(),
}


@batched.dynamically(timeout_ms=0)
def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


@batched.dynamically(timeout_ms=0)
def pieces(items: list[int]) -> Iterator[list[int]]:
    for number in range(3):
        yield [number * item for item in items]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A batch function that the tests hold to their end."""
    shut = Gate(shut=True)
    yield shut
    shut.open()


@pytest.fixture
def bind(tmp_path: Path, gate: Gate) -> Iterator[str]:
    address = f"unix:{tmp_path}/s"
    held = batched.dynamically(gate, timeout_ms=0, name="held")
    with serving(address, functions={"double": double, "pieces": pieces, "held": held}):
        yield address
        gate.open()


def clients(bind: str, *, has_called: bool) -> Iterator[tuple[Any, Interrupt]]:
    """Yield clients, and for each the interrupt of one bytecode more, until there are no more bytecodes."""
    at = 1
    while True:
        with batched.connect(bind, wait_s=PATIENCE_S) as client:
            assert not has_called or client.double(1) == 2
            interrupt = Interrupt(at)
            yield client, interrupt
            if not interrupt.came:
                return
        at += STRIDE


def answer_in_thread(fn: Any) -> list[int]:
    """Return the answer of a call in another thread; of a second one, if the connection was lost."""
    answers: list[int] = []

    def call() -> None:
        try:
            answers.append(fn(2))
        except batched.DisconnectedError:
            answers.append(fn(2))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answers


@pytest.mark.parametrize("has_called", [True, False], ids=["connected", "first call"])
@pytest.mark.parametrize("way", WAYS)
def test_threads_go_on_after_an_interrupt(bind: str, way: str, has_called: bool) -> None:
    """They wait neither for a lock nor for a thread that was to be started."""
    for client, interrupt in clients(bind, has_called=has_called):
        fn = client.double
        interrupt.during(lambda fn=fn: WAYS[way](fn))
        assert answer_in_thread(fn) == [4], interrupt.place


@pytest.mark.parametrize("has_called", [True, False], ids=["connected", "first call"])
def test_tasks_go_on_after_an_interrupt(bind: str, has_called: bool) -> None:
    """Calls that were sent in part, or of which the answer was being read, fail; later ones connect again."""
    for client, interrupt in clients(bind, has_called=False):
        fn = client.double
        loop = asyncio.new_event_loop()
        if has_called:
            loop.run_until_complete(fn.acall(1))
        tasks = [loop.create_task(fn.acall(item)) for item in range(3)]
        interrupt.during(lambda loop=loop, tasks=tasks: loop.run_until_complete(asyncio.wait(tasks)))
        if interrupt.place.startswith("_ends_if_interrupted."):
            loop.close()  # as a callback of the loop begins: that is lost
            continue
        _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))
        assert not pending, interrupt.place
        for task in tasks:
            with suppress(KeyboardInterrupt, batched.DisconnectedError):
                task.result()
        assert loop.run_until_complete(fn.acall(2)) == 4, interrupt.place
        loop.close()


def begin_calls_of_nothing(loop: asyncio.AbstractEventLoop, bind: str) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Have tasks call where no server is."""
    client = batched.connect(f"{bind}.none", wait_s=0.01)
    return client, [loop.create_task(client.double.acall(item)) for item in range(3)]


def begin_calls_that_are_lost(
    loop: asyncio.AbstractEventLoop, bind: str
) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Have tasks call, and end what the connection brings."""
    client = batched.connect(bind, wait_s=PATIENCE_S)
    loop.run_until_complete(client.double.acall(1))
    tasks = [loop.create_task(client.held.acall(item)) for item in range(3)]
    (link,) = client._connections._by_loop.values()  # noqa: SLF001

    async def until_sent() -> None:
        await turns_until(lambda: len(link._sent) == 3 and link.has_sent)  # noqa: SLF001

    loop.run_until_complete(until_sent())
    assert link.socket is not None
    link.socket.shutdown(socket.SHUT_RD)
    return client, tasks


def begin_calls_of_a_closed_client(
    loop: asyncio.AbstractEventLoop, bind: str
) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Have tasks call, and close the client."""
    client, tasks = begin_calls_that_are_lost(loop, bind)
    client.close()
    return client, tasks


def begin_streams(loop: asyncio.AbstractEventLoop, bind: str) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Have tasks read streams."""
    client = batched.connect(bind, wait_s=PATIENCE_S)
    loop.run_until_complete(client.double.acall(1))

    async def consume() -> list[int]:
        return [piece async for piece in client.pieces.astream(1)]

    return client, [loop.create_task(consume()) for _ in range(2)]


BEGUN = {
    "no server": begin_calls_of_nothing,
    "lost": begin_calls_that_are_lost,
    "closed": begin_calls_of_a_closed_client,
    "streams": begin_streams,
}


@pytest.mark.parametrize("begun", BEGUN)
def test_no_task_waits_for_ever_after_an_interrupt(bind: str, begun: str) -> None:
    """Wherever the connection is: it waits for a server, ends, or brings pieces."""
    at, came = 1, True
    while came:
        loop = asyncio.new_event_loop()
        client, tasks = BEGUN[begun](loop, bind)
        interrupt = Interrupt(at)
        interrupt.during(lambda loop=loop, tasks=tasks: loop.run_until_complete(asyncio.wait(tasks)))
        _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE_S))
        assert not pending, interrupt.place
        for task in tasks:
            with suppress(KeyboardInterrupt, batched.DisconnectedError):
                assert task.result() == [0, 1, 2]
        client.close()
        loop.close()
        came = interrupt.came
        at += STRIDE


def test_calls_are_cancelled_though_an_interrupt_comes(bind: str) -> None:
    """Those of other threads too, which would wait for answers that the connection has forgotten."""
    for client, interrupt in clients(bind, has_called=True):
        fn = client.held
        futures = [fn.submit(item) for item in range(2)]
        interrupt.during(lambda fn=fn: fn.shutdown(wait=False, cancel_futures=True))
        fn.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            try:
                future.result(PATIENCE_S)
            except CancelledError:
                continue
            raise AssertionError(interrupt.place)
