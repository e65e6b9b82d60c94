"""What the counters say, at any moment."""

from __future__ import annotations

import dataclasses

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


@pytest.mark.parametrize("size", [1, 2, 3, 24, 1000, 1025, 5001])
def test_batches_of_one_size_have_no_other(flavour: Flavour, size: int) -> None:
    """In the table too, and in full."""
    fn = flavour.decorate(Gate(), batch_size=size, timeout_ms=0)
    for _ in range(20):
        flavour.call(fn, list(range(size)))
    until(lambda: not fn.stats.running)
    stats = fn.stats
    assert (stats.batch_size.min, stats.batch_size.mean, stats.batch_size.max) == (size, size, size)
    assert {stats.batch_size.percentile(percent) for percent in (0, 1, 50, 90, 99, 100)} == {size}
    said = ", ".join(f"{figure} {size:,}" for figure in ("mean", "p50", "p90", "p99", "max"))
    assert f"items per batch     {said}\n" in str(stats)


def test_sizes_are_counted_midway_in_a_list(flavour: Flavour) -> None:
    """Where many batches of one list run on end, the last of which is smaller."""
    fn = flavour.decorate(Gate(), batch_size=24, timeout_ms=0, adaptive=False)
    flavour.call(fn, list(range(24 * 600 + 7)))
    until(lambda: not fn.stats.running)
    sizes = fn.stats.batch_size
    assert dict(zip(sizes.bounds, sizes.cumulative, strict=True)) == {7: 1, 24: 601}
    assert fn.stats.wait.count == 24 * 600 + 7
    assert fn.stats.processing_time.count == 601


def test_percentiles_are_within_what_was_seen(flavour: Flavour) -> None:
    """Of real times, where all of them share a bucket or two."""
    fn = flavour.decorate(Gate(), timeout_ms=0)
    for item in range(50):
        flavour.call(fn, item)
    until(lambda: not fn.stats.running)
    for seen in (fn.stats.wait, fn.stats.processing_time):
        percentiles = [seen.percentile(percent) for percent in range(101)]
        assert percentiles == sorted(percentiles)
        assert 0 <= seen.min <= percentiles[0] <= seen.mean * (1 + 1e-9)
        assert seen.mean <= percentiles[-1] * (1 + 1e-9)
        assert percentiles[-1] == seen.max


def test_a_snapshot_accounts_for_every_item_while_batches_run(flavour: Flavour) -> None:
    """Waiting, running, processed, cancelled and expired; frozen; taken without the worker."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(lambda xs: [ValueError() if x == 2 else x for x in xs], shut=True)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)
    running = flavour.start(fn, [1, 2, 3, 4])
    gate.wait_for_batch()
    queued = flavour.start(fn, [5, 6])
    flavour.cancel(flavour.start(fn, 7))
    flavour.start(fn.options(deadline_ms=0.001), 8)
    before = fn.stats
    assert (before.running_items, before.total_accepted, before.total_processed) == (4, 8, 0)
    assert len(before.running) == 1
    assert before.running[0] >= 0
    gate.open()
    assert queued.result(PATIENCE_S) == [5, 6]
    assert running.exception(PATIENCE_S) is not None
    until(lambda: fn.stats.total_expired == 1 and not fn.stats.running)
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
        after.queue_size = 1


def test_a_call_is_counted_before_its_caller_is_released(flavour: Flavour) -> None:
    """A caller that has its answer finds it in the stats."""
    fn = flavour.decorate(Gate(), timeout_ms=0)
    for count in range(1, 300):
        flavour.call(fn, count)
        assert fn.stats.total_processed == fn.stats.total_accepted == count


def test_printed_stats_are_a_table(flavour: Flavour) -> None:
    """With everything a person asks first."""
    fn = flavour.decorate(Gate(), timeout_ms=0)
    flavour.call(fn, [1, 2, 3])
    text = str(fn.stats)
    for words in ("queued", "processed           3, 0 failed", "1 (1 window)", "p99", "ms"):
        assert words in text
