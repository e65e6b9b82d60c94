"""How many items fit into memory, as it is learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._policy.memory_limit import MemoryLimit
from batched._policy.out_of_memory import is_out_of_memory
from tests.kit.optional import torch


@pytest.mark.parametrize(
    "error", [MemoryError, torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, np.linalg.LinAlgError]
)
def test_what_counts_as_out_of_memory(error: type[Exception]) -> None:
    """Python's own, and whatever is called `OutOfMemoryError`; no import is needed to know."""
    assert is_out_of_memory(error("x")) == (error is not np.linalg.LinAlgError)


@given(st.integers(1, 200), st.integers(1, 200))
def test_probing_settles_at_what_fits_and_costs_less_and_less(fits: int, batch_size: int) -> None:
    """The limit is never above the batch size, never far below what fits, and failures become rare."""
    capacity = MemoryLimit()
    fits = min(fits, batch_size)
    failures = 0
    late = 0
    for turn in range(20_000):
        size = batch_size if capacity.limit is None else min(batch_size, capacity.limit)
        if size > fits:
            capacity.exceeded(size)
            failures += 1
            late += turn >= 10_000
        else:
            capacity.ran(size, batch_size)
        assert capacity.limit is None or 1 <= capacity.limit <= batch_size
    if capacity.limit is not None:
        assert capacity.limit >= min(fits, batch_size) * 0.75 - 1
    assert late <= 3
    assert failures <= 8 + 10


def test_the_descent_is_no_failed_probe() -> None:
    """However often a size was halved at first, more is tried after 64 batches."""
    capacity = MemoryLimit()
    for size in (64, 32, 16, 8, 4):
        capacity.exceeded(size)
    assert capacity.limit == 2
    for _ in range(64):
        capacity.ran(2, 64)
    assert capacity.limit == 3
    capacity.exceeded(3)
    assert capacity.limit == 2  # what has fitted
    for _ in range(127):
        capacity.ran(2, 64)
    assert capacity.limit == 2
    capacity.ran(2, 64)
    assert capacity.limit == 3
