"""Batches that failed and run again in halves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._parts.layers import Grouping, LayeredCollator
from tests.kit.batcher_rules import COLLATOR, echo
from tests.kit.calls import listed, single
from tests.kit.effort import times


class Outage:
    """A function that fails, or of which some calls do, on a driver whose clock is turned by hand."""

    def __init__(self, run_s: float = 1.0, each_s: float = 0.0, **options: Any) -> None:
        self.driver = ManualDriver(Options(timeout_ms=0, **options), Queue, COLLATOR)
        self.now = 0.0
        self.run_s, self.each_s = run_s, each_s
        self.error: Exception | None = ConnectionAbortedError()
        self.bad: set[Call] = set()
        self.runs: list[int] = []

    def answer(self, calls: list[Call]) -> float:
        """Have `calls` come together; return the seconds until the last is answered."""
        began = self.now
        self.runs.clear()
        self.driver.push(*calls)
        while self.driver.delay(self.now) == 0.0:
            batch = self.driver.pop(self.now)
            self.runs.append(len(batch))
            self.now += self.run_s + self.each_s * len(batch)
            error = self.error or (ValueError() if self.bad & {*batch.calls} else None)
            if error is None:
                self.driver.run(batch, self.now)
            else:
                self.driver.fail(batch, error, self.now)
            batch.clear()
        assert not any(call.missing for call in calls)
        return self.now - began


def singles(count: int = 32) -> list[Call]:
    return [single() for _ in range(count)]


def test_an_outage_costs_five_times_its_time_at_most_and_then_nothing() -> None:
    """The first batch: four more runs. Those that follow, until one has worked: none."""
    outage = Outage()
    outage.error = RuntimeError("503")
    assert outage.answer(singles()) == 5.0
    assert outage.driver.stats(outage.now).isolation_paused
    for _ in range(3):
        assert outage.answer(singles()) == 1.0
    outage.error = None
    outage.answer(singles(1))
    assert not outage.driver.stats(outage.now).isolation_paused
    outage.error = RuntimeError("503")
    assert outage.answer(singles()) == 5.0
    stats = outage.driver.stats(outage.now)
    assert stats.total_processed == stats.total_accepted == stats.total_failed + 1
    assert stats.wait.count == stats.total_processed


@pytest.mark.parametrize("fails_after_s", [1.0, 0.003])
def test_a_long_outage_costs_no_run_more(fails_after_s: float) -> None:
    """Of every other batch one item runs; its error is that of the others, which do not run."""
    outage = Outage(fails_after_s)
    outage.error = RuntimeError("429")
    outage.answer(singles())
    for at in range(100):
        calls = singles()
        assert outage.answer(calls) == pytest.approx(fails_after_s)
        assert outage.runs == [32 if at % 2 else 1]
        assert all(call.error is outage.error for call in calls)
    stats = outage.driver.stats(outage.now)
    assert stats.total_processed == stats.total_accepted == stats.total_failed == stats.wait.count


def test_a_function_that_fails_for_a_single_item_only_is_not_left_in_an_outage() -> None:
    """It works for whole batches, and of every other one no item runs ahead."""
    outage = Outage()
    outage.error = RuntimeError("503")
    outage.answer(singles())
    outage.error = None
    calls = singles()
    outage.bad = {calls[0]}
    outage.answer(calls)
    assert outage.runs == [1]
    calls = singles()
    outage.answer(calls)
    assert outage.runs == [32]
    assert not outage.driver.stats(outage.now).isolation_paused


def test_the_item_that_runs_ahead_works_in_the_first_batch_after_an_outage() -> None:
    """Then the others run too, at once; no caller notices the outage that has ended."""
    outage = Outage()
    outage.error = RuntimeError("503")
    outage.answer(singles())
    outage.error = None
    calls = singles()
    outage.answer(calls)
    assert outage.runs == [1, 31]
    assert not any(call.error for call in calls)


@pytest.mark.parametrize("slots", [1, 2])
def test_calls_of_a_batch_of_which_one_runs_ahead_may_leave(slots: int) -> None:
    """The one that runs, or another; the rest are answered, also where another slot has taken them."""
    for leaves in (0, 1, 2):
        outage = Outage(max_concurrent_batches=slots)
        driver = outage.driver
        outage.error = RuntimeError("503")
        outage.answer(singles())
        calls = singles(3)
        driver.push(*calls)
        first = driver.pop(outage.now)
        assert first.calls == calls[:1]
        driver.drop(calls[leaves])
        others = driver.pop(outage.now) if slots > 1 else None
        driver.fail(first, outage.error, outage.now)
        if others is not None:
            driver.fail(others, outage.error, outage.now)
        assert driver.delay(outage.now) is None
        assert [call.error for call in calls if call is not calls[leaves]] == [outage.error] * 2
        assert driver.stats(outage.now).queue_size == 0


def test_others_run_if_anything_has_worked_since_one_of_them_ran_ahead() -> None:
    """The outage is over then: the one that failed is to blame itself."""
    outage = Outage(max_concurrent_batches=2)
    driver = outage.driver
    outage.error = RuntimeError("503")
    outage.answer(singles())
    driver.push(single())
    lone = driver.pop(outage.now)
    calls = singles(4)
    driver.push(*calls)
    first = driver.pop(outage.now)
    assert first.calls == calls[:1]
    driver.run(lone, outage.now)
    driver.fail(first, ValueError(), outage.now)
    outage.error = None
    outage.answer([])
    assert [call.error is None for call in calls] == [False, True, True, True]


def test_no_item_runs_ahead_where_errors_are_not_isolated_any_more() -> None:
    """The option may change during an outage."""
    outage = Outage()
    outage.error = RuntimeError("503")
    outage.answer(singles())
    outage.driver.batcher.configure(Options(timeout_ms=0, isolate_errors=False))
    for _ in range(2):
        outage.answer(singles())
        assert outage.runs == [32]


@pytest.mark.parametrize("seed", range(times(40)))
def test_items_that_fail_do_not_keep_up_what_an_outage_has_begun(seed: int) -> None:
    """Though each batch has some, one of five: their neighbours get their answers in the end."""
    source = random.Random(seed)
    outage = Outage(1 / 32, each_s=1 / 32)
    outage.error = RuntimeError("503")
    outage.answer(singles())
    outage.error = None
    neighbours = saved = 0
    for _ in range(64):
        calls = singles()
        outage.bad = {call for call in calls if source.random() < 1 / 5}
        outage.answer(calls)
        assert all(call.error is not None for call in outage.bad)
        neighbours += len(calls) - len(outage.bad)
        saved += sum(call.error is None for call in calls)
    assert saved > 0.9 * neighbours


def test_where_one_of_a_batch_fails_after_an_outage_it_is_found_in_parts_that_grow() -> None:
    """The first is a single item: larger parts might fail, and tell nothing."""
    outage = Outage()
    outage.error = RuntimeError("503")
    outage.answer(singles(8))
    outage.error = None
    calls = singles(8)
    outage.bad = {calls[5]}
    outage.answer(calls)
    assert outage.runs == [1, 7, 1, 2, 4, 2, 2, 1, 1]
    assert [call for call in calls if call.error is not None] == [calls[5]]
    assert not outage.driver.stats(outage.now).isolation_paused


def test_each_caller_of_an_outage_gets_the_error_of_the_last_run_that_it_was_in() -> None:
    """Not that of others, which may tell of other items."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4), Queue, COLLATOR)
    calls = singles(4)
    driver.push(*calls)
    errors = {4: KeyError(4), 2: ConnectionError(2)}
    driver.fail(driver.pop(0.0), errors[4], 1.0)
    half = driver.pop(1.0)
    assert len(half) == 2
    assert driver.fail(half, errors[2], 2.0)
    assert [call.error for call in calls] == [errors[2], errors[2], errors[4], errors[4]]
    assert driver.delay(2.0) is None


