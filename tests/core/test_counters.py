"""The counters, and their snapshot as a table."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.counters import Counters
from batched._core.stats import Stats
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


def test_figures_since_options_were_changed_are_those_of_batches_that_started_later() -> None:
    """One that runs meanwhile has had the options before; the totals go on."""
    counters = Counters()

    def run(size: int, waited: float) -> Batch:
        return Batch(
            [(Call().begin(None, [], size, True, 0.0), 0, size)], size, "full" if waited else "window"
        )

    def end(batch: Batch, waited: float, started: float = 0.0) -> None:
        counters.ran(batch, started, 0.5, again=True)
        counters.left(batch.slices, batch.size, waited)

    def stats() -> Stats:
        return counters.snapshot()

    assert stats().since_configured() == stats()
    end(run(64, 1.0), 1.0)
    running = run(64, 1.0)
    running.calls[0].began = 2.0
    counters.configured({running: 0.2})
    assert stats().since_configured().total_batches == 0
    end(running, 2.0, 0.2)
    assert stats().since_configured().total_batches == 0
    assert stats().since_configured().batch_size.count == stats().since_configured().wait.count == 0
    end(run(4, 0.0), 0.25, 0.4)
    since = stats().since_configured()
    assert (since.total_batches, since.batch_size.mean, since.batch_size.max) == (1, 4.0, 4)
    assert since.closed == {"window": 1}
    assert (since.wait.count, since.wait.mean) == (4, 0.25)
    assert (stats().total_batches, stats().batch_size.max) == (3, 64)


def counted(counters: Counters) -> Stats:
    """Return the figures of batches that have started since options were changed."""
    of_all = counters.snapshot()
    return of_all.since_configured()


def batch_of(size: int) -> Batch:
    """Return a batch of one list."""
    return Batch([(Call().begin(None, [], size, True, 0.0), 0, size)], size, "full")


def test_a_batch_that_started_later_counts_though_it_ends_before_one_with_the_options_before() -> None:
    """Where several run at once."""
    counters = Counters()
    older, newer = batch_of(64), batch_of(4)
    counters.configured({older: 1.0})
    counters.ran(newer, 2.0, 3.0)
    assert (counted(counters).total_batches, counted(counters).batch_size.max) == (1, 4)
    counters.ran(older, 1.0, 4.0)
    assert (counted(counters).total_batches, counted(counters).batch_size.max) == (1, 4)


def test_a_batch_that_runs_while_options_change_twice_is_left_out_once() -> None:
    """Also where it never ends as a batch does, as all of its callers have left."""
    for ends in (True, False):
        counters = Counters()
        older = batch_of(64)
        for _ in range(2):
            counters.configured({older: 1.0})
        if ends:
            counters.ran(older, 1.0, 2.0)
        counters.ran(batch_of(4), 3.0, 4.0)
        assert (counted(counters).total_batches, counted(counters).batch_size.max) == (1, 4)


def test_a_batch_that_passes_stages_while_options_change_is_left_out_though_its_start_is_moved() -> None:
    """It is said to have begun so long before its end as its stages took."""
    counters = Counters()
    older = batch_of(64)
    counters.configured({older: 1.0})
    counters.passed((0.5, 0.5, 0.5), 1.0, 2.0)
    counters.ran(older, 2.0, 3.5)
    assert counted(counters).total_batches == 0


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
