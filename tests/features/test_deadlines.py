"""Calls that cannot be answered in time: which are given up, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched import OverloadError
from batched._core.call import Call
from batched._core.explanation import explain
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._features.backlog import Backlog
from tests.kit.known_service import FULL, FULL_S, Service


def is_given_up(call: Call) -> bool:
    return isinstance(call.error, OverloadError) and call.error.retry_after_s is not None


def is_answered(call: Call) -> bool:
    return not call.missing and call.error is None


@pytest.mark.parametrize("queue", [Queue, KeyedQueues])
def test_a_call_that_would_be_late_never_runs(queue: Any) -> None:
    """Though its deadline has not passed: it is answered as soon as a batch could start."""
    service = Service(queue)
    late = service.push(allowed_s=0.030)
    other = service.push()
    service.now += 0.015
    assert service.run() == 1
    assert is_given_up(late)
    assert is_answered(other)
    stats = service.driver.stats(service.now)
    assert stats.total_expired == stats.total_given_up == 1
    said = explain(stats, Options())
    assert "1 item was dropped while waiting" in said
    assert "missed the deadline" not in said  # its deadline has not passed


def test_the_oldest_make_place_for_a_batch_that_is_full() -> None:
    """A batch in time for them would have 5 items, and take 25 ms for these."""
    service = Service()
    service.push(15)
    batch = service.start()
    old = [service.push(allowed_s=0.062) for _ in range(5)]
    service.now += 0.034
    young = [service.push(allowed_s=0.062) for _ in range(FULL)]
    assert all(call.missing for call in (*old, *young))
    service.now += 0.001
    service.driver.finish(batch, service.now)
    assert service.run() == FULL
    assert all(map(is_given_up, old))
    assert all(map(is_answered, young))


def test_a_batch_is_smaller_where_so_more_are_in_time() -> None:
    """Nothing is given up for a batch that would not be full."""
    service = Service()
    calls = [service.push(allowed_s=0.036) for _ in range(20)]
    assert service.run() == 15
    assert sum(map(is_answered, calls)) == 15


def test_a_list_fills_a_batch_as_far_as_a_deadline_allows() -> None:
    service = Service()
    large = service.push(FULL * 3)
    urgent = service.push(allowed_s=0.034)
    assert 1 < service.run() <= 13
    assert is_answered(urgent)
    while service.run():
        pass
    assert is_answered(large)


@pytest.mark.parametrize("begun", [False, True])
def test_a_list_that_cannot_be_finished_is_not_gone_on_with(begun: bool) -> None:
    """It needs four batches."""
    service = Service()
    large = service.push(4 * FULL, allowed_s=4.5 * FULL_S)
    if begun:
        assert service.run() == FULL
    service.now += FULL_S
    small = service.push()
    assert service.run() == 1
    assert is_given_up(large)
    assert is_answered(small)


@pytest.mark.parametrize(("batches", "others_are_to_blame"), [(4, True), (6, False)])
def test_a_list_that_would_be_late_alone_does_not_blame_others(
    batches: int, others_are_to_blame: bool
) -> None:
    """Nor is its caller to come back. Four batches would have been in time, had nothing else run."""
    service = Service()
    large = service.push(batches * FULL, allowed_s=4.5 * FULL_S)
    service.now += FULL_S
    service.push()
    service.run()
    assert isinstance(large.error, OverloadError)
    assert is_given_up(large) == others_are_to_blame
    assert ("because of the calls ahead" in str(large.error)) == others_are_to_blame


@given(st.integers(0, 2**32), st.sampled_from([0.8, 1.5, 3.0]), st.sampled_from([1.5, 2.0, 4.0]))
def test_what_runs_is_in_time_and_under_overload_the_function_stays_busy(
    seed: int, load: float, times: float
) -> None:
    """Without early drop nearly nothing would be in time at 1.5 times the capacity and above."""
    service = Service()
    random = Random(seed)
    rate = load * FULL / FULL_S
    arrives = service.now
    begun = len(service.calls)
    until = service.now + 60 * FULL_S
    while service.now < until:
        now = service.now
        while arrives <= now:
            service.now = arrives
            service.push(allowed_s=times * FULL_S)
            arrives += random.expovariate(rate)
        service.now = now
        size = service.run()
        if not size:
            service.now = arrives
    mine = service.calls[begun:]
    in_time = sum(is_answered(call) for call in mine)
    assert in_time >= 0.75 * min(load, 1.0) * 60 * FULL


def test_of_several_keys_the_one_that_would_be_late_is_next() -> None:
    """Not the oldest, which may wait for company yet."""
    service = Service(KeyedQueues)
    batcher = service.driver.batcher
    batcher.configure(replace(batcher.options, timeout_ms=1000, adaptive=False))
    service.push()
    urgent = service.call(allowed_s=0.035)
    urgent.key = 1
    service.driver.push(urgent)
    delay = service.driver.delay(service.now)
    assert delay is not None
    service.now += delay
    assert service.run() == 1
    assert is_answered(urgent)


@pytest.mark.parametrize("size", [1, 3])
def test_a_call_that_is_given_up_is_turned_away_once(size: int) -> None:
    """A small list is found by its deadline and among the lists; else a flood would be seen too soon."""
    service = Service()
    for _ in range(FULL):
        service.push()
    assert service.start() is not None
    call = service.push(size, allowed_s=2 * FULL_S)
    backlog = service.driver.batcher.feature(Backlog)
    service.driver.delay(service.now + 2 * FULL_S - 0.001)
    assert isinstance(call.error, OverloadError)
    assert backlog._turned_away == size  # noqa: SLF001
