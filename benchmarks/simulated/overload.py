"""Calls on time at 0.9 to 3 times the capacity, simulated, beside the most that any rule can answer.

Calls come for the time of 300 full batches. The most in hindsight also has what waits in the end: with
deadlines of ten full batches 309 batches. In a flood our queue is one batch, so that latency is short then
and after, and it answers 301 of them.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

from rich.table import Table

from benchmarks.kit.program import Program
from benchmarks.kit.row import Goal, Result
from benchmarks.kit.table import table_of
from benchmarks.simulated.overload_runs import DEADLINES, LOADS, Judged, draw, judge

__all__ = ["PROGRAM", "figures"]

_GOODPUT = Goal(0.95, at_least=True)  # of the most that any rule can answer on time
_LATE = Goal(0.01)  # of the items that ran
_NEEDLESS = Goal(0.001)  # of the calls
_SEEDS = range(8)  # of each deadline and load, which makes 200
_BATCHES = (300, 15)  # the time that counts, in full batches


class Overload(Program):
    """Random functions for each deadline and load."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """How many processes."""
        parser.add_argument("--processes", type=int, default=1)

    def measure(self) -> Iterator[None]:
        """Simulate all scenarios."""
        self._found: list[Judged] = []
        seeds = _SEEDS[: self.effort.of(len(_SEEDS), 1)]
        scenarios = [draw(seed, each, load) for each in DEADLINES for load in LOADS for seed in seeds]
        batches = self.effort.of(*_BATCHES)
        with ProcessPoolExecutor(self.options.processes) as pool:
            running = [pool.submit(judge, scenario, batches) for scenario in scenarios]
            for done, future in enumerate(as_completed(running), 1):
                self._found.append(future.result())
                self.effort.announce(f"{done} of {len(running)} scenarios")
        self._found.sort(key=lambda one: (list(DEADLINES).index(one.deadlines), one.load, one.name))
        yield

    def results(self) -> list[Result]:
        """Return what has a goal."""
        return [
            Result(name, name, ours=figure, unit="", figure=figure, figure_unit="", goal=goal)
            for name, figure, goal in figures(self._found)
        ]

    def tables(self) -> list[Table]:
        """Return each deadline and load, and where ours is worst."""
        return [
            self._by_cell("Share of the most on time, of all scenarios (of the worst)", _goodput_cell),
            self._by_cell("Items that ran and were late, of those that ran", _late_cell),
            self._by_cell("Dropped or refused, of all calls (needlessly, of all calls)", _dropped_cell),
            self._by_cell("The same share where the batcher is told no deadlines", _without_cell),
            self._worst(),
        ]

    def _by_cell(self, title: str, cell: Any) -> Table:
        lines = table_of(("deadline", *(f"load {load:g}" for load in LOADS)), title)
        for name in DEADLINES:
            lines.add_row(name, *(cell(_some(self._found, name, load)) for load in LOADS))
        return lines

    def _worst(self) -> Table:
        lines = table_of(("share", "late", "what"), "where ours is worst")
        for one in sorted(self._found, key=lambda one: one.on_time / one.bound)[:10]:
            lines.add_row(f"{one.on_time / one.bound:.3f}", f"{one.late}", one.name)
        return lines

    def details(self) -> dict[str, Any]:
        """Return each scenario."""
        return {"overload": [asdict(one) for one in self._found]}


PROGRAM = Overload


def figures(found: list[Judged]) -> Iterator[tuple[str, float, Goal]]:
    """Yield what the goals bound: of each deadline and load, and of all."""
    for name in DEADLINES:
        for load in LOADS:
            exact = [one for one in _some(found, name, load) if one.is_exact]
            where = f"deadline {name}, load {load:g}"
            if exact:
                yield f"overload: goodput, {where}", _goodput(exact), _GOODPUT
    for words, some in (
        ("costs without noise", [one for one in found if one.is_exact]),
        ("costs with noise", [one for one in found if not one.is_exact]),
    ):
        if some:
            yield f"overload: goodput, {words}", _goodput(some), _GOODPUT
            yield f"overload: late of what ran, {words}", _late(some), _LATE
            below = [one for one in some if one.load < 1]
            yield f"overload: dropped needlessly below capacity, {words}", _needless(below), _NEEDLESS
            yield f"overload: fewer on time than without drops, {words}", _most_lost(below), _NEEDLESS


def _some(found: list[Judged], deadlines: str, load: float) -> list[Judged]:
    return [one for one in found if (one.deadlines, one.load) == (deadlines, load)]


def _goodput(some: list[Judged]) -> float:
    return sum(one.on_time for one in some) / sum(one.bound for one in some)


def _late(some: list[Judged]) -> float:
    return sum(one.late for one in some) / max(1, sum(one.late + one.on_time for one in some))


def _needless(some: list[Judged]) -> float:
    return sum(one.needless for one in some) / sum(one.offered for one in some)


def _most_lost(some: list[Judged]) -> float:
    """Return how many calls fewer are on time than where none is dropped, for the worst deadline."""
    return max(
        sum(one.on_time_without - one.on_time for one in each) / sum(one.offered for one in each)
        for name in DEADLINES
        if (each := [one for one in some if one.deadlines == name])
    )


def _goodput_cell(some: list[Judged]) -> str:
    return f"{_goodput(some):.3f} ({min(one.on_time / one.bound for one in some):.3f})"


def _late_cell(some: list[Judged]) -> str:
    return f"{_late(some):.2%}"


def _dropped_cell(some: list[Judged]) -> str:
    dropped = sum(one.dropped + one.refused for one in some) / sum(one.offered for one in some)
    return f"{dropped:.2%} ({_needless(some):.2%})"


def _without_cell(some: list[Judged]) -> str:
    return f"{sum(one.on_time_without for one in some) / sum(one.bound for one in some):.3f}"
