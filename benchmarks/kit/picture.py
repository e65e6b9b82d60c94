"""Pictures of files of results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kit.catalogue import choose
from benchmarks.kit.results import Found
from benchmarks.kit.row import Result

__all__ = ["draw"]


def draw(source: Path, file: Path, benchmark: str | None) -> int:
    """Draw the details of a benchmark, by default the only one that has any; else the goals of all rows."""
    import matplotlib as mpl  # noqa: PLC0415  only for a picture

    mpl.use("Agg")
    found = Found.read(source)
    if benchmark is None and len(found.details) == 1:
        (benchmark,) = found.details
    if benchmark is None:
        _draw_goals(list(found.all_rows().values()), file)
    else:
        (one,) = choose(benchmark.split())
        one.load().PROGRAM.draw(found.details[str(one)], file)
    return 0


def _draw_goals(rows: list[Result], file: Path) -> None:
    """Draw how much of its goal each row uses up: beyond the line is missed."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for a picture

    judged = [(row, row.goal.strain(row.figure)) for row in rows if row.goal and row.figure is not None]
    judged.reverse()  # the first row on top
    figure, axes = plt.subplots(figsize=(9, 1 + 0.3 * len(judged)), layout="constrained")
    colours = ["tab:green" if row.met else "tab:red" for row, _ in judged]
    axes.barh([row.name for row, _ in judged], [strain for _, strain in judged], color=colours)
    axes.axvline(1, color="black", linewidth=1)
    axes.margins(y=0.01)
    axes.set_xlabel("share of the goal used up (1 = just met)")
    figure.savefig(file, dpi=120)
