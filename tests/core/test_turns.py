"""Large calls take turns."""

from __future__ import annotations

from collections import Counter

import pytest

from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed, single

BATCH = 32
LONG = 100 * BATCH


def driver_with(*calls: Call, batch_size: int = BATCH) -> ManualDriver:
    """Return a driver in which `calls` wait."""
    driver = ManualDriver(Options(batch_size=batch_size, timeout_ms=0, adaptive=False), Queue, COLLATOR)
    driver.push(*calls)
    return driver


def run(driver: ManualDriver) -> list[list[tuple[Call, int]]]:
    """Run all that waits; return the calls of each batch, with their items."""
    batches = []
    while driver.delay(0.0) is not None:
        batch = driver.pop(0.0)
        batches.append([(call, stop - start) for call, start, stop in batch.slices])
        driver.run(batch, 0.0)
    return batches


@pytest.mark.parametrize("size", range(9, 32))
def test_a_short_call_is_through_within_two_batches(size: int) -> None:
    """And in one piece, whatever waits of a list; the list fills the rest of each batch."""
    long, short = listed(LONG), listed(size)
    driver = driver_with(long)
    driver.delay(0.0)
    driver.run(driver.pop(0.0), 0.0)
    driver.push(short)
    batches = run(driver)
    at = [number for number, batch in enumerate(batches) for call, _ in batch if call is short]
    assert at in ([0], [1])
    assert [sum(items for _, items in batch) for batch in batches[:-1]] == [BATCH] * (len(batches) - 1)
    assert len(batches) == -(-(LONG - BATCH + size) // BATCH)


def test_lists_share_batches_evenly_and_are_not_cut_into_crumbs() -> None:
    """Each has a quarter of a batch at least where it has any, in one slice."""
    lists = [listed(LONG) for _ in range(6)]
    batches = run(driver_with(*lists))
    served: Counter[Call] = Counter()
    for batch in batches[:400]:
        assert len(batch) == len(dict(batch))
        assert all(items >= BATCH / 4 for _, items in batch)
        served.update(dict(batch))
        assert max(served.values()) - min(served[call] for call in lists) <= BATCH / 2


def test_a_call_that_comes_waits_for_a_quarter_of_a_batch_of_each_other() -> None:
    """Of ten lists, that is two batches and a half."""
    lists = [listed(LONG) for _ in range(10)]
    driver = driver_with(*lists)
    driver.delay(0.0)
    driver.run(driver.pop(0.0), 0.0)
    short = listed(9)
    driver.push(short)
    at = [number for number, batch in enumerate(run(driver)) if short in dict(batch)]
    assert at == [2]


def test_a_list_owes_what_it_had_in_the_place_of_short_calls() -> None:
    """Calls that do not fit beside it are not cut for ever in its favour: another list has as much."""
    lists = [listed(LONG), listed(LONG)]
    driver = driver_with(*lists)
    for number in range(100):
        driver.push(listed(20, float(number)))
    batches = run(driver)
    served: Counter[Call] = Counter()
    for batch in batches:
        served.update(dict(batch))
        if all(call.waiting for call in lists):
            assert abs(served[lists[0]] - served[lists[1]]) <= 3 * BATCH


def test_calls_of_one_flow_have_one_turn() -> None:
    """As those of a `map` do, however many it has queued."""
    flow = object()
    chunks = [listed(BATCH) for _ in range(3)]
    for chunk in chunks:
        chunk.flow = flow
    long = listed(LONG)
    first, second, *_ = run(driver_with(*chunks, long))
    assert dict(first) == {chunks[0]: 16, long: 16}
    assert dict(second) == {chunks[0]: 16, long: 16}


def test_what_leaves_in_its_turn_passes_it_on() -> None:
    """A list of which the rest is dropped takes no room, and no other list loses its turn."""
    one, two, three = (listed(LONG) for _ in range(3))
    driver = driver_with(one, two, three)
    driver.delay(0.0)
    driver.run(driver.pop(0.0), 0.0)
    for call in (two, one):
        driver.drop(call)
    driver.push(late := listed(9))
    assert dict(run(driver)[0]) == {three: BATCH - 9, late: 9}


def test_small_calls_stay_ahead() -> None:
    """First come, first served."""
    long = listed(LONG)
    singles = [single() for _ in range(20)]
    first, *_ = run(driver_with(long, *singles))
    assert first == [*((call, 1) for call in singles), (long, 12)]
