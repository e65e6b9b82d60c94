"""Deadlines of tasks: a task that waits for a call is woken when the deadline of the call has passed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import Context
from math import inf
from typing import Any
from weakref import WeakKeyDictionary, ref

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.lazy_heap import DeadlineHeap
from batched._core.task_awaitable import wake_all
from batched._drivers.timers import Timer, call_later
from batched._drivers.wakeups import WOKEN, set_unless_done
from batched._locks import in_child

_TURN_S = 0.001


class _Alarm:
    """The callers that wait on one loop and have a deadline: one timer for all of them.

    Only the timer keeps it, so that a loop that is closed forgets it.
    """

    __slots__ = ("__weakref__", "_calls", "_timer", "_when")

    def __init__(self) -> None:
        self._calls = DeadlineHeap(lambda call: not call.is_woken)
        self._when = inf  # when the timer goes off
        self._timer: Timer | None = None

    def set(self, deadline: float, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the caller of `call` when `deadline` has passed."""
        self._calls.add(ref(call), deadline)
        if deadline < self._when:
            self._start(deadline, loop)

    def _start(self, deadline: float, loop: asyncio.AbstractEventLoop, at_least: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # In a context of its own, for that of the caller would be kept as long.
        delay = max(deadline - monotonic(), at_least)
        self._timer = call_later(loop, delay, self._ring, loop, context=Context())
        self._when = deadline

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._when = inf
        try:
            for call in self._calls.passed(monotonic()):
                wake_all([call], WOKEN)
        finally:  # also after Ctrl-C
            following = self._calls.next()
            if following < inf:
                # Some loops have clocks that are coarser, and would come back at once until then.
                self._start(following, loop, _TURN_S)


_alarms: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Alarm]] = WeakKeyDictionary()
in_child(_alarms.clear)  # a timer may be the parent's alone


def watch(call: Call, loop: asyncio.AbstractEventLoop) -> None:
    """Wake the caller of `call`, which waits on `loop`, when its deadline has passed.

    Only for the thread of that loop.
    """
    known = _alarms.get(loop)
    alarm = None if known is None else known()
    if alarm is None:
        alarm = _Alarm()
        _alarms[loop] = ref(alarm)
    alarm.set(call.deadline or 0.0, call, loop)


async def within(deadline: float | None, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, which is cancelled at the `deadline`; return whether it has ended by itself."""
    if deadline is None:
        await work
        return True
    if deadline <= monotonic():
        work.close()
        return False
    task = asyncio.create_task(work)
    try:
        # Not `timeout_at`: it would wait for work that does not listen to a cancel.
        while not task.done() and (left := deadline - monotonic()) > 0.0:
            await _first_of(task, left)
        if task.done():
            task.result()
        return task.done()
    finally:
        cancel_task(task)


def cancel_task(task: asyncio.Task[None]) -> None:
    """Cancel `task`, unless its loop is closed: what waits for it is collected then."""
    with contextlib.suppress(RuntimeError):
        task.cancel()


async def _first_of(task: asyncio.Task[None], delay: float) -> None:
    """Wait for the end of `task`, or for `delay` seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = call_later(loop, delay, set_unless_done, over)
    try:
        await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
