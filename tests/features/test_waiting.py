"""Whether a wait is learned, by the options."""

from __future__ import annotations

from typing import Any

import pytest

import batched
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog
from batched.testing import manual_clock
from tests.kit.calls import listed


@pytest.mark.parametrize(
    ("options", "learns"),
    [({}, True), ({"adaptive": False}, False), ({"timeout_ms": 0}, False), ({"batch_size": 1}, False)],
)
def test_only_a_wait_that_may_pay_is_learned(options: dict[str, Any], learns: bool) -> None:
    """And nothing is kept of what happens."""
    fn = batched.dynamically(list, **{"timeout_ms": 0.1, **options})
    clock = manual_clock(fn, takes_ms=1)
    for item in range(20):
        call = clock.call(item)
        clock.step()
        assert call.result() == item
    assert (clock.stats.learned is not None) == learns


@pytest.mark.parametrize("workers", [1, 3])
def test_without_adaptive_a_batch_starts_when_its_oldest_item_is_as_old_as_the_timeout(workers: int) -> None:
    """Also after many batches, and with several workers; time behind a batch that runs counts."""
    fn = batched.dynamically(list, timeout_ms=10, adaptive=False, max_concurrent_batches=workers)
    clock = manual_clock(fn, takes_ms=25)
    for _ in range(20):
        began_ms = clock.now_ms
        for _ in range(3):
            clock.call("first")
            clock.turn(ms=4)
        assert clock.step() is not None
        clock.call("while it is over")
        assert clock.step() is not None
        clock.turn(ms=100)
        assert [ran.started_ms - began_ms for ran in clock.ran[-2:]] == pytest.approx([10, 45])
    busy = manual_clock(batched.dynamically(list, timeout_ms=10, adaptive=False), takes_ms=25)
    busy.call(["runs"] * 64)
    busy.turn(ms=5)
    busy.call("waits behind it")
    busy.turn(ms=50)
    assert [ran.started_ms for ran in busy.ran] == pytest.approx([0, 25])


@pytest.mark.parametrize("options", [{"max_concurrent_batches": 4}, {"workers": batched.Workers(4)}])
def test_the_capacity_is_that_of_all_batches_that_run_at_once(options: dict[str, Any]) -> None:
    """It is said to be the most items a second, and four workers have four times as many."""
    found = []
    for its in ({}, options):
        clock = manual_clock(batched.dynamically(list, batch_size=8, **its), takes_ms=lambda size: 4 + size)
        for size in [8, 3, 5, 8, 1, 7] * 20:
            call = clock.call([*range(size)])
            while clock.step() is not None:
                pass
            assert call.result() == [*range(size)]
        assert clock.stats.learned is not None
        found.append(clock.stats.learned.capacity)
    alone, of_four = found
    assert alone == pytest.approx(8 / 0.012, rel=0.05)
    assert of_four == pytest.approx(4 * alone, rel=0.05)


def test_no_capacity_is_told_where_a_budget_may_fill_batches() -> None:
    """It was that of batches of 16, though 8 items filled them: 615 items a second instead of 444."""
    fn = batched.dynamically(list, batch_size=16, max_batch_length=80, length=lambda _: 10)
    clock = manual_clock(fn, takes_ms=lambda size: 10 + size)
    for number in range(300):
        for _ in range(1 + number % 8):
            clock.call("a")
        clock.turn(ms=100)
    assert clock.stats.batch_size.max == 8
    assert clock.stats.learned.batch_ms == pytest.approx(10, rel=0.1)
    assert clock.stats.learned.capacity is None


def test_without_a_backlog_the_capacity_is_that_of_one_worker() -> None:
    """As in a simulation that leaves it out: no other feature is needed for what this one tells."""
    driver = ManualDriver(Options(batch_size=8), without=(Backlog,))
    now = 0.0
    for size in [8, 3, 5, 8, 1, 7] * 40:
        driver.push(listed(size, now))
        while (delay := driver.delay(now)) is not None:
            batch = driver.pop(now + delay)
            now += delay + 0.004 + 0.001 * batch.size
            driver.run(batch, now)
    learned = driver.stats(now).learned
    assert learned is not None
    assert learned.capacity == pytest.approx(8 / 0.012, rel=0.05)
