"""Queues by key: who shares a batch, whose turn it is, and what a key costs. No thread, no clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batched import inference
from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import size_of

COLLATOR = ListCollator("f")
WINDOW_S = 10.0


def driver_of(batch_size: int, threshold: int = 8) -> tuple[ManualDriver, KeyedQueues]:
    options = Options(
        batch_size=batch_size, small_batch_threshold=threshold, timeout_ms=WINDOW_S * 1000, adaptive=False
    )
    driver = ManualDriver(options, KeyedQueues, COLLATOR)
    assert isinstance(driver.queue, KeyedQueues)
    return driver, driver.queue


def call_of(key: Any, size: int = 1, arrived: float = 0.0, deadline: float | None = None) -> Call:
    same = SimpleNamespace(__wrapped__=lambda items: items)
    call = Call().begin(same, [key] * size, size, True, arrived, deadline)
    call.key = key
    return call


def run_all(driver: ManualDriver, now: float) -> Iterator[Batch]:
    """Yield the batches that are due, each run to its end."""
    while driver.delay(now) == 0.0:
        batch = driver.pop(now)
        slices = batch.slices[:]
        driver.run(batch, now)
        batch.slices[:] = slices
        yield batch


def keys_of(batches: Iterator[Batch]) -> list[Any]:
    return [(batch.slices[0][0].key, batch.size) for batch in batches]


# -- whose turn it is ---------------------------------------------------------------------------------------


def test_each_key_fills_a_batch_of_its_own() -> None:
    """Items of others, however many, neither fill nor start it."""
    driver, groups = driver_of(batch_size=4)
    for number in range(9):
        driver.push(call_of(number % 3, arrived=number))
    assert driver.delay(9.0) == WINDOW_S - 9.0
    assert groups.lacks() == 1
    driver.push(call_of(1, arrived=9.0))
    assert keys_of(run_all(driver, 9.0)) == [(1, 4)]
    assert driver.delay(9.0) == WINDOW_S - 9.0
    assert keys_of(run_all(driver, WINDOW_S)) == [(0, 3)]
    assert keys_of(run_all(driver, WINDOW_S + 2.0)) == [(2, 3)]


def test_keys_that_are_due_take_turns() -> None:
    """The one that waits longest goes first, be it full or not; after its batch it is the last in line."""
    driver, _ = driver_of(batch_size=2)
    for number, key in enumerate("abcbcbcb"):
        driver.push(call_of(key, arrived=float(number)))
    late = WINDOW_S + 100.0
    assert keys_of(run_all(driver, late)) == [("a", 1), ("b", 2), ("c", 2), ("b", 2), ("c", 1)]


def test_a_full_key_goes_ahead_of_one_in_its_window() -> None:
    """Which then has its turn when its window ends, however many others are full: nobody starves."""
    driver, _ = driver_of(batch_size=2)
    driver.push(call_of("lonely", arrived=0.0))
    now = 0.0
    waited = 0
    while True:
        now += 1.0
        for _ in range(3):  # more than can run
            driver.push(call_of("busy", size=2, arrived=now))
        assert driver.delay(now) == 0.0
        key = driver.pop(now).slices[0][0].key
        if key == "lonely":
            break
        waited += 1
    assert waited == WINDOW_S - 1


def test_a_call_with_a_deadline_brings_its_own_key_forward() -> None:
    """Once half of its time is over; the others wait on, and who is full but younger comes after it."""
    driver, _ = driver_of(batch_size=4)
    driver.push(call_of("patient", arrived=0.0))
    driver.push(call_of("urgent", arrived=1.0))
    driver.push(call_of("urgent", arrived=1.0, deadline=5.0))
    assert driver.delay(1.0) == 2.0
    driver.push(call_of("younger", size=4, arrived=2.0))
    assert keys_of(run_all(driver, 3.0)) == [("urgent", 2), ("younger", 4)]
    assert driver.delay(3.0) == WINDOW_S - 3.0


def test_what_left_or_is_late_is_gone_with_its_key() -> None:
    """Its key is forgotten with its last item, and the batch of another is not cut short by it."""
    driver, groups = driver_of(batch_size=2)
    gone, late = call_of("a"), call_of("b", deadline=1.0)
    for call in (gone, late, call_of("c", size=2)):
        driver.push(call)
    driver.drop(gone)
    driver.drop(gone)
    assert keys_of(run_all(driver, 1.0)) == [("c", 2)]
    assert late.left == "expired"
    assert isinstance(late.error, TimeoutError)
    assert groups.items == size_of(groups) == 0
    assert driver.delay(1.0) is None


def test_a_call_of_a_key_that_came_back_is_dropped_from_the_right_queue() -> None:
    """What ran under the same key before leaves no trace."""
    driver, groups = driver_of(batch_size=2)
    first = call_of("a", size=2)
    driver.push(first)
    assert keys_of(run_all(driver, 0.0)) == [("a", 2)]
    driver.push(call_of("a"))
    driver.drop(first)
    assert groups.items == 1


def test_a_list_that_comes_late_has_one_batch_ahead_of_small_calls_not_more() -> None:
    """What large calls did not use while none waited is saved up for one batch."""
    driver, _ = driver_of(batch_size=2, threshold=1)
    for number in range(100):
        driver.push(call_of(number))
        assert keys_of(run_all(driver, WINDOW_S)) == [(number, 1)]
    driver.push(call_of("list", size=4, arrived=WINDOW_S))
    for number in range(9):
        driver.push(call_of(number, arrived=WINDOW_S))
    order = [key for key, _ in keys_of(run_all(driver, 2 * WINDOW_S))]
    assert order == ["list", *range(8), "list", 8]


# -- what it costs ------------------------------------------------------------------------------------------


class CountedQueue(Queue):
    """Counts how often a queue is asked for its oldest item."""

    asked = 0

    def oldest(self) -> float:
        CountedQueue.asked += 1
        return super().oldest()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> type[CountedQueue]:
    monkeypatch.setattr("batched._core.keyed_queues.Queue", CountedQueue)
    CountedQueue.asked = 0
    return CountedQueue


def test_a_hundred_thousand_keys_cost_a_few_looks_each(asked: type[CountedQueue]) -> None:
    """All waiting at once, in one batch each; none is looked at again and again."""
    keys = 100_000
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
    for number in range(5000):
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
    """One key fills again before anybody looks, and others come and go behind one that waits."""
    groups = KeyedQueues(4, 2)

    def push(key: Any, now: float, items: int = 1) -> Call:
        for _ in range(items):
            call = call_of(key, arrived=now)
            groups.push_all([call])
        return call

    push("waits", 0.0)
    push("full", 1.0, 5)
    for turn in range(2, 1000):
        groups.taken(groups.next(lambda _oldest: False, None).take(4), turn)
        push("full", turn, 4)
        groups.taken(groups.next(lambda _oldest: False, urgent=push(turn, 0.5)).take(1), turn)
        assert size_of(groups) < 500
    assert groups.items == 6


@pytest.mark.parametrize("seed", range(20))
def test_a_crowd_of_keys_is_served_in_full_and_in_order(seed: int) -> None:
    """Random sizes, keys, departures and deadlines: each item runs once, and a key's calls in their order."""
    rng = random.Random(seed)
    driver, groups = driver_of(batch_size=rng.choice([1, 3, 16]), threshold=100)
    now, ran, left, pushed = 0.0, 0, 0, 0
    numbers: dict[int, list[int]] = {}
    for number in range(2000):
        now += rng.random() / 10
        call = call_of(rng.randrange(200), rng.choice([1, 1, 2, 7]), now)
        call.inputs = [number] * call.size
        pushed += call.size
        driver.push(call)
        if rng.random() < 0.1:
            left += call.waiting
            driver.drop(call)
        if rng.random() < 0.3:
            for batch in run_all(driver, now):
                ran += batch.size
                for its, _, _ in batch.slices:
                    numbers.setdefault(its.key, []).append(int(its.arrived * 1e9))
    ran += sum(batch.size for batch in run_all(driver, now + WINDOW_S))
    assert pushed == ran + left
    assert all(seen == sorted(seen) for seen in numbers.values())
    assert size_of(groups) == 0


# -- through the front door ---------------------------------------------------------------------------------


def test_a_signature_that_nobody_uses_any_more_costs_nothing() -> None:
    """A thousand kinds of calls are served, each in full batches, and then forgotten."""
    gate = Gate(lambda features: next(iter(features.values())), shut=True, note=dict)
    fn = inference.dynamically(gate, batch_size=2, timeout_ms=0)
    fn.submit(hold=np.zeros(2))
    gate.wait_for_batch()
    futures = [fn.submit({key: np.full(1, key)}) for _ in range(2) for key in range(3000)]
    gate.open()
    for number, future in enumerate(futures):
        assert future.result(PATIENCE_S).tolist() == [number % 3000]
    assert [len(features[key]) for features in gate.batches[1:] for key in features] == [2] * 3000
    groups = fn._batcher.batcher.calls.queue
    assert size_of(groups) == 0
    del futures, future  # their calls know their signatures
    assert len(fn._shared.collator._signatures.known) <= 1024
