"""The time of a list, for a function that does almost nothing, beside the function over slices and 0.1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import batched
from benchmarks.kit.bare import joined_slices
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically
from benchmarks.kit.own_process import beside_rival
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Turns, using

Answer = Callable[[list[int]], list[int]]


def increment(items: list[int]) -> list[int]:
    """Do next to nothing, but make new objects."""
    return [item + 1 for item in items]


def _seconds(answer: Answer, effort: Effort) -> float:
    items, expected = _items(effort.of(1_000_000, 10_000))
    with Stopwatch() as spent:
        results = answer(items)
    assert results == expected
    return spent.wall


@cache
def _items(count: int) -> tuple[list[int], list[int]]:
    """Return the same list every time, and what `increment` makes of it."""
    items = list(range(count))
    return items, increment(items)


def _turns(batch_size: int) -> Turns:
    @contextmanager
    def slices() -> Iterator[Answer]:
        yield partial(joined_slices, increment, batch_size=batch_size)

    return Turns(
        {
            "ours": using(lambda: dynamically(increment, batch_size=batch_size), _seconds),
            "slices": using(slices, _seconds),
        }
    )


def items_per_second(size: int) -> float:
    """Return the items a second of one list, of whichever `batched` is found first."""
    fn = batched.dynamically(increment, batch_size=32, timeout_ms=0)
    assert fn([1]) == [2]
    items, expected = _items(size)
    with Stopwatch() as spent:
        results = fn(items)
    assert results == expected
    return size / spent.wall


_SIZE = (100_000, 1_000)
BESIDE_RIVAL = beside_rival(items_per_second, _SIZE, rounds=5)

_LARGE, _SMALL = (f"list of 1M, batches of {batch_size}" for batch_size in (1024, 32))
ROWS = (
    Row(_LARGE, _LARGE, _turns(1024), "slices", goal=Goal(1.4)),
    Row(_SMALL, _SMALL, _turns(32), "slices", goal=Goal(4.0)),
    Row("list / 0.1.5", "list of 100k, batches of 32", BESIDE_RIVAL, RIVAL, SHARE),
)