def test_errors_of_the_surroundings_are_not_divided() -> None:
    """No item is to blame, so nothing is run again."""
    outage = Outage()
    assert outage.answer(singles()) == 1.0
    assert outage.runs == [32]


def test_a_batch_of_one_list_is_not_divided() -> None:
    """It fails in any case; with `return_exceptions` each item has a place of its own."""
    outage = Outage(batch_size=4)
    outage.error = RuntimeError()
    call = listed(4)
    outage.answer([call])
    assert outage.runs == [4]
    call = listed(4)
    call.keep_errors = True
    outage.answer([call])
    assert outage.runs == [4, 2, 2, 1, 1]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_list_fails_with_the_first_error_in_its_own_order(slots: int) -> None:
    """Though a later part has failed first; what is behind the error does not start."""
    options = Options(timeout_ms=0, batch_size=4, max_concurrent_batches=slots, isolate_errors=False)
    driver = ManualDriver(options, Queue, COLLATOR)
    call = listed(12)
    driver.push(call)
    batches = [driver.pop(0.0) for _ in range(slots)]
    errors = [ValueError(at) for at in range(slots)]
    for at in reversed(range(1, slots)):
        assert driver.fail(batches[at], errors[at], 1.0) == []
        assert call.missing
    assert driver.fail(batches[0], errors[0], 2.0) == [call]
    assert call.error is errors[0]
    stats = driver.stats(2.0)
    assert (stats.total_processed, stats.total_cancelled) == (4 * slots, 12 - 4 * slots)


