"""Items in flight, told the time by hand."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.call import completed
from batched._core.mending import mend
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._parts.in_flight import Item
from batched._parts.stack import join
from batched.errors import OverloadError
from tests.kit.interrupts import Interrupt
from tests.kit.kept import kept_by
from tests.kit.lines import lines_of

same = SimpleNamespace(__wrapped__=list)


def driver_of(options: Options) -> tuple[ManualDriver, Any]:
    """Return a driver with a cache, and its collator."""
    collator, queue = join(list, options, "f", bound=False, owner=list)
    return ManualDriver(options, queue, collator), collator


def test_a_miss_call_that_expires_after_its_last_caller_has_left_answers_no_call() -> None:
    """The worker may have chosen to drop it before the caller said so."""
    driver, collator = driver_of(Options(timeout_ms=0, cache={}))
    call = collator.read(same, (["a"],), {}, 0.0)
    (miss_call,) = call.enter(driver.batcher)
    assert list(call.leave()) == [miss_call]
    miss_call.fail(TimeoutError())
    assert completed([miss_call]) == ([], [])


@pytest.mark.thread_unsafe(reason="it traces its thread")
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("items", ["a", ["b", "a", "c"]])
def test_no_call_joins_an_item_of_one_that_a_ctrl_c_kept_from_the_queue(items: Any) -> None:
    """At any bytecode: no run would answer it."""
    for at in count(1):
        # Twice: from Python 3.13 on, a tracer may see no bytecode of a function that has just run without it.
        for last in (0, at):
            driver, collator = driver_of(Options(timeout_ms=0, cache={}))
            first, second = (collator.read(same, (each,), {}, 0.0) for each in (items, "a"))
            interrupt = Interrupt(last, inside="InFlight.enter")
            interrupt.during(lambda driver=driver, call=first: driver.batcher.admit(call, wait=False))
        if not interrupt.came:
            assert at > 2
            break
        mend(driver.batcher, KeyboardInterrupt())
        driver.batcher.admit(second, wait=False)
        while driver.delay(1.0) == 0.0:
            driver.run(driver.pop(1.0), 1.0)
        assert (second.missing, second.results) == (0, "a"), interrupt.place


@pytest.mark.parametrize("size", [1, 3])
def test_a_call_leaves_as_fast_however_many_wait_for_its_items(size: int) -> None:
    """As all of those do that wait for one item and are late: 8,000 took 48 s."""

    def lines_with(others: int) -> int:
        driver, collator = driver_of(Options(timeout_ms=0, cache={}))
        calls = [collator.read(same, (["a"] * size,), {}, 0.0) for _ in range(others + 1)]
        for call in calls:
            driver.batcher.admit(call, wait=False)
        return lines_of(calls[others // 2].leave)

    assert lines_with(20) == lines_with(200)


@pytest.mark.parametrize("group_by", [None, lambda item: item % 2])
def test_no_call_joins_one_that_has_expired_and_has_not_been_answered(group_by: Any) -> None:
    """A call that comes meanwhile has no part in the other's deadline, and gets a run of its own."""
    driver, collator = driver_of(Options(timeout_ms=0, cache={}, group_by=group_by))
    calls = driver.batcher
    hasty, patient = (collator.read(same, ([1, 2, 3],), {}, 0.0) for _ in range(2))
    hasty.deadline = 1.0
    calls.door(hasty, 0.0)
    calls.admit(hasty, wait=False)

    assert driver.delay(2.0) is None
    assert (driver.take_answered(), hasty.left) == ([hasty], "expired")
    calls.admit(patient, wait=False)
    calls.take_in()
    assert patient.missing == driver.queue.items == 3
    answered = []
    while driver.delay(2.0) is not None:
        answered += driver.run(driver.pop(2.0), 2.0)
    assert (answered, patient.results) == ([patient], [1, 2, 3])
    assert kept_by(calls.in_flight, Item) == []
    stats = driver.stats(2.0)
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired


