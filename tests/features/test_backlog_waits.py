"""Calls are told the wait that they have, in the mean; one that comes back when told finds room."""

from __future__ import annotations

from math import inf
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import batched
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog
from batched.testing import manual_clock
from tests.kit.calls import listed
from tests.kit.known_service import FULL, Service, cost
from tests.kit.simulated_callers import Callers


@pytest.mark.parametrize("load", [0.1, 0.5, 0.7, 0.8])
def test_a_list_beside_single_calls_is_told_the_wait_that_it_has(load: float) -> None:
    """Those that come later go ahead of it."""
    callers = Callers(load)
    callers.poisson(1.0, 40)
    callers.run(40.0)
    assert 0.8 < callers.ratio(40) < 1.25
    assert 0.9 < callers.ratio(1) < 1.1


@pytest.mark.parametrize("size", [12, 40])
@pytest.mark.parametrize("load", [0.85, 0.9, 0.95])
def test_a_rare_list_beside_busy_single_calls_is_told_the_wait_that_it_has(load: float, size: int) -> None:
    """It was told up to three times its wait: as if no more single calls ever waited than on average."""
    callers = Callers(load)
    callers.poisson(0.5, size)
    callers.run(80.0)
    assert 0.7 < callers.ratio(size) < 1.3


def test_a_list_that_comes_when_all_others_have_gone_waits_for_itself_alone() -> None:
    """Single calls that had come hours before were still expected to go ahead of it."""
    callers = Callers(0.9)
    callers.rest(3600.0)
    service = callers.service
    told = service.driver.batcher.feature(Backlog).wait_s(40, service.now)
    assert told == pytest.approx(cost(FULL) + cost(40 - FULL), rel=0.1)


def test_a_list_in_the_morning_is_told_the_wait_that_it_has() -> None:
    """A night without calls was taken for a time in which few came, for hundreds of batches."""
    callers = Callers(0.8)
    callers.rest(30_000.0)
    callers.poisson(0.8 * FULL / cost(FULL), 1)
    callers.run(1.0)
    callers.poisson(2.0, 40)
    callers.run(7.0)
    assert 0.6 < callers.ratio(40) < 1.4


def test_a_list_of_many_batches_is_told_the_wait_that_it_has() -> None:
    callers = Callers(0.5)
    callers.poisson(0.3, 200)
    callers.run(80.0)
    assert 0.8 < callers.ratio(200) < 1.25


@pytest.mark.parametrize(("failing", "load"), [(0.01, 0.15), (0.1, 0.05), (0.1, 0.15)])
def test_runs_of_parts_of_batches_that_failed_count(failing: float, load: float) -> None:
    """Also of batches that wait, of which as many will fail."""
    callers = Callers(load, failing)
    callers.run(5.0)
    callers.begin_anew(failing)
    callers.run(20.0)
    assert 0.7 < callers.ratio(1) < 1.25


def test_nothing_is_left_of_failures_once_all_works() -> None:
    callers = Callers(0.1, 0.1)
    callers.run(5.0)
    callers.begin_anew(0.0)
    callers.run(30.0)
    callers.begin_anew(0.0)
    callers.run(10.0)
    assert 0.9 < callers.ratio(1) < 1.1


@pytest.mark.parametrize("load", [0.0, 0.3, 0.6])
def test_most_that_come_back_to_a_full_queue_find_room(load: float) -> None:
    """Bursts of six batches, each second, beside other calls."""
    callers = Callers(0.0, max_queue_size=4 * FULL)
    rate = load * FULL / 0.052
    for second in range(10):
        for _ in range(6 * FULL):
            callers.at(callers.service.now + second, lambda: callers.enter(1))
        for number in range(round(rate)):
            callers.at(callers.service.now + second + number / rate, lambda: callers.enter(1))
    callers.run(12.0)
    assert len(callers.back) > 100
    assert fmean(callers.back) > 0.9


def test_most_lists_that_come_back_find_room() -> None:
    callers = Callers(0.0, max_queue_size=4 * FULL)
    for second in range(0, 20, 2):
        for size in (1, 4, 16, 40) * 4:
            callers.at(callers.service.now + second, lambda size=size: callers.enter(size))  # type: ignore[misc]
    callers.run(22.0)
    assert fmean(callers.back) > 0.9


@pytest.mark.parametrize("most", [2, 4, 8])
def test_most_lists_that_come_back_find_room_beside_other_lists(most: int) -> None:
    """In bursts, and a list each six batches: the first of a line took less of it than its room needs."""
    callers = Callers(0.0, max_queue_size=most * FULL)
    for second in range(0, 20, 2):
        for _ in range(2 * most):
            callers.at(callers.service.now + second, lambda: callers.enter(40))
    for number in range(round(20.0 * 0.3 / cost(FULL))):
        callers.at(callers.service.now + number * cost(FULL) / 0.3 * 40 / FULL, lambda: callers.enter(40))
    callers.run(22.0)
    assert len(callers.back) > 40
    assert fmean(callers.back) > 0.9


