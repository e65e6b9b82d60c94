"""How callers in threads and on event loops wait, and are released by any driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from typing import Any
from weakref import ref

from batched._core.call import Call
from batched._core.task_awaitable import TaskAwaitable, still_asleep, wake_all
from batched._drivers.fork_and_exit import park_at_exit
from batched._locks import in_child
from batched._logs import log_error
from batched.errors import BatchError, copied, for_event_loop, for_future, is_error

_MOST_OUTBOXES = 1024

FUTURE = object()
"""The `waits_at` of a call that has a concurrent future as its waiter."""


class _NoLoop:
    """Stands for the loop of a future that no task waits for."""

    def get_debug(self) -> bool:
        return False


# What a task is shown when it is woken: of another future than asyncio's own it would have to ask the result.
WOKEN: asyncio.Future[None] = asyncio.Future(loop=_NoLoop())  # type: ignore[arg-type]
WOKEN.set_result(None)


def ask(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> bool:
    """Have `loop`, perhaps of another thread, call `callback` soon; return False if it is closed.

    One that is closed at this very moment would keep the callback for ever, with all that leads from it.
    """
    try:
        handle = loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:  # it was closed
        return False
    if not loop.is_closed():
        return True
    with contextlib.suppress(AttributeError):  # loops of some libraries return no handle
        handle.cancel()
    return False


def resolve_on_loop(calls: Sequence[TaskAwaitable]) -> None:
    """Wake the tasks that wait for `calls`, which are done. Only for callbacks of their loop."""
    try:
        wake_all(calls, WOKEN)
    except BaseException:  # Ctrl-C
        asyncio.get_running_loop().call_soon(resolve_on_loop, still_asleep(calls))
        raise


def error_of(call: Call, name: str) -> BaseException:
    """Return what the caller of `call`, which has no results, is to raise: its error, or that it is late."""
    if call.error is None:
        return TimeoutError(call.overdue(name))
    park_at_exit()
    if call.left == "cancelled" and call.waits_at is not None:
        return asyncio.CancelledError()
    error = own_error(call, name)
    return error if call.waits_at is None else for_event_loop(error)


def own_error(call: Call, name: str) -> BaseException:
    """Return a copy of the error of a call; the error itself if it has no copy and no other caller.

    With what is known of the item that has failed.
    """
    error: BaseException = call.error  # type: ignore[assignment]
    answer = copied(error, is_own=getattr(call, "owns_error", False))
    if answer is error:  # its traceback will lead to frames that know the call: no cycle
        call.error = BatchError("the error of this call has already been raised")
    if note := getattr(call, "note", None):
        with contextlib.suppress(Exception):  # a class may refuse attributes
            answer.add_note(note.format(name=name))
    return answer


def own_errors(call: Call) -> Any:
    """Return the results of a caller that keeps errors, with copies of the errors for this caller alone."""
    results = call.results
    is_own = getattr(call, "owns_error", False)
    if is_error(results):
        return copied(results, is_own=is_own)
    if call.many and isinstance(results, list) and any(is_error(row) for row in results):
        return [copied(row, is_own=is_own) if is_error(row) else row for row in results]
    return results


def set_unless_done(future: asyncio.Future[None]) -> None:
    """Wake the task that waits for `future`."""
    if not future.done():
        future.set_result(None)


def wake(calls: list[Call]) -> list[Call]:
    """Wake the threads and event loops that wait for `calls`; return the calls that have futures instead."""
    first = calls[0].waits_at
    threads, futures = calls, []
    if len(calls) == 1 or {call.waits_at for call in calls} == {first}:
        if first is FUTURE:
            return calls[:]
        if first is not None:
            _send(first, calls[:])
            return []
    else:
        groups: dict[Any, list[Call]] = {}
        for call in calls:
            groups.setdefault(call.waits_at, []).append(call)
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


class Outbox:
    """Calls that are done, until their loop comes to `release` the callers: woken once for all of them.

    Only the wake-up keeps it, so that a loop that is closed, or interrupted, and forgets that forgets it too.
    Calls that are no task's may wait at one of their own.
    """

    __slots__ = ("__weakref__", "is_told", "lists", "loop", "release")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, release: Callable[[list[Call]], object] = resolve_on_loop
    ) -> None:
        self.release = release
        self.lists: deque[list[Call]] = deque()
        self.is_told = False
        self.loop = ref(loop)

    def empty(self) -> None:
        """Release the callers. Only for the thread of their loop."""
        self.is_told = False  # first, so that what comes too late for this is told of again
        calls: list[Call] | None = None
        try:
            for _ in range(len(self.lists)):  # not more, or fast callers would keep the loop from others
                if not self.lists:
                    break
                calls = self.lists[0]  # removed when all are woken, so that Ctrl-C loses none
                self.release(calls)
                if self.lists and self.lists[0] is calls:  # else the loop was run once more meanwhile
                    self.lists.popleft()
        except BaseException as error:
            asyncio.get_running_loop().call_soon(self.empty)
            if isinstance(error, Exception) and self.lists and self.lists[0] is calls:
                self.lists.popleft()  # no Ctrl-C, but a fault of this library: it would come again
            raise


# By the id of their loop: to look in a `WeakKeyDictionary` takes five times as long, for each batch.
_outboxes: dict[int, ref[Outbox]] = {}
in_child(_outboxes.clear)  # a wake-up under way may be the parent's alone


def _send(loop: Any, calls: list[Call]) -> None:
    """Have `loop`, of another thread, wake the callers of `calls`; or the loop of an outbox of their own."""
    known = _outboxes.get(id(loop))
    outbox = None if known is None else known()
    if outbox is None or outbox.loop() is not loop:
        if isinstance(loop, Outbox):
            outbox, loop = loop, loop.loop()
        else:
            outbox = Outbox(loop)
            if len(_outboxes) > _MOST_OUTBOXES:
                _outboxes.clear()  # of loops that are gone, most of them
            # Of two at once, as after this or of two threads, each does its work.
            _outboxes[id(loop)] = ref(outbox)
    outbox.lists.append(calls)
    if outbox.is_told:
        return
    outbox.is_told = True
    is_told = False
    try:
        is_told = loop is not None and ask(loop, outbox.empty)
    finally:  # else it is closed, and its tasks are with it, or Ctrl-C came
        if not is_told:
            outbox.is_told = False


def wake_callers(calls: list[Call], name: str) -> None:
    """Wake the callers of `calls`, of the function of this name, wherever they wait."""
    if calls and (futures := wake(calls)):
        settle(futures, name)


def settle(calls: list[Call], name: str) -> None:
    """Resolve the futures of `calls` of the batcher of this name, which runs their callbacks."""
    for call in calls:
        future = call.waiter
        if future is None:  # it has been resolved, as in `wake`
            continue
        try:
            if call.left == "cancelled":
                future.cancel()
            elif call.error is not None:
                future.set_exception(for_future(own_error(call, name)))
            else:
                future.set_result(own_errors(call) if call.keep_errors else call.results)
        except InvalidStateError:  # cancelled by its caller
            pass
        except BaseException:  # a callback of the caller's; an Exception is logged by the future
            if not future.done():  # Ctrl-C in the lines above
                raise
            log_error("exception in a callback of %r", future)
        call.waiter = call.results = None  # a future keeps its callbacks, and one of them leads here
