"""Watch batching pay: `python -m batched.demo`, after `pip install numpy rich`.

Threads, asyncio tasks and one long list ask the same model at the same time, first one item at a time, then
batched. The model has random weights but does real work, and nothing sleeps: a call mostly costs the reading
of 88 MB of weights, be it for one item or for many. That is why batching pays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import batched

# One thread for the arithmetic, in both rounds, so that all gain is that of batching. The threads of a BLAS
# that has one per core wait for each other whenever a caller needs a core, and sometimes take ten times as
# long. The usual ones read this variable when numpy loads them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import numpy as np
    from numpy.typing import NDArray
    from rich import box
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as _missing:
    raise SystemExit(f"The demo needs {_missing.name}: pip install {_missing.name}") from None

Vector: TypeAlias = NDArray[np.float32]

LAYERS = (1024, 4096, 4096, 256)
THREADS = 16
TASKS = 64
LIST_SHARE = 32  # the list has as many items as this many threads or tasks together
ITEMS_EACH = 20
QUICK_ITEMS_EACH = 2


class Classifier:
    """A perceptron of three layers."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.weights: list[Vector] = [
            random.standard_normal((inputs, outputs), dtype=np.float32) * np.float32((2 / inputs) ** 0.5)
            for inputs, outputs in pairwise(LAYERS)
        ]

    def forward(self, vectors: list[Vector]) -> list[Vector]:
        """Return the scores of each vector's classes."""
        hidden = np.stack(vectors)
        for weights in self.weights[:-1]:
            hidden = np.maximum(hidden @ weights, 0)
        return list(hidden @ self.weights[-1])

    # Beyond 64 the arithmetic outweighs the reading of the weights: little is left to save, and all callers
    # of a batch wait for its end. The window is about the time that one item takes alone: so a call that
    # stays alone takes twice that time at most.
    @batched.dynamically(batch_size=64, timeout_ms=3)
    def predict(self, vectors: list[Vector]) -> list[Vector]:
        """Do the same for the vectors of many callers at once."""
        return self.forward(vectors)


class OneByOne:
    """What callers do without batching: take turns, since a model serves one call at a time.

    The turns are those of a queue. With a bare lock, a caller that has just had a turn often takes the next
    one too, and part of what batching gains would be fairness.
    """

    def __init__(self, function: Callable[[list[Vector]], list[Vector]]) -> None:
        self._function = function
        self._worker = ThreadPoolExecutor(1)

    def __call__(self, asked: Any, /) -> Any:
        """Call the function with a list of one, for each item."""
        if isinstance(asked, list):
            return [self(vector) for vector in asked]
        return self._worker.submit(self._function, [asked]).result()[0]

    async def acall(self, vector: Vector, /) -> Vector:
        """Do so without blocking the event loop."""
        scores = await asyncio.wrap_future(self._worker.submit(self._function, [vector]))
        return scores[0]


Predict: TypeAlias = OneByOne | batched.BatchedFunction[Vector, Vector]
Advance: TypeAlias = Callable[[int], None]


class Answer(NamedTuple):
    """What one call returned, and how long it took."""

    scores: list[Vector]
    seconds: float


def ask_from_threads(predict: Predict, vectors: list[Vector], advance: Advance) -> list[Answer]:
    """Call from many threads, one item at a time each."""

    def ask(vector: Vector) -> Answer:
        started = perf_counter()
        scores = predict(vector)
        seconds = perf_counter() - started
        advance(1)
        return Answer([scores], seconds)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(ask, vectors))


def ask_from_tasks(predict: Predict, vectors: list[Vector], advance: Advance) -> list[Answer]:
    """Call from one event loop, many tasks at a time."""

    async def ask(vector: Vector, places: asyncio.Semaphore) -> Answer:
        async with places:
            started = perf_counter()
            scores = await predict.acall(vector)
            seconds = perf_counter() - started
        advance(1)
        return Answer([scores], seconds)

    async def ask_all() -> list[Answer]:
        places = asyncio.Semaphore(TASKS)
        return await asyncio.gather(*(ask(vector, places) for vector in vectors))

    return asyncio.run(ask_all())


def ask_as_list(predict: Predict, vectors: list[Vector], advance: Advance) -> list[Answer]:
    """Call once, with everything."""
    started = perf_counter()
    scores = predict(vectors)
    seconds = perf_counter() - started
    advance(len(vectors))
    return [Answer(scores, seconds)]


