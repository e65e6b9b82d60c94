"""Sentences of many lengths, embedded by MiniLM for concurrent callers, beside other batchers.

What callers of one sentence each get through every library, as a share of `encode` of all sentences as one
list, which is free to sort them. Every library has a process of its own, which loads the model once; in each
pass all of them take their turn, and each measures `encode` beside itself. Shares are of CPU time, since a
busy neighbour takes less of that; those of the clock are beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.kit.measure import Effort, Row, Samples, environment, share, times
from benchmarks.kit.rival import RIVAL, home
from benchmarks.kit.table import shown, table
from benchmarks.model.embedding import BATCH, Embedder
from benchmarks.simulated.lengths import draw

__all__ = ["make_sentences"]

_CALLERS = 32
_MANY = 128
_BESIDE = 8
_WARM_UP = 2 * _MANY
_WORDS = """
    the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
    which one you were all her she there would their we him been has when who will no more if out so up said
    what its about than into them can only other time new some could these two may first then do any like my
"""


class Way(NamedTuple):
    """One way to have sentences embedded: by which process, doing what, for how many callers."""

    name: str
    library: str
    job: str
    callers: int = _CALLERS


_ONE_BY_ONE = Way("one by one", "ours", "one by one", 1)
_PEERS = (
    Way(f"batched {RIVAL}", RIVAL, "arrival"),
    Way("aiodataloader", "aiodataloader", "arrival"),
    Way("async-batcher", "async-batcher", "arrival"),
    Way("Ray's serve.batch", "ray", "arrival"),
)
_ARRIVAL = Way("ours, in order of arrival", "ours", "arrival")
_OURS = Way("ours, length=len", "ours", "length")
_FEATURES = Way("ours, inference on the tokenizer's features", "ours", "features")
_OURS_MANY = Way(f"ours, length=len, {_MANY} callers", "ours", "length", _MANY)
_ALONE = Way("ours, length=len, one caller", "ours", "alone", 1)
_WAYS = (_ONE_BY_ONE, *_PEERS, _ARRIVAL, _OURS, _FEATURES, _OURS_MANY, _ALONE)
_LIST = Way("ours, length=len, one list", "ours", "list", 1)
_SINGLES = Way(f"ours, {_BESIDE} single callers beside that list", "ours", "beside", _BESIDE)

Pass = dict[Way, dict[str, Any]]


def make_sentences(count: int, seed: int) -> list[str]:
    """Return the same sentences every time, of 24 words in the mean: most are short, a few are long."""
    random = Random(seed)  # noqa: S311  nobody's secret
    words = _WORDS.split()
    return [" ".join(random.choices(words, k=draw(random))) for _ in range(count)]


def main() -> int:
    """Measure, and print what was found; return 1 if something could not be measured."""
    arguments = _arguments()
    if arguments.plot is not None:
        import matplotlib as mpl  # noqa: PLC0415  fail now, not after minutes

        mpl.use("Agg")
    console = Console(width=None if sys.stdout.isatty() else 140)
    about = environment()
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    effort = Effort(arguments.quick, lambda what: console.print(f"  {what}", style="dim", highlight=False))
    with ExitStack() as processes:
        embedders, missing = _start(effort, arguments, processes)
        passes = list(_passes(effort, embedders, arguments))
    console.print(_overview(passes))
    for way, why in missing.items():
        console.print(f"{way.name} is left out: {why}", highlight=False)
    rows = _rows(passes)
    console.print(table(rows))
    if arguments.json is not None:
        found = [{way.name: measured for way, measured in one.items()} for one in passes]
        told = {"environment": about, "rows": [row.as_dict() for row in rows], "passes": found}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.plot is not None:
        _plot(passes, arguments.plot)
    return int(any(row.figure is None for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model.real_model", description=__doc__)
    parser.add_argument("--passes", type=int, default=2, metavar="N", help="over all ways (default 2)")
    parser.add_argument("--sentences", type=int, default=256, metavar="N", help="in each (default 256)")
    parser.add_argument("--list", type=int, default=2000, metavar="N", help="in the long list (default 2000)")
    parser.add_argument(
        "--only", metavar="NAME[,NAME]", help="of the others, these: 0.1.5, aiodataloader, ..."
    )
    parser.add_argument("--ray", type=Path, metavar="FOLDER", help="where `ray[serve]` is, if not installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw shares and latencies")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.passes, arguments.sentences, arguments.list = 1, 48, 64
    return arguments


def _start(
    effort: Effort, arguments: argparse.Namespace, processes: ExitStack
) -> tuple[dict[str, Embedder], dict[Way, str]]:
    """Start a process per library; return them, and why those that are missing could not be."""
    paths: dict[str, Path | None] = {"ours": None}
    missing: dict[Way, str] = {}
    for way in _PEERS:
        if arguments.only is not None and way.library not in arguments.only.split(","):
            continue
        try:
            paths[way.library] = arguments.ray if way.library == "ray" else home(effort, way.library)
        except (OSError, subprocess.SubprocessError):
            missing[way] = "pip cannot install it here"
    embedders: dict[str, Embedder] = {}
    for library, path in paths.items():
        effort.announce(f"loading the model for {library}")
        try:
            embedders[library] = embedder = Embedder(library, path)
        except ImportError as error:
            missing |= {way: str(error) for way in _PEERS if way.library == library}
        else:
            processes.callback(embedder.close)
    return embedders, missing


def _passes(effort: Effort, embedders: dict[str, Embedder], arguments: argparse.Namespace) -> Iterator[Pass]:
    ways = [way for way in _WAYS if way.library in embedders]
    warm_up = make_sentences(effort.of(_WARM_UP, 16), 1)
    for way in ways:
        # What is learned is learned before: it takes some seconds, of a service that runs for days.
        effort.announce(f"warming up: {way.name}")
        few = warm_up[: {_OURS_MANY: 2 * _MANY, _OURS: _MANY, _FEATURES: _MANY}.get(way, _CALLERS)]
        embedders[way.library].run(way.job, few, way.callers)
    effort.announce(f"warming up: {_SINGLES.name}")
    embedders["ours"].run(_SINGLES.job, warm_up[: 2 * _MANY], _SINGLES.callers)
    for number in range(arguments.passes):
        found: Pass = {}
        for way in (*ways, _LIST, _SINGLES):
            effort.announce(f"pass {number + 1} of {arguments.passes}: {way.name}")
            count = arguments.list if way in {_LIST, _SINGLES} else arguments.sentences
            sentences = make_sentences(count, 2 + number)
            found[way] = embedders[way.library].run(way.job, sentences, way.callers)
        yield found


# -- what was found ------------------------------------------------------------------------------------


def _share(one: Pass, way: Way, clock: str = "cpu") -> float:
    """Return the sentences a second of `way` beside those of `encode` of the long list in the same pass.

    Not of the same few sentences: among those there are not enough of like length, so the sorted batches of
    `encode` waste much, and any share would flatter.
    """
    return _rate(one[way], clock) / _rate(one[_LIST], f"whole_{clock}")


def _overview(passes: list[Pass]) -> Table:
    lines = Table(highlight=False)
    for title in ("embedded", "share of encode(list), CPU", "by the clock", "p99", "mean batch"):
        lines.add_column(title, justify="left" if title == "embedded" else "right")
    for way in passes[0]:
        measured = [one[way] for one in passes]
        shares = ["", ""]
        if way is not _SINGLES:
            shares = [f"{median(_share(one, way, clock) for one in passes):.2f}" for clock in ("cpu", "wall")]
        p99 = shown(median(one["p99"] for one in measured), "s") if "p99" in measured[0] else ""
        batch = f"{measured[-1]['mean_batch']:.1f}" if "mean_batch" in measured[-1] else ""
        lines.add_row(way.name, *shares, p99, batch)
    return lines


def _rows(passes: list[Pass]) -> list[Row]:
    """Judge what has a goal."""
    peers = [way for way in _PEERS if way in passes[0]]
    rows = []
    for name, way in (
        ("real model, 32 callers", _OURS),
        ("real model, 32 callers, features", _FEATURES),
        ("real model, 128 callers", _OURS_MANY),
        ("real model, one list", _LIST),
    ):
        samples = {
            "ours": [_rate(one[way], "cpu") for one in passes],
            "encode(list)": [_rate(one[_LIST], "whole_cpu") for one in passes],
        }
        rows.append(share(name, f"{way.name}: sentences/s of CPU", samples, "encode(list)"))
    samples = {
        "ours": [_rate(one[_ALONE], "cpu") for one in passes],
        "one by one": [_rate(one[_ALONE], "one_cpu") for one in passes],
    }
    rows.append(share("real model, one caller", f"{_ALONE.name}: the same", samples, "one by one"))
    if peers:
        best = _best(passes, peers, lambda measured: _rate(measured, "cpu"), max)
        rows.append(share("real model / best peer", f"{_OURS.name}: the same", best, "best peer"))
        best = _best(passes, peers, lambda measured: float(measured["p99"]), min)
        rows.append(times("real model, p99 / best peer", f"{_OURS.name}: p99", best, "best peer"))
    beside = [one[_SINGLES] for one in passes]
    batches_s = [whole["whole_wall"] / ceil(whole["items"] / BATCH) for whole in beside]
    samples = {"ours": [singles["p99"] for singles in beside], "a full batch": batches_s}
    rows.append(times("real model, singles beside a list", f"{_SINGLES.name}: p99", samples, "a full batch"))
    return rows


def _rate(measured: dict[str, Any], clock: str) -> float:
    return float(measured["items"] / measured[clock])


def _best(
    passes: list[Pass],
    peers: list[Way],
    figure: Callable[[dict[str, Any]], float],
    better: Callable[..., float],
) -> Samples:
    return {
        "ours": [figure(one[_OURS]) for one in passes],
        "best peer": [better(figure(one[way]) for way in peers) for one in passes],
    }


def _plot(passes: list[Pass], file: Path) -> None:
    """Draw shares of `encode`, and latencies, a bar for each way."""
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for those who want a plot

    ways = [way for way in _WAYS if way in passes[0]][::-1]  # the first on top
    names = [way.name for way in ways]
    colours = [
        "tab:green" if way.library == "ours" and way is not _ONE_BY_ONE else "tab:grey" for way in ways
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
    left.barh(names, [median(_share(one, way) for one in passes) for way in ways], color=colours)
    left.axvline(1, color="black", linewidth=1)
    left.set(xlabel="sentences per CPU second, as a share of encode(all as one list)")
    right.barh(names, [median(one[way]["p99"] for one in passes) for way in ways], color=colours)
    right.set(xlabel="p99 latency, s")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"MiniLM, one thread, sentences of many lengths, {_CALLERS} callers where nothing else is said"
    )
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
