"""What an object keeps alive, found as the garbage collector finds it: no private attribute is needed."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
from collections import deque
from typing import Any, TypeVar

from batched._api.binding import Shared
from batched._core.batcher import Batcher
from batched._core.keyed_queues import KeyedQueues
from batched._core.lazy_heap import LazyHeap
from batched._core.queue import Queue
from batched._drivers.event_loop import LoopDriver
from batched._drivers.thread import ThreadDriver

T = TypeVar("T")

BEYOND = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.CoroutineType,
    types.FrameType,
    threading.Thread,
    asyncio.AbstractEventLoop,
    asyncio.Future,
)
"""Objects that lead to all the rest of the process."""


def kept_by(root: object, kind: type[T], *, but: tuple[type, ...] = ()) -> list[T]:
    """Return the objects of a `kind` that `root` keeps alive, the nearest first.

    What those keep, and what objects of the types `but` keep, is left out.
    """
    found: list[T] = []
    seen = {id(root): root}
    todo = deque([root])
    while todo:
        for each in gc.get_referents(todo.popleft()):
            if id(each) in seen:
                continue
            seen[id(each)] = each
            if issubclass(type(each), kind):
                found.append(each)
            elif not issubclass(type(each), (*BEYOND, *but)):
                todo.append(each)
    return found


def driver_of(fn: Any) -> Any:
    """Return the driver of a batched function, or of a method of an instance."""
    shared = kept_by(fn, Shared)[0]
    if shared.driver is None:
        assert fn.stats is not None  # which makes the driver, or finds it
    return getattr(shared.driver, "in_server", shared.driver)


def batchers(fn: Any) -> list[Batcher]:
    """Return the batchers of a function: one, or one for each loop."""
    driver = driver_of(fn)
    if isinstance(driver, LoopDriver):
        return [dispatcher.batcher for dispatcher in driver.dispatchers()]
    return [driver.batcher]


def outside(fn: Any) -> set[Any]:
    """Return the calls that wait for room."""
    return {call for batcher in batchers(fn) for call in batcher.admission.awaiting_room}


def blocked(fn: Any) -> int:
    """Return how many threads wait for room; on a loop none does."""
    driver = driver_of(fn)
    return len(driver.dispatcher.blocked) if isinstance(driver, ThreadDriver) else 0


def known_keys(groups: KeyedQueues) -> int:
    """Return how many keys have a queue."""
    return len(kept_by(groups, Queue, but=(LazyHeap,)))


def size_of(groups: KeyedQueues) -> int:
    """Return how much is kept of keys, used or not."""
    return known_keys(groups) + sum(map(len, kept_by(groups, LazyHeap)))
