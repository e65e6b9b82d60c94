"""Calls answered in time when more come than can be, deadlines of 2.3 full batches, beside the capacity.

Calls come at random from a process of their own. What ran in vain is counted in the function, beside the
calls that had an answer. All options have their defaults.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import batched
from batched import aio
from benchmarks.kit.bare import device
from benchmarks.kit.callers import run_precisely
from benchmarks.kit.measure import LIMIT_S, Effort
from benchmarks.kit.row import SHARE, Comparison, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.arrivals import Arrivals, arriving
from benchmarks.load.device import BATCH, at_capacity

_MODEL = (20.0, 1.0)  # ms for a batch, and for each item of it
_CAPACITY = BATCH / (_MODEL[0] + _MODEL[1] * BATCH) * 1000  # items a second
_DEADLINE_MS = 120.0
_LOADS = (1.2, 2.0)
_THREADS = 320  # more than calls are in flight
_WARM_S, _SECONDS = (2.0, 0.1), (6.0, 0.2)

Served = tuple[int, int]
"""How many items ran, and how many calls were answered."""
Serve = Callable[[Arrivals], Served]


def _by_threads(arrivals: Arrivals) -> Served:
    """Answer each call in a thread of a pool, as servers with threads do."""
    ran: list[int] = []
    answered: list[int] = []
    calls: SimpleQueue[bytes | None] = SimpleQueue()
    with batched.dynamically(_counting(device(*_MODEL), ran), batch_size=BATCH) as fn:
        within = fn.options(deadline_ms=_DEADLINE_MS)

        def work() -> None:
            while (line := calls.get()) is not None:
                try:
                    arrivals.answer(within(line))
                except TimeoutError:
                    continue
                answered.append(1)

        workers = [Thread(target=work, daemon=True) for _ in range(_THREADS)]
        for worker in workers:
            worker.start()
        while (line := arrivals.due.readline()) != b"\n":
            calls.put(line)
        for _ in workers:
            calls.put(None)
        for worker in workers:
            worker.join(LIMIT_S)
    return sum(ran), len(answered)


def _by_tasks(arrivals: Arrivals) -> Served:
    """Answer each call in a task, from a worker thread."""
    ran: list[int] = []
    with batched.dynamically(_counting(device(*_MODEL), ran), batch_size=BATCH) as fn:
        answered = run_precisely(_tasks(arrivals, fn.options(deadline_ms=_DEADLINE_MS).acall))
    return sum(ran), answered


def _on_loop(arrivals: Arrivals) -> Served:
    """Answer each call in a task, from an asynchronous function on the same loop."""
    ran: list[int] = []

    async def model(items: list[Any]) -> list[Any]:
        ran.append(len(items))
        base_ms, per_item_ms = _MODEL
        await asyncio.sleep((base_ms + per_item_ms * len(items)) / 1000)
        return items

    async def serve() -> int:
        async with aio.dynamically(model, batch_size=BATCH) as fn:
            return await _tasks(arrivals, fn.options(deadline_ms=_DEADLINE_MS))

    answered = run_precisely(serve())
    return sum(ran), answered


async def _tasks(arrivals: Arrivals, acall: Any) -> int:
    """Return how many calls were answered."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    due = open(os.dup(arrivals.due.fileno()), "rb", buffering=0)  # noqa: ASYNC230, PTH123, SIM115  at once; the transport closes it
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, due)

    async def answer(line: bytes) -> bool:
        try:
            arrivals.answer(await acall(line))
        except TimeoutError:
            return False
        return True

    calls = []
    while (line := await reader.readline()) != b"\n":
        calls.append(asyncio.create_task(answer(line)))
    answered = sum(await asyncio.gather(*calls))
    transport.close()
    return answered


def _counting(function: Any, ran: list[int]) -> Any:
    def model(items: list[Any]) -> Any:
        ran.append(len(items))
        return function(items)

    return model


def _measured(serve: Serve, load: float, effort: Effort) -> dict[str, float]:
    rate, deadline_s = load * _CAPACITY, _DEADLINE_MS / 1000
    with arriving(rate, effort.of(*_WARM_S), effort.of(*_SECONDS), deadline_s) as arrivals:
        ran, answered = serve(arrivals)
        return {"goodput": arrivals.goodput(), "in vain": 1 - answered / max(1, ran), "all": 1.0}


def _ours(serve: Serve, load: float) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield partial(_measured, serve, load, effort)

    return contender


_SERVERS = {"threads": _by_threads, "tasks": _by_tasks, "tasks, event-loop flavour": _on_loop}
_GOODPUT, _IN_VAIN = Goal(0.95, at_least=True), Goal(0.01)
_OF_ALL = Comparison("", "", lambda ours, all_of_it: ours / all_of_it)


def _rows(name: str, load: float) -> Iterator[Row]:
    contenders = {"ours": _ours(_SERVERS[name], load), "capacity": at_capacity(partial(device, *_MODEL))}
    turns = Turns(contenders, rounds=3)
    what = f"in time at {load:g} times the capacity, {name}"
    yield Row(f"deadlines: {what}", what, turns, "capacity", SHARE, _GOODPUT, "ours goodput")
    what = f"ran in vain at {load:g} times the capacity, {name}"
    yield Row(f"deadlines: {what}", what, turns, "ours all", _OF_ALL, _IN_VAIN, "ours in vain")


ROWS = tuple(row for load in _LOADS for name in _SERVERS for row in _rows(name, load))
