"""The mean latency of random arrivals, beside a greedy bare loop that gets the same arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

from benchmarks.kit.bare import LoopHandOff
from benchmarks.kit.callers import mean_latency, poisson, run_precisely
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH, LOADS, full_rate, slow

__all__ = ["ROWS", "fed"]


def fed(opened: Callable[[], AbstractContextManager[Any]], percent: int) -> Contender:
    """Return a contender that gets random arrivals, the same for all contenders and others in each round."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        rate, seconds = full_rate(quick=effort.quick) * percent / 100, effort.of(4.0, 0.05)
        seeds = count()
        with opened() as thing:
            yield lambda: run_precisely(mean_latency(thing.acall, poisson(rate, seconds, next(seeds))))

    return contender


def _row(percent: int) -> Row:
    turns = Turns(
        {
            "ours": fed(lambda: dynamically(slow(), batch_size=BATCH), percent),
            "greedy": fed(lambda: LoopHandOff(slow(), BATCH), percent),
        },
        rounds=4,
    )
    what = f"mean latency, random arrivals at {percent} %"
    return Row(f"Poisson at {percent} %", what, turns, "greedy", goal=Goal(1.05))


ROWS = tuple(map(_row, LOADS))
