"""What keys cost: a few looks each, and nothing once no call of them waits."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.queue import Queue
from tests.kit.effort import times
from tests.kit.kept import size_of
from tests.kit.keyed_calls import WINDOW_S, call_of, driver_of, keys_of, run_all


class CountedQueue(Queue):
    """Counts how often a queue is asked for its oldest item."""

    asked = 0

    def oldest(self) -> float:
        CountedQueue.asked += 1
        return super().oldest()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> type[CountedQueue]:
    """Queues that count how often they are looked at."""
    monkeypatch.setattr("batched._core.keyed_queues.Queue", CountedQueue)
    CountedQueue.asked = 0
    return CountedQueue


def test_many_keys_cost_a_few_looks_each(asked: type[CountedQueue]) -> None:
    """All waiting at once, in one batch each; none is looked at again and again."""
    keys = times(100_000)
    driver, groups = driver_of(batch_size=2)
    driver.push(*[call_of(key, arrived=key / keys) for key in range(keys)])
    assert driver.delay(0.0) == WINDOW_S
    assert keys_of(run_all(driver, WINDOW_S + 1.0)) == [(key, 1) for key in range(keys)]
    assert asked.asked < 12 * keys
    assert size_of(groups) == 0


def test_waiting_keys_cost_a_busy_one_nothing(asked: type[CountedQueue]) -> None:
    """Ten thousand in their window, and a batch of another asks after a handful of them."""
    driver, _ = driver_of(batch_size=2)
    driver.push(*[call_of(key, arrived=1.0) for key in range(10_000)])
    asked.asked = 0
    for _ in range(1000):
        driver.push(call_of("busy", size=2, arrived=1.0))
        assert keys_of(run_all(driver, 1.0)) == [("busy", 2)]
    assert asked.asked < 20 * 1000


def test_keys_that_come_and_go_leave_nothing_behind_one_that_waits() -> None:
    """Run or cancelled, full or not, while the oldest of all is still in its window."""
    driver, groups = driver_of(batch_size=2)
    driver.push(call_of("old", arrived=0.0))
    most = 0
    for number in range(2000):
        cancelled = call_of(("cancelled", number), size=3, arrived=1.0)
        driver.push(cancelled)
        driver.push(call_of(("run", number), size=2, arrived=1.0))
        cancelled.left = "cancelled"
        driver.drop(cancelled)
        assert keys_of(run_all(driver, 1.0)) == [(("run", number), 2)]
        most = max(most, size_of(groups))
    assert most < 500


def test_one_key_that_fills_and_empties_again_leaves_nothing_behind() -> None:
    """Its callers come and go while another, older one is full and nothing runs."""
    driver, groups = driver_of(batch_size=2)
    driver.push(call_of("full", size=2, arrived=0.0))
    driver.push(call_of("other", arrived=1.0))
    for _ in range(5000):
        call = call_of("other", arrived=1.0)
        driver.push(call)
        driver.drop(call)
    assert size_of(groups) < 500
    assert keys_of(run_all(driver, 1.0)) == [("full", 2)]
    assert keys_of(run_all(driver, WINDOW_S + 1.0)) == [("other", 1)]


def test_keys_do_not_grow_under_a_load_that_never_ends() -> None:
    """One key fills again before the driver looks, and others come and go behind one that waits."""
    groups = KeyedQueues(4, 2)

    def push(key: Any, now: float, items: int = 1) -> Call:
        for _ in range(items):
            call = call_of(key, arrived=now)
            groups.push_all([call])
        return call

    push("waits", 0.0)
    push("full", 1.0, 5)
    for turn in range(2, 1000):
        groups.taken(groups.in_turn(lambda _oldest: False, None).take(4), turn)
        push("full", turn, 4)
        groups.taken(groups.in_turn(lambda _oldest: False, urgent=push(turn, 0.5)).take(1), turn)
        assert size_of(groups) < 500
    assert groups.items == 6
