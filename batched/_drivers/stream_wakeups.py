"""How consumers of streams are told that there are new pieces."""

from __future__ import annotations

import asyncio
import contextlib

from batched._core.call import Call
from batched._drivers.wakeups import ask, settle, wake


class Bell(asyncio.Event):
    """What the consumer of a stream waits for on its event loop."""

    is_told = False
    """Whether the loop has been asked to set it, and has yet to do so."""


def apart(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """Return the calls of consumers, which take pieces, and the others."""
    streams = [call for call in calls if call.takes_pieces]
    return streams, [call for call in calls if not call.takes_pieces] if streams else calls


def tell(calls: list[Call]) -> list[Call]:
    """Wake the consumers of streams, which look for themselves what there is; return the other calls.

    A consumer on an event loop is told once, until the loop has woken it: a function that is faster than the
    loop would else leave a callback for each piece, and the loop would do nothing but call these.
    """
    streams, others = apart(calls)
    try:
        _tell(streams)
    except BaseException:  # Ctrl-C: its caller tells once more, as no other consumer would be
        for call in streams:
            if call.waits_at is not None:
                call.waiter.is_told = False
        raise
    return others


def _tell(streams: list[Call]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in streams:
        if call.waits_at is not None:
            if not call.waiter.is_told:
                call.waiter.is_told = True
                loops.setdefault(call.waits_at, []).append(call)
        elif call.waiter.locked():
            with contextlib.suppress(RuntimeError):  # it has been told already
                call.waiter.release()
    for loop, theirs in loops.items():
        ask(loop, ring, theirs)  # one that is closed has no tasks that wait


def ring(calls: list[Call]) -> None:
    """Wake the consumers of streams. Only for the thread of their loop."""
    try:
        for call in calls:
            call.waiter.is_told = False  # first, so that what comes too late for this is told of again
            call.waiter.set()
    except BaseException:  # Ctrl-C
        asyncio.get_running_loop().call_soon(ring, calls)
        raise


def wake_callers(calls: list[Call], name: str) -> None:
    """Wake the callers of `calls`, of the function of this name, wherever they wait."""
    others = tell(calls)
    if others and (futures := wake(others)):
        settle(futures, name)
