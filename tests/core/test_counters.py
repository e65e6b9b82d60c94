"""The counters, and their snapshot as a table."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.counters import Counters
from tests.kit.calls import listed
from tests.kit.keyed_calls import call_of, driver_of


def test_the_table_says_waits_of_one_length_as_they_were() -> None:
    """Not as the bucket that they fell into; long times in full."""
    counters = Counters()
    batch = Batch([(Call().begin(None, [], 5000, True, 0.0), 0, 5000)], 5000, "full")
    counters.left(batch.slices, batch.size, 0.0011)
    counters.ran(batch, 0.0, 12.345, again=True)
    text = str(counters.snapshot(running=[(1, 1234.5)]))
    assert "wait                mean 1.1, p50 1.1, p90 1.1, p99 1.1, max 1.1 ms\n" in text
    assert "processing          mean 12,345, p50 12,345, p90 12,345, p99 12,345, max 12,345 ms" in text
    assert "1 in 1 batch, for 1,234 s" in text


def test_the_time_of_batches_that_keys_kept_small_is_counted() -> None:
    """Only of those with room for items that waited: not of one that is full, nor of the last one."""
    driver, _ = driver_of(batch_size=4)
    sizes = {"a": 1, "b": 4, "c": 2, "d": 3}
    for key, size in sizes.items():
        driver.push(call_of(key, size=size))
    now = 1000.0
    for key, seconds in (("a", 1.0), ("b", 10.0), ("c", 100.0), ("d", 1000.0)):
        assert driver.delay(now) == 0.0
        batch = driver.pop(now)
        assert (batch.slices[0][0].key, len(batch)) == (key, sizes[key])
        now += seconds
        driver.run(batch, now)
    assert driver.stats(now).apart_time == 101.0
    assert "kept apart by key   101 s of 1,111 s" in str(driver.stats(now))
    assert "kept apart" not in str(driver_of(4)[0].stats(0.0))


def test_figures_since_options_were_changed_are_those_of_batches_that_have_ended_since() -> None:
    """Also of one that ran as they were changed; the totals go on."""
    counters = Counters()

    def end(size: int, waited: float, reason: str) -> None:
        batch = Batch([(Call().begin(None, [], size, True, 0.0), 0, size)], size, reason)
        counters.ran(batch, 0.0, 0.5, again=True)
        counters.left(batch.slices, batch.size, waited)

    assert counters.snapshot().since_configured() == counters.snapshot()
    end(64, 1.0, "full")
    for _ in range(2):
        counters.configured()
        since = counters.snapshot().since_configured()
        assert since.total_batches == since.batch_size.count == since.wait.count == 0
    end(4, 0.25, "window")
    since = counters.snapshot().since_configured()
    assert (since.total_batches, since.batch_size.mean, since.batch_size.max) == (1, 4.0, 4)
    assert since.closed == {"window": 1}
    assert (since.wait.count, since.wait.mean) == (4, 0.25)
    stats = counters.snapshot()
    assert (stats.total_batches, stats.batch_size.max) == (2, 64)


@pytest.mark.parametrize(
    ("left", "counted"),
    [(None, (2, 0, 0)), ("cancelled", (2, 0, 0)), ("expired", (0, 2, 0)), ("rejected", (2, 0, 2))],
)
def test_items_that_do_not_run_count_by_what_their_call_has_ended_with(
    left: Any, counted: tuple[int, int, int]
) -> None:
    """One that was refused had been accepted: it counts as cancelled too, as totals never go down."""
    counters, call = Counters(), listed(4)
    call.left = left
    counters.dropped(call, 2)
    assert (counters.cancelled, counters.expired, counters.rejected) == counted
