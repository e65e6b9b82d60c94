"""What callers get when the batch function takes time: throughput, and latency under load.

The function sleeps, as one that waits for an accelerator does: the CPU is there for the batcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, takewhile
from statistics import median, quantiles
from threading import Event
from time import perf_counter
from typing import Any

import batched
from benchmarks.kit.bare import LoopHandOff, capacity, device
from benchmarks.kit.callers import (
    Acall,
    closed_tasks,
    closed_threads,
    mean_latency,
    open_loop,
    poisson,
    run_precisely,
)
from benchmarks.kit.measure import Effort, Row, Samples, Stopwatch, interleave, share, times
from benchmarks.kit.ours import dynamically
from benchmarks.kit.rival import beside_rival

__all__ = ["closed_loops", "list_beside_singles", "poisson_arrivals", "singles_beside_lists"]

_BATCH = 32

_dynamically = partial(dynamically, batch_size=_BATCH)
_slow = partial(device, 4, 0.1)
Batched = batched.BatchedFunction[Any, Any]


def closed_loops(effort: Effort) -> Iterator[Row]:
    """Callers that come back as soon as they are answered: enough of them to keep the function busy."""
    function = device(2, 0.05)
    each_task, each_thread, seconds = effort.of(20, 2), effort.of(250, 10), effort.of(4, 1) / 4
    rounds = effort.of(5, 1)
    with _dynamically(function) as fn:
        by_tasks = interleave(
            effort,
            rounds,
            ours=lambda: 1000 * each_task / closed_tasks(fn.acall, 1000, each_task).wall,
            capacity=lambda: capacity(function, _BATCH, seconds),
        )
        yield share("capacity, 1,000 tasks", "throughput of 1,000 tasks", by_tasks, "capacity")
        by_threads = interleave(
            effort,
            rounds,
            ours=lambda: 64 * each_thread / closed_threads(fn, 64, each_thread).wall,
            capacity=lambda: capacity(function, _BATCH, seconds),
        )
        yield share("capacity, 64 threads", "throughput of 64 threads", by_threads, "capacity")
    rounds = effort.of(3, 1)
    what = "throughput of 1,000 tasks"
    yield from beside_rival(effort, rounds, "1,000 tasks / 0.1.5", what, "tasks", each_task, share)
    what = "throughput of 64 threads"
    yield from beside_rival(effort, rounds, "64 threads / 0.1.5", what, "threads", each_thread, share)


def singles_beside_lists(effort: Effort) -> Iterator[Row]:
    """Singles, 50 a second, while two callers keep the function busy with lists of 1,000."""
    function = _slow()
    lists, seconds = effort.of(16, 1), effort.of(4, 1) / 4
    throughputs: list[float] = []

    def mixed() -> float:
        with _dynamically(function) as fn:
            p99, throughput = run_precisely(_singles_beside_lists(fn, lists))
        throughputs.append(throughput)
        return p99

    samples = interleave(
        effort, effort.of(4, 1), ours=mixed, capacity=lambda: capacity(function, _BATCH, seconds)
    )
    full = [2 * _BATCH / rate for rate in samples["capacity"]]
    p99s: Samples = {"ours": samples["ours"], "two full batches": full}
    yield times("singles beside lists, p99", "p99 of singles beside lists of 1,000", p99s, "two full batches")
    rates: Samples = {"ours": throughputs, "capacity": samples["capacity"]}
    yield share("lists beside singles", "list throughput beside 50 singles/s", rates, "capacity")


async def _singles_beside_lists(fn: Batched, lists: int) -> tuple[float, float]:
    """Return the p99 of the singles in seconds, and the items a second of the lists."""
    items = list(range(1000))
    over = Event()

    def caller() -> float:
        for _ in range(lists):
            assert fn(items) == items
        return perf_counter()

    started = perf_counter()
    callers = asyncio.gather(asyncio.to_thread(caller), asyncio.to_thread(caller))
    callers.add_done_callback(lambda _: over.set())
    arrivals = takewhile(lambda _: not over.is_set(), count(0, 1 / 50))
    latencies = await open_loop(fn.acall, arrivals)
    ended = max(await callers)
    return quantiles(latencies, n=100, method="inclusive")[98], 2 * lists * len(items) / (ended - started)


def list_beside_singles(effort: Effort) -> Iterator[Row]:
    """A list of 256 while singles take 90 % of what the function can do."""
    function = _slow()
    rate = 0.9 * capacity(function, _BATCH, 1)
    lists = effort.of(3, 1)
    seeds = count()
    with _dynamically(function) as fn:
        samples = interleave(
            effort,
            effort.of(5, 1),
            ours=lambda: run_precisely(_list_times(fn, lists, poisson(rate, lists + 0.5, next(seeds)))),
            alone=lambda: run_precisely(_list_times(fn, lists, [])),
        )
    what = "list of 256, singles at 90 % of capacity"
    yield times("list of 256 beside singles", what, samples, "alone")


async def _list_times(fn: Batched, lists: int, singles: list[float]) -> float:
    """Return the median seconds of lists of 256, one every second or so, beside `singles`."""
    items = list(range(256))
    load = asyncio.create_task(open_loop(fn.acall, singles))
    seconds = []
    for _ in range(lists):
        await asyncio.sleep(0.5)
        with Stopwatch() as spent:
            assert await fn.acall(items) == items
        seconds.append(spent.wall)
    await load
    return median(seconds)


def poisson_arrivals(effort: Effort) -> Iterator[Row]:
    """Singles that come at random, against a greedy loop that takes what waits as soon as it can."""
    function = _slow()
    full = capacity(function, _BATCH, 1)
    with _dynamically(function) as fn, LoopHandOff(function, _BATCH) as bare:
        for percent in (10, 30, 60, 80, 95):
            rate = full * percent / 100
            samples = _same_arrivals(effort, fn.acall, bare.acall, rate)
            name = f"Poisson at {percent} %"
            yield times(name, f"mean latency, random arrivals at {percent} %", samples, "greedy")


def _same_arrivals(effort: Effort, ours: Acall, bare: Acall, rate: float) -> Samples:
    """Feed both the same arrivals, others in each round."""
    rounds, seconds = effort.of(4, 1), effort.of(4, 1)

    def feed(acall: Acall) -> Callable[[], float]:
        seeds = count()
        return lambda: run_precisely(mean_latency(acall, poisson(rate, seconds, next(seeds))))

    return interleave(effort, rounds, ours=feed(ours), greedy=feed(bare))
