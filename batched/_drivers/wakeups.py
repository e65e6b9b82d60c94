"""How callers in threads and on event loops wait, and are released by any driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Coroutine, Iterable
from contextvars import Context
from math import inf
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, ref

from batched._core.call import Call
from batched._core.lazy_heap import DeadlineHeap
from batched._core.task_awaitable import wake_all
from batched._drivers.fork_and_exit import park_at_exit
from batched.errors import copied, for_event_loop

_FEW = 1024
_TURN_S = 0.001

FUTURE = object()
"""The `loop` of a call that has a concurrent future as its waiter."""


class _NoLoop:
    """Stands for the loop of a future that no task waits for."""

    def get_debug(self) -> bool:
        return False


# What a task is shown when it is woken: of another future than asyncio's own it would have to ask the result.
_DONE: asyncio.Future[None] = asyncio.Future(loop=_NoLoop())  # type: ignore[arg-type]
_DONE.set_result(None)


class _Alarm:
    """The callers that wait on one loop and have a deadline: one timer for all of them.

    Only the timer keeps it, so that a loop that is closed forgets it.
    """

    __slots__ = ("__weakref__", "_calls", "_timer", "_when")

    def __init__(self) -> None:
        self._calls: DeadlineHeap[ref[Call]] = DeadlineHeap(_deadline_of)  # keeps no call alive
        self._when = inf  # when the timer goes off
        self._timer: asyncio.TimerHandle | None = None

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
        self._timer = loop.call_later(delay, self._ring, loop, context=Context())
        self._when = deadline

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._when = inf
        try:
            for watched in self._calls.passed(monotonic()):
                call = watched()
                if call is not None:
                    wake_all([call], _DONE)
        finally:  # also after Ctrl-C
            following = self._calls.next()
            if following < inf:
                # Some loops have clocks that are coarser, and would come back at once until then.
                self._start(following, loop, _TURN_S)


def _deadline_of(watched: ref[Call]) -> float | None:
    call = watched()
    return None if call is None or call.is_woken else call.deadline


_alarms: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Alarm]] = WeakKeyDictionary()


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
        await asyncio.wait([task], timeout=max(deadline - monotonic(), 0.0))
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()


def resolve_on_loop(calls: Iterable[Call]) -> None:
    """Wake the tasks that wait for `calls`, which are done. Only for callbacks of their loop."""
    rest = iter(calls)
    try:
        wake_all(rest, _DONE)
    except BaseException:  # Ctrl-C
        asyncio.get_running_loop().call_soon(resolve_on_loop, [*rest])
        raise


def refusal(call: Call, name: str) -> BaseException:
    """Return what the caller of `call`, which has no results, is to raise: its error, or that it is late."""
    if call.error is None:
        return TimeoutError(call.overdue(name))
    park_at_exit()
    if call.left == "cancelled" and call.loop is not None:
        return asyncio.CancelledError()
    error = copied(call.error)
    return error if call.loop is None else for_event_loop(error)


def own_errors(call: Call) -> Any:
    """Return the results of a caller that keeps errors, with copies of the errors for this caller alone."""
    results = call.results
    if isinstance(results, BaseException):
        return copied(results)
    if call.many and isinstance(results, list) and any(isinstance(row, BaseException) for row in results):
        return [copied(row) if isinstance(row, BaseException) else row for row in results]
    return results


def set_unless_done(future: asyncio.Future[None]) -> None:
    """Wake the task that waits for `future`."""
    if not future.done():
        future.set_result(None)


class Bell(asyncio.Event):
    """What the consumer of a stream waits for on its event loop."""

    is_told = False
    """Whether the loop has been asked to set it, and has yet to do so."""


def tell(calls: list[Call]) -> None:
    """Wake the consumers of streams, which look for themselves what there is.

    A consumer on an event loop is told once, until the loop has woken it: a function that is faster than the
    loop would else leave a callback for each piece, and the loop would do nothing but call these.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        if call.loop is not None:
            if not call.waiter.is_told:
                call.waiter.is_told = True
                loops.setdefault(call.loop, []).append(call)
        elif call.waiter.locked():
            with contextlib.suppress(RuntimeError):  # it has been told already
                call.waiter.release()
    for loop, theirs in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_ring, theirs)


def _ring(calls: list[Call]) -> None:
    for call in calls:
        call.waiter.is_told = False  # first, so that what comes too late for this is told of again
        call.waiter.set()


def release(calls: list[Call]) -> list[Call]:
    """Wake the threads and event loops that wait for `calls`; return the calls that have futures instead."""
    first = calls[0].loop
    threads, futures = calls, []
    if len(calls) == 1 or {call.loop for call in calls} == {first}:
        if first is FUTURE:
            return calls[:]
        if first is not None:
            _send(first, calls[:])
            return []
    else:
        groups: dict[Any, list[Call]] = {}
        for call in calls:
            groups.setdefault(call.loop, []).append(call)
        futures = groups.pop(FUTURE, [])
        threads = groups.pop(None, [])
        for loop, theirs in groups.items():
            _send(loop, theirs)
    for call in threads:
        try:  # noqa: SIM105  costs a third of a release
            call.waiter.release()
        except RuntimeError:  # it was late, or all was shut down, while a worker answered it
            pass
    return futures


class _Outbox:
    """Calls that are done, until their loop comes to release the callers: woken once for all of them.

    Only the wake-up keeps it, so that a loop that is closed, or interrupted, and forgets that forgets it too.
    """

    __slots__ = ("__weakref__", "is_told", "lists", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lists: deque[list[Call]] = deque()
        self.is_told = False
        self.loop = ref(loop)

    def empty(self) -> None:
        """Release the callers. Only for the thread of their loop."""
        self.is_told = False  # first, so that what comes too late for this is told of again
        try:
            for _ in range(len(self.lists)):  # not more, or fast callers would keep the loop from others
                resolve_on_loop(self.lists.popleft())
        except BaseException:  # Ctrl-C
            asyncio.get_running_loop().call_soon(self.empty)
            raise


# By the id of their loop: to look in a `WeakKeyDictionary` takes five times as long, for each batch.
_outboxes: dict[int, ref[_Outbox]] = {}
if hasattr(os, "register_at_fork"):  # a wake-up under way may be the parent's alone
    os.register_at_fork(after_in_child=_outboxes.clear)
    os.register_at_fork(after_in_child=_alarms.clear)


def _send(loop: asyncio.AbstractEventLoop, calls: list[Call]) -> None:
    """Have `loop`, of another thread, release the callers of `calls`."""
    known = _outboxes.get(id(loop))
    outbox = None if known is None else known()
    if outbox is None or outbox.loop() is not loop:
        outbox = _Outbox(loop)
        if len(_outboxes) > _FEW:
            _outboxes.clear()  # of loops that are gone, most of them
        # Of two at once, as after this or of two threads, each does its work.
        _outboxes[id(loop)] = ref(outbox)
    outbox.lists.append(calls)
    if outbox.is_told:
        return
    outbox.is_told = True
    try:
        loop.call_soon_threadsafe(outbox.empty)
    except RuntimeError:  # the loop was closed, and its tasks with it
        outbox.is_told = False
    except BaseException:
        outbox.is_told = False
        raise
