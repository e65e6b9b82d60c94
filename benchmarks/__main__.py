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
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.kit.measure import LIMIT_S, Effort, Row, environment, time_limit
from benchmarks.kit.ours import use_defaults
from benchmarks.kit.table import table
from benchmarks.kit.workloads import WORKLOADS


def main() -> int:
    """Run what the arguments ask for; return 1 if something could not be measured."""
    arguments = _arguments()
    if arguments.plot is not None:
        import matplotlib as mpl  # noqa: PLC0415  fail now, not after ten minutes

        mpl.use("Agg")
    console = Console(width=None if sys.stdout.isatty() else 140)
    about = environment()
    if arguments.defaults:
        use_defaults()
        about["options"] = "all defaults"
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows = []
    for row in _measured(arguments.only, console, quick=arguments.quick):
        rows.append(row)
        if arguments.json is not None:  # after every row: a run that is cut short leaves what it had
            found = {"environment": about, "quick": arguments.quick, "rows": [row.as_dict() for row in rows]}
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    console.print(table(rows))
    if arguments.plot is not None:
        _plot(rows, arguments.plot)
    faulthandler.dump_traceback_later(60, exit=True)  # a worker that hangs must not keep the process
    return int(any(row.failed for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=sys.modules[__name__].__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--only", type=_names, metavar="NAME[,NAME]", default=list(WORKLOADS))
    parser.add_argument("--defaults", action="store_true", help="with all default options, not timeout_ms=0")
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


def _plot(rows: list[Row], file: Path) -> None:
    """Draw how much of its goal each row uses up: beyond the line is missed."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for those who want a plot

    judged = [(row, row.goal.strain(row.figure)) for row in rows if row.goal and row.figure is not None]
    judged.reverse()  # the first row on top
    figure, axes = plt.subplots(figsize=(9, 1 + 0.3 * len(judged)), layout="constrained")
    colours = ["tab:green" if row.met else "tab:red" for row, _ in judged]
    axes.barh([row.name for row, _ in judged], [strain for _, strain in judged], color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.margins(y=0.01)
    axes.set_xlabel("share of the goal used up (1 = just met)")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
