"""The CPU of single calls from 1 to 10,000 tasks in closed loops, beside the bare hand-off to a thread."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.kit.bare import LoopHandOff, echo
from benchmarks.kit.callers import closed_tasks
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using


def _cpu(tasks: int, each: int, contender: Any, effort: Effort) -> float:
    calls = effort.of(each, 2)
    return closed_tasks(contender.acall, tasks, calls).cpu / (tasks * calls)


def _row(tasks: int, each: int) -> Row:
    cpu = partial(_cpu, tasks, each)
    turns = Turns(
        {"ours": using(lambda: dynamically(echo), cpu), "bare": using(lambda: LoopHandOff(echo), cpu)},
        rounds=15,
    )
    many = f"{tasks:,} task{'s' if tasks > 1 else ''}"
    return Row(f"CPU, {many}", f"CPU per single, {many}", turns, "bare", goal=Goal(1.7))


ROWS = tuple(_row(tasks, each) for tasks, each in ((64, 500), (1, 3_000), (100, 300), (10_000, 5)))
