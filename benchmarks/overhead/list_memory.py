"""The peak of memory of one list, for each item, beside its results and one copy of the list."""

from __future__ import annotations

import batched
from benchmarks.kit.measure import peak_rss
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import BYTES, Goal, Row
from benchmarks.kit.turns import Turns
from benchmarks.overhead.list import increment


def growth(contender: str, size: int) -> float:
    """Return the bytes per item by which one list makes the process grow, its results included."""
    items = list(range(size))
    fn = batched.dynamically(increment, batch_size=32, timeout_ms=0)
    assert fn([1]) == [2]  # the thread and its stack are not the list's
    before = peak_rss()
    results = fn(items) if contender == "ours" else _copied_and_incremented(items)
    grown = peak_rss() - before
    assert results == list(range(1, size + 1))
    return grown / size


def _copied_and_incremented(items: list[int]) -> list[int]:
    """Make what no batcher can leave out: a copy at the door, and results in a list of the right size."""
    items = items.copy()
    results = [0] * len(items)
    for index, item in enumerate(items):
        results[index] = item + 1
    return results


GROWTH = Turns(
    {name: Alone(growth, (name, (1_000_000, 10_000))) for name in ("ours", "results + copy")}, rounds=3
)

_WHAT = "peak memory of a list of 1M, each item"
ROWS = (Row("list memory", _WHAT, GROWTH, "results + copy", BYTES, Goal(16.0)),)
