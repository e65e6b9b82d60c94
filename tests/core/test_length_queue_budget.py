"""A budget on the length of a batch."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from batched._core.call import Call
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.lengths import Lengths
from tests.kit.batcher_rules import COLLATOR, echo
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


@pytest.mark.parametrize("seed", range(20))
def test_the_call_that_leads_is_in_the_next_batch(seed: int) -> None:
    """However many small and bulk calls come; so what fits beside others is known before it is taken."""
    rng = random.Random(seed)
    lengths = Lengths(reorders=bool(seed % 2), padded=False)
    queue = LengthQueue(rng.choice([1, 4, 16]), 8, lengths)
    for _ in range(100):
        for _ in range(rng.randint(0, 4)):
            call = Call().begin(echo, 0, 1, False, 0.0, None, rng.choice([None, None, True]))
            call.lengths = float(rng.choice([1, 3, 9, 15]))
            queue.push_all([call])
        if queue.items:
            lengths.budget = rng.choice([1.0, 5.0, 12.0, 20.0])
            leader = queue.leader()
            batch = queue.take(min(queue.items, rng.randint(1, queue.batch_size)))
            assert leader in batch.calls
            if lengths.at(leader, 0) <= lengths.budget:
                assert sum(lengths.at(call, 0) for call in batch.calls) <= lengths.budget
