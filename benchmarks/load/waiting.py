"""Whether waiting pays: all defaults beside never waiting, and beside 0.1.5 at its best timeout."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import batched
from batched._policy.adaptive import AdaptiveWindow
from benchmarks.kit.bare import capacity, device
from benchmarks.kit.callers import Acall, Call, closed_threads, mean_latency, poisson, run_precisely
from benchmarks.kit.fresh import in_own_process
from benchmarks.kit.measure import Effort, Row, Samples, interleave, share, times
from benchmarks.kit.rival import RIVAL, home
from benchmarks.simulated.processes import Stream, Traffic, closed, exponential, poisson_times
from benchmarks.simulated.rules import Shipped
from benchmarks.simulated.simulation import Service, simulate

__all__ = ["learning", "patience", "returning"]

_LOADS = (10, 30, 60, 80, 95)  # %
_TIMEOUTS_MS = (0, 1, 2, 5, 10, 20)
_slow = partial(device, 4, 0.1)
_dynamically = partial(batched.dynamically, batch_size=32)


def patience(effort: Effort) -> Iterator[Row]:
    """Random arrivals through `acall`: whom to wait for, there is nobody."""
    function = _slow()
    full = capacity(function, 32, 1)
    for percent in _LOADS:
        rate, seconds = full * percent / 100, effort.of(4, 1)
        with _dynamically(function) as fn, _dynamically(function, timeout_ms=0) as hasty:
            samples = interleave(
                effort,
                effort.of(6, 1),
                ours=_fed(fn.acall, rate, seconds),
                hasty=_fed(hasty.acall, rate, seconds),
            )
        samples["timeout_ms=0"] = samples.pop("hasty")
        what = f"mean latency with all defaults, random arrivals at {percent} %"
        yield times(f"patience at {percent} %", what, samples, "timeout_ms=0")
        yield from _beside_rival(effort, what, percent, rate)


def returning(effort: Effort) -> Iterator[Row]:
    """Threads that come straight back, fewer than two batches of them."""
    function = _slow()
    for threads in (1, 2, 20, 40):
        each = effort.of(150, 10)
        with _dynamically(function) as fn, _dynamically(function, timeout_ms=0) as hasty:
            samples = interleave(
                effort,
                effort.of(6, 1),
                ours=partial(_throughput, fn, threads, each),
                hasty=partial(_throughput, hasty, threads, each),
            )
        samples["timeout_ms=0"] = samples.pop("hasty")
        what = f"throughput with all defaults, threads: {threads}"
        yield share(f"returning, {threads} threads", what, samples, "timeout_ms=0")


def _fed(acall: Acall, rate: float, seconds: int) -> Callable[[], float]:
    seeds = count()
    return lambda: run_precisely(mean_latency(acall, poisson(rate, seconds, next(seeds))))


def _throughput(call: Call, threads: int, each: int) -> float:
    return threads * each / closed_threads(call, threads, each).wall


def _beside_rival(effort: Effort, what: str, percent: int, rate: float) -> Iterator[Row]:
    """Give the rival the timeout that is best for it at this load."""
    name = f"patience / {RIVAL} at {percent} %"
    try:
        path = home(effort)
    except (OSError, subprocess.SubprocessError):
        yield Row(name, what, note=f"batched {RIVAL}: pip cannot install it here")
        return
    arguments = (round(rate), effort.of(4, 1))
    best: dict[int, float] = {}
    for timeout_ms in _TIMEOUTS_MS:
        effort.announce(f"{RIVAL} with {timeout_ms} ms")
        best[timeout_ms] = in_own_process(
            "benchmarks.kit.rival", "latency", timeout_ms, *arguments, path=path
        )
    timeout_ms = min(best, key=lambda timeout_ms: best[timeout_ms])
    against = f"{RIVAL} at its best of {_TIMEOUTS_MS} ms: {timeout_ms} ms"
    contenders = {
        "ours": lambda: in_own_process("benchmarks.kit.rival", "latency", 5, *arguments),
        against: lambda: in_own_process("benchmarks.kit.rival", "latency", timeout_ms, *arguments, path=path),
    }
    yield times(name, what, interleave(effort, effort.of(3, 1), **contenders), against)


# -- what it costs --------------------------------------------------------------------------------------


def learning(effort: Effort) -> Iterator[Row]:
    """The time that the learned patience itself takes of the worker, by replaying what it was told."""
    service = Service(0.004, 0.0001)
    rate = service.capacity(32)
    callers: dict[str, Callable[[], Traffic]] = {
        "a lone caller": lambda: Traffic(*closed(1, exponential(1e-4), "")),
        "2 callers": lambda: Traffic(*closed(2, exponential(1e-4), "")),
        "20 callers": lambda: Traffic(*closed(20, exponential(1e-4), "")),
        "random arrivals at 10 %": lambda: Traffic(Stream(poisson_times(0.1 * rate, ""))),
        "random arrivals at 60 %": lambda: Traffic(Stream(poisson_times(0.6 * rate, ""))),
        "1,000 callers": lambda: Traffic(*closed(1000, exponential(1e-4), "")),
    }
    for words, traffic in callers.items():
        told, batches, calls = _told(traffic(), service, effort.of(20_000, 2_000))
        samples: Samples = {"ours": [], "allowed": []}
        for done in range(effort.of(15, 2)):
            effort.announce(f"{words}, round {done + 1}")
            samples["ours"].append(_replayed(told) / batches)
            samples["allowed"].append(7e-6 + 0.4e-6 * calls / batches)
        yield times(f"learning, {words}", f"learning per batch, {words}", samples, "allowed")


def _told(traffic: Traffic, service: Service, calls: int) -> tuple[list[tuple[str, Any]], int, int]:
    """Return all that the patience is told in a simulation, and of how many batches and calls."""
    told: list[tuple[str, Any]] = []

    class Told(AdaptiveWindow):
        def arrived(self, times: list[float]) -> None:
            told.append(("arrived", (times,)))
            super().arrived(times)

        def start(self, *args: Any) -> float:
            told.append(("start", args))
            return super().start(*args)

        def popped(self, *args: Any) -> None:
            told.append(("popped", args))
            super().popped(*args)

        def done(self, *args: Any) -> None:
            told.append(("done", args))
            super().done(*args)

    outcome = simulate(Shipped(32, Told(0.005, 32)), traffic, service, calls=calls)
    return told, outcome.batches, len(outcome.latencies)


def _replayed(told: list[tuple[str, Any]]) -> float:
    """Return the seconds that it takes to hear all of it."""
    patience = AdaptiveWindow(0.005, 32)
    calls = [(getattr(patience, name), args) for name, args in told]
    gc.collect()
    started = perf_counter()
    for function, args in calls:
        function(*args)
    return perf_counter() - started
