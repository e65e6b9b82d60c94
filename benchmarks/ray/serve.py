"""Latency and CPU of calls in one replica of a local Ray, in both flavours, beside Ray's own `@serve.batch`.

The same function with the same options, in one process and on one event loop, in turns. The calls are made
inside the replica, so that what Ray's router and HTTP cost is in none of the figures.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray asks where there is no GPU

import ray
from ray import serve

from benchmarks.kit.measure import LIMIT_S, Effort
from benchmarks.kit.program import Program
from benchmarks.kit.row import Comparison, Result, compared
from benchmarks.kit.turns import Samples, interleave
from benchmarks.ray.replica import (
    BATCH,
    LIST,
    RIVAL,
    WINDOW_MS,
    WINDOWS_MS,
    Figures,
    Replica,
    alone,
    at_random,
    beside_list,
    half_leave,
    listed,
    one_raises,
    together,
)

__all__ = ["PROGRAM"]


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
            return 0.0  # all figures are in `found`

        interleave(self._effort, rounds, {name: partial(measure, name) for name in ("ours", "aio", RIVAL)})
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
        words = f"defaults beside its best window at {percent} %"
        yield f"{words}, mean ({RIVAL} with {window_ms} ms)", "s", found["mean"]
        yield f"{words}, p99", "s", found["p99"]


def measured(bench: Bench, effort: Effort) -> Iterator[tuple[str, str, Samples]]:
    """Yield what was measured, its unit, and the samples of each contender."""
    yield from patience(bench, effort)
    rounds = effort.of(5, 1)
    found = bench.compare(rounds, "echo at once", alone, effort.of(1000, 5))
    yield "one caller, no window, function that does nothing: median", "s", found["median"]
    yield "one caller, no window, function that does nothing: CPU per call", "s", found["cpu"]
    found = bench.compare(rounds, "echo", alone, effort.of(100, 5))
    yield "one caller, function that does nothing: median", "s", found["median"]
    found = bench.compare(rounds, "model", alone, effort.of(100, 5))
    yield "one caller, model of 4 ms + 0.1 ms an item: median", "s", found["median"]
    for percent in (30, 60, 90):
        rate = bench.capacity * percent / 100
        found = bench.compare(effort.of(4, 1), "model", at_random, rate, effort.of(3, 1), count())
        words = f"random arrivals at {percent} % of capacity"
        yield f"{words}: mean", "s", found["mean"]
        yield f"{words}: p99", "s", found["p99"]
        yield f"{words}: CPU per call", "s", found["cpu"]
        yield f"{words}: mean batch", "", found["batch"]
    found = bench.compare(rounds, "model", together, 1000, effort.of(10, 2))
    words = "1,000 callers that come straight back"
    yield f"{words}: calls", "/s", found["rate"]
    yield f"{words}: CPU per call", "s", found["cpu"]
    yield f"{words}: mean batch", "", found["batch"]
    found = bench.compare(rounds, "echo", listed, LIST)
    yield "a list of 10,000, function that does nothing", "s", found["seconds"]
    found = bench.compare(effort.of(3, 1), "model", listed, LIST)
    yield "a list of 10,000, the model", "s", found["seconds"]
    yield "a list of 10,000, the model: mean batch", "", found["batch"]
    found = bench.compare(effort.of(3, 1), "model", beside_list, LIST)
    yield "one item beside a list of 10,000", "s", found["seconds"]
    found = bench.compare(1, "model", one_raises, BATCH)
    yield "31 callers beside one whose item raises: failed", "", found["failed"]
    found = bench.compare(1, "model", half_leave, 4 * BATCH)
    yield "128 wait, 64 of them leave: batches for the rest", "", found["batches"]


class Serve(Program):
    """One replica, and everything that is measured in it."""

    def measure(self) -> Iterator[None]:
        """Start Ray, and measure line by line."""
        self._lines: list[tuple[str, str, Samples]] = []
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
            bench = Bench(self.effort)
            self.console.print(
                f"Ray {ray.__version__}, batches of {BATCH}, window {WINDOW_MS:g} ms, "
                f"capacity {bench.capacity:,.0f} items/s."
            )
            for line in measured(bench, self.effort):
                self._lines.append(line)
                yield
        finally:
            serve.shutdown()
            ray.shutdown()

    def results(self) -> list[Result]:
        """Return each line with both flavours of ours."""
        return [result for line in self._lines for result in _results(*line)]


PROGRAM = Serve


def _results(what: str, unit: str, samples: Samples) -> Iterator[Result]:
    by = Comparison(unit, "x", _ratio)
    name = what.partition(" (")[0]  # without the window that was found the best in this run
    for ours, flavour in (("ours", ""), ("aio", ", batched.aio")):
        yield compared(f"ray: {name}{flavour}", f"{what}{flavour}", samples, RIVAL, by, ours=ours)


def _ratio(ours: float, other: float) -> float:
    if other:
        return ours / other
    return float("inf") if ours else 1.0  # callers that failed: none with either
