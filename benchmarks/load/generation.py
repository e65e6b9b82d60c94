"""Items a second of a generator that is refilled while it runs, beside a plain stream and full batches.

Items need from 5 to 300 steps, log-normal. A step sleeps for 2 ms, 0.05 ms for each item that still runs, and
0.5 ms for each that joins, as reading a prompt takes. 64 tasks come straight back for 32 places. What is
counted ends when no items are left to be asked for: until then, items always wait.
"""

from __future__ import annotations

from asyncio import create_task, gather
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from statistics import quantiles
from time import perf_counter, sleep
from typing import Any, Protocol

import batched
from benchmarks.kit.bare import device
from benchmarks.kit.callers import run_precisely
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import SHARE, TIMES, Comparison, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.load.device import BATCH

_CALLERS = 2 * BATCH
_STEP_MS, _PER_ITEM_MS, _JOINING_MS = 2.0, 0.05, 0.5
_FEWEST, _MEDIAN, _SIGMA = 5, 40, 0.9  # steps of an item
MOST = (300, 10)
ITEMS = (1000, 80)

Pieces = list[int | batched.Done]


class Streams(Protocol):
    """What is asked: a batched function, or what does the same."""

    def astream(self, item: int, /) -> AsyncIterator[int]:
        """Return the pieces of an item."""
        ...


class Model:
    """Counts, step by step, how many places of a batch had an item that still ran."""

    def __init__(self) -> None:
        self.steps = 0
        self.taken = 0
        device(0.0, 0.0)  # from now on, sleeps of this thread and those that it starts are precise

    def step(self, running: int, joining: int = 0) -> None:
        """Take as long as a step with so many items."""
        self.steps += 1
        self.taken += running
        sleep((_STEP_MS + _PER_ITEM_MS * running + _JOINING_MS * joining) / 1000)

    def plain(self, lengths: list[int]) -> Iterator[Pieces]:
        """Run until the longest item has ended."""
        joining = len(lengths)
        for at in range(max(lengths)):
            self.step(sum(at < length for length in lengths), joining)
            joining = 0
            yield [at if at < length else batched.DONE for length in lengths]

    def refilled(self, lengths: list[int]) -> Generator[Pieces, batched.Change[int], None]:
        """Run as long as there are items; one is gone at the step after its last piece."""
        rows = [[0, length] for length in lengths]
        joining = len(rows)
        while True:
            self.step(sum(at < length for at, length in rows), joining)
            change = yield [at if at < length else batched.DONE for at, length in rows]
            for row in rows:
                row[0] += 1
            joining = len(change.joined)
            rows = [row for at, row in enumerate(rows) if at not in change.left]
            rows += [[0, length] for length in change.joined]


def lengths_of(items: int, most: int) -> list[int]:
    """Return how many steps each of so many items needs, `most` at most: the same every time."""
    random = Random(1)  # noqa: S311  no secret
    drawn = (random.lognormvariate(0.0, _SIGMA) * _MEDIAN for _ in range(items))
    return [round(min(max(steps, _FEWEST), most)) for steps in drawn]


async def ask(fn: Streams, model: Model, lengths: list[int]) -> dict[str, float]:
    """Have all items asked for, each by the next caller that is free."""
    waiting, firsts, ended = iter(lengths), [], 0
    found: dict[str, float] = {}
    began = perf_counter()

    async def caller() -> None:
        nonlocal ended
        for length in waiting:
            asked = perf_counter()
            pieces: list[int] = []
            async for piece in fn.astream(length):
                if not pieces:
                    firsts.append(perf_counter() - asked)
                pieces.append(piece)
            assert pieces == list(range(length))
            ended += 1
        if not found:
            cuts = quantiles(firsts, n=100)
            found.update(
                {
                    "rate": ended / (perf_counter() - began),
                    "p50": cuts[49],
                    "p99": cuts[98],
                    "places": model.taken / model.steps / BATCH,
                    "all": 1.0,
                }
            )

    await gather(*[create_task(caller()) for _ in range(_CALLERS)])
    return {**found, "longest": max(firsts)}


def _lengths(effort: Effort) -> list[int]:
    return lengths_of(effort.of(*ITEMS), effort.of(*MOST))


def _measured(effort: Effort, *, continuous: bool) -> dict[str, float]:
    model = Model()
    function: Any = model.refilled if continuous else model.plain
    with dynamically(function, batch_size=BATCH, continuous=continuous) as fn:
        return run_precisely(ask(fn, model, _lengths(effort)))


def _streams(*, continuous: bool) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield partial(_measured, effort, continuous=continuous)

    return contender


def _always_taken(effort: Effort) -> float:
    """Return the items a second of the model alone, with all places taken: no calls, no pieces."""
    model, waiting, ended = Model(), iter(_lengths(effort)), 0
    rows = [next(waiting) for _ in range(BATCH)]
    joining = BATCH
    began = perf_counter()
    while True:
        model.step(BATCH, joining)
        rows = [left - 1 for left in rows if left > 1]
        joining = BATCH - len(rows)
        ended += joining
        for _ in range(joining):
            if (length := next(waiting, None)) is None:
                return ended / (perf_counter() - began)
            rows.append(length)


@contextmanager
def _bare(effort: Effort) -> Iterator[Measure]:
    yield partial(_always_taken, effort)


def of_ours(figure: str, items: int, most: int) -> float:
    """Return one of the figures of a function that is refilled."""
    model = Model()
    with dynamically(model.refilled, batch_size=BATCH, continuous=True) as fn:
        return run_precisely(ask(fn, model, lengths_of(items, most)))[figure]


_TURNS = Turns(
    {"ours": _streams(continuous=True), "plain stream": _streams(continuous=False), "all places": _bare},
    rounds=3,
)
_OF_ALL = Comparison("", "", lambda ours, all_of_it: ours / all_of_it)
_RATE = f"items a second of {_CALLERS} tasks"
_FIRST = "time to the first piece"

ROWS = (
    Row("generation", _RATE, _TURNS, "plain stream rate", SHARE, Goal(1.6, at_least=True), "ours rate"),
    Row("generation, bare", _RATE, _TURNS, "all places", SHARE, Goal(0.9, at_least=True), "ours rate"),
    Row("generation, p50", f"{_FIRST}, p50", _TURNS, "plain stream p50", TIMES, Goal(1 / 3), "ours p50"),
    Row("generation, p99", f"{_FIRST}, p99", _TURNS, "plain stream p99", TIMES, Goal(1.0), "ours p99"),
    Row(
        "generation, places",
        "share of places that were taken, while items waited",
        _TURNS,
        "ours all",
        _OF_ALL,
        Goal(0.9, at_least=True),
        "ours places",
    ),
    Row(
        "generation, places of a plain stream",
        "the same of a plain stream",
        _TURNS,
        "ours all",
        _OF_ALL,
        None,
        "plain stream places",
    ),
)
