"""Draws tutorial.svg from the files of the tutorial: python docs/_static/draw_tutorial.py, in the project."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import MultipleLocator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.kit.page import Page  # noqa: E402  found by the line before

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 3
REQUESTS = 192
MOST_EACH = 24  # of few clients
OF = 32  # clients: so many have their batches counted


def main() -> None:
    """Measure in turns, take the best round of each, and draw."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with TemporaryDirectory() as folder:
        for block in Page(ROOT / "docs/tutorial.md").blocks:
            if block.kind == "python" and block.name:
                Path(folder, block.name).write_text(block.text, "utf-8")
        sys.path.insert(0, folder)
        sys.argv = sys.argv[:1]
        load = import_module("load")
        apps = {"one by one": import_module("app_1"), "batched": import_module("app_2")}
        best = {name: [0.0] * len(CLIENTS) for name in apps}
        sizes: dict[int, int] = {}
        for _ in range(ROUNDS):
            for place, clients in enumerate(CLIENTS):
                load.CLIENTS, load.EACH = clients, min(REQUESTS // clients, MOST_EACH)
                for name, app in apps.items():
                    before = counts(app) if name == "batched" else {}
                    found = asyncio.run(load.ask(app.app))
                    best[name][place] = max(best[name][place], found)
                    if name == "batched" and clients == OF:
                        for size, count in counts(app).items():
                            sizes[size] = sizes.get(size, 0) + count - before.get(size, 0)
    draw(best, sizes)


def counts(app: object) -> dict[int, int]:
    """Return how many batches of which size have run."""
    found = app.embed.stats.batch_size  # type: ignore[attr-defined]  of a module that is written just now
    below = (0, *found.cumulative)
    return {
        int(bound): after - before
        for bound, before, after in zip(found.bounds, below, found.cumulative, strict=False)
    }


def draw(best: dict[str, list[float]], sizes: dict[int, int]) -> None:
    """Draw both panels on white, for dark pages too, and small beside their letters, for telephones."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tutorial", "font.family": "sans-serif"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.8), layout="constrained")
    for name, color in (("batched", "#1f77b4"), ("one by one", "#5f6368")):
        left.plot(CLIENTS, best[name], color=color, marker="o", linewidth=2)
        left.annotate(name, (CLIENTS[-1], best[name][-1]), (6, -3), textcoords="offset points", color=color)
    left.set_xscale("log", base=2)
    left.set_xticks(CLIENTS, [str(clients) for clients in CLIENTS])
    left.yaxis.set_major_locator(MultipleLocator(50))
    left.set(xlabel="clients", ylabel="requests/s", ylim=(0, None), xlim=(None, 290))
    right.bar(sizes.keys(), sizes.values(), color="#1f77b4", width=0.8)
    right.set(xlabel=f"items per batch, {OF} clients", ylabel="batches", xlim=(0, 33))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("tutorial.svg"), facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
