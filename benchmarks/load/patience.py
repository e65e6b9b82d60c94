"""The mean latency of random arrivals with all defaults, beside `timeout_ms=0` and 0.1.5 at its best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import batched
from benchmarks.kit.callers import mean_latency, poisson, run_precisely
from benchmarks.kit.measure import Effort
from benchmarks.kit.own_process import Alone, in_own_process
from benchmarks.kit.rivals import RIVAL, home
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH, LOADS, full_rate, slow
from benchmarks.load.poisson import fed

_TIMEOUTS_MS = (0, 1, 2, 5, 10, 20)
_SECONDS = (4.0, 0.1)
_BEST = f"{RIVAL} at its best of {_TIMEOUTS_MS} ms"


def latency(timeout_ms: float, rate: float, seconds: float) -> float:
    """Return the mean latency of random arrivals, after a second of them."""
    fn = batched.dynamically(slow(), batch_size=BATCH, timeout_ms=timeout_ms)
    run_precisely(mean_latency(fn.acall, poisson(rate, min(1.0, seconds), 1000)))
    return run_precisely(mean_latency(fn.acall, poisson(rate, seconds, 0)))


def _ours(percent: int) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        with Alone(latency, (5.0, _rate(percent, effort), _SECONDS))(effort) as measure:
            yield measure

    return contender


def _rival(percent: int) -> Contender:
    """Return the rival with the timeout that is best for it at this load."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        path = home(effort, RIVAL)
        best: dict[int, float] = {}
        given = (_rate(percent, effort), effort.of(*_SECONDS))
        for timeout_ms in _TIMEOUTS_MS:
            effort.announce(f"{RIVAL} with {timeout_ms} ms")
            best[timeout_ms] = in_own_process(latency, timeout_ms, *given, path=path)
        yield partial(in_own_process, latency, min(best, key=best.__getitem__), *given, path=path)

    return contender


def _rate(percent: int, effort: Effort) -> float:
    return full_rate(quick=effort.quick) * percent / 100


def _rows(percent: int) -> Iterator[Row]:
    what = f"mean latency with all defaults, random arrivals at {percent} %"
    turns = Turns(
        {
            "ours": fed(lambda: batched.dynamically(slow(), batch_size=BATCH), percent),
            "timeout_ms=0": fed(lambda: batched.dynamically(slow(), batch_size=BATCH, timeout_ms=0), percent),
        },
        rounds=6,
    )
    yield Row(f"patience at {percent} %", what, turns, "timeout_ms=0", goal=Goal(1.05))
    turns = Turns({"ours": _ours(percent), _BEST: _rival(percent)}, rounds=3)
    yield Row(f"patience / {RIVAL} at {percent} %", what, turns, _BEST, goal=Goal(1.0))


ROWS = tuple(row for percent in LOADS for row in _rows(percent))
