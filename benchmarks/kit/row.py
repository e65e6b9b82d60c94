"""A row: a name, what is measured, beside what, how the two are compared, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import sub, truediv
from statistics import median
from typing import Any

from benchmarks.kit.measure import Effort
from benchmarks.kit.turns import Samples, Turns

__all__ = [
    "BYTES",
    "COUNT",
    "SECONDS",
    "SHARE",
    "TIMES",
    "Comparison",
    "Goal",
    "Result",
    "Row",
    "compared",
    "middle_half",
]


@dataclass(frozen=True)
class Goal:
    """A bound on a row's figure."""

    bound: float
    at_least: bool = False

    def met(self, figure: float) -> bool:
        """Say whether `figure` is within the bound."""
        return figure >= self.bound if self.at_least else figure <= self.bound

    def strain(self, figure: float) -> float:
        """Return how much of the bound `figure` uses up: at most 1 is met, 2 is missed by a factor of two."""
        used, allowed = (self.bound, figure) if self.at_least else (figure, self.bound)
        return used / allowed if allowed else float("inf")


@dataclass(frozen=True)
class Comparison:
    """How ours is compared with what is beside it, in each round. Units are "s", "/s", "B", "x" or none."""

    unit: str
    figure_unit: str
    by: Callable[[float, float], float]


TIMES = Comparison("s", "x", truediv)  # by how many times the other ours takes
SHARE = Comparison("/s", "x", truediv)  # of two throughputs
BYTES = Comparison("B", "B", sub)  # by how much ours is above the other
SECONDS = Comparison("s", "s", sub)
COUNT = Comparison("x", "x", truediv)  # of two ratios


@dataclass(frozen=True)
class Result:
    """What was found for one row. `ours` and `other` are medians in `unit`."""

    name: str
    what: str
    ours: float | None = None
    beside: str = ""
    other: float | None = None
    unit: str = "s"
    figure: float | None = None  # what the goal bounds; not `ours / other`, but the median over the rounds
    figures: tuple[float, ...] = ()  # of each round, sorted
    figure_unit: str = "x"
    samples: tuple[float, ...] = ()  # of ours, by round
    goal: Goal | None = None
    note: str = ""  # why there is no figure
    failed: bool = False

    @property
    def middle_half(self) -> tuple[float, float] | None:
        """The quartiles of the rounds: how far the figure can be trusted."""
        return middle_half(self.figures)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none. Nothing measured is a goal missed."""
        if self.goal is None:
            return None
        return self.figure is not None and self.goal.met(self.figure)

    def as_dict(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {**asdict(self), "met": self.met}

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Result:
        """Return what `as_dict` was made of."""
        goal = None if found["goal"] is None else Goal(**found["goal"])
        lists = {key: tuple(found[key]) for key in ("figures", "samples")}
        return Result(**{**{key: found[key] for key in found if key != "met"}, **lists, "goal": goal})


@dataclass(frozen=True)
class Row:
    """One line of a table, and how to measure it. `ours` and `beside` are names of samples of `turns`."""

    name: str
    what: str
    turns: Turns
    beside: str
    by: Comparison = TIMES
    goal: Goal | None = None
    ours: str = "ours"

    def run(self, effort: Effort) -> Result:
        """Have the contenders take turns; return what came of it."""
        return self.of(self.turns.samples(effort))

    def of(self, samples: Samples) -> Result:
        """Return what `samples` say."""
        return compared(self.name, self.what, samples, self.beside, self.by, self.goal, self.ours)

    def without(self, note: str, *, failed: bool) -> Result:
        """Return that there is no figure, and why."""
        return Result(self.name, self.what, goal=self.goal, note=note, failed=failed)


def compared(  # noqa: PLR0913, PLR0917  all that makes a result
    name: str,
    what: str,
    samples: Samples,
    beside: str,
    by: Comparison = TIMES,
    goal: Goal | None = None,
    ours: str = "ours",
) -> Result:
    """Compare two samples, round by round."""
    mine, other = samples[ours], samples[beside]
    figures = sorted(map(by.by, mine, other))
    return Result(
        name=name,
        what=what,
        ours=median(mine),
        beside=beside,
        other=median(other),
        unit=by.unit,
        figure=median(figures),
        figures=tuple(figures),
        figure_unit=by.figure_unit,
        samples=tuple(mine),
        goal=goal,
    )


def middle_half(sorted_figures: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the quartiles."""
    if not sorted_figures:
        return None
    cut = len(sorted_figures) // 4
    return sorted_figures[cut], sorted_figures[-1 - cut]
