"""Functions that call each other in a circle, each from its worker: the call that closes it gets an error.

A worker that makes a call notes here what it waits for. Threads that are no workers have no part in this: no
worker waits for them. A call with a deadline ends by itself, so it is not noted; nor are maps, streams and
futures, of which the caller may do something else before it waits.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Collection
from typing import Any, Protocol
from weakref import ref

from batched._core.call import Call
from batched._drivers.current_batch import IN_THREAD
from batched._drivers.current_worker import OF_THREAD
from batched._locks import Freed, Guard, in_child

WORKERS: set[int] = set()
"""The threads of all workers, by their ids."""

# Reentrant, as a finalizer that calls a function may interrupt this anywhere. Workers add what they wait for
# with the lock held, so of two calls that close a circle together the second one finds the first.
_guard = Guard()
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
    for known in (_waits, IN_THREAD, OF_THREAD):
        known.pop(me, None)


def _way(me: int, driver: Asked, call: Call | None, known: dict[int, list[str]]) -> list[str] | None:
    """Return the functions by way of which a call of `driver` waits for the worker `me`.

    None if it may be answered before that goes on. `known` are the ways of workers that have been looked at.
    Nothing is added to what workers wait for meanwhile, so a worker that is found to wait for `me` stays so.
    """
    found: list[str] | None = None
    for worker in _in_the_way(driver, call):
        if worker == me:
            way: list[str] | None = []
        elif worker in known:
            way = known[worker]
        else:
            known[worker] = []
            its_call, its_driver = _wait_of(worker)
            way = None if its_call is None or its_driver is None else _way(me, its_driver, its_call, known)
            if way is not None:
                known[worker] = way
        if way is None:
            return None
        found = found or [driver.name, *way]
    return found


def _in_the_way(driver: Asked, call: Call | None) -> list[int]:
    """Return the workers of which each has to go on before a call can have its answer; none if one is free.

    `call` is None for one that has yet to come.
    """
    members = [member.ident for member in tuple(driver.members) if member.ident is not None]
    if call is not None:
        parts = {call, *call.parts}
        running = {member: _items_of(parts, member) for member in members}
        if sum(running.values()) == call.unanswered:  # else a list may fail by the rest
            return [member for member in members if running[member]]
    return members if len(members) >= driver.options.max_concurrent_batches else []


def _items_of(calls: Collection[Call], worker: int) -> int:
    """Return how many items of `calls` are in the batch of a worker."""
    batch = IN_THREAD.get(worker)
    slices = () if batch is None else tuple(batch.slices)
    return sum([stop - start for call, start, stop in slices if call in calls])


def _wait_of(worker: int) -> tuple[Call | None, Asked | None]:
    """Return the call that a worker waits for, and its driver; None if it does not wait."""
    if (noted := _waits.get(worker)) is None:
        return None, None
    call, driver = noted[0](), noted[1]()
    is_waiting = call is not None and call.missing and call.left is None
    return (call, driver) if is_waiting else (None, None)


def _after_fork() -> None:
    """Forget the workers of the parent."""
    WORKERS.clear()
    _waits.clear()


in_child(_after_fork)
