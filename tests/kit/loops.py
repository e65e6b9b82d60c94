"""Event loops of each kind that users have, and some that note their timers or run inside themselves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

KINDS = ["asyncio", "uvloop", "debug"]


def noting(kind: str) -> Any:
    """Return a new event loop of `kind`, which notes its `timers` and how often it was `woken`."""
    base: Any = pytest.importorskip("uvloop").Loop if kind == "uvloop" else asyncio.SelectorEventLoop

    class Noting(base):
        def __init__(self) -> None:
            super().__init__()
            self.set_debug(kind == "debug")
            self.timers: list[asyncio.TimerHandle] = []
            self.woken = 0

        def call_soon_threadsafe(self, *args: Any, **named: Any) -> asyncio.Handle:
            self.woken += 1
            handle: asyncio.Handle = super().call_soon_threadsafe(*args, **named)
            return handle

        def call_later(self, *args: Any, **named: Any) -> asyncio.TimerHandle:
            timer: asyncio.TimerHandle = super().call_later(*args, **named)
            self.timers.append(timer)
            return timer

    return Noting()


class Nesting(asyncio.SelectorEventLoop):
    """A loop that can be run once more while it runs, as `nest_asyncio` has it."""

    def nested(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run this same loop until `coroutine` is done, and return its result, in the midst of a task."""
        loop: Any = self
        outer: Any = asyncio.current_task()
        ready = len(loop._ready)  # the turn that goes on may take so many callbacks
        asyncio.tasks._leave_task(self, outer)
        try:
            inner = self.create_task(coroutine)
            while not inner.done():
                loop._run_once()
        finally:
            asyncio.tasks._enter_task(self, outer)
        for _ in range(ready):
            self.call_soon(int)
        return inner.result()


def eager(loop: Any, coroutine: Any, **options: Any) -> Any:
    """`asyncio.eager_task_factory`, which in Python 3.13.0 does not take all that uvloop passes."""
    return asyncio.Task(coroutine, loop=loop, **{**options, "eager_start": True})


def python_task(loop: Any, coroutine: Any, **options: Any) -> Any:
    """Tasks that are written in Python, as PyPy and `nest_asyncio` have them."""
    return asyncio.tasks._PyTask(coroutine, loop=loop, **options)


def new_loop(kind: str) -> Any:
    """Return an event loop; the kinds can be combined."""
    if "eager" in kind and sys.version_info < (3, 12):
        pytest.skip("tasks that start at once are there from Python 3.12 on")
    if "Python" in kind and sys.version_info >= (3, 14):
        pytest.skip("from Python 3.14 on `current_task` does not know tasks that are written in Python")
    loop: Any = pytest.importorskip("uvloop").new_event_loop() if "uvloop" in kind else Nesting()
    loop.set_debug("debug" in kind)
    if "eager" in kind:
        loop.set_task_factory(eager)
    if "Python" in kind:
        loop.set_task_factory(python_task)
    return loop
