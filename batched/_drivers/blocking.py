"""Messages on the event loop of a call: it blocks the loop, or there is none."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from typing import NoReturn

from batched._drivers.private_python import running_loop_or_none
from batched._locks import Freed, Guard
from batched.errors import BlockingCallWarning

_OWN = re.compile(r"batched\._|batched\.(aio|inference)")


class LoopWarning:
    """Warns of the first call of a batcher that blocks an event loop."""

    __slots__ = ("_name", "guard", "may_warn")

    def __init__(self, name: str) -> None:
        self._name = name
        self.guard: Guard = Guard()
        self.may_warn: bool = True

    def __call__(self, blocking: str, instead: str) -> None:
        """Warn, the first time, if this thread runs an event loop, that `blocking` is about to block it."""
        if self.may_warn and running_loop_or_none() is not None:
            with Freed(self.guard.lock), self.guard.lock:
                is_first, self.may_warn = self.may_warn, False
            if is_first:
                _warn(self._name, blocking, instead)


def _warn(name: str, blocking: str, instead: str) -> None:
    """Warn the user's line that `blocking` holds up the event loop, and say what to write `instead`.

    Not under IPython and Jupyter, where a loop runs around every cell.
    """
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if get_ipython is not None and get_ipython() is not None:
        return
    warnings.warn(
        f"{name}: `{blocking}` blocks the event loop of this thread: no other task can run, or join the "
        f"batch, until it returns; write `{instead}` instead",
        BlockingCallWarning,
        stacklevel=level_of_user(),
    )


def level_of_user() -> int:
    """Return how far up the stack the line is that uses this package, for a warning of the caller."""
    level = 1
    here = inspect.currentframe()
    frame = here and here.f_back
    while frame and frame.f_back and _OWN.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    return level


def no_loop(name: str) -> NoReturn:
    """Raise `RuntimeError` for a call that is awaited where asyncio runs no event loop."""
    raise RuntimeError(
        f"{name}: no running event loop: only tasks of asyncio can await a call. Under trio, call a function "
        f"of batched.dynamically in a thread: `await trio.to_thread.run_sync(fn, x)`"
    )
