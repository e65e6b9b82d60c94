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
from benchmarks.simulated.runs import GREEDY, OPTIMUM, OURS, RULES, Found, at_random, closed_loops, poisson

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
}
_GROUPS = ("poisson", "closed", "random")
_CURVES = ("load", "callers")  # the two panels of the picture
_RATIOS = (1, 4, 16, 64, 256)
_LOADS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)
_THINKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0)
_CALLERS = {32: (1, 2, 4, 8, 16, 20, 32, 33, 40, 48, 64, 100), 8: (4, 8, 10, 16)}
_HELD_OUT = range(700_000, 700_400)  # seeds that no constant was chosen with
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
            Result(name, name, ours=figure, unit="x", figure=figure, goal=_GOALS[name])
            for name, figure in figures(self._found).items()
        ]

    def tables(self) -> list[Table]:
        """Return all rules side by side, and where ours is worst."""
        title = "mean over the optimum, median / worst; in brackets p99 over that of never waiting; by "
        by_column = (
            self._by_column("poisson", f"Independent arrivals: {title}load", OPTIMUM),
            self._by_column("closed", f"Closed loops: {title}mean time to come back", OPTIMUM),
            self._by_column("random", "Random scenarios: over never waiting", GREEDY),
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
        for group, beside in (("poisson", OPTIMUM), ("closed", OPTIMUM), ("random", GREEDY)):
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
    if "poisson" in groups:
        grid = list(product(_RATIOS, (8, 32, 128), _LOADS))
        for point in grid[:: 25 if quick else 1]:
            yield "poisson", poisson, point, 1000 if quick else 40_000
    if "closed" in groups:
        loops = [
            (ratio, batch_size, callers, think)
            for batch_size, numbers in _CALLERS.items()
            for ratio, callers, think in product(_RATIOS[1:], numbers, _THINKS)
        ]
        for loop in loops[:: 100 if quick else 1]:
            yield "closed", closed_loops, loop, 1000 if quick else 8000
    if "random" in groups:
        for seed in _HELD_OUT[:: 80 if quick else 1]:
            yield "random", at_random, seed, 1000 if quick else 8000
    if "curves" in groups:
        calls = 200 if quick else 60_000
        yield from (("load", poisson, (_RATIO, _BATCH, load), calls) for load in _CURVE_LOADS)
        for callers in _CURVE_CALLERS:
            yield "callers", closed_loops, (_RATIO, _BATCH, callers, 0.05), calls


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
    return figures


def _cell(here: list[Found], name: str, beside: str) -> str:
    means = [one.mean[name] / one.mean[beside] for one in here]
    p99s = [one.p99[name] / one.p99[GREEDY] for one in here]
    return (
        f"{_short(median(means))} / {_short(max(means))} [dim]({_short(median(p99s))} / {_short(max(p99s))})"
    )


def _number(column: str) -> tuple[float, str]:
    return (float(column.rstrip("% a")) if column[0].isdigit() else 0.0), column


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
