"""Items of which the deadline passes while they run, on the driver with the manual clock."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import COLLATOR, echo

FAR = 1e9


def come(driver: ManualDriver, size: int) -> Call:
    """Have a call with a deadline come, a list if it has several items."""
    inputs: Any = [*range(size)] if size > 1 else 0
    call = Call().begin(echo, inputs, size, size > 1, 0.0, FAR)
    driver.push(call)
    return call


def give_up(driver: ManualDriver, call: Call, *, at_once: bool) -> None:
    """Have the caller leave at its deadline; the batcher may hear of it only after the batch has ended."""
    call.left = "expired"
    if at_once:
        driver.drop(call)
    else:
        driver.batcher.leave(call)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_late_items_are_those_that_ran(at_once: bool, fails: bool) -> None:
    """Those of a batch that fails do not run again: they count as the others are divided."""
    driver = ManualDriver(Options(batch_size=4, timeout_ms=0), collator=COLLATOR)
    late, other = come(driver, 3), come(driver, 1)
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    give_up(driver, late, at_once=at_once)
    if fails:
        driver.fail(batch, ValueError(), 1.0)
        assert driver.delay(1.0) == 0.0
        batch = driver.pop(1.0)
    driver.run(batch, 2.0)
    assert other.results is not None
    stats = driver.stats(2.0)
    assert (stats.total_processed, stats.total_late, stats.total_expired) == (4, 3, 0)


@pytest.mark.parametrize("at_once", [True, False])
def test_late_items_count_where_they_do_not_run_again_as_the_search_is_given_up(at_once: bool) -> None:
    """They ran in the batch that failed first, and in vain."""
    driver = ManualDriver(Options(batch_size=8, timeout_ms=0), collator=COLLATOR)
    for _ in range(8):
        come(driver, 1)
    now = 0.0
    while driver.delay(now) == 0.0:
        batch, now = driver.pop(now), now + 1.0
        if len(driver.batcher.first) == 4:  # after the next failure it is given up
            give_up(driver, driver.batcher.first[-1].calls[0], at_once=at_once)
        driver.fail(batch, ValueError(), now)
    stats = driver.stats(now)
    assert (stats.total_processed, stats.total_failed, stats.total_late) == (8, 7, 1)


@given(seed=st.integers(0, 2**32))
def test_each_item_that_ran_in_vain_is_late_once(seed: int) -> None:
    """Whatever fails and runs again meanwhile, and whenever the batcher hears that its caller has left."""
    random = Random(seed)
    driver = ManualDriver(Options(batch_size=5, timeout_ms=0, max_concurrent_batches=3), collator=COLLATOR)
    calls: list[Call] = []
    running: list[Any] = []
    late = 0
    now = 0.0
    for _ in range(120):
        now += 1.0
        step = random.random()
        waits = [call for call in calls if call.missing and call.left is None]
        if step < 0.35:
            calls.append(come(driver, random.choice((1, 1, 1, 2, 7))))
        elif step < 0.6 and driver.delay(now) == 0.0:
            running.append(driver.pop(now))
        elif step < 0.75 and waits:
            call = random.choice(waits)
            begun = [*running, *(half for half in driver.batcher.first if half.error is not None)]
            late += sum(stop - start for batch in begun for mine, start, stop in batch.slices if mine is call)
            give_up(driver, call, at_once=random.random() < 0.5)
        elif running:
            batch = running.pop(random.randrange(len(running)))
            if random.random() < 0.3:
                driver.fail(batch, ValueError(), now)
            else:
                driver.run(batch, now)
    while running or driver.delay(now) == 0.0:
        while driver.delay(now) == 0.0:
            running.append(driver.pop(now))
        driver.run(running.pop(), now)
    stats = driver.stats(now)
    assert stats.total_late == late
    ended = stats.total_processed + stats.total_cancelled + stats.total_expired
    assert stats.total_accepted == ended
