"""How results are shown: what was measured, beside what, and whether the goal is reached."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from benchmarks.kit.row import Result

__all__ = ["shown", "table", "table_of"]

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
    "B": ((1.0, "B"),),
    "x": ((1.0, "x"),),
    "": ((1.0, ""),),
}
_NEAR_ONE = 1.1
_LEFT = {"what", "beside", "row", ""}


def table_of(titles: Iterable[str], title: str | None = None) -> Table:
    """Return a table without lines: words are on the left, figures on the right."""
    lines = Table(title=title, highlight=False)
    for column in titles:
        lines.add_column(column, justify="left" if column in _LEFT else "right")
    return lines


def table(results: Iterable[Result]) -> Table:
    """Return a table with a line per result."""
    lines = table_of(("what", "ours", "beside", "ratio", "(middle half)", "goal", ""))
    for result in results:
        lines.add_row(result.what, *_cells(result))
    return lines


def _cells(result: Result) -> tuple[str, ...]:
    if result.ours is None:
        return "", escape(result.note), "", "", "", "[red]failed" if result.failed else ""
    if result.figure is None:
        return shown(result.ours, result.unit), "", "", "", "", ""
    beside = result.beside if result.other is None else f"{shown(result.other, result.unit)} {result.beside}"
    spread = ""
    if result.middle_half is not None and len(result.figures) > 1:
        low, high = result.middle_half
        spread = f"({shown(low, result.figure_unit)} to {shown(high, result.figure_unit)})"
    verdict = {True: "[green]ok", False: "[red]missed", None: ""}[result.met]
    figure = shown(result.figure, result.figure_unit)
    return shown(result.ours, result.unit), beside, figure, spread, _goal(result), verdict


def _goal(result: Result) -> str:
    if result.goal is None:
        return ""
    return f"{'>=' if result.goal.at_least else '<='} {shown(result.goal.bound, result.figure_unit)}"


def shown(value: float, unit: str) -> str:
    """Write `value` to three digits, ratios just above one to four, in the unit that keeps it short."""
    scale, name = next((entry for entry in _SCALES[unit] if abs(value) >= entry[0]), _SCALES[unit][-1])
    near_one = unit == "x" and 1 <= value < _NEAR_ONE  # where a thousandth is something
    digits = f"{float(f'{value / scale:.{4 if near_one else 3}g}'):,g}"
    return digits + (name if name == "x" else f" {name}").rstrip()
