"""Functions that call each other in a circle, each from its worker: the call that closes it gets an error.

A worker that makes a call notes here what it waits for. Threads that are no workers have no part in this: no
worker waits for them. A call with a deadline ends by itself, so it is not noted; nor are maps, streams and
futures, of which the caller may do something else before it waits.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol
from weakref import ref

from batched._core.batch import Batch
from batched._core.call import Call
from batched._drivers.current_batch import IN_THREAD
from batched._drivers.current_worker import OF_THREAD
from batched._locks import Freed, Guard, in_child

WORKERS: set[int] = set()
"""The threads of all workers, by their ids."""

# Reentrant, as a finalizer that calls a function may interrupt this anywhere. Workers add what they wait for
# with the lock held, so of two calls that close a circle together the second one finds the first.
_guard = Guard()
Line = tuple[int, ...]
"""The threads that a batch of one worker passes, by their ids, the last one first."""

LINES: dict[int, Callable[[int], Line]] = {}
"""For a worker beside which other threads prepare and finish: what returns its line."""
_waits: dict[int, tuple[ref[Call], ref[Asked]]] = {}


class Asked(Protocol):
    """The driver of a function."""

    name: str
    options: Any

    @property
    def members(self) -> Collection[threading.Thread]:
        """The workers of the function, which it may share with others."""
        ...


def note_wait(driver: Asked, call: Call) -> list[str] | None:
    """Note that this thread, a worker, is about to wait for `call` of `driver`.

    If that call could not be answered before this worker goes on, return the functions of the circle instead:
    that of `driver`, the one that it waits for, and so on, up to the one that this worker runs.
    """
    me = _thread.get_ident()
    with Freed(_guard.lock), _guard.lock:
        circle = _way(me, driver, None, {})
        if circle is None:
            _waits[me] = ref(call), ref(driver)
    return circle


def note_worker(idents: set[int]) -> None:
    """Note this thread, a worker that begins, also among the `idents` of its function."""
    me = _thread.get_ident()
    idents.add(me)
    WORKERS.add(me)


def forget_worker(idents: set[int]) -> None:
    """Forget this thread, a worker that ends."""
    me = _thread.get_ident()
    idents.discard(me)
    WORKERS.discard(me)
    for known in (_waits, LINES, IN_THREAD, OF_THREAD):
        known.pop(me, None)


def _way(me: int, driver: Asked, call: Call | None, known: dict[int, list[str]]) -> list[str] | None:
    """Return the functions by way of which a call of `driver` waits for the worker `me`.

    None if it may be answered before that goes on. `known` are the ways of threads that have been looked at.
    Nothing is added to what workers wait for meanwhile, so a worker that is found to wait for `me` stays so.
    """
    found: list[str] | None = None
    for line in _in_the_way(driver, call):
        ways = (_way_of(me, thread, known) for thread in line)  # a thread that waits holds up all before it
        way = next((way for way in ways if way is not None), None)
        if way is None:
            return None
        found = found or [driver.name, *way]
    return found


def _way_of(me: int, thread: int, known: dict[int, list[str]]) -> list[str] | None:
    """Return the functions by way of which a thread waits for the worker `me`; None if it may go on."""
    if thread == me:
        return []
    if thread not in known:
        call, driver = _wait_of(thread)
        if call is None or driver is None:
            return None
        before = known.copy()
        known[thread] = []
        way = _way(me, driver, call, known)
        if way is None:  # what was found on the way may not hold
            known.clear()
            known |= before
            return None
        known[thread] = way
    return known[thread]


def _in_the_way(driver: Asked, call: Call | None) -> list[Line]:
    """Return the lines of which each has to go on before a call can have its answer; none if one is free.

    `call` is None for one that has yet to come.
    """
    idents = [member.ident for member in tuple(driver.members) if member.ident is not None]
    lines = [LINES.get(ident, _alone)(ident) for ident in idents]  # in one step: a worker may end meanwhile
    if call is not None:
        parts = {call, *call.parts}
        running = [(line[: at + 1], batch) for line in lines for at, batch in _batches_of(line)]
        has = [(line, items) for line, batch in running if (items := _items_of(parts, batch))]
        if sum([items for _, items in has]) == call.unanswered:  # else a list may fail by the rest
            return [line for line, _ in has]
    return lines if len(lines) >= driver.options.max_concurrent_batches else []


def _alone(worker: int) -> Line:
    """Return the line of a worker beside which no other threads stand."""
    return (worker,)


def _batches_of(line: Line) -> list[tuple[int, Batch]]:
    """Return the batches of a worker, and at which place of its line each is.

    They are looked for from the first thread on, as they move: one that is found twice is at its last place.
    """
    found = {batch: at for at in reversed(range(len(line))) if (batch := IN_THREAD.get(line[at])) is not None}
    return [(at, batch) for batch, at in found.items()]


def _items_of(calls: Collection[Call], batch: Batch) -> int:
    """Return how many items of `calls` are in a batch."""
    return sum([stop - start for call, start, stop in tuple(batch.slices) if call in calls])


def _wait_of(thread: int) -> tuple[Call | None, Asked | None]:
    """Return the call that a thread waits for, and its driver; None if it does not wait."""
    if (noted := _waits.get(thread)) is None:
        return None, None
    call, driver = noted[0](), noted[1]()
    is_waiting = call is not None and call.missing and call.left is None
    return (call, driver) if is_waiting else (None, None)


def _after_fork() -> None:
    """Forget the workers of the parent."""
    WORKERS.clear()
    _waits.clear()
    LINES.clear()


in_child(_after_fork)
