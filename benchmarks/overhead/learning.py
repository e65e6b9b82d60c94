"""The time that learning when to wait takes of the worker for each batch, beside what is allowed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from typing import Any

from batched._policy.adaptive import AdaptiveWindow
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.simulated.processes import Stream, Traffic, closed, exponential, poisson_times
from benchmarks.simulated.rules import Shipped
from benchmarks.simulated.simulation import Service, simulate

_SERVICE = Service(0.004, 0.0001)
_RATE = _SERVICE.capacity(32)
_CALLERS: dict[str, Callable[[], Traffic]] = {
    "a lone caller": lambda: Traffic(*closed(1, exponential(1e-4), "")),
    "2 callers": lambda: Traffic(*closed(2, exponential(1e-4), "")),
    "20 callers": lambda: Traffic(*closed(20, exponential(1e-4), "")),
    "random arrivals at 10 %": lambda: Traffic(Stream(poisson_times(0.1 * _RATE, ""))),
    "random arrivals at 60 %": lambda: Traffic(Stream(poisson_times(0.6 * _RATE, ""))),
    "1,000 callers": lambda: Traffic(*closed(1000, exponential(1e-4), "")),
}
_ALLOWED_BATCH_S, _ALLOWED_CALL_S = 7e-6, 0.4e-6

Told = list[tuple[str, tuple[Any, ...], dict[str, Any], list[float]]]
"""The methods that are called, each with its arguments and the times of the calls that came before."""


@cache
def _told(words: str, calls: int) -> tuple[Told, int, int]:
    """Return all that the window is told in a simulation, and of how many batches and calls."""
    told: Told = []

    class Telling(AdaptiveWindow):
        def start_at(self, *args: Any) -> float:
            told.append(("start_at", args, {}, self.came[:]))
            return super().start_at(*args)

        def done(self, *args: Any) -> None:
            told.append(("done", args, {}, self.came[:]))
            super().done(*args)

        def ran_suspended(self, *args: Any, **named: Any) -> None:
            told.append(("ran_suspended", args, named, self.came[:]))
            super().ran_suspended(*args, **named)

    outcome = simulate(Shipped(32, Telling(0.005, 32)), _CALLERS[words](), _SERVICE, calls=calls)
    return told, outcome.batches, len(outcome.latencies)


def _replaying(words: str) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        told, batches, _ = _told(words, effort.of(20_000, 200))
        yield lambda: _replayed(told) / batches

    return contender


def _allowed(words: str) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        _, batches, calls = _told(words, effort.of(20_000, 200))
        yield lambda: _ALLOWED_BATCH_S + _ALLOWED_CALL_S * calls / batches

    return contender


def _replayed(told: Told) -> float:
    """Return the seconds that it takes to hear all of it."""
    window = AdaptiveWindow(0.005, 32)
    calls = [(getattr(window, name), args, named, came[:]) for name, args, named, came in told]
    gc.collect()
    started = perf_counter()
    for function, args, named, came in calls:
        window.came = came
        function(*args, **named)
    return perf_counter() - started


ROWS = tuple(
    Row(
        f"learning, {words}",
        f"learning per batch, {words}",
        Turns({"ours": _replaying(words), "allowed": _allowed(words)}, rounds=15, quick_rounds=2),
        "allowed",
        goal=Goal(1.0),
    )
    for words in _CALLERS
)