class Crowd(NamedTuple):
    """One kind of caller, and what it asks."""

    name: str
    ask: Callable[[Predict, list[Vector], Advance], list[Answer]]
    vectors: list[Vector]


def make_crowds(items_each: int) -> list[Crowd]:
    """Return the three kinds of callers; no two of their items are equal."""
    random = np.random.default_rng(1)

    def vectors(count: int) -> list[Vector]:
        return list(random.standard_normal((count, LAYERS[0]), dtype=np.float32))

    return [
        Crowd(f"{THREADS} threads", ask_from_threads, vectors(THREADS * items_each)),
        Crowd(f"{TASKS} asyncio tasks", ask_from_tasks, vectors(TASKS * items_each)),
        Crowd(f"a list of {LIST_SHARE * items_each}", ask_as_list, vectors(LIST_SHARE * items_each)),
    ]


@dataclass(frozen=True)
class Outcome:
    """What a crowd got, and how long it took from its first call to its last answer."""

    answers: list[Answer]
    seconds: float

    def scores(self) -> list[Vector]:
        """Return the scores of all items, in their order."""
        return [scores for answer in self.answers for scores in answer.scores]

    def rate(self) -> float:
        """Return the items per second."""
        return len(self.scores()) / self.seconds

    def figures(self) -> list[str]:
        """Return the cells of the rate, and of the 50th, 95th and 99th percentile of the calls' latencies."""
        latencies_ms = np.percentile([answer.seconds * 1000 for answer in self.answers], [50, 95, 99])
        return [f"{self.rate():,.0f}", *(f"{latency:,.0f}" for latency in latencies_ms)]


def run_crowds(title: str, predict: Predict, crowds: list[Crowd], console: Console) -> list[Outcome]:
    """Let all crowds ask at the same time; return the outcome of each, and that of all of them together."""
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(len(crowds)) as threads:

        def run(crowd: Crowd, bar: TaskID) -> Outcome:
            started = perf_counter()
            answers = crowd.ask(predict, crowd.vectors, partial(progress.advance, bar))
            return Outcome(answers, perf_counter() - started)

        bars = [progress.add_task(f"{title}: {crowd.name}", total=len(crowd.vectors)) for crowd in crowds]
        outcomes = list(threads.map(run, crowds, bars))
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    return [*outcomes, Outcome(answers, max(outcome.seconds for outcome in outcomes))]


def tabulate(names: list[str], alone: list[Outcome], shared: list[Outcome], mean_batch: float) -> Table:
    """Return the table of both rounds, the last outcome of each being that of all callers."""
    table = Table(box=box.SIMPLE)
    table.add_column("callers", no_wrap=True)
    for heading in ("items/s", "p50 ms", "p95 ms", "p99 ms", "mean\nbatch", "speed-up"):
        table.add_column(heading, justify="right")

    table.add_row("[bold]one by one")
    for name, outcome in zip(names, alone, strict=True):
        table.add_row(name, *outcome.figures())
    table.add_section()
    table.add_row("[bold]batched")
    for name, outcome, before in zip(names, shared, alone, strict=True):
        # A batch has items of all kinds of callers, so there is one mean size for all.
        batch = f"{mean_batch:.1f}" if name == names[-1] else ""
        table.add_row(name, *outcome.figures(), batch, f"{outcome.rate() / before.rate():.1f} x")
    return table


def same_scores(alone: Outcome, shared: Outcome) -> bool:
    """Compare every answer, but for rounding: a batch adds up in another order than a single item."""
    expected, actual = alone.scores(), shared.scores()
    return len(actual) == len(expected) and np.allclose(actual, expected, rtol=1e-4, atol=1e-4)


def main() -> int:
    """Run both rounds, print what came of them, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m batched.demo", description="Watch batching pay.")
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    crowds = make_crowds(QUICK_ITEMS_EACH if parser.parse_args().quick else ITEMS_EACH)

    model = Classifier()
    model.forward(crowds[0].vectors)  # the first product also waits for memory to be mapped

    console = Console(highlight=False)
    alone = run_crowds("one by one", OneByOne(model.forward), crowds, console)
    shared = run_crowds("batched", model.predict, crowds, console)
    names = [*(crowd.name for crowd in crowds), "all of them"]
    console.print(tabulate(names, alone, shared, model.predict.stats.avg_batch_size))
    if not same_scores(alone[-1], shared[-1]):
        console.print("Some answers differ from those of the plain function.")
        return 1
    console.print(f"All {len(shared[-1].scores()):,} answers verified against the plain function.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