def test_a_list_whose_later_part_has_failed_is_done_when_the_others_have_worked() -> None:
    """It raises then, and keeps none of its results."""
    options = Options(timeout_ms=0, batch_size=4, max_concurrent_batches=2, isolate_errors=False)
    driver = ManualDriver(options, Queue, COLLATOR)
    call = listed(12)
    driver.push(call)
    first, second = driver.pop(0.0), driver.pop(0.0)
    error = ValueError()
    assert driver.fail(second, error, 1.0) == []
    assert driver.run(first, 2.0) == [call]
    assert call.error is error


def test_halves_follow_a_smaller_batch_size() -> None:
    """A function never gets more items than it may have from then on."""
    outage = Outage(batch_size=32, isolate_errors=True)
    driver = outage.driver
    calls = singles()
    driver.push(*calls)
    driver.fail(driver.pop(0.0), ValueError(), 1.0)
    driver.fail(driver.pop(1.0), ValueError(), 2.0)
    driver.batcher.configure(Options(timeout_ms=0, batch_size=3))
    outage.error = None
    outage.answer([])
    assert max(outage.runs) <= 3
    assert sum(outage.runs) == 32
    assert all(call.error is None for call in calls)
    assert not driver.stats(9.0).isolation_paused


def test_an_item_whose_neighbours_have_left_is_no_sign_of_an_outage() -> None:
    """They might have worked: the next batch that fails is divided."""
    for leaves_first in (True, False):
        outage = Outage(isolate_errors=True)
        driver = outage.driver
        poisoned, neighbour = calls = singles(2)
        driver.push(*calls)
        batch = driver.pop(0.0)
        if leaves_first:
            driver.drop(neighbour)
        driver.fail(batch, ValueError(), 1.0)
        if not leaves_first:
            driver.drop(neighbour)
        assert driver.delay(1.0) == 0.0
        assert driver.fail(driver.pop(1.0), ValueError(), 2.0) == [poisoned]
        assert driver.delay(2.0) is None
        assert not driver.stats(2.0).isolation_paused


def test_no_half_keeps_the_inputs_of_a_call_that_has_left() -> None:
    """Whether its items wait to run again when it leaves, or are in the batch that fails."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4, max_concurrent_batches=2), Queue, COLLATOR)
    calls = singles(4)
    driver.push(*calls)
    batch = driver.pop(0.0)
    driver.drop(calls[0])
    driver.fail(batch, ValueError(), 1.0)
    assert calls[0].inputs is None
    first = driver.pop(1.0)  # with this one running
    driver.drop(calls[2])
    driver.drop(calls[3])
    assert driver.delay(1.0) is None
    driver.take_answered()
    assert [call.inputs for call in calls[2:]] == [None, None]
    driver.run(first, 2.0)


def test_a_list_that_has_failed_keeps_no_inputs_though_other_batches_run() -> None:
    """None of them has a part of it."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4, max_concurrent_batches=3), Queue, COLLATOR)
    failing, other = listed(8), listed(4)
    driver.push(failing, other)
    batches = [driver.pop(0.0) for _ in range(3)]
    driver.fail(batches[0], ValueError(), 1.0)
    assert driver.fail(batches[1], ValueError(), 1.0) == [failing]
    assert failing.inputs is None
    driver.run(batches[2], 1.0)


def test_what_is_left_of_a_divided_list_does_not_run_again_once_a_part_has_failed() -> None:
    """No call waits for it, though it has started before."""
    grouped = LayeredCollator(COLLATOR, [Grouping(COLLATOR, lambda item: item % 2, "f")])
    options = Options(timeout_ms=0, batch_size=4, max_concurrent_batches=2)
    driver = ManualDriver(options, KeyedQueues, grouped)
    function: Any = echo
    divided = grouped.read(function, ([1, 2],), {}, 0.0)
    neighbour = grouped.read(function, (4,), {}, 0.0)
    driver.push(divided, neighbour)
    odd, even = (driver.pop(0.0) for _ in range(2))
    assert (len(odd), len(even)) == (1, 2)
    driver.fail(even, ValueError(), 1.0)
    assert driver.fail(odd, ValueError(), 1.0) == [divided]
    assert driver.delay(1.0) == 0.0
    assert driver.pop(1.0).calls == [neighbour]


def test_several_items_that_fail_are_all_found() -> None:
    """Four of 18, wherever they are: each half that works says that it is no outage."""
    bad = {0, 5, 11, 17}
    driver = ManualDriver(Options(timeout_ms=0), Queue, COLLATOR)
    calls = [Call().begin(echo, place, 1, False, 0.0) for place in range(18)]
    driver.push(*calls)
    now = 0.0
    while driver.delay(now) == 0.0:
        batch = driver.pop(now)
        now += 0.001 * len(batch)
        if bad & {*COLLATOR.collate(batch)}:
            driver.fail(batch, ValueError(), now)
        else:
            driver.run(batch, now)
    assert {place for place, call in enumerate(calls) if call.error is not None} == bad
