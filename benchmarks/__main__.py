"""`python -m benchmarks`: measure, and print one table."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.measure import LIMIT_S, Effort, Row, environment, time_limit
from benchmarks.workloads import WORKLOADS

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
    "B": ((1.0, "B"),),
    "x": ((1.0, "x"),),
}


def main() -> int:
    """Run what the arguments ask for; return 1 if something could not be measured."""
    arguments = _arguments()
    if arguments.plot is not None:
        import matplotlib as mpl  # noqa: PLC0415  fail now, not after ten minutes

        mpl.use("Agg")
    console = Console(width=None if sys.stdout.isatty() else 140)
    about = environment()
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows = []
    for row in _measured(arguments.only, console, quick=arguments.quick):
        rows.append(row)
        if arguments.json is not None:  # after every row: a run that is cut short leaves what it had
            found = {"environment": about, "quick": arguments.quick, "rows": [row.as_dict() for row in rows]}
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    console.print(_table(rows))
    if arguments.plot is not None:
        _plot(rows, arguments.plot)
    faulthandler.dump_traceback_later(60, exit=True)  # a worker that hangs must not keep the process
    return int(any(row.failed for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=sys.modules[__name__].__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--only", type=_names, metavar="NAME[,NAME]", default=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the rows that have a goal")
    parser.epilog = f"Names: {', '.join(WORKLOADS)}."
    return parser.parse_args()


def _names(given: str) -> list[str]:
    names = given.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return names


def _measured(names: list[str], console: Console, *, quick: bool) -> Iterator[Row]:
    """Yield the rows of the workloads; one that fails is a row that says so."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # No thread that refreshes the display: it would take the interpreter from what is measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("")
        for number, name in enumerate(names, 1):
            describe = partial(_describe, progress, task, f"{number}/{len(names)} {name}")
            try:
                with time_limit(LIMIT_S):
                    yield from WORKLOADS[name](Effort(quick=quick, announce=describe))
            except Exception as error:  # noqa: BLE001  the other rows are worth having
                console.print_exception()
                yield Row(f"workload {name}", name, note=repr(error), failed=True)


def _describe(progress: Progress, task: TaskID, workload: str, what: str) -> None:
    progress.update(task, description=f"{workload}: {what}", refresh=True)


def _table(rows: list[Row]) -> Table:
    table = Table(highlight=False)
    for title in ("what", "ours", "against", "ratio", "(middle half)", "goal", ""):
        table.add_column(title, justify="left" if title in {"what", "against", ""} else "right")
    for row in rows:
        table.add_row(row.what, *_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    if row.figure is None or row.ours is None:
        return ("", escape(row.note), "", "", "", "[red]failed" if row.failed else "")
    against = row.against if row.other is None else f"{_shown(row.other, row.unit)} {row.against}"
    spread = ""
    if row.middle_half is not None:
        low, high = row.middle_half
        spread = f"({_shown(low, row.figure_unit)} to {_shown(high, row.figure_unit)})"
    verdict = {True: "[green]ok", False: "[red]missed", None: ""}[row.met]
    return (
        _shown(row.ours, row.unit),
        against,
        _shown(row.figure, row.figure_unit),
        spread,
        _goal(row),
        verdict,
    )


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{'>=' if row.goal.at_least else '<='} {_shown(row.goal.bound, row.figure_unit)}"


def _shown(value: float, unit: str) -> str:
    """Write `value` to three digits, in the unit that keeps it short."""
    scale, name = next((entry for entry in _SCALES[unit] if abs(value) >= entry[0]), _SCALES[unit][-1])
    digits = f"{float(f'{value / scale:.3g}'):,g}"
    return f"{digits}{'' if name == 'x' else ' '}{name}"


def _plot(rows: list[Row], file: Path) -> None:
    """Draw how much of its goal each row uses up: beyond the line is missed."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for those who want a plot

    judged = [(row, row.goal.strain(row.figure)) for row in rows if row.goal and row.figure is not None]
    judged.reverse()  # the first row on top
    figure, axes = plt.subplots(figsize=(9, 1 + 0.3 * len(judged)), layout="constrained")
    colours = ["tab:green" if row.met else "tab:red" for row, _ in judged]
    axes.barh([row.name for row, _ in judged], [strain for _, strain in judged], color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("share of the goal used up (1 = just met)")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
