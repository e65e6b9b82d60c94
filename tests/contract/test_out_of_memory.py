"""Batches that do not fit into memory run again in halves, and later ones are smaller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.culprits import Bad
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.optional import torch


def limited(most: int, error: Any = MemoryError) -> Gate:
    """Return a batch function that runs out of memory above `most` items."""

    def function(items: list[Any]) -> list[Any]:
        if len(items) > most:
            raise error("out of memory")
        return items

    return Gate(function)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_out_of_memory_halves_goes_on_and_is_remembered(flavour: Flavour, error: Any) -> None:
    """Without any option; later batches are not too large any more, and `stats` says so."""
    gate = limited(3, error)
    fn = flavour.decorate(gate, batch_size=16, timeout_ms=0)
    assert fn.stats.fits_memory is None
    assert flavour.call(fn, list(range(16))) == list(range(16))
    assert fn.stats.fits_memory == 2
    assert "fits in memory      2 items" in str(fn.stats)
    gate.batches.clear()
    assert flavour.call(fn, list(range(16))) == list(range(16))
    assert [len(batch) for batch in gate.batches] == [2] * 8
    assert fn.stats.total_failed == 0


def test_a_single_item_that_does_not_fit_fails_alone(flavour: Flavour) -> None:
    """Its neighbours are answered."""

    def function(items: list[int]) -> list[int]:
        if 3 in items:
            raise MemoryError
        return items

    fn = flavour.decorate(function, batch_size=4, timeout_ms=0)
    answers = flavour.call(fn.options(return_exceptions=True), [1, 2, 3, 4])
    assert [1, 2, MemoryError, 4] == [row if isinstance(row, int) else type(row) for row in answers]


def test_a_list_that_failed_does_not_fail_its_neighbours_in_the_other_half(flavour: Flavour) -> None:
    """Nothing of it runs again, though it is in both halves."""

    def function(items: list[Any]) -> list[Any]:
        if len(items) > 4:
            raise MemoryError
        if "bad" in items:
            raise Bad
        return items

    fn = flavour.decorate(function, batch_size=8, timeout_ms=60_000)
    failing = flavour.start(fn, ["bad", 1, 2, 3, 4, 5])
    neighbours = [flavour.start(fn, item) for item in (6, 7)]
    assert isinstance(failing.exception(PATIENCE_S), Bad)
    assert [future.result(PATIENCE_S) for future in neighbours] == [6, 7]


def test_more_is_tried_now_and_then(flavour: Flavour) -> None:
    """A quarter at a time; when memory is there again the batches are full again."""
    most = 2
    gate = Gate(lambda items: items if len(items) <= most else (_ for _ in ()).throw(MemoryError()))
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=0, adaptive=False)  # no other size is tried
    flavour.call(fn, list(range(8)))
    assert fn.stats.fits_memory == 2
    most = 8
    for _ in range(10):
        assert flavour.call(fn, list(range(512))) == list(range(512))
    assert fn.stats.fits_memory == 8
    assert len(gate.batches[-1]) == 8


def test_a_retry_counts_its_batch_sizes_and_reasons(flavour: Flavour) -> None:
    """Every run is a batch; every item is processed once."""
    fn = flavour.decorate(limited(2), batch_size=8, timeout_ms=0)
    flavour.call(fn, list(range(8)))
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_batches == 1 + 2 + 4
    assert stats.closed == {"full": 1, "retry": 6}
    assert (stats.total_processed, stats.total_failed, stats.wait.count) == (8, 0, 8)
