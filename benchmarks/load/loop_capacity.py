"""Throughput of 1,000 tasks that come straight back, event-loop flavour, beside full batches back to back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.kit.bare import device
from benchmarks.kit.callers import closed_tasks, run_precisely
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically_on_loops
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH, FAST, at_capacity

_TASKS = 1000


async def _accelerator(items: list[Any]) -> list[Any]:
    base_ms, per_item_ms = FAST
    await asyncio.sleep((base_ms + per_item_ms * len(items)) / 1000)
    return items


def _ours(function: Any) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        each = effort.of(20, 1)

        def measure() -> float:
            fn = dynamically_on_loops(function(), batch_size=BATCH)
            return _TASKS * each / closed_tasks(fn, _TASKS, each, run_precisely).wall

        yield measure

    return contender


@contextmanager
def _full_batches(effort: Effort) -> Iterator[Measure]:
    yield lambda: run_precisely(_capacity(effort.of(1.0, 0.05)))


async def _capacity(seconds: float) -> float:
    """Return how many items a second the asynchronous function does in full batches, back to back."""
    batch = list(range(BATCH))
    started, batches = perf_counter(), 0
    while perf_counter() - started < seconds:
        assert await _accelerator(batch) == batch
        batches += 1
    return batches * BATCH / (perf_counter() - started)


ASYNC = Turns({"ours": _ours(lambda: _accelerator), "capacity": _full_batches}, rounds=5)
_plain = partial(device, *FAST)
PLAIN = Turns({"ours": _ours(_plain), "capacity": at_capacity(_plain)}, rounds=5)

_GOAL = Goal(0.97, at_least=True)
_WHAT = "throughput of 1,000 tasks"
ROWS = (
    Row("loop capacity, 1,000 tasks", f"{_WHAT}, async function", ASYNC, "capacity", SHARE, _GOAL),
    Row("loop capacity, plain function", f"{_WHAT}, plain function", PLAIN, "capacity", SHARE, _GOAL),
)