@pytest.mark.parametrize("most", [2, FULL // 4, FULL, 4 * FULL])
def test_after_a_burst_most_find_room_when_they_come_back(most: int) -> None:
    """Though a batch may have more items than may wait: no batch has so many then."""
    callers = Callers(0.0, max_queue_size=most)
    for second in range(0, 20, 2):
        for _ in range(4 * most):
            callers.at(callers.service.now + second, lambda: callers.enter(1))
    callers.run(22.0)
    assert len(callers.back) > 10 * most
    assert fmean(callers.back) > 0.9


@pytest.mark.parametrize("most", [FULL // 4, FULL, 2 * FULL])
def test_in_a_steady_crowd_callers_are_told_different_times(most: int) -> None:
    """A batch may take all that waits: those that were told to come later still come, and others after them.

    The times began anew at each such batch, and each caller came back dozens of times.
    """
    callers = Callers(0.0, max_queue_size=most)
    rate = 1.1 * most / cost(most)
    for number in range(round(20 * rate)):
        callers.at(callers.service.now + number / rate, lambda: callers.enter(1))
    callers.run(20.0)
    assert len(callers.back) > 10 * most
    assert fmean(callers.back) > 0.6


@pytest.mark.parametrize(("load", "least"), [(0.8, 0.72), (0.9, 0.6)])
def test_a_list_that_is_refused_does_not_have_the_next_one_wait_for_many_batches(
    load: float, least: float
) -> None:
    """At a steady load the next starts of batches are known, and later ones are not.

    Other lists come first, so no more than most can find room: two wait at once, and three would be too many.
    """
    random = Random(2)
    callers = Callers(0.0, max_queue_size=2 * FULL)
    at = callers.service.now
    end = at + 60.0
    while at < end:
        at += random.expovariate(load * FULL / 40 / cost(FULL))
        callers.at(at, lambda: callers.enter(40))
    callers.run(60.0)
    assert len(callers.back) > 100
    assert fmean(callers.back) > least


def test_the_first_that_asks_is_told_what_has_come_before() -> None:
    """Single calls kept coming; a list that asks for the first time knows of them."""
    asked = []
    for begins in (False, True):
        callers = Callers(0.7)
        backlog = callers.service.driver.batcher.feature(Backlog)
        if not begins:
            backlog.have("door")
        backlog._has_begun = False  # noqa: SLF001
        callers.run(5.0)
        backlog.learn()
        asked.append(backlog.wait_s(5 * FULL, callers.service.now))
    assert asked[0] == pytest.approx(asked[1], rel=0.3)


@pytest.mark.parametrize("begins", [False, True], ids=["asks later", "asks always"])
@pytest.mark.parametrize("batch_size", [4, FULL])
def test_the_only_caller_of_lists_is_told_the_wait_that_it_has(batch_size: int, begins: bool) -> None:
    """The lists that came before are its own, and none of others will go ahead of this one."""
    service = Service(batch_size=batch_size)
    backlog = service.driver.batcher.feature(Backlog)
    if not begins:
        backlog.have("door")
        backlog._has_begun = False  # noqa: SLF001
    for _ in range(20):
        service.push(10 * batch_size)
        while service.run():
            pass
    backlog.learn()
    for size in (10 * batch_size, 3 * batch_size):
        expected, began = backlog.wait_s(size, service.now), service.now
        service.push(size)
        while service.run():
            pass
        assert expected == pytest.approx(service.now - began, rel=0.15)


def test_the_running_batch_counts_in_when_to_come_back() -> None:
    callers = Callers(0.0, max_queue_size=FULL)
    service = callers.service
    calls = service.driver.batcher
    assert calls.admit(service.call(FULL), wait=False)
    service.start()
    assert calls.admit(service.call(FULL), wait=False)
    callers.enter(1)
    assert callers.next_at - service.now > 0.052


def test_the_wait_of_a_list_is_a_time_however_long_the_list_and_whatever_fails() -> None:
    """Where lists pile up and batches fail, more seemed to come than is done, and the wait was negative."""
    random = Random(0)
    driver = ManualDriver(Options(batch_size=4, timeout_ms=0))
    backlog = driver.batcher.feature(Backlog)
    backlog.use()
    now = 0.0
    for number in range(900):
        if number < 300:
            driver.push(listed(random.randint(9, 24), now))
        if driver.delay(now) != 0.0:
            break
        batch = driver.pop(now)
        now += 0.01
        if random.random() > 0.7**batch.size:
            driver.fail(batch, ValueError(), now)
        else:
            driver.run(batch, now)
        if backlog.times.is_known:
            waits = [backlog.wait_s(items, now) for items in (9, 40, 400, 40_000, 10**18)]
            assert all(wait is not None and 0.0 < wait < inf for wait in waits)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("rare", "times_as_long"), [(0.1, 10), (0.02, 10), (0.01, 25)])
def test_a_lone_caller_is_told_the_mean_though_its_usual_batches_teach_less(
    size: int, rare: float, times_as_long: int
) -> None:
    """Of batches that are alike one in eight is a lesson, and each that takes longer than those."""
    random = Random(1)
    driver = ManualDriver(Options(timeout_ms=0))
    backlog = driver.batcher.feature(Backlog)
    backlog.use()
    now, took, told = 0.0, [], []
    for number in range(2_000):
        now += 0.005
        driver.push(listed(size, now))
        assert driver.delay(now) == 0.0
        batch = driver.pop(now)
        took.append(0.02 * (times_as_long if random.random() < rare else 1))
        now += took[-1]
        driver.run(batch, now)
        if number > 500:
            told.append(backlog.wait_s(size, now) or 0.0)
    assert fmean(told) == pytest.approx(fmean(took), rel=0.15)


SHORT = 6
"""Items of a batch that `max_batch_length` fills."""


@pytest.mark.parametrize("kind", ["lists", "arrays"])
def test_batches_that_lengths_fill_are_known_to_be_small(kind: str) -> None:
    """The wait was that of batches of `batch_size` items, so calls were let in that had to be late."""

    def answer(items: Any) -> Any:
        return items["ids"] if kind == "arrays" else items

    if kind == "arrays":
        fn = batched.inference.dynamically(max_batch_length=5 * SHORT, timeout_ms=0)(answer)
    else:
        fn = batched.dynamically(length=lambda item: 5, max_batch_length=5 * SHORT, timeout_ms=0)(answer)
    item = {"ids": np.ones((1, 5))} if kind == "arrays" else 1
    clock = manual_clock(fn, takes_ms=lambda size: 20.0 + size)
    for _ in range(20):
        for _ in range(5 * SHORT):
            clock.call_with({"deadline_ms": 2000}, item)
        clock.turn(1000)
    for _ in range(10 * SHORT):  # ten batches of 26 ms
        clock.call_with({"deadline_ms": 2000}, item)
    clock.turn(1)
    assert not clock.call_with({"deadline_ms": 350}, item).done()
    with pytest.raises(batched.OverloadError):
        clock.call_with({"deadline_ms": 200}, item).result()


def test_what_runs_ahead_in_an_outage_is_no_full_batch() -> None:
    """Of a full batch, one item runs ahead then: the wait was told as that of batches so small."""
    is_down = False

    @batched.dynamically(batch_size=16, timeout_ms=0)
    def fetch(items: list[int]) -> list[int]:
        if is_down:
            raise OSError
        return items

    clock = manual_clock(fetch, takes_ms=lambda size: 100.0 + size)
    backlog = clock._driver.batcher.feature(Backlog)  # noqa: SLF001

    def run(items: int) -> None:
        for _ in range(items):
            clock.call_with({"deadline_ms": 100_000}, 1)
        clock.step()

    for items in [1] * 20 + [17] * 20:
        run(items)
    is_down = True
    told = []
    for _ in range(60):
        run(max(64 - clock.stats.queue_size, 0))
        told.append(backlog.wait_s(1, clock.now_ms / 1000) or inf)
    assert any(ran.size == 1 and ran.reason == "full" for ran in clock.ran)
    assert max(told[20:]) < 7 * 0.116  # of four batches at most, and a search takes longer


@pytest.mark.parametrize(("keys", "size"), [(1, 64), (4, 64), (16, 16), (16, 64), (16, 128), (100, 40)])
def test_a_list_over_many_keys_is_told_its_wait_to_a_factor_of_two(keys: int, size: int) -> None:
    """Each key has a batch of its own, of few items: the wait was told as that of full batches."""

    @batched.dynamically(batch_size=32, timeout_ms=0, group_by=lambda item: item % keys)
    def answer(items: list[int]) -> list[int]:
        return items

    random = Random(1)
    clock = manual_clock(answer, takes_ms=lambda size: 20.0 + size)
    backlog = clock._driver.batcher.feature(Backlog)  # noqa: SLF001
    backlog.use()
    told, had = [], []
    for _ in range(20):
        told.append(backlog.wait_s(size, clock.now_ms / 1000) or 0.0)
        asked, result = clock.now_ms, clock.call([random.randrange(10**6) for _ in range(size)])
        while not result.done():
            clock.turn(1)
        had.append((clock.now_ms - asked) / 1000)
        clock.turn(100)
    assert 0.5 < fmean(told[5:]) / fmean(had[5:]) < 2.0
