"""The p99 of single calls while two callers send lists of 1,000, beside the time of two full batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from statistics import quantiles
from threading import Event
from time import perf_counter
from typing import Any

from benchmarks.kit.callers import open_loop, run_precisely
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Measure, Samples, Turns
from benchmarks.load.device import BATCH, at_capacity, slow

_RATE = 50


@contextmanager
def _ours(effort: Effort) -> Iterator[Measure]:
    def measure() -> dict[str, float]:
        with dynamically(slow(), batch_size=BATCH) as fn:
            return run_precisely(_mixed(fn, effort.of(16, 1), effort.of(1000, 256)))

    yield measure


async def _mixed(fn: Any, lists: int, length: int) -> dict[str, float]:
    """Return the p99 of the singles in seconds, and the items a second of the lists."""
    items = list(range(length))
    over = Event()

    def caller() -> float:
        for _ in range(lists):
            assert fn(items) == items
        return perf_counter()

    started = perf_counter()
    callers = asyncio.gather(asyncio.to_thread(caller), asyncio.to_thread(caller))
    callers.add_done_callback(lambda _: over.set())
    arrivals = takewhile(lambda _: not over.is_set(), count(0, 1 / _RATE))
    latencies = await open_loop(fn.acall, arrivals)
    ended = max(await callers)
    p99 = quantiles(latencies, n=100, method="inclusive")[98]
    return {"p99": p99, "throughput": 2 * lists * length / (ended - started)}


def _two_batches(samples: Samples) -> Samples:
    return {"two full batches": [2 * BATCH / rate for rate in samples["capacity"]]}


TURNS = Turns({"ours": _ours, "capacity": at_capacity(slow)}, rounds=4, derive=_two_batches)

_P99, _THROUGHPUT = "p99 of singles beside lists of 1,000", "list throughput beside 50 singles/s"
_WHOLE = Goal(0.95, at_least=True)
ROWS = (
    Row("singles beside lists, p99", _P99, TURNS, "two full batches", goal=Goal(1.3), ours="ours p99"),
    Row("lists beside singles", _THROUGHPUT, TURNS, "capacity", SHARE, _WHOLE, ours="ours throughput"),
)
