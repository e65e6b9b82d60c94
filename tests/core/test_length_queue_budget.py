"""A budget on the length of a batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.lengths import Lengths
from tests.kit.batcher_rules import COLLATOR
from tests.kit.lengths import batches_of, call_of, driver_of, known


def test_a_budget_ends_batches_and_changes_no_order() -> None:
    """An item that is over all of it runs alone."""
    lengths = Lengths(reorders=False, padded=False)
    lengths.budget = 10
    driver = driver_of(lengths)
    for length in [4, 6, 1, 99, 3, 3, 3, 3]:
        driver.push(call_of([length]))
    assert batches_of(driver) == [[4, 6], [1], [99], [3, 3, 3], [3]]


def test_a_large_call_is_in_every_other_batch_if_the_budget_has_no_room_for_small_ones_too() -> None:
    """However much of their share large calls have saved."""
    driver = driver_of(known(1.0, 0.0), 8, 1)
    for _ in range(300):
        driver.push(call_of([1]))
    batches_of(driver)
    driver.batcher.configure(replace(driver.batcher.options, max_batch_length=3))
    driver.push(call_of([2] * 64))
    for _ in range(20):
        driver.push(call_of([3]))
    assert batches_of(driver)[:20] == [[2], [3]] * 10


def test_a_budget_divides_lists_and_starts_what_is_full_by_it() -> None:
    """A batch that can take no more has no item to wait for."""
    lengths = Lengths(reorders=False, padded=True)
    driver = ManualDriver(
        Options(timeout_ms=1000, max_batch_length=10), partial(LengthQueue, lengths=lengths), COLLATOR
    )
    driver.push(call_of([2, 2]))
    assert driver.delay(0.0) == 1.0
    driver.push(call_of([3, 3, 3]))
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    assert (COLLATOR.collate(batch), batch.reason) == ([2, 2, 3], "full")
    assert driver.delay(0.0) == 1.0


def test_a_large_call_has_its_turn_if_it_never_fits_beside_the_small_ones() -> None:
    """Also while these are so few that a batch has room for all of them."""
    driver = driver_of(known(1.0, 0.0), 8, 1)
    driver.batcher.configure(replace(driver.batcher.options, max_batch_length=10))
    driver.push(call_of([9, 9]))
    found: list[list[int]] = []
    while [9] not in found and len(found) < 20:
        for _ in range(4):
            driver.push(call_of([2]))
        batch = driver.pop(0.0)
        found.append(COLLATOR.collate(batch))
        driver.batcher.finish(batch, batch.split(found[-1], COLLATOR), 0.0)
    assert [9] in found
