"""Full batches of the size that serves best: when it is learned, and what waits for no trial."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._core.queue import Queue
from batched._features.best_size import BestSizes
from batched._features.memory import FitsMemory
from batched._policy.auto_lengths import AutoLengths
from batched._policy.lengths import Lengths
from tests.kit.backlog import KNEE, MOST, Backlog


@pytest.mark.parametrize("queue", [Queue, KeyedQueues])
@pytest.mark.parametrize("timeout_ms", [0, 5])
def test_the_size_that_serves_best_is_found_and_told(queue: Any, timeout_ms: float) -> None:
    backlog = Backlog(Options(timeout_ms=timeout_ms), queue)
    assert set(backlog.run(20)) == {MOST}
    assert backlog.driver.stats(backlog.now).best_batch_size is None
    backlog.run(1000)
    last = backlog.run(100)
    assert last.count(KNEE) >= 95
    stats = backlog.driver.stats(backlog.now)
    assert stats.best_batch_size == KNEE
    assert "best batch size" in str(stats)


@pytest.mark.parametrize(("deadline_s", "sizes"), [(0.5, {MOST}), (10.0, {KNEE})])
def test_no_call_waits_for_a_trial_that_takes_a_good_part_of_its_time(
    deadline_s: float, sizes: set[int]
) -> None:
    """A full batch takes 90 ms here. With time enough the best size is found, as without deadlines."""
    backlog = Backlog(Options(), deadline_s=deadline_s)
    assert set(backlog.run(1000)) >= sizes
    assert set(backlog.run(10)) <= sizes | {KNEE // 2, 2 * KNEE}
    assert (set(backlog.sizes) == {MOST}) is (sizes == {MOST})


def test_batches_of_other_sizes_are_looked_at_for_what_length_costs() -> None:
    """Where one size fills all batches, only trials tell whether padding takes time."""
    lengths = AutoLengths(lambda call, _: call.lengths)
    backlog = Backlog(Options(), partial(LengthQueue, lengths=lengths))
    looked_at: list[int] = []

    def ran(batch: Any, _: float) -> None:
        if batch.padded:
            looked_at.append(batch.size)
            assert batch.size != backlog.driver.batcher.feature(BestSizes).sizes.size
        lengths.looks = False

    lengths.ran = ran  # type: ignore[method-assign]
    lengths.looks = False
    backlog.run(1000)
    assert looked_at


@pytest.mark.parametrize(
    "off",
    [
        Options(adaptive=False),
        Options(max_concurrent_batches=2),
        Options(batch_size=1),
    ],
)
def test_options_that_leave_the_size_alone(off: Options) -> None:
    backlog = Backlog(off)
    assert set(backlog.run(500)) == {off.batch_size}


def test_where_lengths_are_known_their_rule_decides() -> None:
    """They explain what a batch takes."""
    lengths = Lengths(reorders=True, padded=False)
    backlog = Backlog(Options(), partial(LengthQueue, lengths=lengths))
    assert set(backlog.run(500)) == {MOST}


def test_configure_begins_anew_only_with_another_batch_size() -> None:
    backlog = Backlog(Options())
    backlog.run(1000)
    backlog.driver.batcher.configure(Options(timeout_ms=1))
    assert backlog.run(1) == [KNEE]
    backlog.driver.batcher.configure(Options(batch_size=16))
    assert backlog.run(3) == [16] * 3
    backlog.driver.batcher.configure(Options(adaptive=False))
    assert set(backlog.run(500)) == {MOST}


def test_no_trial_is_larger_than_what_fits_into_memory() -> None:
    """Though larger batches would be better."""
    backlog = Backlog(Options(batch_size=16))
    batcher = backlog.driver.batcher
    backlog.driver.push(*[backlog.call() for _ in range(8)])
    batcher.fail(backlog.driver.pop(backlog.now), MemoryError(), backlog.now)
    assert batcher.feature(FitsMemory).limit == 4
    assert max(backlog.run(60)) <= 4


def test_short_batches_tell_nothing() -> None:
    """What takes less than handing it out is not compared."""
    backlog = Backlog(Options())
    for _ in range(500):
        while backlog.driver.queue.items < 100:
            backlog.driver.push(backlog.call())
        assert backlog.driver.delay(backlog.now) == 0.0
        batch = backlog.driver.pop(backlog.now)
        assert batch.size == MOST
        backlog.now += 1e-6 * batch.size
        backlog.driver.finish(batch, backlog.now)


def test_of_short_batches_in_a_row_one_in_64_is_learned_from() -> None:
    """And each long one of several calls, at once; short ones after these are no more of a lesson."""
    backlog = Backlog(Options())
    sizes = backlog.driver.batcher.feature(BestSizes).sizes
    learned_from: list[float] = []

    def ran(_: int, started: float, now: float) -> None:
        learned_from.append(now - started)

    sizes.ran = ran
    sizes.is_at_rest = True
    for seconds in [1e-6] * 144 + [0.001] * 5 + [1e-6] * 65:
        backlog.driver.push(*(backlog.call() for _ in range(1 if seconds < 1e-3 else 2)))
        batch = backlog.driver.pop(backlog.now)
        backlog.now += seconds
        backlog.driver.finish(batch, backlog.now)
    assert [round(each, 6) for each in learned_from] == [1e-6] * 3 + [0.001] * 5 + [1e-6]


def test_once_lengths_are_used_their_rule_decides() -> None:
    """They explain what batches take from then on, so that what was learned of sizes is forgotten."""
    lengths = Lengths(reorders=True, padded=False)
    lengths.is_used = False
    backlog = Backlog(Options(), partial(LengthQueue, lengths=lengths))
    backlog.run(1000)
    assert backlog.driver.stats(backlog.now).best_batch_size == KNEE
    lengths.is_used = True
    backlog.run(2)
    assert set(backlog.run(500)) == {MOST}
    assert backlog.driver.stats(backlog.now).best_batch_size is None
