"""Batches that do not fit into memory run again in halves, and later ones are smaller."""

from __future__ import annotations

import asyncio
from collections import UserDict, deque
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
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


class Held:
    """What a run of a function has in a variable: an array on a device, say."""


@pytest.mark.parametrize("error", [MemoryError, ValueError])
@pytest.mark.parametrize("waits", [False, True])
def test_what_runs_again_finds_nothing_held_by_the_runs_that_failed(
    flavour: Flavour, error: Any, waits: bool
) -> None:
    """Their tracebacks lead to all that was in the function, and it may be the memory that is short."""
    runs: list[ref[Held]] = []
    held: list[int] = []

    def function(items: list[int]) -> list[int]:
        held.append(sum(run() is not None for run in runs))
        mine = Held()
        array = np.ones(3)
        runs.append(ref(mine))
        if len(items) > 1 if error is MemoryError else 7 in items:
            try:
                raise KeyError(len(items))
            except KeyError:
                raise error(repr((mine, array))) from None
        return items

    async def waiting(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return function(items)

    if not waits and flavour.name.startswith("aio"):
        pytest.skip("threads of asyncio's executor hold what they have run for a moment longer")
    fn = flavour.decorate(waiting if waits else function, batch_size=8, timeout_ms=0)
    answers = flavour.call(fn.options(return_exceptions=True), list(range(8)))
    assert answers[:7] == list(range(7))
    assert len(runs) > 6
    assert held == [0] * len(runs)


class Rows(list[int]):
    """Results that cannot be read."""

    def __iter__(self) -> Any:
        """Run out of memory."""
        raise MemoryError


def test_results_that_cannot_be_read_are_let_go(flavour: Flavour) -> None:
    """Frames of this library lead to them, too."""
    runs: list[ref[Rows]] = []
    held: list[int] = []

    async def function(items: list[int]) -> list[int]:
        held.append(sum(run() is not None for run in runs))
        if len(items) < 2:
            return items
        found = Rows(items)
        runs.append(ref(found))
        return found

    fn = flavour.decorate(function, batch_size=8, timeout_ms=0)
    assert flavour.call(fn, list(range(8))) == list(range(8))
    assert held == [0] * 15


class Huge(np.ndarray[Any, Any]):
    """A row of which there is no room for a copy."""

    def copy(self, order: Any = "C") -> Any:
        """Run out of memory."""
        raise MemoryError


def test_a_batch_whose_results_cannot_be_copied_runs_again_in_halves(flavour: Flavour) -> None:
    """The copies are the batch's, too: with fewer rows, they fit."""

    def function(items: list[float]) -> Any:
        rows = np.array(items)[:, None]
        return rows.view(Huge) if len(items) > 2 else rows

    fn = flavour.decorate(function, batch_size=8, timeout_ms=0)
    assert [row.tolist() for row in flavour.call(fn, [1.0, 2.0, 3.0, 4.0])] == [[1], [2], [3], [4]]
    assert fn.stats.fits_memory == 2
    assert fn.stats.total_failed == 0


@dataclass
class Answer:
    """A result with a row in it."""

    row: Any


HOLDERS: dict[str, Any] = {
    "dict": lambda row: {"row": row},
    "UserDict": lambda row: UserDict(row=row),
    "deque": lambda row: deque([row]),
    "dataclass": Answer,
}
"""What a row may be in."""


@pytest.mark.parametrize("holder", HOLDERS)
def test_so_does_one_with_rows_in_containers(flavour: Flavour, holder: str) -> None:
    """No caller gets a view, which would keep the rows of all others."""

    def function(items: list[float]) -> list[Any]:
        rows = np.array(items)[:, None]
        return [HOLDERS[holder](row) for row in (rows.view(Huge) if len(items) > 2 else rows)]

    fn = flavour.decorate(function, batch_size=8, timeout_ms=0)
    assert len(flavour.call(fn, [1.0, 2.0, 3.0, 4.0])) == 4
    assert fn.stats.fits_memory == 2
    assert fn.stats.total_failed == 0


def test_a_retry_counts_its_batch_sizes_and_reasons(flavour: Flavour) -> None:
    """Every run is a batch; every item is processed once."""
    fn = flavour.decorate(limited(2), batch_size=8, timeout_ms=0)
    flavour.call(fn, list(range(8)))
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_batches == 1 + 2 + 4
    assert stats.closed == {"full": 1, "retry": 6}
    assert (stats.total_processed, stats.total_failed, stats.wait.count) == (8, 0, 8)
