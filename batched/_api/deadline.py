"""`batched.deadline`: one deadline for all calls of a block of code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.option_checks import a_time
from batched._drivers.arrivals import with_each

_until: ContextVar[float | None] = ContextVar("batched.deadline", default=None)
_check = a_time(or_zero=False)
_lock = threading.Lock()
_is_used = False


@contextmanager
def deadline(ms: float) -> Iterator[None]:
    """Give all calls of batched functions in a `with` block one deadline: they share what is left of it.

    A call that has a `deadline_ms` of its own has the sooner one, and so has an inner block. Calls in tasks
    and in `asyncio.to_thread` that the block starts are inside, too. Nothing else is ended at the deadline.

    Args:
        ms: The milliseconds from now on.

    Raises:
        ValueError: `ms` is not above 0.

    """
    global _is_used  # noqa: PLW0603
    left_ms = _check("ms", ms)
    if not _is_used:
        with _lock:
            if not _is_used:
                with_each(_bound)
                _is_used = True
    until = monotonic() + left_ms / 1000
    outer = _until.get()
    token = _until.set(until if outer is None else min(until, outer))
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that is ended in another context, which it does not touch
            _until.reset(token)


def lift() -> None:
    """End the deadline of the block for what else this task does."""
    _until.set(None)


def _bound(call: Call) -> None:
    """Give `call` the deadline of the block, if it is in one and has none that is sooner."""
    until = _until.get()
    if until is None:
        return
    for each in (call, *call.parts):
        if each.deadline is None or each.deadline > until:
            each.deadline = until
