"""The mean latency that callers get from what ships, simulated, beside the exact optimum and other rules."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rich.table import Table

from benchmarks.kit.program import Program
from benchmarks.kit.row import Goal, Result
from benchmarks.kit.table import table_of
from benchmarks.simulated.runs import (
    BEST,
    GREEDY,
    ONE,
    OPTIMUM,
    OURS,
    RULES,
    Found,
    at_random,
    closed_loops,
    poisson,
    several_at_random,
    several_closed_loops,
    several_poisson,
    spread,
)

__all__ = ["PROGRAM", "figures"]

# All but the last are of mean latencies.
_GOALS = {
    "Poisson over the optimum, worst": Goal(1.03),
    "Poisson over the optimum, median": Goal(1.005),
    "closed loops over the optimum, worst": Goal(1.10),
    "closed loops over the optimum, median": Goal(1.01),
    "random scenarios over greedy, worst": Goal(1.07),
    "random scenarios over greedy, geometric mean": Goal(0.93),
    "random scenarios over the best fixed timeout, geometric mean": Goal(1.0),
    "closed loops over greedy, worst p99": Goal(1.25),
    "spread over 1 to 30 ms, over never waiting, worst": Goal(1.03),
    "spread over 1 to 30 ms, over never waiting, worst p99": Goal(1.5),
    "spread over 1 to 30 ms, over the best fixed timeout, worst": Goal(round(1 / 0.95, 3)),
    "2 workers over the best fixed timeout, Poisson, geometric mean": Goal(1.03),
    "2 workers over the best fixed timeout, closed, geometric mean": Goal(1.0),
    "2 workers over the best fixed timeout, random, geometric mean": Goal(1.03),
    "4 workers over the best fixed timeout, Poisson, geometric mean": Goal(1.03),
    "4 workers over the best fixed timeout, closed, geometric mean": Goal(1.0),
    "4 workers over the best fixed timeout, random, geometric mean": Goal(1.03),
    "2 workers, gain in throughput where one gains 1.4x, median": Goal(1.25, at_least=True),
    "4 workers, gain in throughput where one gains 1.4x, median": Goal(1.25, at_least=True),
}
_GROUPS = ("poisson", "closed", "random", "spread", "several")
_GAIN = 1.4
_CURVES = ("load", "callers")  # the two panels of the picture
_RATIOS = (1, 4, 16, 64, 256)
_LOADS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)
_THINKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0)
_CALLERS = {32: (1, 2, 4, 8, 16, 20, 32, 33, 40, 48, 64, 100), 8: (4, 8, 10, 16)}
_GRID = list(product(_RATIOS, (8, 32, 128), _LOADS))
_LOOPS = [
    (ratio, batch_size, callers, think)
    for batch_size, numbers in _CALLERS.items()
    for ratio, callers, think in product(_RATIOS[1:], numbers, _THINKS)
]
_WORKERS = (2, 4)
_SPREADS = tuple(product((4, 8, 12, 20), (40, 200), (8, 16, 32, 48), (10, 15, 30)))
_HELD_OUT = range(700_000, 700_400)  # seeds that no constant was chosen with
_FELT = 1.03
_JOBS: tuple[tuple[str, Callable[[Any, int], Found], Any, int, int], ...] = (
    # a group, what simulates it, where, of how many of these a smoke test takes one, and so many calls
    ("poisson", poisson, _GRID, 25, 40_000),
    ("closed", closed_loops, _LOOPS, 100, 8000),
    ("random", at_random, _HELD_OUT, 80, 8000),
    ("spread", spread, _SPREADS, 40, 6000),
    # a quarter of them, as each takes as long as twelve of one rule
    ("several", several_poisson, list(product(_WORKERS, _GRID[::4])), 20, 8000),
    ("several", several_closed_loops, list(product(_WORKERS, _LOOPS[::4])), 50, 4000),
    ("several", several_at_random, list(product(_WORKERS, _HELD_OUT[::4])), 50, 8000),
)
_RATIO, _BATCH = 40.0, 32  # of the curves: 5 ms + 0.125 ms an item
_CURVE_LOADS = (0.02, *(number / 20 for number in range(1, 20)))
_CURVE_CALLERS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64)

Job = tuple[str, Callable[[Any, int], Found], Any, int]


class Waiting(Program):
    """Three groups of scenarios, and the curves of the picture."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """Which of them."""
        parser.add_argument("--groups", default=",".join(_GROUPS), help="some of them, or curves")
        parser.add_argument("--processes", type=int, default=1)

    def measure(self) -> Iterator[None]:
        """Simulate all scenarios."""
        self._found: dict[str, list[Found]] = {}
        jobs = list(_jobs(self.options.groups.split(","), quick=self.effort.quick))
        with ProcessPoolExecutor(self.options.processes) as pool:
            running = {pool.submit(function, point, calls): group for group, function, point, calls in jobs}
            for done, future in enumerate(as_completed(running), 1):
                self._found.setdefault(running[future], []).append(future.result())
                self.effort.announce(f"{done} of {len(jobs)} scenarios")
        for some in self._found.values():
            some.sort(key=lambda one: one.name)
        yield

    def results(self) -> list[Result]:
        """Return what has a goal."""
        return [
            Result(name, name, ours=figure, unit="x", figure=figure, goal=_GOALS.get(name))
            for name, figure in figures(self._found).items()
        ]

    def tables(self) -> list[Table]:
        """Return all rules side by side, and where ours is worst."""
        title = "mean over the optimum, median / worst; in brackets p99 over that of never waiting; by "
        by_column = (
            self._by_column("poisson", f"Independent arrivals: {title}load", OPTIMUM),
            self._by_column("closed", f"Closed loops: {title}mean time to come back", OPTIMUM),
            self._by_column("random", "Random scenarios: over never waiting", GREEDY),
            self._by_column("spread", "Back after 1 to 30 ms: over the best fixed timeout", BEST),
            self._by_column("several", "Several workers: over the best fixed timeout", BEST),
        )
        return [*(table for table in by_column if table is not None), self._worst()]

    def _by_column(self, group: str, title: str, beside: str) -> Table | None:
        """Compare all rules: the median and the worst ratio of the mean, and of the p99 in brackets."""
        some = self._found.get(group)
        if not some:
            return None
        names = [name for name in RULES if name in some[0].mean]
        lines = table_of(("by", *names), title)
        for column in sorted({one.column for one in some}, key=_number):
            here = [one for one in some if one.column == column]
            lines.add_row(column, *(_cell(here, name, beside) for name in names))
        return lines

    def _worst(self) -> Table:
        """Return where ours is worst."""
        lines = table_of(("ratio", "p99", "what"), "where ours is worst")
        for group, beside in (
            ("poisson", OPTIMUM),
            ("closed", OPTIMUM),
            ("random", GREEDY),
            ("spread", BEST),
            ("several", BEST),
        ):
            some = self._found.get(group, [])
            for one in sorted(some, key=lambda one: -one.mean[OURS] / one.mean[beside])[:5]:
                ratio, p99 = one.mean[OURS] / one.mean[beside], one.p99[OURS] / one.p99[GREEDY]
                lines.add_row(f"{ratio:.3f}", f"{p99:.2f}", one.name)
        return lines

    def details(self) -> dict[str, Any]:
        """Return every scenario."""
        return {group: [asdict(one) for one in some] for group, some in self._found.items()}

    @staticmethod
    def draw(details: dict[str, Any], file: Path) -> None:
        """Draw mean latency over load, and over the number of callers that come back."""
        from matplotlib import pyplot as plt  # noqa: PLC0415  only for a picture

        figure, panels = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained", sharey=False)
        labels = ("load, of the capacity of full batches", "callers, each back 0.25 ms after its answer")
        titles = ("independent calls", "callers that come back")
        for axes, group, label, title in zip(panels, _CURVES, labels, titles, strict=True):
            if group not in details:
                raise ValueError("the curves are not in the file: simulate them with --groups curves")
            _lines(axes, sorted((Found(**one) for one in details[group]), key=lambda one: one.place))
            axes.set(xlabel=label, ylabel="mean latency, ms", ylim=(0, 40))
            axes.set_title(title, fontsize="medium")
        panels[0].legend(frameon=False)
        figure.suptitle(
            "a batch of n takes 5 ms + 0.125 ms * n; at most 32; every rule with its default timeout"
        )
        figure.savefig(file, dpi=120)


PROGRAM = Waiting


def _jobs(groups: list[str], *, quick: bool) -> Iterator[Job]:
    for group, function, points, few, calls in _JOBS:
        if group in groups:
            for point in points[:: few if quick else 1]:
                yield group, function, point, 1000 if quick else calls
    if "curves" in groups:
        calls = 200 if quick else 60_000
        yield from (("load", poisson, (_RATIO, _BATCH, load), calls) for load in _CURVE_LOADS)
        for callers in _CURVE_CALLERS:
            yield "callers", closed_loops, (_RATIO, _BATCH, callers, 0.05), calls


def _of_several(some: list[Found]) -> Iterator[tuple[str, float]]:
    """Return the figures of several workers."""
    for workers in _WORKERS:
        for kind in ("Poisson", "closed", "random"):
            here = [one for one in some if one.column == f"{workers} workers, {kind}"]
            over = [one.mean[OURS] / one.mean[BEST] for one in here]
            words = f"{workers} workers over the best fixed timeout, {kind}"
            yield f"{words}, geometric mean", geometric_mean(over)
            yield f"{words}, worst", max(over)
            yield f"{words}, share above 1.03", sum(ratio > _FELT for ratio in over) / len(over)
        loops = [one for one in some if one.column == f"{workers} workers, closed"]
        gains = [
            _gain(one, GREEDY, OURS)
            for one in loops
            if _gain(one, f"{ONE}, {GREEDY}", f"{ONE}, {OURS}") >= _GAIN
        ]
        if gains:
            words = f"{workers} workers, gain in throughput where one gains {_GAIN:g}x"
            yield f"{words}, median", median(gains)
            yield f"{words}, least", min(gains)


def _gain(one: Found, before: str, after: str) -> float:
    """Return how many times as many calls are answered in a closed loop."""
    return (one.mean[before] + one.mean["think"]) / (one.mean[after] + one.mean["think"])


def figures(found: dict[str, list[Found]]) -> dict[str, float]:
    """Return what the goals bound, of the groups that were simulated."""
    figures: dict[str, float] = {}
    for group, words in (("poisson", "Poisson"), ("closed", "closed loops")):
        if some := found.get(group):
            over = [one.mean[OURS] / one.mean[OPTIMUM] for one in some]
            figures[f"{words} over the optimum, worst"] = max(over)
            figures[f"{words} over the optimum, median"] = median(over)
    if some := found.get("closed"):
        worst = max(one.p99[OURS] / one.p99[GREEDY] for one in some)
        figures["closed loops over greedy, worst p99"] = worst
    if some := found.get("random"):
        over = [one.mean[OURS] / one.mean[GREEDY] for one in some]
        figures["random scenarios over greedy, worst"] = max(over)
        figures["random scenarios over greedy, geometric mean"] = geometric_mean(over)
        best = (min(mean for name, mean in one.mean.items() if name != OURS) for one in some)
        over = [one.mean[OURS] / least for one, least in zip(some, best, strict=True)]
        figures["random scenarios over the best fixed timeout, geometric mean"] = geometric_mean(over)
    if some := found.get("spread"):
        words = "spread over 1 to 30 ms, over"
        figures[f"{words} never waiting, worst"] = max(one.mean[OURS] / one.mean[GREEDY] for one in some)
        figures[f"{words} never waiting, worst p99"] = max(one.p99[OURS] / one.p99[GREEDY] for one in some)
        figures[f"{words} the best fixed timeout, worst"] = max(
            one.mean[OURS] / one.mean[BEST] for one in some
        )
    if some := found.get("several"):
        figures |= _of_several(some)
    return figures


def _cell(here: list[Found], name: str, beside: str) -> str:
    means = [one.mean[name] / one.mean[beside] for one in here]
    p99s = [one.p99[name] / one.p99[GREEDY] for one in here]
    return (
        f"{_short(median(means))} / {_short(max(means))} [dim]({_short(median(p99s))} / {_short(max(p99s))})"
    )


def _number(column: str) -> tuple[float, str]:
    number = column.split(maxsplit=1)[0].rstrip("%")
    return (float(number) if number[0].isdigit() else 0.0), column


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else ">100"  # noqa: PLR2004


def _lines(axes: Any, found: list[Found]) -> None:
    for name in (*RULES, OPTIMUM):
        look: dict[str, Any] = {"linewidth": 1.2}
        if name == OURS:
            look = {"linewidth": 2.5, "zorder": 3}
        elif name == OPTIMUM:
            look = {"linewidth": 1, "linestyle": "--", "color": "black", "zorder": 4}
        axes.plot([one.place for one in found], [one.mean[name] * 1000 for one in found], label=name, **look)
    axes.spines[["top", "right"]].set_visible(False)
