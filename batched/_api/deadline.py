"""`batched.deadline`: one deadline for all calls of a block of code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.option_checks import a_time
from batched._drivers.arrivals import with_each

_inmost: ContextVar[Block | None] = ContextVar("batched.deadline", default=None)
_check = a_time(or_zero=False, or_none=False)
_lock = threading.Lock()
_is_used = False


class Block:
    """A block of code that has a deadline, and perhaps is inside of another one."""

    __slots__ = ("outer", "until")

    def __init__(self, until: float, outer: Block | None) -> None:
        self.until = until
        self.outer = outer

    def lift(self) -> None:
        """End its deadline for what else it does, in whichever of its tasks and threads."""
        self.until = inf


@contextmanager
def deadline(ms: float) -> Iterator[None]:
    """Give all calls of batched functions in a `with` block one deadline: they share what is left of it.

    A call that has a `deadline_ms` of its own has the sooner one, and so has an inner block; with
    `deadline_ms=None` it has that of the block. Calls in tasks and in `asyncio.to_thread` that the block
    starts are inside, too. Nothing else is ended at the deadline.

    Args:
        ms: The milliseconds from now on.

    Raises:
        ValueError: `ms` is not above 0.

    """
    with block(ms):
        yield


@contextmanager
def block(ms: float) -> Iterator[Block]:
    """Do what `deadline` does, with a deadline that may be lifted."""
    global _is_used  # noqa: PLW0603
    left_ms = _check("ms", ms)
    if not _is_used:
        with _lock:
            if not _is_used:
                with_each(_bound)
                _is_used = True
    found = Block(monotonic() + left_ms / 1000, _inmost.get())
    token = _inmost.set(found)
    try:
        yield found
    finally:
        with suppress(ValueError):  # a generator that is ended in another context, which it does not touch
            _inmost.reset(token)


def _bound(call: Call) -> None:
    """Give `call` the deadline of the block, if it is in one and has none that is sooner."""
    found = _inmost.get()
    if found is None:
        return
    until, outer = found.until, found.outer
    while outer is not None:
        until = min(until, outer.until)
        outer = outer.outer
    if until == inf:
        return
    for each in (call, *call.parts):
        if each.deadline is None or each.deadline > until:
            each.deadline = max(each.arrived, until)
