"""Waits that end early, and clocks of loops that are others: no call is late before its deadline."""

from __future__ import annotations

import _thread
import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import batched
from batched import aio
from batched._drivers.timers import call_later
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate

DEADLINE_MS = 12.0
monotonic = time.monotonic


class EarlyLoop(asyncio.SelectorEventLoop):
    """A loop whose timers go off after a third of their time, as those of a coarse clock may."""

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Call `callback` early."""
        return super().call_at(self.time() + delay / 3, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Call `callback` early."""
        return self.call_later(when - self.time(), callback, *args, context=context)


class EarlyLock:
    """A lock that waits for a third of the time that it is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release
        self.locked = self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait."""
        return self._lock.acquire(blocking, timeout if timeout < 0 else timeout / 3)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def raises_in_time(call: Callable[[], object]) -> None:
    began = monotonic()
    with pytest.raises(TimeoutError):
        call()
    assert monotonic() - began >= DEADLINE_MS / 1000


async def raises_in_time_on_loop(call: Callable[[], Awaitable[object]]) -> None:
    began = monotonic()
    with pytest.raises(TimeoutError):
        await call()
    assert monotonic() - began >= DEADLINE_MS / 1000


class SlowCache:
    """A cache that never answers."""

    async def get(self, key: object) -> object:
        """Wait."""
        await asyncio.Event().wait()

    async def set(self, key: object, value: object) -> None:
        """Keep nothing."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A function that holds its batches to the end of the test."""
    gate = Gate(shut=True)
    yield gate
    gate.open()


def test_timers_of_loops_that_go_off_early(gate: Gate) -> None:
    """Calls, streams, and a cache that is asked, each have all of their time."""

    async def silent(items: list[int]) -> AsyncIterator[list[int]]:
        await asyncio.to_thread(gate, items)
        yield items

    async def held(items: list[int]) -> list[int]:
        await asyncio.to_thread(gate, items)
        return items

    def pieces(items: list[int]) -> Iterator[list[int]]:
        gate(items)
        yield items

    async def main() -> None:
        limit: Any = {"default_deadline_ms": DEADLINE_MS, "timeout_ms": 0}
        call = batched.dynamically(gate, **limit)
        stream = batched.dynamically(pieces, **limit)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: call.acall(1),
            lambda: anext(stream.astream(1)),
            lambda: aio.dynamically(held, **limit)(1),
            lambda: anext(aio.dynamically(silent, **limit).astream(1)),
            lambda: aio.dynamically(held, cache=SlowCache(), **limit)(1),
        ]
        for way in calls:
            await raises_in_time_on_loop(way)
        gate.open()

    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))


def test_locks_that_are_waited_for_too_short(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, streams, and a future that waits for room, each have all of their time."""
    monkeypatch.setattr(_thread, "allocate_lock", EarlyLock)

    def pieces(items: list[int]) -> Iterator[list[int]]:
        gate(items)
        yield items

    limit: Any = {"default_deadline_ms": DEADLINE_MS, "timeout_ms": 0, "batch_size": 1}
    call = batched.dynamically(gate, max_queue_size=1, on_full="wait", **limit)
    call.options(deadline_ms=None).submit(0)
    gate.wait_for_batch()
    raises_in_time(lambda: call(1))
    call.options(deadline_ms=None).submit(2)
    raises_in_time(lambda: call.submit(3))
    stream = batched.dynamically(pieces, **limit)
    raises_in_time(lambda: next(stream.stream(1)))
    gate.open()


def test_a_stream_takes_what_has_come_when_its_wait_ends(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a wait that was too short it waits on, and has the piece that comes then."""
    monkeypatch.setattr(_thread, "allocate_lock", EarlyLock)

    def pieces(items: list[int]) -> Iterator[list[int]]:
        gate(items)
        yield items

    function = batched.dynamically(pieces, timeout_ms=0)
    stream = function.options(deadline_ms=1000 * PATIENCE_S).stream(1)
    gate.wait_for_batch()
    gate.open()
    assert list(stream) == [1]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's clock stands still, and with it that of asyncio's loops."""
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)


@pytest.mark.usefixtures("stopped")
@pytest.mark.thread_unsafe(reason="replaces the clock of all threads")
def test_a_loop_whose_clock_stands_still() -> None:
    """Its timers go off all the same, unless they were cancelled; a call that waits is answered."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        rung: list[str] = []
        over = asyncio.Event()
        cancelled = call_later(loop, 0.001, rung.append, "cancelled")
        cancelled.cancel()
        cancelled.cancel()
        call_later(loop, 0.001, rung.append, "first")
        call_later(loop, 0.002, over.set)
        await over.wait()
        assert rung in (["first"], [])  # two threads, in any order
        function = aio.dynamically(lambda items: items, adaptive=False)
        assert await asyncio.gather(*map(function, range(10))) == list(range(10))

        async def plain(items: list[int]) -> list[int]:
            return items

        on_loop = aio.dynamically(plain, adaptive=False)
        assert await asyncio.gather(*map(on_loop, range(10))) == list(range(10))
        assert on_loop.stats.total_batches == 1

    asyncio.run(main())


@pytest.mark.usefixtures("stopped")
@pytest.mark.thread_unsafe(reason="replaces the clock of all threads")
def test_python_s_clock_stands_still(flavour: Flavour) -> None:
    """Whatever replaces it, each flavour goes by its own."""
    function = flavour.decorate(lambda items: items, adaptive=False)
    assert flavour.call(function, 1) == 1
    assert flavour.call(function, [2, 3]) == [2, 3]
    flavour.close(function)
