"""Timers of event loops, in true time also where a test has replaced the clock of the loop.

A timer may come early: some loops have clocks that are coarser than this package's. What it calls looks at
the clock, and sets another timer if need be.
"""

from __future__ import annotations

import _thread
import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeAlias

from batched._clock import is_replaced, monotonic
from batched._drivers.fork_and_exit import new_thread, start_thread
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.wakeups import ask


def call_later(
    loop: asyncio.AbstractEventLoop,
    delay: float,
    callback: Callable[..., object],
    *args: object,
    context: Context | None = None,
) -> Timer:
    """Have `loop`, which runs in this thread, call `callback` after `delay` seconds."""
    # Not by the second question alone: clocks of other kinds of loops may begin elsewhere.
    if is_replaced() and not -1.0 < loop.time() - monotonic() < 1.0:
        return _ThreadTimer(loop, delay, callback, *args)
    return loop.call_later(delay, callback, *args, context=context)


class _ThreadTimer:
    """A timer for a loop with a clock that stands still, or is elsewhere: a thread waits in its place."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[..., object], *args: object
    ) -> None:
        self._call: Callable[[], object] | None = lambda: callback(*args)
        self._cancelled = new_semaphore()
        start_thread(new_thread("batched timer", self._wait, loop, delay))

    def _wait(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        if not self._cancelled.acquire(True, min(max(delay, 0.0), _thread.TIMEOUT_MAX)):  # noqa: FBT003
            ask(loop, self._ring)

    def _ring(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()

    def cancel(self) -> None:
        """Call nothing."""
        self._call = None
        release(self._cancelled)


Timer: TypeAlias = asyncio.TimerHandle | _ThreadTimer
