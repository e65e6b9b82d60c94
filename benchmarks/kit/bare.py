"""The least that can be done: each limit does only what no batcher can leave out.

No errors, no cancelling, no stats, no waiting for company. These are floors, not libraries.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any, Self

from benchmarks.kit.measure import LIMIT_S

__all__ = [
    "Gate",
    "LoopHandOff",
    "LoopTask",
    "LoopTurn",
    "ThreadHandOff",
    "TwoLocks",
    "capacity",
    "device",
    "echo",
    "joined_slices",
]

Function = Callable[[list[Any]], list[Any]]
_PR_SET_TIMERSLACK = 29


class TwoLocks:
    """Two locks, handed to and fro: what any answer from another thread costs."""

    def __enter__(self) -> Self:
        self._there, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._there.acquire()
        self._back.acquire()
        self._over = False
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __call__(self, item: Any) -> Any:
        """Wake the other thread and wait to be woken."""
        self._there.release()
        self._back.acquire()
        return item

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._there.release()
        self._thread.join(LIMIT_S)

    def _work(self) -> None:
        there, back = self._there, self._back
        while there.acquire() and not self._over:
            back.release()


class _HandOff:
    """A worker that takes what waits, up to a batch of it, and answers it. One entry is one item."""

    def __init__(self, function: Function, batch_size: int = 32) -> None:
        self._function = function
        self._batch_size = batch_size

    def __enter__(self) -> Self:
        self._entries: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.put(None)
        self._thread.join(LIMIT_S)

    def _work(self) -> None:
        get, waiting, function, room = (
            self._entries.get,
            self._entries.qsize,
            self._function,
            self._batch_size - 1,
        )
        while (entry := get()) is not None:
            batch = [entry, *[get() for _ in range(min(waiting(), room))]]
            self._answer(batch, function([entry[0] for entry in batch]))

    def _answer(self, batch: list[Any], outputs: list[Any]) -> None:
        raise NotImplementedError


class ThreadHandOff(_HandOff):
    """Threads to a worker and back: a `SimpleQueue` one way, a lock per call the other."""

    def __call__(self, item: Any) -> Any:
        """Answer one item."""
        answered = _thread.allocate_lock()
        answered.acquire()
        entry = [item, answered]
        self._entries.put(entry)
        answered.acquire()
        return entry[0]

    def _answer(self, batch: list[Any], outputs: list[Any]) -> None:
        for entry, output in zip(batch, outputs, strict=True):
            entry[0] = output
            entry[1].release()


class LoopHandOff(_HandOff):
    """An event loop to a worker and back: a `SimpleQueue` one way, one wake-up per batch the other."""

    async def acall(self, item: Any) -> Any:
        """Answer one item."""
        future = asyncio.get_running_loop().create_future()
        self._entries.put((item, future))
        return await future

    def _answer(self, batch: list[Any], outputs: list[Any]) -> None:
        batch[0][1].get_loop().call_soon_threadsafe(_set_results, batch, outputs)


def _set_results(batch: list[Any], outputs: list[Any]) -> None:
    for (_, future), output in zip(batch, outputs, strict=True):
        future.set_result(output)


class LoopTurn:
    """An event loop to itself: what waits is answered in the next turn, by a function that is just called."""

    def __init__(self, function: Function, batch_size: int = 32) -> None:
        self._function = function
        self._batch_size = batch_size
        self._entries: list[tuple[Any, asyncio.Future[Any]]] = []

    async def acall(self, item: Any) -> Any:
        """Answer one item."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._entries:
            loop.call_soon(self._work, loop)
        self._entries.append((item, future))
        return await future

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._entries[: self._batch_size]
        self._answer(batch, self._function([item for item, _ in batch]), loop)

    def _answer(
        self,
        batch: list[tuple[Any, asyncio.Future[Any]]],
        outputs: list[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        _set_results(batch, outputs)
        del self._entries[: self._batch_size]
        if self._entries:
            loop.call_soon(self._work, loop)


class LoopTask(LoopTurn):
    """The same with the task that an `async def` needs."""

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._run(loop))

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._entries[: self._batch_size]
        outputs: Any = self._function([item for item, _ in batch])
        self._answer(batch, await outputs, loop)


def joined_slices(function: Function, items: list[Any], batch_size: int) -> list[Any]:
    """Answer a list with nothing but the function."""
    results: list[Any] = []
    for start in range(0, len(items), batch_size):
        results += function(items[start : start + batch_size])
    return results


def capacity(function: Function, batch_size: int, seconds: float) -> float:
    """Return how many items a second the function does in full batches, back to back."""
    batch = list(range(batch_size))
    started, batches = perf_counter(), 0
    while perf_counter() - started < seconds:
        assert function(batch) == batch
        batches += 1
    return batches * batch_size / (perf_counter() - started)


# -- batch functions --------------------------------------------------------------------------------


def echo(items: list[Any]) -> list[Any]:
    """Do nothing."""
    return items


def device(base_ms: float, per_item_ms: float) -> Function:
    """Return a function that takes that long and, like an accelerator, no CPU."""
    _sleep_precisely()

    def run(items: list[Any]) -> list[Any]:
        sleep((base_ms + per_item_ms * len(items)) / 1000)
        return items

    return run


def _sleep_precisely() -> None:
    """Have Linux wake this thread, and those it starts, on time instead of 50 microseconds late."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Gate:
    """A batch function that holds its worker until it is opened; then it does nothing."""

    def __init__(self) -> None:
        self._held, self._opened = Event(), Event()

    def echo(self, items: list[Any]) -> list[Any]:
        """Return `items`, once the gate is open."""
        if not self._opened.is_set():
            self._held.set()
            assert self._opened.wait(LIMIT_S)
        return items

    async def hold(self) -> None:
        """Wait until a worker is held."""
        assert await asyncio.to_thread(self._held.wait, LIMIT_S)

    def open(self) -> None:
        """Let the worker go."""
        self._opened.set()
