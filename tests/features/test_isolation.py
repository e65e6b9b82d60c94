"""Batches that failed and run again in halves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batched._core.call import Call
from batched._core.halves import Half
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._parts.divided import divide
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


def in_an_outage(**options: Any) -> Outage:
    """Return one of which no item has worked so far."""
    outage = Outage(**options)
    outage.error = RuntimeError("503")
    outage.answer(singles())
    assert outage.driver.stats(outage.now).isolation_paused
    outage.runs.clear()
    return outage


def take_ahead(outage: Outage, calls: list[Call]) -> Any:
    """Have `calls` come again and again until one of them runs ahead; return what runs."""
    driver = outage.driver
    for _ in range(100):
        driver.push(*calls)
        batch = driver.pop(outage.now)
        if len(batch) < len(calls):
            return batch
        driver.fail(batch, RuntimeError("503"), outage.now)
        calls[:] = singles(len(calls))
    raise AssertionError("none ran ahead")


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("fails_after_s", [1.0, 0.003])
def test_a_long_outage_costs_no_run_more(fails_after_s: float, slots: int) -> None:
    """Of every other batch one item runs; its error is that of the others, which do not run."""
    outage = in_an_outage(run_s=fails_after_s, max_concurrent_batches=slots)
    sizes = set()
    for _ in range(100):
        calls = singles()
        assert outage.answer(calls) == pytest.approx(fails_after_s)
        assert len(outage.runs) == 1
        sizes.update(outage.runs)
        assert all(call.error is outage.error for call in calls)
    assert sizes == {1, 32}
    stats = outage.driver.stats(outage.now)
    assert stats.total_processed == stats.total_accepted == stats.total_failed == stats.wait.count


@pytest.mark.parametrize("place", [0, -1])
def test_an_outage_ends_though_calls_in_one_place_always_fail(place: int) -> None:
    """Any call may be the one that runs ahead."""
    outage = in_an_outage()
    outage.error = None
    calls: list[Call] = []
    for _ in range(20):
        calls = singles(8)
        outage.bad = {calls[place]}
        outage.answer(calls)
    assert [call for call in calls if call.error is not None] == [calls[place]]


def test_an_outage_ends_for_a_function_that_fails_for_single_items_only() -> None:
    """Some batches run as a whole."""
    outage = in_an_outage()
    driver = outage.driver
    for _ in range(20):
        driver.push(*singles(8))
        batch = driver.pop(outage.now)
        if len(batch) == 8:
            driver.run(batch, outage.now)
            break
        driver.fail(batch, ValueError(), outage.now)
        assert driver.delay(outage.now) is None
    assert not driver.stats(outage.now).isolation_paused


def test_the_item_that_runs_ahead_works_in_the_first_batch_after_an_outage() -> None:
    """Then the others run too, at once; no caller notices the outage that has ended."""
    outage = in_an_outage()
    calls = singles()
    first = take_ahead(outage, calls)
    outage.driver.run(first, outage.now)
    outage.error = None
    outage.answer([])
    assert outage.runs == [31]
    assert not any(call.error for call in calls)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("leaves", ["the first", "another"])
def test_calls_of_a_batch_of_which_one_runs_ahead_may_leave(slots: int, leaves: str) -> None:
    """The error of one that has left says nothing of the others: they run, but not before it ends."""
    outage = in_an_outage(max_concurrent_batches=slots)
    driver = outage.driver
    calls = singles(3)
    first = take_ahead(outage, calls)
    ahead = first.calls[0]
    left = ahead if leaves == "the first" else next(call for call in calls if call is not ahead)
    driver.drop(left)
    assert driver.delay(outage.now) is None
    driver.fail(first, ValueError(), outage.now)
    outage.error = None
    outage.answer([])
    assert outage.runs == ([2] if leaves == "the first" else [])
    assert [call.error is None for call in calls if call is not left] == [leaves == "the first"] * 2
    stats = driver.stats(outage.now)
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled


def test_an_item_ahead_that_does_not_fit_into_memory_fails_alone() -> None:
    """As it does at any other time."""
    outage = in_an_outage()
    calls = singles(8)
    first = take_ahead(outage, calls)
    ahead = first.calls[0]
    outage.driver.fail(first, MemoryError(), outage.now)
    outage.error = None
    outage.answer([])
    assert [call for call in calls if call.error is not None] == [ahead]


def test_a_stream_ahead_that_fails_on_its_way_fails_alone() -> None:
    """It had pieces, so the outage is over; the others begin after it."""
    outage = in_an_outage()
    calls = singles(8)
    first = take_ahead(outage, calls)
    first.begun = True
    outage.driver.fail(first, ValueError(), outage.now)
    outage.error = None
    outage.answer([])
    assert outage.runs == [7]


def test_an_item_of_a_list_that_is_alone_runs_ahead_too() -> None:
    """Where each item has a place for its error."""
    outage = in_an_outage()
    call = listed(8)
    call.keep_errors = True
    driver = outage.driver
    driver.push(call)
    batch = driver.pop(outage.now)
    while len(batch) == 8:
        driver.fail(batch, RuntimeError("503"), outage.now)
        call = listed(8)
        call.keep_errors = True
        driver.push(call)
        batch = driver.pop(outage.now)
    driver.run(batch, outage.now)
    outage.error = None
    outage.answer([])
    assert outage.runs == [7]
    assert not call.missing
    assert call.error is None


def test_others_run_if_anything_has_worked_since_one_of_them_ran_ahead() -> None:
    """The outage is over then: the one that failed is to blame itself."""
    outage = in_an_outage(max_concurrent_batches=2)
    driver = outage.driver
    driver.push(single())
    lone = driver.pop(outage.now)
    calls = singles(4)
    first = take_ahead(outage, calls)
    ahead = first.calls[0]
    driver.run(lone, outage.now)
    driver.fail(first, ValueError(), outage.now)
    outage.error = None
    outage.answer([])
    assert [call for call in calls if call.error is not None] == [ahead]


def test_no_item_runs_ahead_where_errors_are_not_isolated_any_more() -> None:
    """The option may change during an outage."""
    outage = in_an_outage()
    outage.driver.batcher.configure(Options(timeout_ms=0, isolate_errors=False))
    for _ in range(20):
        outage.answer(singles())
        assert outage.runs == [32]


def test_once_a_whole_batch_works_after_an_outage_searches_begin_with_halves_again() -> None:
    """As if there had been none."""
    outage = in_an_outage()
    calls = singles(8)
    outage.driver.run(take_ahead(outage, calls), outage.now)
    outage.error = None
    outage.answer([])
    outage.answer(singles(8))
    calls = singles(8)
    outage.bad = {calls[-1]}
    outage.answer(calls)
    assert outage.runs == [8, 4, 4, 2, 2, 1, 1]


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
    outage = in_an_outage()
    calls = singles(9)
    first = take_ahead(outage, calls)
    outage.driver.run(first, outage.now)
    outage.error = None
    others = [call for call in calls if call.missing]
    outage.bad = {others[5]}
    outage.answer([])
    assert outage.runs == [8, 1, 1, 2, 4, 2, 2, 1, 1]
    assert [call for call in calls if call.error is not None] == [others[5]]
    assert not outage.driver.stats(outage.now).isolation_paused


def test_each_caller_of_an_outage_gets_the_error_of_the_last_run_that_it_was_in() -> None:
    """Not that of others, which may tell of other items."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4), Queue, COLLATOR)
    calls = singles(4)
    driver.push(*calls)
    errors = {4: KeyError(4), 2: ConnectionError(2)}
    driver.fail(driver.pop(0.0), errors[4], 1.0)
    assert driver.delay(1.0) == 0.0
    half = driver.pop(1.0)
    assert len(half) == 2
    assert driver.fail(half, errors[2], 2.0)
    assert [call.error for call in calls] == [errors[2], errors[2], errors[4], errors[4]]
    assert driver.delay(2.0) is None


