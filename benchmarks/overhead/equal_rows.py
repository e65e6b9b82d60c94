"""The time of a call of 100,000 rows of 64 numbers, beside a loop over slices that copies each, and 0.1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from batched import inference
from benchmarks.kit.measure import Effort, Stopwatch
from benchmarks.kit.own_process import beside_rival
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.overhead.features import Features, block, copied_slices, doubled

Answer = Callable[[Features], Any]

_BATCH = 1024
_SIZE = (100_000, 5_000)


@contextmanager
def _slices() -> Iterator[Answer]:
    yield partial(copied_slices, batch_size=_BATCH)


def _seconds(answer: Answer, effort: Effort) -> float:
    features, expected = _features(effort.of(*_SIZE))
    with Stopwatch() as spent:
        results = answer(features)
    assert results.dtype == expected.dtype
    assert np.array_equal(results, expected)
    return spent.wall


@cache
def _features(count: int) -> tuple[Features, Any]:
    features = block(count)
    return features, doubled(features)


def rows_per_second(count: int) -> float:
    """Return the rows a second of one call of many, of whichever `batched` is found first."""
    fn = inference.dynamically(doubled, batch_size=_BATCH, timeout_ms=0)
    assert fn(block(1))[0, 1] == 2  # noqa: PLR2004  1, doubled
    features, expected = _features(count)
    with Stopwatch() as spent:
        results = fn(features)
    assert (results == expected).all()
    return count / spent.wall


TURNS = Turns(
    {
        "ours": using(lambda: inference.dynamically(doubled, batch_size=_BATCH, timeout_ms=0), _seconds),
        "slices": using(_slices, _seconds),
    }
)
BESIDE_RIVAL = beside_rival(rows_per_second, _SIZE, rounds=3)

_WHAT = f"one call of 100k rows, batches of {_BATCH}"
ROWS = (
    Row("equal rows / slices", _WHAT, TURNS, "slices", goal=Goal(2.0)),
    Row("equal rows / 0.1.5", f"{_WHAT}, rows/s", BESIDE_RIVAL, RIVAL, SHARE, Goal(50.0, at_least=True)),
)
