"""What the counters say, at any moment."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batched
from batched._stats import Distribution, Histogram
from tests.gate import PATIENCE_S, Gate, until


def histogram_of(values: list[float]) -> Distribution:
    histogram = Histogram(1e-6)
    for value in values:
        histogram.sum += value
        histogram.counts[int(value * 1e6).bit_length()] += 1
    return histogram.snapshot()


@given(st.lists(st.floats(1e-6, 1e5), min_size=1), st.floats(0, 100))
def test_a_percentile_is_in_the_bucket_of_its_value(values: list[float], percent: float) -> None:
    """At most one doubling away from the exact one; sum and count are exact."""
    distribution = histogram_of(values)
    assert distribution.count == len(values)
    assert distribution.sum == pytest.approx(sum(values))
    rank = distribution.count * percent / 100
    exact = sorted(values)[min(max(int(-(-rank // 1)), 1), len(values)) - 1]
    assert exact / 2.001 <= distribution.percentile(percent) * 1.001 + 1e-6
    assert distribution.percentile(percent) <= exact * 2.001


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025])
def test_a_batch_size_is_counted_up_to_its_bound(size: int) -> None:
    """A bound belongs to its own bucket, as in Prometheus."""
    fn = batched.dynamically(Gate(), batch_size=size, timeout_ms=0)
    fn(list(range(size)))
    distribution = fn.stats.batch_size
    for bound, cumulative in zip(distribution.bounds, distribution.cumulative, strict=True):
        assert cumulative == (size <= bound)


def test_an_empty_distribution_is_all_zeros() -> None:
    """And a percentile outside 0 to 100 is refused."""
    distribution = Histogram(1).snapshot()
    assert (distribution.count, distribution.mean, distribution.percentile(99)) == (0, 0.0, 0.0)
    with pytest.raises(ValueError, match="percent must be from 0 to 100, got 101"):
        distribution.percentile(101)


def test_a_snapshot_accounts_for_every_item_while_batches_run() -> None:
    """Waiting, running, processed, cancelled and expired; frozen; taken without the worker."""
    gate = Gate(lambda xs: [ValueError() if x == 2 else x for x in xs], shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0)
    running = fn.submit([1, 2, 3, 4])
    gate.wait_for_batch()
    queued = fn.submit([5, 6])
    fn.submit(7).cancel()
    fn.options(deadline_ms=0.001).submit(8)
    before = fn.stats
    assert (before.running_items, before.total_accepted, before.total_processed) == (4, 8, 0)
    assert len(before.running) == 1
    assert before.running[0] >= 0
    gate.open()
    assert queued.result(PATIENCE_S) == [5, 6]
    assert running.exception(PATIENCE_S) is not None
    until(lambda: fn.stats.total_expired == 1)
    after = fn.stats
    assert (after.queue_size, after.running_items, after.running) == (0, 0, ())
    assert (after.total_processed, after.total_failed, after.total_batches) == (6, 1, 2)
    assert (after.total_cancelled, after.total_expired, after.avg_batch_size) == (1, 1, 3.0)
    assert after.closed == {"full": 1, "window": 1}
    assert after.wait.count == 6
    assert after.processing_time.sum == pytest.approx(after.avg_processing_time * 2)
    assert after.batch_size.percentile(100) == 4
    assert before.total_processed == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.queue_size = 1  # type: ignore[misc]


def test_a_call_is_counted_before_its_caller_is_released() -> None:
    """A caller that has its answer finds it in the stats."""
    fn = batched.dynamically(Gate(), timeout_ms=0)
    for count in range(1, 500):
        fn(count)
        assert fn.stats.total_processed == fn.stats.total_accepted == count


def test_printed_stats_are_a_table() -> None:
    """With everything a person asks first."""
    fn = batched.dynamically(Gate(), timeout_ms=0)
    fn([1, 2, 3])
    text = str(fn.stats)
    for words in ("waiting", "processed           3, 0 of them failed", "1 (1 window)", "p99", "ms"):
        assert words in text


def test_the_worker_stack_shows_where_the_function_is() -> None:
    """The name and line of what hangs; nothing before the first call."""

    def hangs(items: list[int]) -> list[int]:
        result: list[int] = gate(items)
        return result

    gate = Gate(shut=True)
    fn = batched.dynamically(hangs, timeout_ms=0)
    assert fn.worker_stack() == ""
    future = fn.submit(1)
    gate.wait_for_batch()
    assert "in hangs" in fn.worker_stack()
    gate.open()
    future.result(PATIENCE_S)
    fn.shutdown()
    assert fn.worker_stack() == ""
