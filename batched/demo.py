"""See what batching gains: `python -m batched.demo`, after `pip install numpy rich`.

Threads, asyncio tasks, and a long list call the same network at the same time: first one item at a time,
then in batches. The weights are random, but the work is real, and nothing sleeps. A call with one item spends
most of its time reading the weights from memory. A batch reads them once for all of its items.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from textwrap import dedent, indent
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeAlias

import batched

# The arithmetic runs in one thread in both rounds, so batching is all that makes a difference. With a thread
# for each core, the threads of a BLAS wait for each other whenever a caller needs a core, and a call may take
# ten times as long. The BLAS of numpy reads one of these variables when it is loaded.
for _blas in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM"):
    os.environ[f"{_blas}_THREADS"] = "1"

try:
    import numpy as np
    from numpy.typing import NDArray
    from rich import box
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as _missing:
    raise SystemExit(f"The demo needs {_missing.name}: pip install {_missing.name}") from None

Vector: TypeAlias = NDArray[np.float32]
Batched: TypeAlias = batched.BatchedFunction[Vector, Vector]

LAYERS = (1024, 4096, 4096, 256)
THREADS = 16
CALLS_OF_A_THREAD = 24
TASKS = 64
CALLS_OF_A_TASK = 14  # fewer: then threads go on alone, and smaller batches can tell what an item costs
LENGTH_OF_THE_LIST = 320
INTERRUPTED = 130
SHOW_CURSOR = b"\x1b[?25h"  # the bars hide it
QUICK = 4  # --quick divides these calls and items by it

NOTES = """\
p50 and p99 are how long a call with one item took; the list is one call.
All three ran at the same time: items add up, and the slowest sets the seconds.
"""
NEXT_STEPS = """
Next:
  docs/tutorial.md                speed up a web service, step by step
  docs/reference/options.md       all options; you need none to start
  python -m batched.demo --quick  this demo again, with a quarter of the items"""


class Network:
    """A perceptron with three layers of random weights."""

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

    def megabytes(self) -> float:
        """Return the size of the weights."""
        return sum(weights.nbytes for weights in self.weights) / 1e6


def in_batches(network: Network) -> Batched:
    """Return a function that answers many callers with one batch."""

    @batched.dynamically
    def predict(vectors: list[Vector]) -> list[Vector]:
        return network.forward(vectors)

    return predict


class OneByOne:
    """What callers do without batching: they take turns, since a network serves one call at a time.

    Turns are in order of arrival. With a bare lock, a caller that has just had a turn often gets the next one
    too, and the demo would measure fairness as well as batching.
    """

    def __init__(self, function: Callable[[list[Vector]], list[Vector]]) -> None:
        self._function = function
        self._worker = ThreadPoolExecutor(1)

    def __call__(self, asked: Any, /) -> Any:
        """Call the function once for each item."""
        if isinstance(asked, list):
            return [self(vector) for vector in asked]
        return self._worker.submit(self._function, [asked]).result()[0]

    async def acall(self, vector: Vector, /) -> Vector:
        """Call the function without blocking the event loop."""
        scores = await asyncio.wrap_future(self._worker.submit(self._function, [vector]))
        return scores[0]


Predict: TypeAlias = OneByOne | Batched
Advance: TypeAlias = Callable[[int], None]


class Answer(NamedTuple):
    """What one call returned, and how long it took."""

    scores: list[Vector]
    seconds: float


def ask_from_threads(predict: Predict, vectors: list[Vector], advance: Advance) -> list[Answer]:
    """Call from many threads, each with one item at a time."""

    def ask(vector: Vector) -> Answer:
        started = perf_counter()
        scores = predict(vector)
        seconds = perf_counter() - started
        advance(1)
        return Answer([scores], seconds)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(ask, vectors))


def ask_from_tasks(predict: Predict, vectors: list[Vector], advance: Advance) -> list[Answer]:
    """Call from many tasks of one event loop, each with one item at a time."""

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
    """Call once, with all items."""
    started = perf_counter()
    scores = predict(vectors)
    seconds = perf_counter() - started
    advance(len(vectors))
    return [Answer(scores, seconds)]


class Crowd(NamedTuple):
    """One kind of callers, and their items."""

    name: str
    ask: Callable[[Predict, list[Vector], Advance], list[Answer]]
    vectors: list[Vector]

    def call(self) -> str:
        """Return the line of code that calls the network."""
        lines = [line.strip() for line in inspect.getsource(self.ask).splitlines()]
        return next(line for line in lines if line.startswith("scores = "))


def make_crowds(divisor: int) -> list[Crowd]:
    """Return the three kinds of callers; no two of their items are equal."""
    random = np.random.default_rng(1)

    def vectors(count: int) -> list[Vector]:
        return list(random.standard_normal((count, LAYERS[0]), dtype=np.float32))

    length = LENGTH_OF_THE_LIST // divisor
    return [
        Crowd(f"{THREADS} threads", ask_from_threads, vectors(THREADS * CALLS_OF_A_THREAD // divisor)),
        Crowd(f"{TASKS} asyncio tasks", ask_from_tasks, vectors(TASKS * CALLS_OF_A_TASK // divisor)),
        Crowd(f"a list of {length}", ask_as_list, vectors(length)),
    ]


def source_of(predict: Batched, crowds: list[Crowd]) -> str:
    """Return the code that makes the difference, read from this file: the function and its calls."""
    function = dedent(inspect.getsource(inspect.unwrap(predict)))
    width = max(len(crowd.call()) for crowd in crowds)
    return "\n".join([function, *(f"{crowd.call():{width}}  # {crowd.name}" for crowd in crowds)])


def highlighted(code: str) -> Text:
    """Return Python code, indented, in colors that can be read on light terminals and on dark ones."""
    text = Syntax("", "python", theme="ansi_light").highlight(indent(code, "    "))
    text.highlight_words(["@batched.dynamically"], "bold magenta")
    return text


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

    def cells(self) -> list[str]:
        """Return the cells of its row; a call with many items has no latencies."""
        totals = [f"{len(self.scores()):,}", f"{self.seconds:.2f}", f"{self.rate():,.0f}"]
        if any(len(answer.scores) > 1 for answer in self.answers):
            return [*totals, "", ""]
        latencies_ms = np.percentile([answer.seconds * 1000 for answer in self.answers], [50, 99])
        return [*totals, *(f"{latency:,.0f}" for latency in latencies_ms)]


def run_crowds(title: str, predict: Predict, crowds: list[Crowd], console: Console) -> list[Outcome]:
    """Let all crowds call at the same time; return the outcome of each, and last, that of all together."""
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


def tabulate(names: list[str], alone: list[Outcome], shared: list[Outcome]) -> Table:
    """Return the table of both rounds, the last outcome of each being that of all callers together."""
    table = Table(box=box.SIMPLE)
    table.add_column("callers", no_wrap=True)
    for heading in ("items", "seconds", "items/s", "p50 ms", "p99 ms", "speed-up"):
        table.add_column(heading, justify="right")

    for title, outcomes in (("one by one", alone), ("batched", shared)):
        table.add_section()
        table.add_row(f"[bold]{title}")
        for name, outcome, before in zip(names, outcomes, alone, strict=True):
            speed_up = "" if outcomes is alone else f"{outcome.rate() / before.rate():.1f} x"
            table.add_row(name, *outcome.cells(), speed_up)
    return table


def same_scores(alone: Outcome, shared: Outcome) -> bool:
    """Compare all answers, but for rounding: a batch adds up in a different order than a single item."""
    expected, actual = alone.scores(), shared.scores()
    return len(actual) == len(expected) and np.allclose(actual, expected, rtol=1e-4, atol=1e-4)


def leave(*_: object) -> NoReturn:
    """End at once, on Ctrl-C: to end in order, each thread would first have the rest of its answers."""
    if os.isatty(1):  # not by the console, which may be in the midst of a line, and has taken `sys.stdout`
        os.write(1, SHOW_CURSOR)
    os._exit(INTERRUPTED)


def main() -> int:
    """Run both rounds, print what came of them, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m batched.demo", description="See what batching gains.")
    parser.add_argument("--quick", action="store_true", help="use a quarter of the items")
    crowds = make_crowds(QUICK if parser.parse_args().quick else 1)
    network = Network()
    predict = in_batches(network)

    console = Console(highlight=False)
    signal.signal(signal.SIGINT, leave)
    console.print(f"A numpy network, {network.megabytes():.0f} MB of weights, on one core. Nothing sleeps.")
    console.print("The same calls, first one item at a time, then in batches, with this code:\n")
    console.print(highlighted(source_of(predict, crowds)))

    network.forward(crowds[0].vectors)  # the first product also waits for memory to be mapped
    alone = run_crowds("one by one", OneByOne(network.forward), crowds, console)
    shared = run_crowds("batched", predict, crowds, console)
    console.print(tabulate([*(crowd.name for crowd in crowds), "all three together"], alone, shared))
    console.print(NOTES)
    if not same_scores(alone[-1], shared[-1]):
        console.print("Some answers differ from those of the plain function.")
        return 1
    console.print(f"All {len(shared[-1].scores()):,} answers verified against the plain function.\n")

    console.print(highlighted("print(predict.explain())\n"))
    console.print(predict.explain(), markup=False)
    console.print(NEXT_STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
