"""What a batcher does for batches that pass stages: those that end early, their time, and calls that join."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.mending import give_up_batch
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from tests.kit.calls import listed, single


def driver_with(*calls: Any, **options: Any) -> ManualDriver:
    """Return a driver with a batch size of 4, in which these calls wait."""
    driver = ManualDriver(Options(**{"batch_size": 4, "timeout_ms": 0, "length": None, **options}))
    driver.push(*calls)
    return driver


def taken(driver: ManualDriver, now: float = 0.0) -> Any:
    """Return the next batch, which runs from now on."""
    assert driver.delay(now) == 0.0
    return driver.pop(now)


def test_a_batch_of_which_all_callers_have_left_ends_and_its_items_are_counted() -> None:
    calls = [single(), single()]
    driver = driver_with(*calls)
    batch = taken(driver)
    for call in calls:
        call.left = "cancelled"
        driver.drop(call)
    driver.batcher.end_unwanted(batch, 1.0)
    stats = driver.stats(2.0)
    assert (stats.total_accepted, stats.total_processed, stats.running_items) == (2, 2, 0)
    assert stats.total_batches == 0, "the function has not run"
    assert not batch.slices


def test_items_count_though_their_callers_are_just_about_to_say_that_they_have_left() -> None:
    """Between two steps of such a caller, another thread may find that it has left."""
    one, several = single(), listed(2)
    driver = driver_with(one, several)
    batch = taken(driver)
    one.left, several.left = "expired", "cancelled"
    driver.batcher.end_unwanted(batch, 1.0)
    for call in (one, several):
        driver.batcher.leave(call)
    driver.batcher.take_in()
    stats = driver.stats(2.0)
    assert (stats.total_accepted, stats.total_processed, stats.queue_size) == (3, 3, 0)
    assert (stats.running_items, stats.total_expired, stats.total_cancelled) == (0, 0, 0)


def test_a_batch_has_taken_the_time_that_it_was_in_its_stages() -> None:
    driver = driver_with(single())
    batch = taken(driver, now=1.0)
    driver.batcher.spent(batch, (0.25, 0.5, 0.125), 9.0)
    driver.finish(batch, 9.0)
    stats = driver.stats(9.0)
    assert stats.processing_time.sum == pytest.approx(0.875)
    assert {name: times.sum for name, times in stats.stages.items()} == {
        "prepare": 0.25,
        "function": 0.5,
        "finish": 0.125,
    }


def test_a_stage_that_a_batch_has_not_reached_has_no_time_of_it() -> None:
    driver = driver_with(single())
    batch = taken(driver, now=1.0)
    driver.batcher.spent(batch, (0.25,), 9.0)
    driver.fail(batch, KeyError(), 9.0)
    stats = driver.stats(9.0)
    assert stats.processing_time.sum == pytest.approx(0.25)
    assert [times.count for times in stats.stages.values()] == [1, 0, 0]


def test_a_batch_that_was_given_up_is_not_counted_again() -> None:
    driver = driver_with(single())
    batch = taken(driver)
    give_up_batch(driver.batcher, batch, ArithmeticError())
    driver.batcher.spent(batch, (0.25, 0.5, 0.125), 9.0)
    assert driver.stats(9.0).stages == {}


def test_small_calls_that_come_may_join_a_batch_up_to_its_size() -> None:
    driver = driver_with(single(), single())
    batch = taken(driver)
    assert driver.batcher.may_join(batch) == 0
    later = [single() for _ in range(5)]
    driver.push(*later)
    assert driver.batcher.may_join(batch) == 2
    driver.batcher.join(batch, 2, driver.batcher.queue, 0.0)
    assert batch.size == len(batch.slices) == 4
    assert batch.calls[2:] == later[:2]
    assert driver.batcher.may_join(batch) == 0
    stats = driver.stats(0.0)
    assert (stats.queue_size, stats.running_items) == (3, 4)
    assert set(driver.finish(batch, 1.0)) == {*batch.calls}


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"small_batch_threshold": 1}, [listed(3)]),
        ({"max_batch_length": 100}, [single()]),
    ],
    ids=["large calls", "lengths"],
)
def test_others_do_not_join(options: dict[str, Any], calls: list[Any]) -> None:
    """Where something else than the order of arrival chooses."""
    first = single()
    first.lengths = 1.0
    driver = driver_with(first, **options)
    batch = taken(driver)
    for call in calls:
        call.lengths = 1.0 if not call.many else [1.0] * call.size
    driver.push(*calls)
    assert driver.batcher.may_join(batch) == 0


def test_the_rest_of_a_list_that_was_cut_does_not_join_its_own_batch() -> None:
    driver = driver_with(listed(6))
    batch = taken(driver)
    batch.size -= 1  # as if there were room
    assert driver.batcher.may_join(batch) == 0
