"""Two files of results side by side: what each row was and is, and whether it has become better or worse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.kit.results import Found
from benchmarks.kit.results import shown as shown_about
from benchmarks.kit.row import Result
from benchmarks.kit.table import shown, table_of

FEW = 3  # rounds: of fewer, a middle half says nothing

__all__ = ["FEW", "compare_files", "lines", "verdict"]


def compare_files(old: Path, new: Path, console: Console) -> int:
    """Print two files of results side by side."""
    before, after = Found.read(old), Found.read(new)
    for name, found in (("old", before), ("new", after)):
        console.print(f"{name}: {shown_about(found.about)}", highlight=False)
    for what in ("cpu", "cores", "os"):
        if before.about["machine"][what] != after.about["machine"][what]:
            console.print(f"[yellow]Not the same {what}: look at the ratios to what is beside each row only.")
    if before.about["quick"] or after.about["quick"]:
        console.print("[yellow]A quick run: its figures mean nothing.")
    shown_lines = table_of(("row", "old", "new", "new / old", "beside: old", "beside: new", ""))
    for line in lines(before, after):
        shown_lines.add_row(*line)
    console.print(shown_lines)
    return 0


def lines(before: Found, after: Found) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of the two; the last one is a verdict, or why there is none."""
    old, new = before.all_rows(), after.all_rows()
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield name, *[""] * 5, f"only in {'new' if was is None else 'old'}"
        elif was.ours is None or now.ours is None:
            yield name, *[""] * 5, (was if was.ours is None else now).note
        else:
            yield name, *_cells(was, now)


def _cells(was: Result, now: Result) -> tuple[str, ...]:
    assert was.ours is not None
    assert now.ours is not None
    change = f"{now.ours / was.ours:.3g}x" if was.ours else ""
    figures = ["" if one.figure is None else shown(one.figure, one.figure_unit) for one in (was, now)]
    return shown(was.ours, was.unit), shown(now.ours, now.unit), change, *figures, _verdict(was, now)


def _verdict(was: Result, now: Result) -> str:
    """Judge by the ratios to what is beside the row; where middle halves overlap there is no verdict."""
    if was.middle_half is None or now.middle_half is None or min(len(was.figures), len(now.figures)) < FEW:
        return ""
    (was_low, was_high), (now_low, now_high) = was.middle_half, now.middle_half
    if now_low <= was_high and was_low <= now_high:
        return ""
    return verdict(now.unit, grown=now_low > was_high)


def verdict(unit: str, *, grown: bool) -> str:
    """Return whether a row has become better or worse: more is better of rates only."""
    return "[green]better" if grown == (unit == "/s") else "[red]worse"
