"""The event loops of functions that no task awaits: each function has one, as its worker would have.

What a function keeps for a loop, such as a lock or a session, works for its next batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakKeyDictionary, finalize

from batched._drivers.driver import Driver
from batched._drivers.fork_and_exit import register
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.worker_pool import WorkerPool

_inherited: list[object] = []


class _OwnLoops:
    """The loops that are free, by the driver or the shared workers that they belong to."""

    def __init__(self) -> None:
        self._free: WeakKeyDictionary[Driver | WorkerPool, list[asyncio.Runner]] = WeakKeyDictionary()
        register(self)

    def after_fork(self) -> None:
        """Begin anew: to close an inherited loop would take its descriptors out of the parent's epoll."""
        _inherited.append(dict(self._free))
        self._free = WeakKeyDictionary()

    def of(self, owner: Driver | WorkerPool) -> list[asyncio.Runner]:
        """Return the free loops of `owner`, which are closed with it."""
        free = self._free.get(owner)
        if free is None:
            new: list[asyncio.Runner] = []
            free = self._free.setdefault(owner, new)
            if free is new:  # else those of another thread, which has made them just now
                finalize(owner, _close, free)
        return free


_own = _OwnLoops()


def result_of(owner: Driver | WorkerPool, work: Coroutine[Any, Any, Any]) -> Any:
    """Return or raise the result of a coroutine, from a loop of `owner`.

    That runs in this thread, or in another one if a loop runs in this. Where other threads have all loops
    there are, another one is made.
    """
    if running_loop_or_none() is None:
        return _result_here(owner, work)
    with ThreadPoolExecutor(1, "batched: inline") as thread:
        return thread.submit(_result_here, owner, work).result()


def _result_here(owner: Driver | WorkerPool, work: Coroutine[Any, Any, Any]) -> Any:
    free = _own.of(owner)
    try:
        runner = free.pop()
    except IndexError:
        # With a factory it does not become the loop that `asyncio.get_event_loop` finds in this thread.
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        Context().run(runner.get_loop)
    try:
        found = runner.run(work, context=copy_context())
    except BaseException as error:
        if isinstance(error, Exception):
            free.append(runner)
        else:  # it has broken the loop in the middle
            runner.close()
        raise
    free.append(runner)
    return found


def _close(free: list[asyncio.Runner]) -> None:
    """Close the loops; perhaps amid another one, where the collector has ended their owner."""
    for runner in free:
        loop = runner.get_loop()
        with suppress(Exception):
            if running_loop_or_none() is None:
                runner.close()
        loop.close()