class Doubtful(KeyError):
    """An error that raises when it is asked whether it is true."""

    def __bool__(self) -> bool:
        raise TypeError("neither")


def test_an_error_need_not_be_true() -> None:
    """It is that of its callers as any other."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=4), Queue, COLLATOR)
    calls = singles(4)
    driver.push(*calls)
    driver.fail(driver.pop(0.0), Doubtful(), 1.0)
    assert driver.delay(1.0) == 0.0
    assert driver.fail(driver.pop(1.0), ConnectionError(), 2.0)
    assert [type(call.error) for call in calls] == [ConnectionError, ConnectionError, Doubtful, Doubtful]


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
    assert driver.delay(1.0) == 0.0
    driver.fail(driver.pop(1.0), ValueError(), 2.0)
    driver.batcher.configure(Options(timeout_ms=0, batch_size=3))
    outage.error = None
    outage.answer([])
    assert max(outage.runs) <= 3
    assert sum(outage.runs) == 32
    assert all(call.error is None for call in calls)
    assert not driver.stats(9.0).isolation_paused


def test_a_half_of_which_only_its_last_items_are_wanted_loses_none() -> None:
    """The longest items of a list come first in it. What is behind an error is left out, and counted."""
    call = Call().begin(echo, [*range(8)], 8, True, 0.0)
    [part] = divide(call, [[*range(8)]], lambda inputs, places: [inputs[place] for place in places]).parts
    part.places = [7, 6, 5, 4, 2, 1, 0, 3]
    assert not part.fail_part(7, 8, ValueError())
    driver = ManualDriver(Options(timeout_ms=0, batch_size=1))
    first = driver.batcher.first
    first.append(Half([(part, 0, 7)], 7, ValueError(), None))
    assert driver.delay(0.0) == 0.0
    assert driver.stats(0.0).total_processed == 4
    assert [(start, stop) for half in first for _, start, stop in half.slices] == [(4, 5), (5, 7)]


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
    assert driver.delay(1.0) == 0.0
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


@pytest.mark.parametrize(
    ("size", "bad", "run_s", "share"),
    [
        (64, 6, 0.1, 0.99),
        (64, 12, 0.1, 0.97),
        (64, 6, 1.0, 0.98),
        (64, 12, 1.0, 0.89),
        (32, 3, 1.0, 0.99),
        (32, 6, 1.0, 0.9),
    ],
)
def test_neighbours_of_several_items_that_fail_are_answered(
    size: int, bad: int, run_s: float, share: float
) -> None:
    """Wherever these are, of a function that takes as long for few items as for many."""
    answered = 0
    seeds = range(times(100))
    for seed in seeds:
        outage = Outage(run_s=run_s, batch_size=size)
        outage.error = None
        calls = singles(size)
        outage.bad = {*random.Random(seed).sample(calls, bad)}
        outage.answer(calls)
        assert all(call.error is not None for call in outage.bad)
        answered += sum(call.error is None for call in calls)
    assert answered >= share * (size - bad) * len(seeds)
