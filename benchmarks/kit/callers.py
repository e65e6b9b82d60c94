"""The callers: how the calls come, to any batcher. Each function checks its answers, outside the timing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import accumulate, chain, count, takewhile
from random import Random
from statistics import fmean, median
from threading import Barrier, Thread
from time import perf_counter
from typing import Any, TypeVar

from benchmarks.kit.bare import Gate
from benchmarks.kit.measure import LIMIT_S, Stopwatch

__all__ = [
    "Acall",
    "Call",
    "around_asynchronously",
    "around_synchronously",
    "backlog",
    "closed_loop",
    "closed_tasks",
    "closed_threads",
    "mean_latency",
    "open_loop",
    "poisson",
    "round_trips",
    "run_precisely",
]

T = TypeVar("T")
Call = Callable[[Any], Any]
Acall = Callable[[Any], Coroutine[Any, Any, Any]]
Run = Callable[[Coroutine[Any, Any, Stopwatch]], Stopwatch]


def around_synchronously(call: Call, trips: int) -> float:
    """Return the median round trip of one caller, in seconds."""
    clock, seconds, answers = perf_counter, [], []
    for item in range(trips):
        started = clock()
        answer = call(item)
        seconds.append(clock() - started)
        answers.append(answer)
    assert answers == list(range(trips))
    return median(seconds)


def around_asynchronously(acall: Acall, trips: int) -> float:
    """Return the median round trip of one task, in seconds."""
    return asyncio.run(round_trips(acall, trips))


async def round_trips(acall: Acall, trips: int) -> float:
    """The same, on the loop that runs."""
    clock, seconds, answers = perf_counter, [], []
    for item in range(trips):
        started = clock()
        answer = await acall(item)
        seconds.append(clock() - started)
        answers.append(answer)
    assert answers == list(range(trips))
    return median(seconds)


def closed_tasks(acall: Acall, tasks: int, each: int, run: Run = asyncio.run) -> Stopwatch:
    """Time `tasks` tasks that each make `each` calls, one after another, on a loop of the kind of `run`."""
    return run(closed_loop(acall, tasks, each))


async def closed_loop(acall: Acall, tasks: int, each: int) -> Stopwatch:
    """The same, on the loop that runs."""

    async def caller(first: int) -> list[Any]:
        return [await acall(item) for item in range(first, first + each)]

    callers = [asyncio.create_task(caller(first)) for first in range(0, tasks * each, each)]
    with Stopwatch() as spent:
        answers = await asyncio.gather(*callers)
    assert [*chain.from_iterable(answers)] == list(range(tasks * each))
    return spent


def closed_threads(call: Call, threads: int, each: int) -> Stopwatch:
    """Time `threads` threads that each make `each` calls, one after another."""
    answers: list[list[Any]] = [[] for _ in range(threads)]
    start = Barrier(threads + 1)

    def caller(number: int) -> None:
        items = range(number * each, (number + 1) * each)
        start.wait(LIMIT_S)
        answers[number] = [call(item) for item in items]

    callers = [Thread(target=caller, args=[number], daemon=True) for number in range(threads)]
    for thread in callers:
        thread.start()
    with Stopwatch() as spent:
        start.wait(LIMIT_S)
        for thread in callers:
            thread.join(LIMIT_S)
    assert [*chain.from_iterable(answers)] == list(range(threads * each))
    return spent


def backlog(acall: Acall, gate: Gate, waiting: int) -> Stopwatch:
    """Time `waiting` calls that all queue behind the gate and are then let through."""

    async def main() -> Stopwatch:
        first = asyncio.create_task(acall(-1))
        await gate.hold()
        callers = [asyncio.create_task(acall(item)) for item in range(waiting)]
        with Stopwatch() as spent:
            await asyncio.sleep(0)  # every task runs up to its wait
            gate.open()
            answers = await asyncio.gather(first, *callers)
        assert answers == list(range(-1, waiting))
        return spent

    return asyncio.run(main())


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of random arrivals, `rate` of them a second."""
    random = Random(seed)  # noqa: S311  no secret
    arrivals = accumulate(random.expovariate(rate) for _ in count())
    return list(takewhile(lambda arrival: arrival < seconds, arrivals))


async def open_loop(acall: Acall, arrivals: Iterable[float]) -> list[float]:
    """Call at `arrivals`, whether earlier calls are answered or not; return each one's latency in seconds.

    It counts from the intended arrival: a batcher that keeps this loop busy cannot hide it.
    """
    clock = asyncio.get_running_loop().time
    begin = clock()

    async def single(item: int, arrival: float) -> float:
        assert await acall(item) == item
        return clock() - begin - arrival

    calls: list[Awaitable[float]] = []
    for item, arrival in enumerate(arrivals):
        early = begin + arrival - clock()
        if early > 0:
            await asyncio.sleep(early)
        calls.append(asyncio.create_task(single(item, arrival)))
    return await asyncio.gather(*calls)


async def mean_latency(acall: Acall, arrivals: Iterable[float]) -> float:
    """Return the mean latency of an open loop in seconds."""
    return fmean(await open_loop(acall, arrivals))


def run_precisely(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop with timers as fine as the system's: epoll's round up to a millisecond."""

    def make_loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main)
