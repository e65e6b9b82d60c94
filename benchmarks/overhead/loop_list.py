"""The time of one list from a task, in both flavours, beside the function over slices and other batchers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.kit.bare import echo as plain_echo
from benchmarks.kit.bare import joined_slices
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically, dynamically_on_loops
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.overhead.loop_rivals import BATCH, beside, contender, echo

Answer = Callable[[list[Any]], Awaitable[list[Any]]]

_SIZE = (100_000, 1_000)


def _seconds(answer: Answer, effort: Effort) -> float:
    async def once() -> float:
        items = list(range(effort.of(*_SIZE)))
        with Stopwatch() as spent:
            answers = await answer(items)
        assert answers == items
        return spent.wall

    return asyncio.run(once())


@contextmanager
def _on_loop() -> Iterator[Answer]:
    yield dynamically_on_loops(echo, batch_size=BATCH)


@contextmanager
def _in_thread() -> Iterator[Answer]:
    with dynamically(plain_echo, batch_size=BATCH) as fn:
        yield fn.acall


@contextmanager
def _awaited_slices() -> Iterator[Answer]:
    async def answer(items: list[Any]) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(items), BATCH):
            results += await echo(items[start : start + BATCH])
        return results

    yield answer


@contextmanager
def _slices() -> Iterator[Answer]:
    async def answer(items: list[Any]) -> list[Any]:
        return joined_slices(plain_echo, items, BATCH)

    yield answer


def items_per_second(name: str, size: int) -> float:
    """Return the items a second of one list."""
    return asyncio.run(_items_per_second(name, size))


async def _items_per_second(name: str, size: int) -> float:
    async with contender(name) as (_, many):
        items = list(range(size))
        assert await many([1]) == [1]
        with Stopwatch() as spent:
            answers = await many(items)
    assert answers == items
    return size / spent.wall


def _beside(rival: str) -> Turns:
    return beside(rival, items_per_second, _SIZE)


ON_LOOP = Turns({"ours": using(_on_loop, _seconds), "slices": using(_awaited_slices, _seconds)})
IN_THREAD = Turns({"ours": using(_in_thread, _seconds), "slices": using(_slices, _seconds)})

_NAME = "loop list of 100k"
_WHAT = "list of 100k, async function"
_GOALS = {"aiodataloader": Goal(20.0, at_least=True)}
ROWS = (
    Row(f"{_NAME} / slices", f"{_WHAT}, seconds", ON_LOOP, "slices"),
    Row("acall of a list of 100k / slices", "list of 100k through acall, seconds", IN_THREAD, "slices"),
    *(
        Row(
            f"{_NAME} / {rival}",
            _WHAT,
            beside(rival, items_per_second, _SIZE),
            rival,
            SHARE,
            _GOALS.get(rival),
        )
        for rival in ("aiodataloader", RIVAL)
    ),
)
