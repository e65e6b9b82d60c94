"""The mean latency of the patience that ships, beside the exact optimum and the rules of others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.kit.goals import GOALS
from benchmarks.simulated import optimum, rules, scenarios
from benchmarks.simulated.scenarios import Scenario
from benchmarks.simulated.simulation import Outcome, Rule, simulate

__all__ = ["main"]

_LATE_S = 70e-6  # what a timer is late on a common Linux
_OURS = "ours"
_GREEDY = "never waits"
_OPTIMUM = "optimum"

RULES: dict[str, Callable[[int], Rule]] = {
    _OURS: rules.learned,
    _GREEDY: rules.greedy,
    "0.1.5": rules.Mixedbread,
    "Ray Serve": rules.RayServe,
    "BentoML": rules.BentoML,
    "Triton": rules.Triton,
}
_FIXED = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # timeouts, as parts of a batch's fixed cost, ...
_FIXED_S = (0.001, 0.005, 0.01)  # ... and those that people set


@dataclass(frozen=True)
class Found:
    """What one scenario gave: of every rule the mean latency and its p99 in seconds."""

    group: str
    column: str
    name: str
    mean: dict[str, float]
    p99: dict[str, float]


# -- one scenario, in whatever process -------------------------------------------------------------------


def poisson(point: tuple[float, int, float], calls: int) -> Found:
    """Every rule under independent arrivals, beside the exact optimum."""
    scenario = scenarios.poisson(*point)
    exact = optimum.poisson(scenario.service, scenario.batch_size, scenario.rate)
    mean, p99 = _measured(scenario, calls, RULES)
    # All rules met the same arrivals; what is known exactly of one corrects for their luck.
    mean[_OPTIMUM] = mean[_GREEDY] * exact.best / exact.greedy
    return Found("poisson", f"{point[2]:.0%}", scenario.name, mean, p99)


def closed_loops(point: tuple[float, int, int, float], calls: int) -> Found:
    """Every rule with callers that come back, beside the exact optimum."""
    scenario = scenarios.closed_loops(*point)
    exact = optimum.closed_loop(scenario.service, scenario.batch_size, scenario.callers, scenario.think_s)
    # A rule that never waits for long is not to be judged by how late a timer is, as the optimum is not.
    mean, p99 = _measured(scenario, calls if point[2] > 1 else calls // 8, RULES, late_s=0.0)
    mean[_OPTIMUM] = exact.best
    return Found("closed", f"{point[3]:g} a", scenario.name, mean, p99)


def at_random(seed: int, calls: int) -> Found:
    """Ours, never waiting, and ten fixed timeouts."""
    scenario = scenarios.random_scenario(seed)
    fixed = [part * scenario.service.fixed_s for part in _FIXED]
    contenders: dict[str, Callable[[int], Rule]] = {_OURS: rules.learned, _GREEDY: rules.greedy}
    for timeout_s in (*fixed, *_FIXED_S):
        contenders[f"{timeout_s * 1000:.3g} ms"] = _window(timeout_s)
    mean, p99 = _measured(scenario, calls, contenders, seed=seed)
    return Found("random", scenario.name.split()[1], scenario.name, mean, p99)


def _window(timeout_s: float) -> Callable[[int], Rule]:
    return lambda batch_size: rules.window(batch_size, timeout_s)


def _measured(
    scenario: Scenario,
    calls: int,
    contenders: dict[str, Callable[[int], Rule]],
    *,
    late_s: float = _LATE_S,
    seed: int = 0,
) -> tuple[dict[str, float], dict[str, float]]:
    outcomes: dict[str, Outcome] = {}
    skip = max(300, 10 * scenario.callers)  # what is learned while it counts is a matter for tests
    for name, contender in contenders.items():
        outcomes[name] = simulate(
            contender(scenario.batch_size),
            scenario.traffic(),
            scenario.service,
            calls=calls,
            skip=skip,
            late_s=late_s,
            seed=seed,
        )
    return (
        {name: outcome.mean for name, outcome in outcomes.items()},
        {name: outcome.p99 for name, outcome in outcomes.items()},
    )


# -- all of them --------------------------------------------------------------------------------------------

_RATIOS = (1, 4, 16, 64, 256)
_LOADS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)
_THINKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0)
_CALLERS = {32: (1, 2, 4, 8, 16, 20, 32, 33, 40, 48, 64, 100), 8: (4, 8, 10, 16)}
_HELD_OUT = range(700_000, 700_400)  # seeds that no constant was chosen with

Job = tuple[Callable[[Any, int], Found], Any, int]


def _jobs(only: list[str], *, quick: bool) -> Iterator[Job]:
    if "poisson" in only:
        grid = list(product(_RATIOS, (8, 32, 128), _LOADS))
        for point in grid[:: 25 if quick else 1]:
            yield poisson, point, 1000 if quick else 40_000
    if "closed" in only:
        loops = [
            (ratio, batch_size, callers, think)
            for batch_size, numbers in _CALLERS.items()
            for ratio, callers, think in product(_RATIOS[1:], numbers, _THINKS)
        ]
        for loop in loops[:: 100 if quick else 1]:
            yield closed_loops, loop, 1000 if quick else 8000
    if "random" in only:
        for seed in _HELD_OUT[:: 80 if quick else 1]:
            yield at_random, seed, 1000 if quick else 8000


def _run(jobs: list[Job], processes: int, console: Console) -> list[Found]:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found = []
    with (
        Progress(*columns, console=console, transient=True) as progress,
        ProcessPoolExecutor(processes) as pool,
    ):
        task = progress.add_task("", total=len(jobs))
        for future in as_completed([pool.submit(function, point, calls) for function, point, calls in jobs]):
            found.append(future.result())
            progress.advance(task)
    return sorted(found, key=lambda one: one.name)


# -- what came of it -------------------------------------------------------------------------------------


def figures(found: Iterable[Found]) -> dict[str, float]:
    """Return what the goals bound."""
    figures: dict[str, float] = {}
    groups = {
        group: [one for one in found if one.group == group] for group in ("poisson", "closed", "random")
    }
    for group, words in (("poisson", "Poisson"), ("closed", "closed loops")):
        if some := groups[group]:
            over = [one.mean[_OURS] / one.mean[_OPTIMUM] for one in some]
            figures[f"{words} over the optimum, worst"] = max(over)
            figures[f"{words} over the optimum, median"] = median(over)
    if some := groups["closed"]:
        figures["closed loops over greedy, worst p99"] = max(
            one.p99[_OURS] / one.p99[_GREEDY] for one in some
        )
    if some := groups["random"]:
        over = [one.mean[_OURS] / one.mean[_GREEDY] for one in some]
        figures["random scenarios over greedy, worst"] = max(over)
        figures["random scenarios over greedy, geometric mean"] = geometric_mean(over)
        best = [min(mean for name, mean in one.mean.items() if name != _OURS) for one in some]
        over = [one.mean[_OURS] / least for one, least in zip(some, best, strict=True)]
        figures["random scenarios over the best fixed timeout, geometric mean"] = geometric_mean(over)
    return figures


def _verdicts(found: list[Found]) -> Table:
    table = Table(highlight=False)
    for title in ("figure", "", "goal", ""):
        table.add_column(title, justify="left" if title == "figure" else "right")
    for name, figure in figures(found).items():
        goal = GOALS[name]
        verdict = "[green]ok" if goal.met(figure) else "[red]missed"
        table.add_row(name, f"{figure:.4f}", f"<= {goal.bound:g}", verdict)
    return table


def _by_column(found: list[Found], group: str, title: str, against: str) -> Table | None:
    """Compare all rules: the median and the worst ratio of the mean, and of the p99 in brackets."""
    some = [one for one in found if one.group == group]
    if not some:
        return None
    names = [name for name in RULES if name in some[0].mean]
    table = Table(title=title, highlight=False)
    for heading in ("", *names):
        table.add_column(heading, justify="right")
    columns = dict.fromkeys(one.column for one in some)
    for column in sorted(
        columns, key=lambda words: float(words.rstrip("% a")) if words[0].isdigit() else 0.0
    ):
        row = [column]
        for name in names:
            here = [one for one in some if one.column == column]
            means = [one.mean[name] / one.mean[against] for one in here]
            p99s = [one.p99[name] / one.p99[_GREEDY] for one in here]
            row.append(
                f"{_short(median(means))} / {_short(max(means))} "
                f"[dim]({_short(median(p99s))} / {_short(max(p99s))})"
            )
        table.add_row(*row)
    return table


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else ">100"  # noqa: PLR2004


def _worst(found: list[Found], console: Console) -> None:
    """Say where ours is worst."""
    for group, against in (("poisson", _OPTIMUM), ("closed", _OPTIMUM), ("random", _GREEDY)):
        some = [one for one in found if one.group == group]
        some.sort(key=lambda one: one.mean[_OURS] / one.mean[against], reverse=True)
        for one in some[:5]:
            p99 = one.p99[_OURS] / one.p99[_GREEDY]
            console.print(
                f"  {one.mean[_OURS] / one.mean[against]:.3f} (p99 {p99:.2f})  {one.name}", highlight=False
            )


# -- the picture -------------------------------------------------------------------------------------------

_RATIO, _BATCH = 40.0, 32  # 5 ms + 0.125 ms an item


def _plot(file: Path, *, quick: bool) -> None:
    """Draw mean latency over load, and over the number of callers that come back."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for those who want a plot

    calls = 2000 if quick else 60_000
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained", sharey=False)
    loads = [0.02, *(number / 20 for number in range(1, 20))]
    _lines(left, loads, [poisson((_RATIO, _BATCH, load), calls) for load in loads])
    left.set(xlabel="load, of the capacity of full batches", ylabel="mean latency, ms", ylim=(0, 40))
    left.set_title("independent calls", fontsize="medium")
    callers = [1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64]
    _lines(right, callers, [closed_loops((_RATIO, _BATCH, number, 0.05), calls) for number in callers])
    right.set(xlabel="callers, each back 0.25 ms after its answer", ylabel="mean latency, ms", ylim=(0, 40))
    right.set_title("callers that come back", fontsize="medium")
    left.legend(frameon=False)
    figure.suptitle("a batch of n takes 5 ms + 0.125 ms * n; at most 32; every rule with its default timeout")
    figure.savefig(file, dpi=120)


