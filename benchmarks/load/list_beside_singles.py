"""A list of 256 beside single calls that take 90 % of what the function can do, beside the list alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median
from typing import Any

from benchmarks.kit.callers import open_loop, poisson, run_precisely
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH, full_rate, slow


def _contender(share: float) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        lists, pause = effort.of(3, 1), effort.of(0.5, 0.05)
        rate = share * full_rate(quick=effort.quick)
        seeds = count()

        def measure() -> float:
            singles = poisson(rate, lists * 2 * pause + pause, next(seeds)) if share else []
            return run_precisely(_list_seconds(fn, lists, pause, singles))

        with dynamically(slow(), batch_size=BATCH) as fn:
            yield measure

    return contender


async def _list_seconds(fn: Any, lists: int, pause: float, singles: list[float]) -> float:
    """Return the median seconds of lists of 256, one every second or so, beside `singles`."""
    items = list(range(256))
    load = asyncio.create_task(open_loop(fn.acall, singles))
    seconds = []
    for _ in range(lists):
        await asyncio.sleep(pause)
        with Stopwatch() as spent:
            assert await fn.acall(items) == items
        seconds.append(spent.wall)
    await load
    return median(seconds)


TURNS = Turns({"ours": _contender(0.9), "alone": _contender(0.0)}, rounds=5)

_WHAT = "list of 256, singles at 90 % of capacity"
ROWS = (Row("list of 256 beside singles", _WHAT, TURNS, "alone", goal=Goal(5.0)),)
