"""Which key has the next batch."""

from __future__ import annotations

import random
from typing import Any

import pytest

import batched
from batched.testing import manual_clock
from tests.kit.effort import times
from tests.kit.kept import size_of
from tests.kit.keyed_calls import WINDOW_S, call_of, driver_of, keys_of, run_all


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
    """Which then has its turn when its window ends, however many others are full: no key starves."""
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
    """Once half of its time is over; the others wait on, and a full but younger key comes after it."""
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


def test_what_goes_ahead_of_a_call_is_counted_by_its_key() -> None:
    """All of it for a call that has several keys, and so none of its own."""
    driver, groups = driver_of(batch_size=4)
    for number in range(10):
        driver.push(call_of(number % 2, arrived=float(number)))
    assert groups.of_its_key(call_of(0, arrived=10.0), 9) == 5
    assert groups.of_its_key(call_of(2, arrived=10.0), 9) == 0
    driver.push(call_of(0, size=20, arrived=10.0))  # a list, which comes after small calls
    assert groups.of_its_key(call_of(0, arrived=10.0), 9) == 5
    divided = call_of(0, arrived=10.0)
    del divided.key
    assert groups.of_its_key(divided, 9) == 9


def test_a_small_call_is_not_refused_for_the_lists_of_other_keys() -> None:
    """It goes ahead of them, as it does without keys. So does one of items of several keys."""
    fn = batched.dynamically(
        lambda items: items, batch_size=4, timeout_ms=0, length=None, group_by=lambda item: item[0]
    )
    clock = manual_clock(fn, takes_ms=40)
    for number in range(30):  # then it is known how long batches take
        clock.call_with({"deadline_ms": 10_000}, [("known", 0)] * (1 + number % 4))
        clock.step()
    for key in range(10):
        clock.call([(key, 0)] * 40)
        clock.turn(0)
    calls = [clock.call_with({"deadline_ms": 400}, (key, 0)) for key in ("new", 3)]
    calls.append(clock.call_with({"deadline_ms": 400}, [("new", 1), (4, 1)]))
    clock.turn(400)
    assert [call.result() for call in calls] == [("new", 0), (3, 0), [("new", 1), (4, 1)]]
    assert clock.stats.total_refused == 0


def test_as_many_keys_are_ahead_of_a_small_call_as_have_small_calls() -> None:
    """Whatever has come, run and left before."""
    rng = random.Random(7)
    driver, groups = driver_of(batch_size=2, threshold=1)
    known: list[Any] = []
    for _ in range(300):
        known.append(call_of(rng.randrange(9), rng.choice([1, 1, 5, 9])))
        driver.push(known[-1])
        if rng.random() < 0.4:
            driver.drop(rng.choice(known))
        if rng.random() < 0.3 and driver.delay(WINDOW_S) == 0.0:
            driver.run(driver.pop(WINDOW_S), WINDOW_S)
        keys = {call.key for call in known if call.waiting and call.size == 1}
        small = sum(call.waiting for call in known if call.size == 1)
        assert groups.small_items == small
        assert groups.ahead(1, call_of("new"), large=False) == min(2 * len(keys), small)


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


@pytest.mark.parametrize("seed", range(times(40)))
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
