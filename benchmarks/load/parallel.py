"""Two batches at once of a function in pure Python, beside one at a time and two bare threads.

With the interpreter lock two are no faster than one. A free-threaded Python runs each on a core of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.kit.callers import closed_threads
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import SHARE, Row
from benchmarks.kit.turns import Contender, Turns, using

_BATCH = 8
_ITEMS = (2048, 32)
_EACH = (32, 2)
_STEPS = 3000  # some 0.2 ms an item


def spin(items: list[int]) -> list[int]:
    """Return the items, after a while in which nothing but this thread's own numbers is touched.

    Constants below 257 are counted for no thread. For a larger one in an imported module 3.13t counts
    references from all threads in one place: two threads are then slower than one.
    """
    answers = []
    for item in items:
        number = item
        for step in range(_STEPS):
            number = (number * 31 + step) & 0xFF
        answers.append(item if number >= 0 else number)
    return answers


def _rate_of_list(call: Callable[[list[int]], list[int]], effort: Effort) -> float:
    items = [*range(effort.of(*_ITEMS))]
    with Stopwatch() as spent:
        answers = call(items)
    assert answers == items
    return len(items) / spent.wall


def _rate_of_threads(call: Callable[[Any], Any], effort: Effort) -> float:
    each = effort.of(*_EACH)
    return 2 * _BATCH * each / closed_threads(call, 2 * _BATCH, each).wall


def _bare(pool: ThreadPoolExecutor, effort: Effort) -> float:
    def call(items: list[int]) -> list[int]:
        batches = [items[first : first + _BATCH] for first in range(0, len(items), _BATCH)]
        return [answer for batch in pool.map(spin, batches) for answer in batch]

    return _rate_of_list(call, effort)


def _at_once(batches: int, measure: Callable[[Any, Effort], float]) -> Contender:
    return using(lambda: dynamically(spin, batch_size=_BATCH, max_concurrent_batches=batches), measure)


_LIST = Turns(
    {
        "ours": _at_once(2, _rate_of_list),
        "ours, one at a time": _at_once(1, _rate_of_list),
        "two bare threads": using(partial(ThreadPoolExecutor, 2), _bare),
    },
    rounds=9,
)
_THREADS = Turns(
    {"ours": _at_once(2, _rate_of_threads), "ours, one at a time": _at_once(1, _rate_of_threads)}, rounds=9
)

ROWS = (
    Row("parallel, a list", "items a second, two batches at once", _LIST, "ours, one at a time", SHARE),
    Row("parallel, a list / bare", "items a second, two batches at once", _LIST, "two bare threads", SHARE),
    Row(
        "parallel, 16 threads", "items a second, two batches at once", _THREADS, "ours, one at a time", SHARE
    ),
)
