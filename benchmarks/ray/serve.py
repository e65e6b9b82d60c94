"""`python -m benchmarks.ray.serve`: `batched` beside `@serve.batch`, in one replica of a local Ray.

The same function with the same options, in one process and on one event loop, in turns. The calls are made
inside the replica, so that what Ray's router and HTTP cost is in none of the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from operator import truediv
from statistics import fmean, median, quantiles
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray asks of those who have no GPU

import ray
from ray import serve
from rich.console import Console
from rich.table import Table

import batched
from batched import aio
from benchmarks.kit.bare import Function, capacity, device, echo
from benchmarks.kit.callers import Acall, closed_loop, open_loop, poisson, round_trips
from benchmarks.kit.measure import LIMIT_S, Effort, Samples, Stopwatch, environment, interleave

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
    """One caller, nobody else there."""
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
    """One list, nobody else there."""
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


# -- what is asked for, from outside ----------------------------------------------------------------------


class Bench:
    """A replica, and the rounds in which its contenders take turns."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._handle = serve.run(serve.deployment(Replica).bind(), name="bench", route_prefix=None)
        self.capacity: float = self._handle.full.remote().result(timeout_s=LIMIT_S)

    def compare(
        self, rounds: int, function: str, workload: Callable[..., Awaitable[Figures]], *how: Any
    ) -> dict[str, Samples]:
        """Return the samples of each figure. Of `how`, what is an iterator gives another value each round."""
        found: dict[str, Samples] = {}
        values: dict[int, list[Any]] = {}  # the same for all contenders of a round

        def measure(name: str) -> float:
            done = len(found.get("batch", {}).get(name, []))
            given = values.setdefault(done, [next(arg) if isinstance(arg, Iterator) else arg for arg in how])
            figures = self._handle.measure.remote(function, name, workload, *given).result(timeout_s=LIMIT_S)
            for figure, value in figures.items():
                found.setdefault(figure, {}).setdefault(name, []).append(value)
            return 0.0

        interleave(
            self._effort,
            rounds,
            **{name: partial(measure, name) for name in ("ours", "aio", RIVAL)},
        )
        return found

    def best_window(self, rate: float, seconds: float) -> int:
        """Return the window in ms with which the rival is best at random arrivals."""
        means: dict[int, float] = {}
        for window_ms in WINDOWS_MS:
            self._effort.announce(f"{RIVAL} with {window_ms} ms")
            found = self._handle.measure.remote(
                f"model, {window_ms} ms", RIVAL, at_random, rate, seconds, 1000
            ).result(timeout_s=LIMIT_S)
            means[window_ms] = found["mean"]
        return min(means, key=means.__getitem__)


def patience(bench: Bench, effort: Effort) -> Iterator[tuple[str, str, Samples]]:
    """As `measured`: our defaults beside the best window of the rival."""
    for percent in (10, 30, 60, 80, 95):
        rate, seconds = bench.capacity * percent / 100, effort.of(4, 1)
        window_ms = bench.best_window(rate, seconds)
        found = bench.compare(effort.of(4, 1), f"model, {window_ms} ms", at_random, rate, seconds, count())
        yield f"defaults beside its best window ({window_ms} ms) at {percent} %: mean", "s", found["mean"]
        yield "  p99", "s", found["p99"]


def measured(bench: Bench, effort: Effort) -> Iterator[tuple[str, str, Samples]]:
    """Yield what was measured, its unit, and the samples of each contender."""
    yield from patience(bench, effort)
    rounds = effort.of(5, 1)
    found = bench.compare(rounds, "echo at once", alone, effort.of(1000, 5))
    yield "one caller, no window, function that does nothing: median", "s", found["median"]
    yield "  CPU per call", "s", found["cpu"]
    found = bench.compare(rounds, "echo", alone, effort.of(100, 5))
    yield "one caller, function that does nothing: median", "s", found["median"]
    found = bench.compare(rounds, "model", alone, effort.of(100, 5))
    yield "one caller, model of 4 ms + 0.1 ms an item: median", "s", found["median"]
    for percent in (30, 60, 90):
        rate = bench.capacity * percent / 100
        found = bench.compare(effort.of(4, 1), "model", at_random, rate, effort.of(3, 1), count())
        yield f"random arrivals at {percent} % of capacity: mean", "s", found["mean"]
        yield "  p99", "s", found["p99"]
        yield "  CPU per call", "s", found["cpu"]
        yield "  mean batch", "", found["batch"]
    found = bench.compare(rounds, "model", together, 1000, effort.of(10, 2))
    yield "1,000 callers that come straight back: calls", "/s", found["rate"]
    yield "  CPU per call", "s", found["cpu"]
    yield "  mean batch", "", found["batch"]
    found = bench.compare(rounds, "echo", listed, LIST)
    yield "a list of 10,000, function that does nothing", "s", found["seconds"]
    found = bench.compare(effort.of(3, 1), "model", listed, LIST)
    yield "a list of 10,000, the model", "s", found["seconds"]
    yield "  mean batch", "", found["batch"]
    found = bench.compare(effort.of(3, 1), "model", beside_list, LIST)
    yield "one item beside a list of 10,000", "s", found["seconds"]
    found = bench.compare(1, "model", one_raises, BATCH)
    yield "31 callers beside one whose item raises: failed", "", found["failed"]
    found = bench.compare(1, "model", half_leave, 4 * BATCH)
    yield "128 wait, 64 of them leave: batches for the rest", "", found["batches"]


def table(lines: list[tuple[str, str, Samples]]) -> Table:
    """Return the lines side by side: medians, and the median of the ratios within each round."""
    made = Table(highlight=False)
    made.add_column("what")
    for title in ("batched", RIVAL, "ratio", "(middle half)", "batched.aio", "ratio"):
        made.add_column(title, justify="right")
    for what, unit, samples in lines:
        (low, ratio, high), (_, aio, _) = (
            quartiles(samples[name], samples[RIVAL]) for name in ("ours", "aio")
        )
        ours, theirs, on_loop = (shown(median(samples[name]), unit) for name in ("ours", RIVAL, "aio"))
        made.add_row(
            what, ours, theirs, f"{ratio:.3g}x", f"({low:.3g} to {high:.3g})", on_loop, f"{aio:.3g}x"
        )
    return made


def quartiles(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return the median of the ratios of neighbours, between the bounds of their middle half."""
    ratios = sorted(map(truediv, ours, theirs))
    cut = len(ratios) // 4
    return ratios[cut], median(ratios), ratios[-1 - cut]


def shown(value: float, unit: str) -> str:
    """Write a number with its unit: seconds as milli- or microseconds."""
    if unit != "s":
        return f"{value:,.4g}{unit}"
    return f"{value * 1e3:,.2f} ms" if value >= 1e-3 else f"{value * 1e6:,.1f} µs"  # noqa: PLR2004


def main() -> int:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ray.serve", description=sys.modules[__name__].__doc__
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    effort = Effort(quick=parser.parse_args().quick)
    console = Console(width=None if sys.stdout.isatty() else 150)
    about = {**environment(), "ray": ray.__version__}
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    try:
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=100 * 2**20,
        )
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        bench = Bench(effort)
        console.print(f"Batches of {BATCH}, window {WINDOW_MS:g} ms, capacity {bench.capacity:,.0f} items/s.")
        console.print(table(list(measured(bench, effort))))
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
