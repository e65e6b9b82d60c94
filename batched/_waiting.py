"""How callers on an event loop wait for their calls and are released, whoever runs the batches."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from batched._process import park_at_exit
from batched.errors import copied, for_event_loop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from batched._call import Call

__all__ = ["refusal", "resolve_on_loop", "set_unless_done", "watch"]


def watch(call: Call, loop: asyncio.AbstractEventLoop) -> None:
    """Wake the caller of `call`, who waits on `loop`, when its deadline has passed."""
    timer = loop.call_later(max((call.deadline or 0.0) - monotonic(), 0.0), set_unless_done, call.waiter)
    call.waiter.add_done_callback(lambda _: timer.cancel())


def resolve_on_loop(calls: Iterable[Call]) -> None:
    """Release the callers of `calls`, which are done, on their own loop."""
    for call in calls:
        try:
            if call.left == "cancelled":
                park_at_exit()
                call.waiter.cancel()
            else:
                call.waiter.set_result(None)
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
