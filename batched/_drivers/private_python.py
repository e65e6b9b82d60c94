"""All that is used of Python without its promise to keep it, each with a public way for the day that it goes.

(Two modules have their own: `TaskAwaitable` names attributes of asyncio's futures, as slots are named in
their class, and `_locks` asks for the owner of a lock, which `_parts` needs too.)
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from batched._core.call import Call
from batched._core.task_awaitable import TaskAwaitable

HAS_DAEMONS: bool = getattr(_thread, "daemon_threads_allowed", lambda: True)()
"""Whether threads can be daemons: not in an interpreter inside another, from Python 3.12 on."""

lock_of_starts: Any = getattr(threading, "_active_limbo_lock", None)


def _running_loop_or_none() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# An error that is raised and caught takes longer than all else that a call does before it waits.
running_loop_or_none = getattr(asyncio, "_get_running_loop", _running_loop_or_none)
"""Return the loop that runs in this thread, None if there is none."""


def end_silently(task: asyncio.Task[Any]) -> None:
    """Have asyncio log nothing when `task` is collected before its end; without this it logs an error."""
    try:  # noqa: SIM105  costs more than the rest of this
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    except AttributeError:
        pass


def call_before_threads_are_joined(function: Callable[[], object]) -> None:
    """Have `function` called when the interpreter ends, before that waits for threads that are no daemons.

    The public way comes after that wait: there batchers are to be shut down before their interpreter ends.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


def holds_lock_of_starts() -> bool:
    """Whether this thread holds the lock with which `threading` notes threads that start and end."""
    return bool(getattr(lock_of_starts, "_is_owned", bool)())


def free_lock_of_starts() -> None:
    """Let go of that lock, which an interrupt has left held: else no thread starts or ends any more.

    Python may raise between the end of a lock's `__enter__` and the block of its `with`.
    """
    while holds_lock_of_starts():
        lock_of_starts.release()


def frames_of_threads() -> dict[int, FrameType]:
    """Return the frames of all threads by their idents; nothing where Python does not tell."""
    found: dict[int, FrameType] = getattr(sys, "_current_frames", dict)()
    return found


def takes_calls() -> bool:
    """Whether tasks take a call for a future."""
    call = Call()
    call._asyncio_future_blocking = False  # noqa: SLF001
    return asyncio.isfuture(call)


if not takes_calls():
    TaskAwaitable.wait = TaskAwaitable.wait_by_future  # type: ignore[method-assign]
