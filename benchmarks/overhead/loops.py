"""What the event-loop flavour costs, beside a bare turn of the loop and beside other batchers for loops.

Those are measured in processes of their own. Run as a module, this file is what such a process does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.kit.bare import LoopTask, LoopTurn, capacity, device, echo
from benchmarks.kit.callers import Acall, around_asynchronously, closed_tasks, run_precisely
from benchmarks.kit.fresh import beside_bare
from benchmarks.kit.measure import (
    LIMIT_S,
    Effort,
    Row,
    Stopwatch,
    above,
    interleave,
    share,
    time_limit,
    times,
)
from benchmarks.kit.ours import dynamically_on_loops
from benchmarks.kit.rival import RIVAL, beside_rival

__all__ = ["closed_loop", "idle", "idle_await", "long_list", "singles"]

_BATCH = 32

_dynamically = partial(dynamically_on_loops, batch_size=_BATCH)


async def _echo(items: list[Any]) -> list[Any]:
    return items


def idle_await(effort: Effort) -> Iterator[Row]:
    """One task that awaits, nobody else there."""
    what, trips = "idle await, async function", effort.of(3_000, 50)
    turn, task, ours = LoopTurn(echo), LoopTask(_echo), _dynamically(_echo)  # type: ignore[arg-type]
    samples = interleave(
        effort,
        effort.of(25, 2),
        ours=lambda: around_asynchronously(ours.acall, trips),
        turn=lambda: around_asynchronously(turn.acall, trips),
        task=lambda: around_asynchronously(task.acall, trips),
    )
    yield times("await / call_soon", what, samples, "turn")
    yield times("await / call_soon and a task", what, samples, "task")
    for rival in ("aiodataloader", "async-batcher", RIVAL):
        yield from _beside(effort, f"await / {rival}", what, "await", trips, times, rival)


def singles(effort: Effort) -> Iterator[Row]:
    """The CPU of singles from 64 tasks."""
    what, each = "CPU per single, 64 tasks, async function", effort.of(500, 2)
    turn, ours = LoopTurn(echo), _dynamically(_echo)
    samples = interleave(
        effort,
        effort.of(15, 1),
        ours=lambda: closed_tasks(ours, 64, each).cpu / (64 * each),
        turn=lambda: closed_tasks(turn.acall, 64, each).cpu / (64 * each),
    )
    yield times("loop CPU, 64 tasks", what, samples, "turn")
    for rival in ("aiodataloader", "async-batcher", RIVAL):
        yield from _beside(effort, f"loop CPU, 64 tasks / {rival}", what, "singles", each, times, rival)


def long_list(effort: Effort) -> Iterator[Row]:
    """One list, in batches of 32."""
    size = effort.of(100_000, 1_000)
    for rival in ("aiodataloader", RIVAL):
        name = f"loop list of 100k / {rival}"
        yield from _beside(effort, name, "list of 100k, async function", "list", size, share, rival)


def closed_loop(effort: Effort) -> Iterator[Row]:
    """A thousand tasks that come back as soon as they are answered, and a function that takes time."""
    each, seconds, rounds = effort.of(20, 2), effort.of(4, 1) / 4, effort.of(5, 1)

    async def accelerator(items: list[Any]) -> list[Any]:
        await asyncio.sleep((2 + 0.05 * len(items)) / 1000)
        return items

    def throughput(acall: Acall) -> float:
        return 1000 * each / closed_tasks(acall, 1000, each, run_precisely).wall

    samples = interleave(
        effort,
        rounds,
        ours=lambda: throughput(_dynamically(accelerator)),
        capacity=lambda: run_precisely(_capacity(accelerator, seconds)),
    )
    yield share(
        "loop capacity, 1,000 tasks", "throughput of 1,000 tasks, async function", samples, "capacity"
    )
    plain = device(2, 0.05)
    samples = interleave(
        effort,
        rounds,
        ours=lambda: throughput(_dynamically(plain)),
        capacity=lambda: capacity(plain, _BATCH, seconds),
    )
    yield share(
        "loop capacity, plain function", "throughput of 1,000 tasks, plain function", samples, "capacity"
    )


async def _capacity(function: Callable[[list[Any]], Coroutine[Any, Any, list[Any]]], seconds: float) -> float:
    """Return how many items a second the function does in full batches, back to back."""
    batch = list(range(_BATCH))
    started, batches = perf_counter(), 0
    while perf_counter() - started < seconds:
        assert await function(batch) == batch
        batches += 1
    return batches * _BATCH / (perf_counter() - started)


def idle(effort: Effort) -> Iterator[Row]:
    """The CPU of a process whose loop has nothing to do, above that of one that only sleeps."""
    samples = beside_bare(effort, "idle loop", "sleep", effort.of(10, 1))
    yield above("idle loop", "CPU of a loop, 10 s idle, after use", samples, "sleep", "s")


def _beside(  # noqa: PLR0913, PLR0917  a row and how to measure it
    effort: Effort, name: str, what: str, job: str, size: int, compare: Any, rival: str
) -> Iterator[Row]:
    yield from beside_rival(effort, effort.of(5, 1), name, what, job, size, compare, rival, __name__)


# -- inside that process ------------------------------------------------------------------------------

One = Callable[[Any], Awaitable[Any]]
Many = Callable[[list[Any]], Awaitable[list[Any]]]


@asynccontextmanager
async def _contender(name: str) -> AsyncIterator[tuple[One, Many]]:
    """Provide how a contender answers one item, and many: with an `async def`, waiting for nobody."""
    if name == "aiodataloader":
        from aiodataloader import DataLoader  # noqa: PLC0415

        loader = DataLoader(_echo, max_batch_size=_BATCH, cache=False)  # nobody else has one
        yield loader.load, loader.load_many
    elif name == "async-batcher":
        from async_batcher.batcher import AsyncBatcher  # noqa: PLC0415

        class Echo(AsyncBatcher):  # type: ignore[misc]
            async def process_batch(self, batch: list[Any]) -> list[Any]:
                return batch

        batcher = Echo(max_batch_size=_BATCH, max_queue_time=0)
        yield batcher.process, lambda items: asyncio.gather(*map(batcher.process, items))
        await batcher.stop(force=True)
    else:
        fn = _dynamically(_echo)
        yield fn, fn


async def trips(name: str, count: int) -> float:
    """Return the median idle round trip in seconds."""
    async with _contender(name) as (acall, _):
        seconds = []
        for item in range(count):
            started = perf_counter()
            assert await acall(item) == item
            seconds.append(perf_counter() - started)
    return median(seconds)


async def cpu(name: str, each: int) -> float:
    """Return the CPU seconds of a single, from 64 tasks."""
    async with _contender(name) as (acall, _):

        async def caller() -> None:
            for item in range(each):
                assert await acall(item) == item

        with Stopwatch() as spent:
            await asyncio.gather(*(caller() for _ in range(64)))
    return spent.cpu / (64 * each)


async def one_list(name: str, size: int) -> float:
    """Return the items a second of one list."""
    async with _contender(name) as (_, many):
        items = list(range(size))
        assert await many([1]) == [1]
        with Stopwatch() as spent:
            answers = await many(items)
    assert answers == items
    return size / spent.wall


def main() -> None:
    """Print the figure that the arguments ask for."""
    job, contender, size = sys.argv[1:]
    jobs = {"await": trips, "singles": cpu, "list": one_list}
    with time_limit(LIMIT_S):
        print(asyncio.run(jobs[job](contender, int(size))), flush=True)
    os._exit(0)  # a task of 0.1.5 never ends


if __name__ == "__main__":
    main()
