"""What padding, joining and cutting arrays costs, beside the same by hand and beside 0.1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from batched import inference
from batched._arrays import FeatureCollator
from batched._call import Batch
from batched._options import ArrayOptions
from benchmarks.features import BATCH, CALLERS, Features, block, by_hand, copied_slices, doubled, rows, sums
from benchmarks.measure import Effort, Row, Stopwatch, interleave, share, times
from benchmarks.rival import beside_rival

__all__ = ["equal_rows", "ragged_rows"]

_BLOCK_BATCH = 1024


def ragged_rows(effort: Effort) -> Iterator[Row]:
    """Single rows of many lengths."""
    calls = rows(CALLERS)
    name, what = "ragged rows / by hand", "collate + split of a ragged row"
    numpy_zeros = partial(np.zeros, dtype=np.int64)
    yield _beside_hand(effort, name, what, calls, numpy_zeros, methodcaller("copy"))
    try:
        import torch  # noqa: PLC0415  not part of the extra
    except ImportError:
        yield Row(f"{name}, torch", f"{what}, torch", note="torch is not installed")
    else:
        tensors = [{key: torch.from_numpy(array) for key, array in features.items()} for features in calls]
        torch_zeros = partial(torch.zeros, dtype=torch.int64)
        clone = methodcaller("clone")
        yield _beside_hand(effort, f"{name}, torch", f"{what}, torch", tensors, torch_zeros, clone)
    what = f"CPU per ragged row, {CALLERS} tasks"
    yield from beside_rival(
        effort, effort.of(5, 1), "ragged rows / 0.1.5", what, "ragged rows", effort.of(40, 2), times
    )


def _beside_hand(  # noqa: PLR0913, PLR0917  a row and what to measure
    effort: Effort,
    name: str,
    what: str,
    calls: list[Features],
    zeros: Callable[[tuple[int, int]], Any],
    copy: Callable[[Any], Any],
) -> Row:
    outputs = sums(next(by_hand(calls[:BATCH], zeros, copy, zeros((BATCH, 1))))[0])
    collator = FeatureCollator("sums", ArrayOptions(batch_size=BATCH))
    batches = list(_batches(collator, calls))

    def ours() -> Iterator[tuple[dict[Any, Any], list[Any]]]:
        for batch in batches:
            padded = collator.collate(batch)
            yield padded, collator.split(outputs, batch)

    def hand() -> Iterator[tuple[Features, list[Any]]]:
        return by_hand(calls, zeros, copy, outputs)

    for (padded, cut), (expected, expected_cut) in zip(ours(), hand(), strict=True):
        assert padded.keys() == expected.keys()
        assert all((padded[key] == expected[key]).all() for key in expected)
        assert cut == expected_cut
    repeats = effort.of(20, 1)
    samples = interleave(
        effort,
        effort.of(25, 2),
        ours=partial(_cpu_per_row, ours, repeats),
        hand=partial(_cpu_per_row, hand, repeats),
    )
    return times(name, what, samples, "hand")


def _batches(collator: FeatureCollator, calls: list[Features]) -> Iterator[Batch]:
    """Yield the batches that come of single rows."""
    for start in range(0, len(calls), BATCH):
        read = [collator.read(sums, (features,), {}, 0.0) for features in calls[start : start + BATCH]]
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
