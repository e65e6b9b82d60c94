"""What was measured over HTTP, as tables, as rows with goals, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.http.load import Cell
from benchmarks.http.servers import SERVERS
from benchmarks.http.trouble import Trouble
from benchmarks.kit.row import Goal, Result

__all__ = ["TITLES", "cells_table", "goal_results", "picture", "trouble_results", "trouble_table"]

TITLES = {"4ms": "4 ms + 0.1 ms·n", "20ms": "20 ms + 0.1 ms·n", "minilm": "MiniLM, one thread"}
_GOALS = {
    **{
        f"{model} / better floor, {number}": Goal(0.95, at_least=True)
        for model in ("4ms", "20ms")
        for number in (1, 8, 32, 128)
    },
    "minilm / plain, 1": Goal(0.97, at_least=True),
    "minilm / plain, 32": Goal(1.6, at_least=True),
    "minilm / plain, 128": Goal(1.6, at_least=True),
    "minilm / best peer, 32": Goal(1.6, at_least=True),
    "minilm / best peer, 128": Goal(1.6, at_least=True),
    "minilm p99 / best peer, 32": Goal(0.6),
    "minilm p99 / best peer, 128": Goal(0.6),
    "4ms ours-2 / ours, 128": Goal(2.0, at_least=True),
    "4ms ours-2 / mosec, 128": Goal(1.05, at_least=True),
    "4ms asgi / mosec, 32": Goal(0.95, at_least=True),
    "4ms asgi / mosec, 128": Goal(1.15, at_least=True),
    "4ms asgi-2 / mosec, 32": Goal(0.95, at_least=True),
    "4ms asgi-2 / mosec, 128": Goal(1.15, at_least=True),
    "errors": Goal(0.0),
    "strangers failed": Goal(0.0),
    "executed for none": Goal(0.0),
    "dropped at SIGTERM": Goal(0.0),
}
_PLAIN_AT = (1, 32, 128)  # connections that have goals with the real model
_PAIRS = (  # what several web processes gain, what a framework costs, and which web server
    ("ours-2", "ours"),
    ("ours-3", "ours"),
    ("ours-2", "mosec"),
    ("granian-2", "ours-2"),
    ("asgi", "mosec"),
    ("asgi-2", "mosec"),
    ("asgi-granian-2", "asgi-2"),
)

Figure = Callable[[Cell], float]


def _rate(cell: Cell) -> float:
    return cell.rate


def _p99(cell: Cell) -> float:
    return cell.p99_s


class _Cells:
    """The cells of one model at one number of connections: by server, one per round."""

    def __init__(self, cells: Iterable[Cell], model: str, connections: int) -> None:
        self._by_server: dict[str, list[Cell]] = {}
        for cell in cells:
            if (cell.model, cell.connections) == (model, connections):
                self._by_server.setdefault(cell.server, []).append(cell)

    def middle(self, server: str, figure: Figure) -> float | None:
        """Return the median over the rounds."""
        cells = self._by_server.get(server)
        return median(map(figure, cells)) if cells else None

    def with_role(self, *roles: str) -> list[str]:
        """Return the servers that have one of these roles and were measured."""
        return [server for server in self._by_server if SERVERS[server].role in roles]

    def ratios(
        self, figure: Figure, mine: str, others: list[str], best: Callable[[Iterable[float]], float]
    ) -> list[float]:
        """Return by round what one is of the best of the others."""
        rounds = zip(*(self._by_server[server] for server in (mine, *others)), strict=False)
        return sorted(figure(one) / best(map(figure, rest)) for one, *rest in rounds)


def cells_table(cells: list[Cell], model: str) -> Table:
    """Return what each server did with a model: medians over the rounds."""
    connections = sorted({cell.connections for cell in cells if cell.model == model})
    lines = Table(title=f"{TITLES[model]}: requests/s (x without batching) · p50 / p99 ms · batch · CPU ms")
    lines.add_column("server")
    for number in connections:
        lines.add_column(f"{number} connections", justify="right")
    columns = [_Cells(cells, model, number) for number in connections]
    for kind in SERVERS.values():
        texts = [_cell_text(column, kind.name) for column in columns]
        if any(texts):
            lines.add_row(kind.title, *texts)
    return lines


def _cell_text(column: _Cells, server: str) -> str:
    rate = column.middle(server, _rate)
    if rate is None:
        return ""
    plain = column.middle("plain", _rate)
    ratio = f" ({rate / plain:.2f}x)" if plain else ""
    p50, p99, batch, cpu, errors = (
        column.middle(server, figure) or 0.0
        for figure in (
            lambda cell: cell.p50_s * 1000,
            lambda cell: cell.p99_s * 1000,
            lambda cell: cell.batch,
            lambda cell: cell.cpu_s * 1000,
            lambda cell: float(cell.errors),
        )
    )
    failed = f" · {errors:.0f} ERRORS" if errors else ""
    return f"{rate:,.0f}{ratio} · {p50:,.1f} / {p99:,.1f} · {batch:.1f} · {cpu:.2f}{failed}"


def goal_results(cells: list[Cell]) -> Iterator[Result]:
    """Yield what has a goal, as far as it was measured."""
    for model in ("4ms", "20ms"):
        for number in sorted({cell.connections for cell in cells if cell.model == model}):
            column = _Cells(cells, model, number)
            name = f"{model} / better floor, {number}"
            yield from _row(
                name, column, _rate, column.with_role("floor"), f"{TITLES[model]}, {number} conn."
            )
    for number in _PLAIN_AT:
        column = _Cells(cells, "minilm", number)
        what = f"MiniLM, {number} conn."
        yield from _row(f"minilm / plain, {number}", column, _rate, column.with_role("plain"), what)
        if number > 1:
            peers = column.with_role("peer")
            yield from _row(f"minilm / best peer, {number}", column, _rate, peers, what)
            name = f"minilm p99 / best peer, {number}"
            yield from _row(name, column, _p99, peers, f"{what}: p99", lowest=True)
    yield from _of_processes(cells)
    ours = [cell.errors for cell in cells if cell.server == "ours"]
    if ours:
        yield _count("errors", f"errors in {len(ours)} cells", sum(ours))


def _of_processes(cells: list[Cell]) -> Iterator[Result]:
    """Yield what is gained by a process of the model, and by web processes without a framework."""
    for model, title in TITLES.items():
        for number in sorted({cell.connections for cell in cells if cell.model == model}):
            column = _Cells(cells, model, number)
            for mine, other in _PAIRS:
                if column.middle(other, _rate) is not None:
                    name = f"{model} {mine} / {other}, {number}"
                    what = f"{title}, {number} conn.: {SERVERS[mine].title}"
                    yield from _row(name, column, _rate, [other], what, mine=mine)


def _row(  # noqa: PLR0913  only those above call it
    name: str,
    column: _Cells,
    figure: Figure,
    others: list[str],
    what: str,
    *,
    mine: str = "ours",
    lowest: bool = False,
) -> Iterator[Result]:
    ours = column.middle(mine, figure)
    if ours is None or not others:
        return
    best = min if lowest else max
    figures = column.ratios(figure, mine, others, best)
    medians = {server: column.middle(server, figure) or 0.0 for server in others}
    beside = best(medians, key=medians.__getitem__)
    yield Result(
        name=name,
        what=what,
        ours=ours,
        beside=SERVERS[beside].title,
        other=medians[beside],
        unit="s" if lowest else "/s",
        figure=median(figures),
        figures=tuple(figures),
        goal=_GOALS.get(name),
    )


def trouble_results(troubles: list[Trouble]) -> Iterator[Result]:
    """Yield what has a goal: of ours."""
    for seen in troubles:
        if seen.server == "ours":
            failed = seen.strangers_failed + seen.strangers_wrong
            yield _count("strangers failed", "beside an item that raises, of 31", failed)
            yield _count("executed for none", "items of clients that have left, of 8", seen.executed)
            yield _count("dropped at SIGTERM", "requests in flight at SIGTERM, of 32", seen.dropped)


def _count(name: str, what: str, number: int) -> Result:
    count = float(number)
    return Result(name, what, ours=count, unit="", figure=count, figure_unit="", goal=_GOALS[name])


def trouble_table(troubles: list[Trouble]) -> Table:
    """Return what was seen of each server."""
    lines = Table(title="trouble", highlight=False)
    for title in (
        "server",
        "one item raises: strangers that fail, of 31",
        "clients leave while queued: items run, of 8",
        "SIGTERM, 32 busy connections: answered",
        "dropped",
        "sent after it",
        "ends after",
        "left over",
    ):
        lines.add_column(title, justify="left" if title in {"server", "sent after it"} else "right")
    for seen in troubles:
        lines.add_row(
            SERVERS[seen.server].title,
            f"{seen.strangers_failed}"
            + (f" and {seen.strangers_wrong} WRONG" if seen.strangers_wrong else ""),
            f"{seen.executed}",
            f"{seen.answered}",
            f"{seen.dropped}",
            ", ".join(f"{number} {what}" for what, number in seen.later.items()),
            "killed" if seen.exit_s is None else f"{seen.exit_s:.1f} s",
            f"{seen.left_over}",
        )
    return lines


def picture(cells: list[Cell], file: Path) -> None:
    """Draw requests/s and p99 beside those without batching, over the connections."""
    import matplotlib as mpl  # noqa: PLC0415  only for a picture
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for a picture
    from matplotlib.artist import Artist  # noqa: PLC0415  only for a picture

    mpl.use("Agg")

    models = [model for model in TITLES if any(cell.model == model for cell in cells)]
    if len(models) == 1 and {cell.server for cell in cells} == {"ours", "plain"}:
        _draw_two(cells, models[0]).savefig(file, dpi=240)
        return
    figure, axes = plt.subplots(
        2, len(models), figsize=(4.2 * len(models), 7), layout="constrained", squeeze=False
    )
    for across, model in enumerate(models):
        connections = sorted({cell.connections for cell in cells if cell.model == model})
        columns = [_Cells(cells, model, number) for number in connections]
        for down, (what, of) in enumerate((("requests/s", _rate), ("p99", _p99))):
            panel = axes[down][across]
            for number, kind in enumerate(SERVERS.values()):
                points = [(column.middle(kind.name, of), column.middle("plain", of)) for column in columns]
                line = [
                    (at, mine / plain)
                    for at, (mine, plain) in enumerate(points)
                    if mine is not None and plain is not None
                ]
                if line and kind.role != "plain":
                    style = {"ours": "-", "floor": ":", "pieces": ":"}.get(kind.role, "--")
                    width = 3 if kind.role == "ours" else 1.2
                    panel.plot(
                        *zip(*line, strict=True), style, color=f"C{number}", marker="o", markersize=4,
                        linewidth=width, label=kind.title,
                    )  # fmt: skip
            panel.axhline(1, color="black", linewidth=0.8)
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
            panel.set_xticks(range(len(connections)), [str(number) for number in connections])
            panel.set_title(f"{TITLES[model]}: {what}", fontsize=10)
        axes[1][across].set_xlabel("connections")
    axes[0][0].set_ylabel("times that without batching\n(higher is better)")
    axes[1][0].set_ylabel("times that without batching\n(lower is better)")
    by_label: dict[str, Artist] = {}
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        by_label.update(zip(labels, handles, strict=True))
    figure.legend(list(by_label.values()), list(by_label), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(file, dpi=120)


def _draw_two(cells: list[Cell], model: str) -> Any:
    """Return a figure of requests/s and p99 of one model, with batching and without it, as bars.

    It is small beside its letters, so that they can be read on a telephone.
    """
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for a picture

    connections = sorted({cell.connections for cell in cells})
    columns = [_Cells(cells, model, number) for number in connections]
    figure, panels = plt.subplots(1, 2, figsize=(6.2, 2.5), layout="constrained")
    for panel, title, of, form in (
        (panels[0], "requests/s (more is better)", _rate, "{:.0f}"),
        (panels[1], "p99 in seconds (less is better)", _p99, "{:.2f}"),
    ):
        for server, label, shift, colour in (
            ("plain", "plain FastAPI", -0.2, "0.7"),
            ("ours", "batched", 0.2, "tab:blue"),
        ):
            heights = [column.middle(server, of) or 0.0 for column in columns]
            places = [place + shift for place in range(len(connections))]
            bars = panel.bar(places, heights, 0.38, label=label, color=colour)
            panel.bar_label(bars, [form.format(height) for height in heights], fontsize=10)
        panel.set_title(title, fontsize=11)
        panel.set_xticks(
            range(len(connections)), [f"{number} client{'s' * (number > 1)}" for number in connections]
        )
        panel.set_yticks([])
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.margins(y=0.12)
    panels[0].legend(frameon=False, loc="upper left")
    return figure
