"""What the counters say, at any moment."""

from __future__ import annotations

import dataclasses
from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batched
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.counters import Counters
from batched._core.stats import Distribution, Sizes, Times
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def exact_percentile(values: list[Any], percent: float) -> Any:
    """The least value that `percent` % of all are at most."""
    rank = len(values) * percent / 100
    return sorted(values)[max(ceil(rank), 1) - 1]


def times_of(values: list[float]) -> Distribution:
    """Count the values in three portions."""
    times = Times()
    for start in range(3):
        times.add(values[start::3])
    return times.snapshot()


def sizes_of(values: list[int]) -> Distribution:
    sizes = Sizes()
    for size, times in Counter(values).items():
        sizes.add(size, times)
    return sizes.snapshot()


SECONDS = st.lists(st.floats(0, 1e6), min_size=1)
SIZES = st.lists(st.integers(1, 4096), min_size=1)


@given(SECONDS, st.floats(0, 100))
def test_a_percentile_of_times_is_within_9_percent_of_the_exact_one(
    values: list[float], percent: float
) -> None:
    """Or a microsecond; count, sum, least and greatest are exact, and nothing is outside of what was seen."""
    found = times_of(values)
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))
    assert found.sum == pytest.approx(sum(values))
    exact = exact_percentile(values, percent)
    assert found.percentile(percent) == pytest.approx(exact, rel=2 ** (1 / 8) - 1 + 1e-9, abs=1e-6)
    assert found.min <= found.percentile(percent) <= found.max
    assert found.percentile(100) == found.max


@given(SIZES, st.floats(0, 100))
def test_a_percentile_of_sizes_is_exact(values: list[int], percent: float) -> None:
    """However they are spread."""
    found = sizes_of(values)
    assert (found.count, found.sum, found.min, found.max) == (
        len(values),
        sum(values),
        min(values),
        max(values),
    )
    assert found.percentile(percent) == exact_percentile(values, percent)


@given(st.lists(st.integers(1, 10**9), min_size=1), st.floats(0, 100))
def test_a_percentile_of_large_sizes_is_almost_exact(values: list[int], percent: float) -> None:
    """Within 0.05 %, and one that all batches have is exact."""
    found = sizes_of(values)
    assert found.percentile(percent) == pytest.approx(exact_percentile(values, percent), rel=0.0005)
    assert found.min <= found.percentile(percent) <= found.max
    alike = sizes_of(values[:1] * 5)
    assert alike.percentile(percent) == values[0]


def test_sizes_take_bounded_memory() -> None:
    """Whatever the batch size: here a million, where every size that is counted is another."""
    found = sizes_of(list(range(1, 1_000_000, 5)))
    assert found.count == 200_000
    assert len(found.bounds) < 25_000


@given(SECONDS, st.integers(-2, 40))
def test_times_up_to_a_doubling_of_a_microsecond_are_counted_exactly(
    values: list[float], doublings: int
) -> None:
    """As Prometheus asks for them: a value that is the bound counts."""
    bound = 1e-6 * 2.0**doublings
    values = [*values, bound]
    if doublings < 0:
        assert times_of(values).at_most(bound) == 0
    else:
        assert times_of(values).at_most(bound) == sum(value <= bound for value in values)


@given(SIZES, st.integers(0, 5000))
def test_sizes_up_to_any_bound_are_counted_exactly(values: list[int], bound: int) -> None:
    """As Prometheus asks for them: a size that is the bound counts."""
    assert sizes_of(values).at_most(bound) == sum(value <= bound for value in values)


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
    fn = flavour.decorate(Gate(), batch_size=24, timeout_ms=0)
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


def test_the_table_says_waits_of_one_length_as_they_were() -> None:
    """Not as the bucket that they fell into; long times in full."""
    counters = Counters()
    batch = Batch([(Call().begin(None, [], 5000, True, 0.0), 0, 5000)], 5000, "full")
    counters.left(batch.slices, 0.0011)
    counters.ran(batch, 12.345)
    text = str(counters.snapshot(waiting=0, running=[(1, 1234.5)], again=0, fits=None, learned=None))
    assert "wait                mean 1.1, p50 1.1, p90 1.1, p99 1.1, max 1.1 ms\n" in text
    assert "processing          mean 12,345, p50 12,345, p90 12,345, p99 12,345, max 12,345 ms" in text
    assert "1 (batches since: 1,234 s)" in text


def test_an_empty_distribution_is_all_zeros() -> None:
    """And a percentile outside 0 to 100 is refused."""
    distribution = Times().snapshot()
    assert (distribution.count, distribution.mean, distribution.percentile(99)) == (0, 0.0, 0.0)
    assert (distribution.min, distribution.max, distribution.at_most(1)) == (0.0, 0.0, 0)
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
