"""Watch batching pay: `python -m batched.demo`, after `pip install "batched[demo]"`.

Threads, asyncio tasks and one long list ask the same model at the same time, first one item at a time, then
batched. The model has random weights but does real work, and nothing sleeps: a call mostly costs the reading
of tens of megabytes of weights, be it for one item or for many. That is why batching pays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import NamedTuple, TypeAlias, overload

import batched

# One thread for the arithmetic, in both rounds: what is gained is gained by batching alone, and the callers
# keep a core for themselves. Every BLAS reads this when numpy loads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(f'The demo needs {missing.name}: pip install "batched[demo]"') from None

Vector: TypeAlias = NDArray[np.float32]

LAYERS = (1024, 2048, 2048, 256)
THREADS = 16
TASKS = 64
ITEMS = 960  # for each kind of caller
QUICK_ITEMS = ITEMS // 10


class Classifier:
    """A perceptron of three layers, 54 MB of weights."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.weights = [
            random.standard_normal((inputs, outputs), dtype=np.float32) * np.float32((2 / inputs) ** 0.5)
            for inputs, outputs in pairwise(LAYERS)
        ]

    def forward(self, vectors: list[Vector]) -> list[Vector]:
        """Return the scores of each vector's classes."""
        hidden = np.stack(vectors)
        for weights in self.weights[:-1]:
            hidden = np.maximum(hidden @ weights, 0)
        return list(hidden @ self.weights[-1])

    # A batch of 64 takes less than twice the time of one of 32; beyond that little is left to save, and
    # everybody in the batch waits for its end. The window is as long as one item takes alone: waiting longer
    # for company could cost a lone caller more than half of its speed.
    @batched.dynamically(batch_size=64, timeout_ms=2)
    def predict(self, vectors: list[Vector]) -> list[Vector]:
        """Do the same for any number of callers at once."""
        return self.forward(vectors)


class OneByOne:
    """What callers do without batching: wait for their turn, since a model serves one call at a time."""

    def __init__(self, function: Callable[[list[Vector]], list[Vector]]) -> None:
        self._function = function
        self._turn = Lock()

    @overload
    def __call__(self, vectors: list[Vector], /) -> list[Vector]: ...
    @overload
    def __call__(self, vectors: Vector, /) -> Vector: ...
    def __call__(self, vectors: Vector | list[Vector], /) -> Vector | list[Vector]:
        """Call the function with a list of one, for each item."""
        if isinstance(vectors, list):
            return [self(vector) for vector in vectors]
        with self._turn:
            return self._function([vectors])[0]

    async def acall(self, vector: Vector, /) -> Vector:
        """Do so without blocking the event loop."""
        return await asyncio.to_thread(self, vector)


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
    """Call from an event loop, many tasks at a time."""

    async def ask(vector: Vector, place: asyncio.Semaphore) -> Answer:
        async with place:
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
    """One kind of callers, and what they ask."""

    name: str
    ask: Callable[[Predict, list[Vector], Advance], list[Answer]]
    vectors: list[Vector]


@dataclass(frozen=True)
class Outcome:
    """What a crowd got, and how long it took from the first call to the last answer."""

    answers: list[Answer]
    seconds: float

    def scores(self) -> list[Vector]:
        """Return the scores of all items, in their order."""
        return [scores for answer in self.answers for scores in answer.scores]

    def rate(self) -> float:
        """Return the items per second."""
        return len(self.scores()) / self.seconds

    def latencies_ms(self) -> list[float]:
        """Return the 50th, 95th and 99th percentile of the calls' latencies."""
        seconds = [answer.seconds for answer in self.answers]
        return [float(latency) * 1000 for latency in np.percentile(seconds, [50, 95, 99])]


def together(outcomes: list[Outcome]) -> Outcome:
    """Return the outcome of crowds that asked at the same time as if they were one."""
    answers = [answer for outcome in outcomes for answer in outcome.answers]
    return Outcome(answers, max(outcome.seconds for outcome in outcomes))


def run_round(title: str, predict: Predict, crowds: list[Crowd], console: Console) -> list[Outcome]:
    """Let all crowds ask at the same time."""
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(len(crowds)) as pool:

        def run(crowd: Crowd) -> Outcome:
            bar = progress.add_task(f"{title}: {crowd.name}", total=len(crowd.vectors))
            started = perf_counter()
            answers = crowd.ask(predict, crowd.vectors, lambda items: progress.advance(bar, items))
            return Outcome(answers, perf_counter() - started)

        return list(pool.map(run, crowds))


def tabulate(
    crowds: list[Crowd], alone: list[Outcome], shared: list[Outcome], mean_batch_size: float
) -> Table:
    """Return the table of both rounds."""
    table = Table()
    table.add_column("callers")
    for heading in ("items/s", "p50 ms", "p95 ms", "p99 ms", "batch", "speed-up"):
        table.add_column(heading, justify="right")
    names = [crowd.name for crowd in crowds] + ["all of them"]
    alone = [*alone, together(alone)]
    shared = [*shared, together(shared)]
    for name, outcome in zip(names, alone, strict=True):
        table.add_row(name, *_figures(outcome), "1", "", end_section=name == names[-1])
    for name, outcome, before in zip(names, shared, alone, strict=True):
        speed_up = f"{outcome.rate() / before.rate():.1f} x"
        table.add_row(name, *_figures(outcome), f"{mean_batch_size:.1f}", speed_up)
    return table


def _figures(outcome: Outcome) -> list[str]:
    return [f"{outcome.rate():,.0f}", *(f"{latency:,.1f}" for latency in outcome.latencies_ms())]


def same_scores(alone: list[Outcome], shared: list[Outcome]) -> bool:
    """Compare every answer of both rounds; a product of matrices rounds otherwise than one with a vector."""
    expected, actual = together(alone).scores(), together(shared).scores()
    return len(actual) == len(expected) and np.allclose(actual, expected, rtol=1e-3, atol=1e-3)


def main() -> int:
    """Run both rounds, print what came of them, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m batched.demo", description="Watch batching pay.")
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    items = QUICK_ITEMS if parser.parse_args().quick else ITEMS

    random = np.random.default_rng(1)
    crowds = [
        Crowd(name, ask, list(random.standard_normal((items, LAYERS[0]), dtype=np.float32)))
        for name, ask in (
            (f"{THREADS} threads", ask_from_threads),
            (f"{TASKS} asyncio tasks", ask_from_tasks),
            (f"1 list of {items}", ask_as_list),
        )
    ]
    model = Classifier()
    model.forward(crowds[0].vectors[:64])  # the first call pays for memory pages that later ones find ready

    console = Console()
    alone = run_round("one by one", OneByOne(model.forward), crowds, console)
    shared = run_round("batched", model.predict, crowds, console)
    console.print(tabulate(crowds, alone, shared, model.predict.stats.avg_batch_size))
    if not same_scores(alone, shared):
        console.print("The answers differ from those of the plain function.")
        return 1
    console.print(f"All {3 * items:,} answers verified against the plain function.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
