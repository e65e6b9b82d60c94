"""Functions that share a device, and devices that share a function, beside what users wrote by hand.

Three functions use one device, which runs one batch at a time: with `batched.Workers`, they share its worker;
by hand, each has a thread of its own, and its batches wait for a lock. One function uses two devices: with
`batched.Workers`, each worker has one; by hand, batches take one that is free from a queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import batched
from benchmarks.kit.callers import around_synchronously, closed_loop, closed_tasks
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import SHARE, TIMES, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH, slow

_CALLERS = 48
_EACH = (60, 2)
_TRIPS = (2_000, 50)
_FUNCTIONS = 3


def same(items: list[Any]) -> list[Any]:
    """Return the items: a function that costs nothing."""
    return items


def _rate(functions: list[Any], effort: Effort) -> float:
    """Return the answers a second of callers that ask again as soon as they have an answer."""
    each = effort.of(*_EACH)
    callers = _CALLERS // len(functions)

    async def ask() -> float:
        loops = [closed_loop(fn.acall, callers, each) for fn in functions]
        spent = await asyncio.gather(*loops)
        return callers * each * len(functions) / max(one.wall for one in spent)

    return asyncio.run(ask())


def _rate_of_one(functions: list[Any], effort: Effort) -> float:
    each = effort.of(*_EACH)
    return _CALLERS * each / closed_tasks(functions[0].acall, _CALLERS, each).wall


def _trip(functions: list[Any], effort: Effort) -> float:
    return around_synchronously(functions[0], effort.of(*_TRIPS))


def _of(make: Callable[[], list[Any]], measure: Callable[[list[Any], Effort], float]) -> Contender:
    """Return the contender that measures functions as long as they are not shut down."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        functions = make()
        try:
            yield lambda: measure(functions, effort)
        finally:
            for fn in functions:
                fn.shutdown()

    return contender


def _one_device(functions: int, *, shares: bool) -> list[Any]:
    run, device = slow(), threading.Lock()

    def alone(items: list[Any]) -> list[Any]:
        with device:
            return run(items)

    workers = batched.Workers(1) if shares else None
    function = run if shares else alone
    return [batched.dynamically(function, workers=workers, batch_size=BATCH) for _ in range(functions)]


def _two_devices(*, shares: bool) -> list[Any]:
    if shares:
        workers = batched.Workers(["a", "b"], initializer=lambda _: slow())

        def by_state(items: list[Any]) -> list[Any]:
            return list(batched.current_worker().state(items))

        return [batched.dynamically(by_state, workers=workers, batch_size=BATCH)]
    free: SimpleQueue[Any] = SimpleQueue()
    for _ in range(2):
        free.put(slow())

    def by_queue(items: list[Any]) -> list[Any]:
        device = free.get()
        try:
            return list(device(items))
        finally:
            free.put(device)

    return [batched.dynamically(by_queue, max_concurrent_batches=2, batch_size=BATCH)]


_SHARED = Turns(
    {
        "ours": _of(lambda: _one_device(_FUNCTIONS, shares=True), _rate),
        "a lock": _of(lambda: _one_device(_FUNCTIONS, shares=False), _rate),
    }
)
_TWO = Turns(
    {
        "ours": _of(lambda: _two_devices(shares=True), _rate_of_one),
        "a queue": _of(lambda: _two_devices(shares=False), _rate_of_one),
    }
)
_ONE = Turns(
    {
        "ours": _of(lambda: _one_device(1, shares=True), _rate_of_one),
        "its own": _of(lambda: _one_device(1, shares=False), _rate_of_one),
    }
)
_IDLE = Turns(
    {
        "ours": _of(lambda: [dynamically(same, workers=batched.Workers(1))], _trip),
        "its own": _of(lambda: [dynamically(same)], _trip),
    }
)

ROWS = (
    Row(
        "workers, three functions",
        "answers a second",
        _SHARED,
        "a lock",
        SHARE,
        goal=Goal(0.97, at_least=True),
    ),
    Row(
        "workers, two devices",
        "answers a second, two devices",
        _TWO,
        "a queue",
        SHARE,
        goal=Goal(0.97, at_least=True),
    ),
    Row(
        "workers, one function",
        "answers a second, one function",
        _ONE,
        "its own",
        SHARE,
        goal=Goal(0.97, at_least=True),
    ),
    Row("workers, idle round trip", "idle sync round trip", _IDLE, "its own", TIMES, goal=Goal(1.5)),
)
