"""The time of strings whose length does not matter: the default `length="auto"` beside `length=None`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Contender, Turns, using

_TASKS = 64


def _same(items: list[str]) -> list[str]:
    return items


@cache
def _strings(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _list(fn: Any, effort: Effort) -> float:
    items = _strings(effort.of(1_000_000, 10_000))
    with Stopwatch() as spent:
        assert fn(items) == items
    return spent.wall


def _singles(fn: Any, effort: Effort) -> float:
    items = _strings(effort.of(32_000, 640))

    async def caller(first: int) -> None:
        for item in items[first::_TASKS]:
            assert await fn.acall(item) == item

    async def main() -> None:
        await asyncio.gather(*map(caller, range(_TASKS)))

    with Stopwatch() as spent:
        asyncio.run(main())
    return spent.cpu / len(items)


def _contender(measure: Any, length: Any) -> Contender:
    @contextmanager
    def fn() -> Iterator[Any]:
        yield dynamically(_same, length=length)

    return using(fn, measure)


def _turns(measure: Any) -> Turns:
    return Turns({"ours": _contender(measure, "auto"), "length=None": _contender(measure, None)}, rounds=9)


_LIST, _SINGLES = "auto length: list of 1M strings", "auto length: 64 tasks"
ROWS = (
    Row(_LIST, "list of 1M strings", _turns(_list), "length=None", goal=Goal(1.2)),
    Row(_SINGLES, "CPU per single, 64 tasks", _turns(_singles), "length=None", goal=Goal(1.1)),
)
