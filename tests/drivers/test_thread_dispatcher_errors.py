"""Errors that end a thread elsewhere, and workers that run out of memory at once."""

from __future__ import annotations

import threading

import pytest

import batched
from tests.kit.gate import PATIENCE_S


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_not_isolated(kind: type[BaseException]) -> None:
    """It is meant to end the function, not an item."""
    runs = []

    def leave(items: list[int]) -> list[int]:
        runs.append(items)
        raise kind

    fn = batched.dynamically(leave, batch_size=4, timeout_ms=0, isolate_errors=True)
    with pytest.raises(kind):
        fn([1, 2, 3, 4])
    assert len(runs) == 1


def test_several_workers_that_run_out_of_memory_lose_nothing() -> None:
    """All halves come back to the caller in order."""
    both = threading.Barrier(2)
    first = threading.local()

    def function(items: list[int]) -> list[int]:
        if not hasattr(first, "met"):
            first.met = both.wait(PATIENCE_S)
        if len(items) > 4:
            raise MemoryError
        return items

    fn = batched.dynamically(function, batch_size=16, timeout_ms=0, max_concurrent_batches=2)
    assert fn(list(range(64))) == list(range(64))
    assert fn.stats.fits_memory == 4
    fn.shutdown()
