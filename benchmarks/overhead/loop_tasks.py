"""The CPU of single calls from 64 tasks, event-loop flavour, beside a bare turn and other batchers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kit.bare import LoopTurn
from benchmarks.kit.bare import echo as plain_echo
from benchmarks.kit.callers import Acall, closed_tasks
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically_on_loops
from benchmarks.kit.rivals import LOOP_RIVALS
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.overhead.loop_rivals import BATCH, beside, contender, echo

_TASKS = 64
_EACH = (500, 2)


def _cpu(acall: Acall, effort: Effort) -> float:
    each = effort.of(*_EACH)
    return closed_tasks(acall, _TASKS, each).cpu / (_TASKS * each)


@contextmanager
def _ours() -> Iterator[Acall]:
    yield dynamically_on_loops(echo, batch_size=BATCH).acall


@contextmanager
def _turn() -> Iterator[Acall]:
    yield LoopTurn(plain_echo).acall


def cpu_per_single(name: str, each: int) -> float:
    """Return the CPU seconds of a single."""
    return asyncio.run(_cpu_per_single(name, each))


async def _cpu_per_single(name: str, each: int) -> float:
    async with contender(name) as (acall, _):

        async def caller() -> None:
            for item in range(each):
                assert await acall(item) == item

        with Stopwatch() as spent:
            await asyncio.gather(*(caller() for _ in range(_TASKS)))
    return spent.cpu / (_TASKS * each)


TURNS = Turns({"ours": using(_ours, _cpu), "turn": using(_turn, _cpu)}, rounds=15)

_NAME = "loop CPU, 64 tasks"
_WHAT = "CPU per single, 64 tasks, async function"
_GOALS = {"aiodataloader": Goal(1.0)}
ROWS = (
    Row(_NAME, _WHAT, TURNS, "turn", goal=Goal(1.5)),
    *(
        Row(f"{_NAME} / {rival}", _WHAT, beside(rival, cpu_per_single, _EACH), rival, goal=_GOALS.get(rival))
        for rival in LOOP_RIVALS
    ),
)
