"""Throughput and latency of sentences that MiniLM embeds for concurrent callers, beside other batchers.

What callers of one sentence each get through every library, as a share of `encode` of all sentences as one
list, which is free to sort them. Every library has a process of its own, which loads the model once; in each
pass all of them take their turn, and each measures `encode` beside itself. Shares are of CPU time, since a
busy neighbour takes less of that; those of the clock are beside them.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.kit.measure import Effort
from benchmarks.kit.program import Program
from benchmarks.kit.rivals import RIVAL, home
from benchmarks.kit.row import SHARE, TIMES, Comparison, Goal, Result, compared
from benchmarks.kit.table import shown, table_of
from benchmarks.kit.turns import Samples, Unavailable
from benchmarks.model.embedder import Embedder
from benchmarks.model.embedding import BATCH
from benchmarks.simulated.lengths import draw

__all__ = ["PROGRAM", "make_sentences"]

_GOALS = {
    "real model, 32 callers": Goal(0.80, at_least=True),
    "real model, 32 callers, features": Goal(0.80, at_least=True),
    "real model, 128 callers": Goal(0.95, at_least=True),
    "real model, 32 callers, no option": Goal(0.85, at_least=True),
    "real model, 128 callers, no option": Goal(0.95, at_least=True),
    "real model, p99, no option / length=len": Goal(1.05),
    "real model, one list": Goal(0.97, at_least=True),
    "real model, one caller": Goal(0.98, at_least=True),  # of one by one
    "real model / best peer": Goal(1.9, at_least=True),
    "real model, p99 / best peer": Goal(1.0),
    "real model, singles beside a list": Goal(2.0),  # batches
}
_CALLERS = 32
_MANY = 128
_BESIDE = 8
_FEW = 512  # sentences at most of a lone caller, which is slow
_WARM_UP = 48 * BATCH  # twelve batches tell whether length matters; by default they may have twice as many
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
    Way("Infinity", "infinity", "arrival"),
)
_ARRIVAL = Way("ours, in order of arrival", "ours", "arrival")
_DEFAULTS = Way("ours, no option", "ours", "defaults")
_DEFAULTS_MANY = Way(f"ours, no option, {_MANY} callers", "ours", "defaults", _MANY)
_OURS = Way("ours, length=len", "ours", "length")
_FEATURES = Way("ours, inference on the tokenizer's features", "ours", "features")
_STAGES = Way("ours, stages", "ours", "stages")
_STAGES_MANY = Way(f"ours, stages, {_MANY} callers", "ours", "stages", _MANY)
_INFINITY_MANY = Way(f"Infinity, {_MANY} callers", "infinity", "arrival", _MANY)
_OURS_MANY = Way(f"ours, length=len, {_MANY} callers", "ours", "length", _MANY)
_ALONE = Way("ours, length=len, one caller", "ours", "alone", 1)
_WAYS = (
    _ONE_BY_ONE, *_PEERS, _ARRIVAL, _DEFAULTS, _OURS, _FEATURES, _STAGES, _INFINITY_MANY, _DEFAULTS_MANY,
    _OURS_MANY, _STAGES_MANY, _ALONE,
)  # fmt: skip
_ALL_MANY = (_OURS_MANY, _STAGES_MANY, _INFINITY_MANY)
_LIST = Way("ours, length=len, one list", "ours", "list", 1)
_SINGLES = Way(f"ours, {_BESIDE} single callers beside that list", "ours", "beside", _BESIDE)

Pass = dict[Way, dict[str, Any]]


def make_sentences(count: int, seed: int) -> list[str]:
    """Return the same sentences every time, of 24 words in the mean: most are short, a few are long."""
    random = Random(seed)  # noqa: S311  no secret
    words = _WORDS.split()
    return [" ".join(random.choices(words, k=draw(random))) for _ in range(count)]


class RealModel(Program):
    """Passes, in each of which every way takes its turn."""

    @classmethod
    def add_options(cls, parser: ArgumentParser) -> None:
        """How much, and beside what."""
        parser.add_argument("--passes", type=int, default=2, metavar="N", help="over all ways (2)")
        parser.add_argument("--sentences", type=int, default=256, metavar="N", help="in each (256)")
        parser.add_argument(
            "--list-size", type=int, default=2000, metavar="N", help="in the long list (2000)"
        )
        parser.add_argument(
            "--only", metavar="NAME[,NAME]", help="of the others, these: 0.1.5, aiodataloader, ..."
        )
        parser.add_argument(
            "--device", default="cpu", help="where the model is; shares are by the clock if not on the CPU"
        )
        parser.add_argument("--ray", type=Path, metavar="FOLDER", help="where `ray[serve]` is, if elsewhere")

    def measure(self) -> Iterator[None]:
        """Measure all passes."""
        self._passes: list[Pass] = []
        if self.effort.quick:
            self.options.passes, self.options.sentences, self.options.list_size = 1, 48, 64
        with ExitStack() as processes:
            embedders, missing = _start(self.effort, self.options, processes)
            for way, why in missing.items():
                self.console.print(f"{way.name} is left out: {why}", highlight=False)
            for one in _passes(self.effort, embedders, self.options):
                self._passes.append(one)
                yield

    def results(self) -> list[Result]:
        """Return what has a goal."""
        return _results(self._passes, "cpu" if self.options.device == "cpu" else "wall")

    def tables(self) -> list[Table]:
        """Return all ways side by side."""
        return [_overview(self._passes)]

    def details(self) -> dict[str, Any]:
        """Return what was measured in each pass."""
        return {"passes": [{way.name: measured for way, measured in one.items()} for one in self._passes]}

    @staticmethod
    def draw(details: dict[str, Any], file: Path) -> None:
        """Draw shares of `encode`, and latencies, a bar for each way."""
        by_name = {way.name: way for way in (*_WAYS, _LIST, _SINGLES)}
        _draw(
            [{by_name[name]: measured for name, measured in one.items()} for one in details["passes"]], file
        )


PROGRAM = RealModel


def _start(
    effort: Effort, options: Namespace, processes: ExitStack
) -> tuple[dict[str, Embedder], dict[Way, str]]:
    """Start a process per library; return them, and why those that are missing could not be."""
    paths: dict[str, Path | None] = {"ours": None}
    missing: dict[Way, str] = {}
    for way in _PEERS:
        if options.only is not None and way.library not in options.only.split(","):
            continue
        try:
            paths[way.library] = options.ray if way.library == "ray" else home(effort, way.library)
        except Unavailable as error:
            missing[way] = str(error)
    embedders: dict[str, Embedder] = {}
    for library, path in paths.items():
        effort.announce(f"loading the model for {library}")
        try:
            embedders[library] = embedder = Embedder(library, path, options.device)
        except ImportError as error:
            missing |= {way: str(error) for way in _PEERS if way.library == library}
        else:
            processes.callback(embedder.close)
    return embedders, missing


def _passes(effort: Effort, embedders: dict[str, Embedder], options: Namespace) -> Iterator[Pass]:
    ways = [way for way in _WAYS if way.library in embedders]
    warm_up = make_sentences(effort.of(_WARM_UP, 16), 1)
    for way in ways:
        # What is learned is learned before: it takes some seconds, of a service that runs for days.
        effort.announce(f"warming up: {way.name}")
        # That length matters takes some twenty batches to find out.
        learns = dict.fromkeys((_DEFAULTS, _DEFAULTS_MANY), 24 * BATCH)
        learns |= {**dict.fromkeys(_ALL_MANY, 2 * _MANY), _OURS: _MANY, _FEATURES: _MANY}
        few = warm_up[: learns.get(way, _CALLERS)]
        embedders[way.library].run(way.job, few, way.callers)
    effort.announce(f"warming up: {_SINGLES.name}")
    embedders["ours"].run(_SINGLES.job, warm_up[: 2 * _MANY], _SINGLES.callers)
    for number in range(options.passes):
        found: Pass = {}
        for way in (*ways, _LIST, _SINGLES):
            effort.announce(f"pass {number + 1} of {options.passes}: {way.name}")
            count = options.list_size if way in {_LIST, _SINGLES} else options.sentences
            if way.callers == 1 and way is not _LIST:
                count = min(count, _FEW)
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
    lines = table_of(("what", "share of encode(list), CPU", "by the clock", "p99", "mean batch"))
    for way in passes[0]:
        measured = [one[way] for one in passes]
        shares = ["", ""]
        if way is not _SINGLES:
            shares = [f"{median(_share(one, way, clock) for one in passes):.2f}" for clock in ("cpu", "wall")]
        p99 = shown(median(one["p99"] for one in measured), "s") if "p99" in measured[0] else ""
        batch = f"{measured[-1]['mean_batch']:.1f}" if "mean_batch" in measured[-1] else ""
        lines.add_row(way.name, *shares, p99, batch)
    return lines


def _results(passes: list[Pass], clock: str) -> list[Result]:
    """Judge what has a goal. Shares are of `encode` of all sentences as one list."""

    def found(name: str, what: str, samples: Samples, by: Comparison = SHARE) -> Result:
        (beside,) = samples.keys() - {"ours"}
        return compared(name, what, samples, beside, by, _GOALS[name])

    rows = []
    for name, way in (
        ("real model, 32 callers", _OURS),
        ("real model, 32 callers, features", _FEATURES),
        ("real model, 128 callers", _OURS_MANY),
        ("real model, 32 callers, no option", _DEFAULTS),
        ("real model, 128 callers, no option", _DEFAULTS_MANY),
        ("real model, one list", _LIST),
    ):
        samples = {
            "ours": [_rate(one[way], clock) for one in passes],
            "encode(list)": [_rate(one[_LIST], f"whole_{clock}") for one in passes],
        }
        what = "sentences/s of CPU" if clock == "cpu" else "sentences/s"
        rows.append(found(name, f"{way.name}: {what}", samples))
    samples = {
        "ours": [_rate(one[_ALONE], clock) for one in passes],
        "one by one": [_rate(one[_ALONE], f"one_{clock}") for one in passes],
    }
    rows.append(found("real model, one caller", f"{_ALONE.name}: the same", samples))
    if peers := [way for way in _PEERS if way in passes[0]]:
        best = _best(passes, peers, lambda measured: _rate(measured, clock), max)
        rows.append(found("real model / best peer", f"{_OURS.name}: the same", best))
        best = _best(passes, peers, lambda measured: float(measured["p99"]), min)
        rows.append(found("real model, p99 / best peer", f"{_OURS.name}: p99", best, TIMES))
    samples = {
        "ours": [float(one[_DEFAULTS]["p99"]) for one in passes],
        _OURS.name: [float(one[_OURS]["p99"]) for one in passes],
    }
    rows.append(found("real model, p99, no option / length=len", f"{_DEFAULTS.name}: p99", samples, TIMES))
    beside = [one[_SINGLES] for one in passes]
    batches_s = [whole["whole_wall"] / ceil(whole["items"] / BATCH) for whole in beside]
    samples = {"ours": [singles["p99"] for singles in beside], "a full batch": batches_s}
    rows.append(found("real model, singles beside a list", f"{_SINGLES.name}: p99", samples, TIMES))
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


def _draw(passes: list[Pass], file: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415  only for a picture

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