@pytest.mark.parametrize(
    ("bulk", "runs"), [(False, [[5, 2]]), (None, [[2, 3], [4, 5]]), (True, [[2, 3], [4, 5]])]
)
def test_an_interactive_call_does_not_wait_for_what_it_goes_ahead_of(
    bulk: bool | None, runs: list[list[int]]
) -> None:
    """An equal item of a bulk call in the queue runs once more; one that runs is waited for."""
    driver, collator = driver_of(Options(batch_size=2, timeout_ms=0, cache={}))

    def ask(item: int, *, bulk: bool | None) -> Any:
        call = collator.read(same, (item,), {}, 0.0)
        call.bulk = bulk
        driver.batcher.admit(call, wait=False)
        return call

    def begin() -> Batch:
        assert driver.delay(1.0) == 0.0
        return driver.pop(1.0)

    for item in range(6):
        ask(item, bulk=True)
    running = begin()
    waits_for_one_that_runs, waits_for_one_in_the_queue = (ask(item, bulk=bulk) for item in (0, 5))
    driver.run(running, 1.0)
    assert waits_for_one_that_runs.results == 0
    ran = []
    while waits_for_one_in_the_queue.missing:
        batch = begin()
        ran.append([call.inputs for call in batch.calls])
        driver.run(batch, 1.0)
    assert (ran, waits_for_one_in_the_queue.results) == (runs, 5)
    while driver.delay(1.0) is not None:
        driver.run(begin(), 1.0)
    assert kept_by(driver.batcher.in_flight, Item) == []


@pytest.mark.parametrize(("flood", "runs"), [(64, 1), (65, 2)])
def test_a_tenant_does_not_wait_for_an_equal_item_of_one_of_which_much_waits(flood: int, runs: int) -> None:
    """It runs once more, in the turn of the tenant that comes; behind few items it is waited for."""
    options = Options(
        batch_size=2, timeout_ms=0, cache={}, cache_key=lambda item: item[1], fair_by=lambda item: item[0]
    )
    driver, collator = driver_of(options)

    def ask(tenant: str, number: Any) -> Any:
        call = collator.read(same, ((tenant, number),), {}, 0.0)
        driver.batcher.admit(call, wait=False)
        return call

    for number in range(flood):
        ask("flood", number)
    last = flood - 1
    quiet, own = ask("quiet", last), ask("flood", last)
    ran: list[Any] = []
    answered: list[Any] = []
    while driver.delay(1.0) is not None:
        batch = driver.pop(1.0)
        ran += [call.inputs[1] for call in batch.calls]
        answered.append(driver.run(batch, 1.0))
    assert ran.count(last) == runs
    assert (quiet.results[1], own.results[1]) == (last, last)
    assert (quiet in answered[0]) is (runs == 2)
    assert kept_by(driver.batcher.in_flight, Item) == []


@pytest.mark.parametrize("option", ["group_by", "fair_by"])
@pytest.mark.parametrize("items", [("quiet", 0), [("quiet", 0)], [("quiet", 0), ("quiet", 1)]], ids=str)
def test_a_call_is_told_what_goes_ahead_of_it_in_its_own_turn(option: str, items: Any) -> None:
    """With a cache as without one: a call that is in time is not refused for what waits of another key."""
    chosen: Any = {option: lambda item: item[0]}
    driver, collator = driver_of(Options(batch_size=4, timeout_ms=0, cache={}, **chosen))
    calls = driver.batcher

    def ask(items: Any, now: float, deadline: float | None) -> Any:
        call = collator.read(same, (items,), {}, now)
        call.deadline = deadline
        if deadline is not None:
            calls.door(call, now)
        calls.admit(call, wait=False)
        return call

    def run(now: float) -> None:
        assert driver.delay(now) == 0.0
        driver.run(driver.pop(now), now + 1.0)

    for number in range(10):
        ask(("first", number), float(number), number + 9.0)
        run(float(number))
    for number in range(64):
        ask(("flood", number), 10.0, None)
    with pytest.raises(OverloadError):
        ask(("flood", 64), 10.0, 19.0)
    quiet = ask(items, 10.0, 19.0)
    for now in (10.0, 11.0):
        run(now)
    assert quiet.results == items
