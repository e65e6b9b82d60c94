"""Throughput of batches that pass stages, beside the same three steps in one function.

The steps take 1 : 2 : 1. They sleep, as steps do that wait for a device; a batch has a cost, and so has each
item. Callers come straight back: three times as many as a batch has items, just as many, and one alone.

With `workers`, each worker takes all three steps of its batches. Two of them, for a device that runs one
batch at a time, stand beside one worker of which other threads prepare and finish. Where the device takes
nearly all of the time, one worker stands beside two of them, with few callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import batched
from benchmarks.kit.bare import device
from benchmarks.kit.callers import (
    around_asynchronously,
    around_synchronously,
    closed_tasks,
    closed_threads,
    run_precisely,
)
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically, dynamically_on_loops
from benchmarks.kit.row import SHARE, TIMES, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns, using
from benchmarks.load.device import BATCH

_SIDE, _MIDDLE = (1.0, 0.05), (2.0, 0.1)  # ms for a batch, and for each item
_SHORT, _LONG = (0.2, 0.01), (9.0, 0.3)
_SOME = BATCH // 4
_ENOUGH = 3 * BATCH
_WARM = 20  # calls of each caller: costs are learned


def _apart(batched: Callable[..., Any]) -> Any:
    """Return the three steps as stages."""
    return batched(device(*_MIDDLE), prepare=device(*_SIDE), finish=device(*_SIDE), batch_size=BATCH)


def _together(batched: Callable[..., Any]) -> Any:
    """Return the three steps in one function."""
    prepare, run, finish = device(*_SIDE), device(*_MIDDLE), device(*_SIDE)
    return batched(lambda items: finish(run(prepare(items))), batch_size=BATCH)


def _by_workers(number: int, side: tuple[float, float], middle: tuple[float, float]) -> Any:
    """Return the three steps as stages of some workers, which share the device of the middle one."""
    run, is_free = device(*middle), threading.Lock()

    def on_device(items: list[Any]) -> list[Any]:
        with is_free:
            return list(run(items))

    return dynamically(
        on_device,
        prepare=device(*side),
        finish=device(*side),
        workers=batched.Workers(number),
        batch_size=BATCH,
    )


async def _sleep(cost: tuple[float, float], items: list[Any]) -> list[Any]:
    base_ms, per_item_ms = cost
    await asyncio.sleep((base_ms + per_item_ms * len(items)) / 1000)
    return items


async def _prepare(items: list[Any]) -> list[Any]:
    return await _sleep(_SIDE, items)


async def _run(items: list[Any]) -> list[Any]:
    return await _sleep(_MIDDLE, items)


async def _all(items: list[Any]) -> list[Any]:
    return await _prepare(await _run(await _prepare(items)))


def _tasks_apart() -> Any:
    return dynamically_on_loops(_run, prepare=_prepare, finish=_prepare, batch_size=BATCH)


def _tasks_together() -> Any:
    return dynamically_on_loops(_all, batch_size=BATCH)


def _rate(callers: int, fn: Any, effort: Effort) -> float:
    each = effort.of(40, 1)
    closed_threads(fn, callers, effort.of(_WARM, 1))
    return callers * each / closed_threads(fn, callers, each).wall


def _alone(fn: Any, effort: Effort) -> float:
    return around_synchronously(fn, effort.of(100, 5))


def _of_tasks(new: Callable[[], Any], *, alone: bool = False) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        each = effort.of(60, 1)

        def measure() -> float:
            fn = new()  # each run has a loop of its own
            if alone:
                return around_asynchronously(fn, effort.of(100, 5))
            return _ENOUGH * each / closed_tasks(fn, _ENOUGH, each, run_precisely).wall

        yield measure

    return contender


def _threads(measure: Callable[[Any, Effort], float]) -> Turns:
    return Turns(
        {
            "ours": using(partial(_apart, dynamically), measure),
            "one stage": using(partial(_together, dynamically), measure),
        },
        rounds=7,
    )


_MANY = _threads(partial(_rate, _ENOUGH))
_FEW = _threads(partial(_rate, BATCH))
_LONE = _threads(_alone)
_WORKERS = Turns(
    {
        "ours": using(partial(_by_workers, 2, _SIDE, _MIDDLE), partial(_rate, _ENOUGH)),
        "one worker": using(partial(_apart, dynamically), partial(_rate, _ENOUGH)),
    },
    rounds=7,
)
_FEW_WORKERS = Turns(
    {
        "ours": using(partial(_by_workers, 1, _SHORT, _LONG), partial(_rate, _SOME)),
        "two workers": using(partial(_by_workers, 2, _SHORT, _LONG), partial(_rate, _SOME)),
    },
    rounds=7,
)
_TASKS = Turns({"ours": _of_tasks(_tasks_apart), "one stage": _of_tasks(_tasks_together)}, rounds=7)
_TASK = Turns(
    {"ours": _of_tasks(_tasks_apart, alone=True), "one stage": _of_tasks(_tasks_together, alone=True)},
    rounds=7,
)

_GAIN = Goal(1.6, at_least=True)
_NO_LOSS = Goal(1.0, at_least=True)
_SAME = Goal(1.05)
ROWS = (
    Row("stages", f"items a second of {_ENOUGH} threads, stages of 1:2:1", _MANY, "one stage", SHARE, _GAIN),
    Row("stages, one batch of callers", f"the same, {BATCH} threads", _FEW, "one stage", SHARE, _NO_LOSS),
    Row("stages, lone caller", "latency of one thread", _LONE, "one stage", TIMES, _SAME),
    Row("stages, tasks", f"items a second of {_ENOUGH} tasks", _TASKS, "one stage", SHARE, _GAIN),
    Row("stages, lone task", "latency of one task", _TASK, "one stage", TIMES, _SAME),
    Row("stages, two workers", f"items a second of {_ENOUGH} threads", _WORKERS, "one worker", SHARE),
    Row("stages, long function", f"the same, {_SOME} threads", _FEW_WORKERS, "two workers", SHARE),
)
