"""An idle round trip of one task, event-loop flavour, beside a bare turn of the loop and other batchers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.kit.bare import LoopTask, LoopTurn
from benchmarks.kit.bare import echo as plain_echo
from benchmarks.kit.callers import Acall, around_asynchronously
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically_on_loops
from benchmarks.kit.rivals import LOOP_RIVALS
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.overhead.loop_rivals import BATCH, beside, contender, echo

_TRIPS = (3_000, 50)


def _trip(acall: Acall, effort: Effort) -> float:
    return around_asynchronously(acall, effort.of(*_TRIPS))


@contextmanager
def _ours() -> Iterator[Acall]:
    yield dynamically_on_loops(echo, batch_size=BATCH).acall


@contextmanager
def _turn() -> Iterator[Acall]:
    yield LoopTurn(plain_echo).acall


@contextmanager
def _task() -> Iterator[Acall]:
    function: Any = echo  # its task awaits what the function returns
    yield LoopTask(function).acall


def round_trip(name: str, count: int) -> float:
    """Return the median idle round trip in seconds."""
    return asyncio.run(_round_trip(name, count))


async def _round_trip(name: str, count: int) -> float:
    async with contender(name) as (acall, _):
        seconds = []
        for item in range(count):
            started = perf_counter()
            assert await acall(item) == item
            seconds.append(perf_counter() - started)
    return median(seconds)


TURNS = Turns({"ours": using(_ours, _trip), "turn": using(_turn, _trip), "task": using(_task, _trip)})

_WHAT = "idle await, async function"
ROWS = (
    Row("await / call_soon", _WHAT, TURNS, "turn", goal=Goal(2.0)),
    Row("await / call_soon and a task", _WHAT, TURNS, "task"),
    *(Row(f"await / {rival}", _WHAT, beside(rival, round_trip, _TRIPS), rival) for rival in LOOP_RIVALS),
)
