"""How callers wait, in threads, on event loops or for futures, and are released, whoever runs the batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from concurrent.futures import InvalidStateError
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from batched._process import park_at_exit
from batched.errors import copied, for_event_loop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from batched._call import Call

__all__ = ["FUTURE", "refusal", "release", "resolve_on_loop", "set_unless_done", "settle", "tell", "watch"]

FUTURE = object()
"""The `loop` of a call whose waiter is a concurrent future."""

_logger = logging.getLogger("batched")


def watch(call: Call, loop: asyncio.AbstractEventLoop) -> None:
    """Wake the caller of `call`, who waits on `loop`, when its deadline has passed."""
    timer = loop.call_later(max((call.deadline or 0.0) - monotonic(), 0.0), set_unless_done, call.waiter)
    call.waiter.add_done_callback(lambda _: timer.cancel())


def resolve_on_loop(calls: Iterable[Call]) -> None:
    """Release the callers of `calls`, which are done, on their own loop."""
    for call in calls:
        try:
            if call.left is None or call.left == "expired":
                call.waiter.set_result(None)
            else:
                park_at_exit()
                call.waiter.cancel()
        except asyncio.InvalidStateError:  # its caller has left
            pass


def refusal(call: Call, name: str) -> BaseException:
    """Return what the caller of `call`, which has no results, is to raise: its error, or that it is late."""
    if call.error is None:
        return TimeoutError(call.overdue(name))
    park_at_exit()
    if call.left == "cancelled" and call.loop is not None:
        return asyncio.CancelledError()
    error = copied(call.error)
    return error if call.loop is None else for_event_loop(error)


def set_unless_done(future: asyncio.Future[None]) -> None:
    """Wake whoever waits for `future`."""
    if not future.done():
        future.set_result(None)


def tell(calls: list[Call]) -> None:
    """Wake the consumers of streams, who look for themselves what there is."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        if call.loop is not None:
            loops.setdefault(call.loop, []).append(call)
        elif call.waiter.locked():
            with contextlib.suppress(RuntimeError):  # it has been told already
                call.waiter.release()
    for loop, theirs in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_set_events, theirs)


def _set_events(calls: list[Call]) -> None:
    for call in calls:
        call.waiter.set()


def release(calls: list[Call]) -> list[Call]:
    """Wake the threads and event loops that wait for `calls`; return the calls that have futures instead."""
    first = calls[0].loop
    if len(calls) == 1 and first is None:
        calls[0].waiter.release()
        return []
    groups: dict[Any, list[Call]] = {}
    if {call.loop for call in calls} == {first}:
        groups[first] = calls[:]
    else:
        for call in calls:
            groups.setdefault(call.loop, []).append(call)
    futures = groups.pop(FUTURE, [])
    for call in groups.pop(None, []):
        try:  # noqa: SIM105  costs a third of a release
            call.waiter.release()
        except RuntimeError:  # it was late while another worker answered it
            pass
    for loop, theirs in groups.items():
        _send(loop, theirs)
    return futures


class _Outbox:
    """Calls that are done, until their loop comes to release the callers: woken once for all of them.

    Only the wake-up keeps it, so that a loop that is closed, or interrupted, and forgets that forgets it too.
    """

    __slots__ = ("__weakref__", "is_told", "lists")

    def __init__(self) -> None:
        self.lists: deque[list[Call]] = deque()
        self.is_told = False

    def empty(self) -> None:
        """Release the callers. Only for the thread of their loop."""
        self.is_told = False  # first, so that what comes too late for this is told of again
        try:
            for _ in range(len(self.lists)):  # not more, or who is fast would keep the loop from others
                resolve_on_loop(self.lists.popleft())
        except BaseException:  # Ctrl-C
            asyncio.get_running_loop().call_soon(self.empty)
            raise


_outboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Outbox]] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_outboxes.clear)  # a wake-up under way may be the parent's alone


def _send(loop: asyncio.AbstractEventLoop, calls: list[Call]) -> None:
    """Have `loop`, whose thread is another, release the callers of `calls`."""
    known = _outboxes.get(loop)
    outbox = None if known is None else known()
    if outbox is None:
        outbox = _Outbox()
        _outboxes[loop] = ref(outbox)  # of two threads' at once, each does its work
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


def settle(calls: list[Call]) -> None:
    """Resolve the futures of `calls`, which runs their callbacks: not to be done under the lock."""
    for call in calls:
        try:
            if call.left == "cancelled":
                call.waiter.cancel()
            elif call.error is not None:
                call.waiter.set_exception(copied(call.error))
            else:
                call.waiter.set_result(call.results)
        except InvalidStateError:  # cancelled by its caller
            pass
        except BaseException:  # a callback of the caller's; an Exception is logged by the future
            _logger.exception("exception in a callback of %r", call.waiter)
