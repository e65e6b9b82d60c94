"""What padding, joining and cutting arrays costs, beside the same by hand and beside 0.1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from batched import inference
from batched._collate.arrays import FeatureCollator
from batched._core.batch import Batch
from batched._core.options import ArrayOptions
from benchmarks.kit.measure import Effort, Row, Stopwatch, interleave, share, times
from benchmarks.kit.rival import beside_rival
from benchmarks.overhead.features import (
    BATCH,
    CALLERS,
    Features,
    block,
    copied_slices,
    doubled,
    filled_by_hand,
    rows,
    sums,
)

__all__ = ["equal_rows", "ragged_rows"]

_BLOCK_BATCH = 1024

_WRAPPER = SimpleNamespace(__wrapped__=sums)


def ragged_rows(effort: Effort) -> Iterator[Row]:
    """Single rows of many lengths."""
    calls = rows(CALLERS)
    name, what = "ragged rows / filled by hand", "collate + split, each ragged row"
    yield _beside_hand(effort, name, what, calls, partial(np.zeros, dtype=np.int64))
    try:
        import torch  # noqa: PLC0415  not part of the extra
    except ImportError:
        yield Row(f"{name}, torch", f"{what}, torch", note="torch is not installed")
    else:
        tensors = [{key: torch.from_numpy(array) for key, array in features.items()} for features in calls]
        zeros = partial(torch.zeros, dtype=torch.int64)
        yield _beside_hand(effort, f"{name}, torch", f"{what}, torch", tensors, zeros)
    what = f"CPU per ragged row, {CALLERS} tasks"
    rounds, each = effort.of(5, 1), effort.of(40, 2)
    yield from beside_rival(effort, rounds, "ragged rows / 0.1.5", what, "ragged rows", each, times)


def _beside_hand(
    effort: Effort, name: str, what: str, calls: list[Features], zeros: Callable[[tuple[int, int]], Any]
) -> Row:
    collator = FeatureCollator("sums", ArrayOptions(batch_size=BATCH))
    batches = list(_batches(collator, calls))
    outputs = [sums(padded) for padded in filled_by_hand(calls, zeros)]

    def ours() -> Iterator[tuple[Any, Any]]:
        for batch, rows_of in zip(batches, outputs, strict=True):
            yield collator.collate(batch), collator.split(rows_of, batch)

    def hand() -> Iterator[Features]:
        return filled_by_hand(calls, zeros)

    answers: list[Any] = []
    for (padded, answered), expected in zip(ours(), hand(), strict=True):
        assert all((padded[key] == expected[key]).all() for key in (*padded, *expected))
        answers += answered
    assert answers == list(range(CALLERS))
    repeats = effort.of(20, 1)
    samples = interleave(
        effort,
        effort.of(25, 2),
        ours=partial(_cpu_per_row, ours, repeats),
        fill=partial(_cpu_per_row, hand, repeats),
    )
    return times(name, what, samples, "fill")


def _batches(collator: FeatureCollator, calls: list[Features]) -> Iterator[Batch]:
    """Yield the batches that come of single rows."""
    for start in range(0, len(calls), BATCH):
        read = [collator.read(_WRAPPER, (features,), {}, 0.0) for features in calls[start : start + BATCH]]
        yield Batch([(call, 0, call.size) for call in read], len(read), "full")


def _cpu_per_row(run: Callable[[], Iterator[object]], repeats: int) -> float:
    with Stopwatch() as spent:
        for _ in range(repeats):
            for _ in run():
                pass
    return spent.cpu / (repeats * CALLERS)


def equal_rows(effort: Effort) -> Iterator[Row]:
    """One call of many rows, answered by a function that does next to nothing."""
    count = effort.of(100_000, 10_000)
    features = block(count)
    expected = doubled(features)
    with inference.dynamically(doubled, batch_size=_BLOCK_BATCH, timeout_ms=0) as fn:
        samples = interleave(
            effort,
            effort.of(25, 2),
            ours=lambda: _seconds_of(fn, features, expected),
            slices=lambda: _seconds_of(partial(copied_slices, batch_size=_BLOCK_BATCH), features, expected),
        )
    what = f"one call of 100k rows, batches of {_BLOCK_BATCH}"
    yield times("equal rows / slices", what, samples, "slices")
    yield from beside_rival(effort, effort.of(3, 1), "equal rows / 0.1.5", what, "equal rows", count, share)


def _seconds_of(answer: Callable[[Features], Any], features: Features, expected: Any) -> float:
    with Stopwatch() as spent:
        results = answer(features)
    assert results.dtype == expected.dtype
    assert np.array_equal(results, expected)
    return spent.wall
