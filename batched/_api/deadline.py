"""`batched.deadline`: one deadline for all calls of a block of code. A web request is such a block, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, TypeVar
from weakref import ref

from batched._clock import monotonic
from batched._core.call import BlockDeadline, Call
from batched._core.option_checks import a_time
from batched._drivers.arrivals import with_each
from batched._drivers.wakeups import FUTURE
from batched._locks import Freed, Guard

_inmost: ContextVar[Block | None] = ContextVar("batched.deadline", default=None)
_check = a_time(or_zero=False, or_none=False)
_using = Guard()
_is_used = False
_FEW = 16  # calls of a request, of which it is not worth asking which still wait


class Block:
    """A block of code that may have a deadline, and perhaps is inside of another one."""

    __slots__ = ("outer", "request", "until")

    def __init__(self, until: float, outer: Block | None) -> None:
        self.until = until
        self.outer = outer
        self.request: Request | None = None if outer is None else outer.request

    def lift(self) -> None:
        """End its deadline for what else it does, in whichever of its tasks and threads."""
        self.until = inf


class Request(Block):
    """The block of a web request, which knows the calls of its threads: a thread cannot be cancelled."""

    __slots__ = ("_calls", "_lock", "_most")

    def __init__(self, until: float, outer: Block | None) -> None:
        super().__init__(until, outer)
        self.request = self
        self._lock = threading.Lock()
        self._calls: list[tuple[ref[Any], ref[Call]]] = []
        self._most = _FEW

    def note(self, driver: Any, call: Call) -> None:
        """Note a call of a thread, or of a future."""
        with self._lock:
            self._calls.append((ref(driver), ref(call)))
            if len(self._calls) > self._most:
                self._calls = [each for each in self._calls if (known := each[1]()) and known.missing]
                self._most = _FEW + 2 * len(self._calls)

    def withdraw(self) -> None:
        """Have the calls of its threads that have not begun raise `CancelledError`: its client has left."""
        with self._lock:
            calls, self._calls = self._calls, []
        for its_driver, its_call in calls:
            driver, call = its_driver(), its_call()
            if driver is not None and call is not None:
                why = f"the client that {driver.name} was called for has left"
                driver.withdraw([call], CancelledError(why))


BlockT = TypeVar("BlockT", bound=Block)


@contextmanager
def deadline(ms: float) -> Iterator[None]:
    """Give all calls of batched functions in a `with` block one deadline: they share what is left of it.

    A call that has a `deadline_ms` of its own has the sooner one, and so has an inner block; with
    `deadline_ms=None` it has that of the block. Calls in tasks and in `asyncio.to_thread` that the block
    starts are inside, too. Nothing else is ended at the deadline.

    Args:
        ms: The milliseconds from now on.

    Raises:
        ValueError: `ms` is not above 0, or more than a week.

    """
    with block_of(_check("ms", ms), Block):
        yield


@contextmanager
def block_of(ms: float | None, kind: type[BlockT]) -> Iterator[BlockT]:
    """Do what `deadline` does, with a block of a `kind`; with None there is no deadline."""
    global _is_used  # noqa: PLW0603
    outer = _inmost.get()
    while outer is not None and outer.until == inf and outer is not outer.request:
        outer = outer.outer  # so that blocks that generators could not leave are not kept
    block = kind(inf if ms is None else monotonic() + ms / 1000, outer)
    if not _is_used:
        with Freed(_using.lock), _using.lock:
            if not _is_used:
                with_each(_bound)
                _is_used = True
    token = _inmost.set(block)
    try:
        yield block
    finally:
        # A generator may end in another context, or while a later block of its consumer goes on: it cannot
        # leave its block there.
        if _inmost.get() is not block:
            block.lift()
        else:
            try:
                _inmost.reset(token)
            except ValueError:
                block.lift()


def _bound(driver: Any, call: Call) -> None:
    """Give `call` the deadline of the block, if it is in one and has none that is sooner."""
    found = _inmost.get()
    if found is None:
        return
    if found.request is not None:
        waits_at = getattr(call, "waits_at", call)
        if waits_at is None or waits_at is FUTURE:
            found.request.note(driver, call)
    until, outer = found.until, found.outer
    while outer is not None:
        until = min(until, outer.until)
        outer = outer.outer
    if until == inf:
        return
    for each in (call, *call.parts):
        if each.deadline is None or each.deadline > until:
            each.deadline = BlockDeadline(max(each.arrived, until))