def _lines(axes: Any, places: list[Any], found: list[Found]) -> None:
    for name in (*RULES, _OPTIMUM):
        look: dict[str, Any] = {"linewidth": 1.2}
        if name == _OURS:
            look = {"linewidth": 2.5, "zorder": 3}
        elif name == _OPTIMUM:
            look = {"linewidth": 1, "linestyle": "--", "color": "black", "zorder": 4}
        axes.plot(places, [one.mean[name] * 1000 for one in found], label=name, **look)
    axes.spines[["top", "right"]].set_visible(False)


# -- the command --------------------------------------------------------------------------------------------


def main() -> int:
    """Simulate what the arguments ask for; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated.simulate", description=__doc__)
    parser.add_argument("--only", default="poisson,closed,random", help="some of poisson,closed,random")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what every scenario gave to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw mean latencies")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    jobs = list(_jobs(arguments.only.split(","), quick=arguments.quick))
    found = _run(jobs, arguments.processes, console)
    title = "mean latency over the optimum, median / worst; in brackets p99 over that of never waiting; by "
    for table in (
        _by_column(found, "poisson", f"Independent arrivals: {title}load", _OPTIMUM),
        _by_column(found, "closed", f"Closed loops: {title}mean time to come back", _OPTIMUM),
        _by_column(found, "random", "Random scenarios: over never waiting", _GREEDY),
    ):
        if table is not None:
            console.print(table)
    _worst(found, console)
    console.print(_verdicts(found))
    if arguments.json is not None:
        rows = [{"group": one.group, "name": one.name, "mean_s": one.mean, "p99_s": one.p99} for one in found]
        told = {"quick": arguments.quick, "figures": figures(found), "scenarios": rows}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.plot is not None:
        _plot(arguments.plot, quick=arguments.quick)
    return int(not all(GOALS[name].met(figure) for name, figure in figures(found).items()))


if __name__ == "__main__":
    sys.exit(main())
