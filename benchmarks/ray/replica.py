"""The process in which both batchers are measured: one replica of a local Ray."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean, quantiles
from typing import Any

from ray import serve

import batched
from batched import aio
from benchmarks.kit.bare import Function, capacity, device, echo
from benchmarks.kit.callers import Acall, closed_loop, open_loop, poisson, round_trips
from benchmarks.kit.measure import Stopwatch

__all__ = [
    "BATCH",
    "LIST",
    "RIVAL",
    "WINDOWS_MS",
    "WINDOW_MS",
    "Figures",
    "Replica",
    "alone",
    "at_random",
    "beside_list",
    "half_leave",
    "listed",
    "one_raises",
    "together",
]

BATCH = 32
WINDOW_MS = 10.0  # the default of `@serve.batch`
WINDOWS_MS = (0, 1, 2, 5, 10, 20)
RIVAL = "serve.batch"
LIST = 10_000
CULPRIT = -1

Figures = dict[str, float]


class Contender:
    """A batcher around a function that notes the sizes of its batches."""

    def __init__(self, function: Function, decorate: Callable[[Function], Acall], *, lists: bool) -> None:
        self.sizes: list[int] = []
        self._function = function
        self._lists = lists
        self.acall = decorate(self._noting)

    def _noting(self, items: list[Any]) -> list[Any]:
        self.sizes.append(len(items))
        if CULPRIT in items:
            raise ValueError(CULPRIT)
        return self._function(items)

    async def all(self, items: list[Any]) -> list[Any]:
        """Answer a list: in one call, where a call may have more than one item."""
        if self._lists:
            answers: list[Any] = await self.acall(items)
            return answers
        return await asyncio.gather(*map(self.acall, items))


def contenders(
    function: Function, window_ms: float, *, blocking: bool, **options: Any
) -> dict[str, Contender]:
    """Return each batcher around `function`: in its own thread, or as the `async def` that the others need.

    A function that is `blocking` is handed to a thread by that `async def`, or the loop would stand still.
    The `options` are ours, the window is theirs.
    """
    executor = ThreadPoolExecutor(1)

    def asynchronous(noting: Function) -> Callable[[list[Any]], Awaitable[list[Any]]]:
        async def run(items: list[Any]) -> list[Any]:
            if not blocking:
                return noting(items)
            return await asyncio.get_running_loop().run_in_executor(executor, noting, items)

        return run

    def in_thread(noting: Function) -> Any:
        return batched.dynamically(batch_size=BATCH, **options)(noting).acall

    def on_loop(noting: Function) -> Any:
        return aio.dynamically(batch_size=BATCH, **options)(asynchronous(noting))

    def rival(noting: Function) -> Any:
        return serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=window_ms / 1000)(asynchronous(noting))

    return {
        "ours": Contender(function, in_thread, lists=True),
        "aio": Contender(function, on_loop, lists=True),
        RIVAL: Contender(function, rival, lists=False),
    }


# -- what is done with each, in the replica ---------------------------------------------------------------


async def alone(contender: Contender, trips: int) -> Figures:
    """One caller, and no other call."""
    with Stopwatch() as spent:
        seconds = await round_trips(contender.acall, trips)
    return {"median": seconds, "cpu": spent.cpu / trips}


async def at_random(contender: Contender, rate: float, seconds: float, seed: int) -> Figures:
    """Singles that come at random, `rate` of them a second."""
    with Stopwatch() as spent:
        latencies = await open_loop(contender.acall, poisson(rate, seconds, seed))
    p99 = quantiles(latencies, n=100, method="inclusive")[98]
    return {"mean": fmean(latencies), "p99": p99, "cpu": spent.cpu / len(latencies)}


async def together(contender: Contender, tasks: int, each: int) -> Figures:
    """Many callers that come back as soon as they are answered."""
    spent = await closed_loop(contender.acall, tasks, each)
    return {"rate": tasks * each / spent.wall, "cpu": spent.cpu / (tasks * each)}


async def listed(contender: Contender, size: int) -> Figures:
    """One list, and no other call."""
    items = list(range(size))
    with Stopwatch() as spent:
        assert await contender.all(items) == items
    return {"seconds": spent.wall, "cpu": spent.cpu / size}


async def beside_list(contender: Contender, size: int) -> Figures:
    """One item, asked for while a list is at work."""
    items = list(range(size))
    answer = asyncio.create_task(contender.all(items))
    await asyncio.sleep(0.05)
    with Stopwatch() as spent:
        assert await contender.acall(0) == 0
    assert not answer.done()
    assert await answer == items
    return {"seconds": spent.wall}


async def one_raises(contender: Contender, callers: int) -> Figures:
    """One of some callers has an item that makes the function raise: how many of the others fail with it."""
    items = [*range(callers - 1), CULPRIT]
    answers = await asyncio.gather(*map(contender.acall, items), return_exceptions=True)
    assert isinstance(answers.pop(), ValueError)
    return {"failed": float(sum(answer != item for answer, item in zip(answers, items[:-1], strict=True)))}


async def half_leave(contender: Contender, callers: int) -> Figures:
    """Every second caller leaves while a batch runs: how many batches the others take."""
    waiting = [asyncio.create_task(contender.acall(item)) for item in range(BATCH + callers)]
    await asyncio.sleep(0.002)  # a full batch of them runs now, for some milliseconds
    for task in waiting[BATCH::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return {"batches": float(len(contender.sizes) - 1)}


class Replica:
    """The process in which all of it is measured."""

    def __init__(self) -> None:
        model = device(4, 0.1)  # here: it has this thread wake on time
        self.capacity = capacity(model, BATCH, 1)
        same: Any = {"timeout_ms": WINDOW_MS, "isolate_errors": True}
        self.contenders = {
            "echo": contenders(echo, WINDOW_MS, blocking=False, **same),
            "echo at once": contenders(echo, 0, blocking=False, **{**same, "timeout_ms": 0}),
            "model": contenders(model, WINDOW_MS, blocking=True, **same),
            **{
                f"model, {window_ms} ms": contenders(model, window_ms, blocking=True)
                for window_ms in WINDOWS_MS
            },
        }

    async def full(self) -> float:
        """Return how many items a second the model does in full batches."""
        return self.capacity

    async def measure(
        self, function: str, name: str, workload: Callable[..., Awaitable[Figures]], *how: Any
    ) -> Figures:
        """Do `workload` with one of the contenders, and return what it took and the mean size of batches."""
        contender = self.contenders[function][name]
        contender.sizes.clear()
        gc.collect()
        figures = await workload(contender, *how)
        return {**figures, "batch": fmean(contender.sizes)}
