"""How rows are shown: what was measured, beside what, and whether the goal is reached."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from benchmarks.kit.measure import Row

__all__ = ["shown", "table"]

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
    "B": ((1.0, "B"),),
    "x": ((1.0, "x"),),
    "": ((1.0, ""),),
}


def table(rows: list[Row]) -> Table:
    """Return a table with a line per row."""
    lines = Table(highlight=False)
    for title in ("what", "ours", "against", "ratio", "(middle half)", "goal", ""):
        lines.add_column(title, justify="left" if title in {"what", "against", ""} else "right")
    for row in rows:
        lines.add_row(row.what, *_cells(row))
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    if row.figure is None or row.ours is None:
        return ("", escape(row.note), "", "", "", "[red]failed" if row.failed else "")
    against = row.against if row.other is None else f"{shown(row.other, row.unit)} {row.against}"
    spread = ""
    if row.middle_half is not None:
        low, high = row.middle_half
        spread = f"({shown(low, row.figure_unit)} to {shown(high, row.figure_unit)})"
    verdict = {True: "[green]ok", False: "[red]missed", None: ""}[row.met]
    return (
        shown(row.ours, row.unit),
        against,
        shown(row.figure, row.figure_unit),
        spread,
        _goal(row),
        verdict,
    )


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{'>=' if row.goal.at_least else '<='} {shown(row.goal.bound, row.figure_unit)}"


def shown(value: float, unit: str) -> str:
    """Write `value` to three digits, in the unit that keeps it short."""
    scale, name = next((entry for entry in _SCALES[unit] if abs(value) >= entry[0]), _SCALES[unit][-1])
    digits = f"{float(f'{value / scale:.3g}'):,g}"
    return digits + (name if name == "x" else f" {name}").rstrip()
