"""How long calls will wait, and which are refused because of it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from batched import OverloadError, QueueFullError
from batched._core.batcher import with_tenants
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog
from tests.kit.known_service import FULL, FULL_S, Service, cost


@pytest.mark.parametrize("waiting", [0, 5, FULL, 3 * FULL + 7])
@pytest.mark.parametrize("items", [1, 8])
def test_the_expected_wait_is_that_of_the_batches_before_and_of_its_own(waiting: int, items: int) -> None:
    """Its own batch has as much company as comes until then."""
    service = Service()
    for _ in range(waiting):
        service.push()
    full, last = divmod(waiting + items - 1, FULL)
    expected = service.driver.batcher.feature(Backlog).wait_s(items, service.now)
    assert expected is not None
    least, most = (full * FULL_S + cost(size) for size in (last + 1, FULL if full else last + 1))
    assert 0.95 * least < expected < 1.05 * most


def test_what_is_left_of_the_running_batch_counts() -> None:
    service = Service()
    service.push(FULL)
    service.start()
    first = service.driver.batcher.feature(Backlog).wait_s(1, service.now)
    service.now += 0.020
    later = service.driver.batcher.feature(Backlog).wait_s(1, service.now)
    assert first is not None
    assert later is not None
    assert FULL_S + cost(1) < 1.05 * first < 1.1 * (FULL_S + cost(FULL))
    assert first - 0.040 < later < first - 0.020 + 1e-9


def test_a_call_that_what_waits_makes_late_is_refused_at_once() -> None:
    service = Service()
    for _ in range(2 * FULL):
        service.push()
    service.start()
    late = service.push(allowed_s=1.5 * FULL_S)
    in_time = service.push(allowed_s=3 * FULL_S)
    assert isinstance(late.error, OverloadError)
    assert in_time.missing
    stats = service.driver.stats(service.now)
    assert (stats.total_refused, stats.total_expired) == (1, 0)
    assert stats.total_accepted == sum(call.size for call in service.calls) - 1


def test_nothing_is_refused_while_the_cost_is_not_known_nor_after_a_long_rest() -> None:
    driver = ManualDriver(Options())
    assert driver.batcher.feature(Backlog).wait_s(1, 0.0) is None
    service = Service()
    assert isinstance(service.push(FULL * 10, allowed_s=FULL_S).error, OverloadError)
    service.now += 10 * FULL_S
    assert service.push(FULL * 10, allowed_s=FULL_S).error is None


def test_one_item_runs_where_nothing_else_does() -> None:
    """What was learned may be wrong, and no other call loses anything."""
    service = Service()
    alone = service.push(allowed_s=1e-9)
    assert alone.error is None
    service.start()
    assert isinstance(service.push(allowed_s=1e-9).error, OverloadError)


def test_in_a_flood_no_more_waits_than_the_next_batch() -> None:
    """More would only add to the latency of all, also for long after."""
    service = Service()
    longest = 0
    for _ in range(60):
        batch = service.start()
        for _ in range(3 * FULL):
            service.push(allowed_s=10 * FULL_S)
        service.now += cost(batch.size if batch else 1)
        if batch:
            assert service.driver.finish(batch, service.now) is not None
            longest = service.driver.queue.items
    assert longest == FULL


def test_callers_come_back_one_after_the_other() -> None:
    """As many as the function can answer, beginning when what waits allows."""
    service = Service()
    for _ in range(10 * FULL):
        service.push()
    service.start()
    refused = [service.push(allowed_s=2 * FULL_S).error for _ in range(5)]
    times = [error.retry_after_s for error in refused if isinstance(error, OverloadError)]
    assert times[0] == pytest.approx(9 * FULL_S, rel=0.2)
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps == pytest.approx([FULL_S / FULL] * 4, rel=0.05)


@pytest.mark.parametrize("items", [1, 3 * FULL])
def test_a_call_that_is_late_though_nothing_else_runs_is_not_told_to_come_back(items: int) -> None:
    """It would be refused each time. One with the time that it takes is told."""
    service = Service()
    for _ in range(10 * FULL):
        service.push()
    service.start()
    takes_s = 3 * FULL_S if items > 1 else cost(1)
    hopeless = service.push(items, allowed_s=0.9 * takes_s).error
    assert isinstance(hopeless, OverloadError)
    assert hopeless.retry_after_s is None
    assert "even if nothing else runs" in str(hopeless)
    assert "try again" not in str(hopeless)
    other = service.push(items, allowed_s=1.1 * takes_s).error
    assert isinstance(other, OverloadError)
    assert other.retry_after_s is not None
    assert "try again in" in str(other)


@pytest.mark.parametrize("batches", [3, 40, 41, 60, 400])
def test_an_error_says_a_time_that_is_enough_and_hardly_more(batches: int) -> None:
    """A caller that takes it as its deadline is let in; it would wait for nothing if it were far off."""
    service = Service()
    error = service.push(batches * FULL, allowed_s=0.5 * batches * FULL_S).error
    told = re.search(r"it takes ([\d.]+) (ms|second)", str(error))
    assert told is not None, error
    told_s = float(told[1]) / (1000 if told[2] == "ms" else 1)
    assert told_s < 1.1 * batches * FULL_S
    assert service.push(batches * FULL, allowed_s=told_s).missing


def test_callers_are_not_sent_away_for_ever() -> None:
    """Not all of them come back."""
    service = Service()
    for _ in range(3 * FULL):
        service.push()
    service.start()
    errors = [service.push(allowed_s=FULL_S).error for _ in range(40_000)]
    times = [error.retry_after_s for error in errors if isinstance(error, OverloadError)]
    assert len(times) == len(errors)
    assert 59.0 < max(time or 0.0 for time in times) <= 60.0


def test_callers_are_sent_away_for_longer_while_many_come_back_too_soon() -> None:
    """One caller from the next, by ever more than the function takes for a call."""
    service = Service()

    def apart_s(calls: int) -> float:
        batch = service.start()
        errors = [service.push(allowed_s=4 * FULL_S).error for _ in range(calls)]
        times = [error.retry_after_s or 0.0 for error in errors if isinstance(error, OverloadError)]
        service.now += FULL_S
        if batch is not None:
            service.driver.finish(batch, service.now)
        return times[-1] - times[-2] if len(times) > 1 else 0.0

    service.push(FULL)
    first = apart_s(6 * FULL)
    for _ in range(10):
        last = apart_s(6 * FULL)
    assert last > 1.5 * first > 0.0


def _flood(service: Service) -> None:
    """Have three times as many calls come as the function can answer."""
    for _ in range(40):
        batch = service.start()
        for _ in range(3 * FULL):
            service.push(allowed_s=4 * FULL_S)
        service.now += cost(batch.size if batch else 1)
        if batch:
            service.driver.finish(batch, service.now)


def _bursts(service: Service, bursts: int) -> list[int]:
    """Have two batches come at once, and then nothing, again and again; return how many calls are let in."""
    found = []
    for _ in range(bursts):
        calls = [service.push(allowed_s=10 * FULL_S) for _ in range(2 * FULL)]
        while service.run():
            pass
        service.now += 2 * FULL_S
        found.append(sum(call.error is None for call in calls))
    return found


def test_a_flood_ends_where_the_function_has_time_to_spare() -> None:
    """Though the rule of floods itself has turned calls away before each batch."""
    service = Service()
    assert _bursts(service, 3) == [2 * FULL] * 3
    _flood(service)
    assert _bursts(service, 5)[2:] == [2 * FULL] * 3


def test_calls_that_no_rest_would_help_are_no_flood() -> None:
    """Their deadline is shorter than their own batch takes."""
    service = Service()
    for _ in range(40):
        batch = service.start()
        service.push(allowed_s=cost(1) / 2)
        service.push()
        service.now += cost(1)
        if batch:
            service.driver.finish(batch, service.now)
    service.start()
    assert all(service.push(allowed_s=10 * FULL_S).error is None for _ in range(2 * FULL))


def test_a_list_of_many_batches_sends_no_other_caller_away_for_longer() -> None:
    service = Service()
    service.push(FULL)
    service.start()
    for _ in range(2 * FULL):
        service.push()
    before = service.push(allowed_s=FULL_S).error
    assert isinstance(service.push(1000 * FULL, allowed_s=FULL_S).error, OverloadError)
    after = service.push(allowed_s=FULL_S).error
    assert isinstance(before, OverloadError)
    assert isinstance(after, OverloadError)
    assert after.retry_after_s == pytest.approx(before.retry_after_s, abs=0.1 * FULL_S)


@pytest.mark.parametrize(("attribute", "queue"), [("key", KeyedQueues), ("tenant", with_tenants(Queue))])
def test_a_flood_of_one_key_or_tenant_shuts_out_no_other(attribute: str, queue: Any) -> None:
    """The other's call has its turn in the next batches, and is let in."""
    service = Service(queue)

    def push(name: str) -> Call:
        call = service.call(1, 4 * FULL_S)
        setattr(call, attribute, name)
        service.driver.push(call)
        return call

    others = []
    for _ in range(60):
        batch = service.start()
        for _ in range(3 * FULL):
            push("crowd")
        others.append(push("other"))
        service.now += cost(batch.size if batch else 1)
        if batch:
            service.driver.finish(batch, service.now)
    assert sum(isinstance(call.error, OverloadError) for call in others) <= 3


def test_a_large_call_takes_turns_with_a_list_and_is_not_refused_for_it() -> None:
    """It is in the next batch or the one after it, however long the list."""
    service = Service()
    service.push(100 * FULL)
    batch = service.start()
    call = service.push(9, allowed_s=4 * FULL_S)
    assert call.error is None
    service.now += FULL_S
    service.driver.finish(batch, service.now)
    service.run()
    service.run()
    assert not call.missing
    assert call.error is None
    assert isinstance(service.push(4 * FULL, allowed_s=4 * FULL_S).error, OverloadError)


@pytest.mark.parametrize("size", [12, 20, 100])
def test_a_list_behind_single_calls_is_refused_only_if_it_would_be_late(size: int) -> None:
    """Of each batch a part is the list's; it was judged as if all single calls ran before it."""

    def behind(allowed_s: float | None) -> tuple[Call, float]:
        service = Service()
        for _ in range(300):
            service.push()
        came, call = service.now, service.push(size, allowed_s)
        while call.waiting:
            service.run()
        return call, service.now - came

    _, wait_s = behind(None)
    call, took_s = behind(1.4 * wait_s)
    assert call.error is None
    assert took_s <= 1.4 * wait_s
    assert isinstance(behind(0.7 * wait_s)[0].error, OverloadError)


def test_a_list_that_has_just_come_counts_with_all_its_items() -> None:
    """The worker has not yet taken it out of the inbox; to a later list it is what a list in the queue is."""
    service = Service()
    service.push(FULL)
    service.start()
    service.driver.batcher.arrive(service.call(100 * FULL))
    arriving = service.driver.batcher.feature(Backlog).wait_s(2 * FULL, service.now)
    assert arriving == pytest.approx(5 * FULL_S, rel=0.2)
    assert isinstance(service.push(2 * FULL, allowed_s=4 * FULL_S).error, OverloadError)


@pytest.mark.parametrize("attribute", ["key", "tenant"])
def test_a_call_is_not_refused_for_what_waits_of_another_key_or_tenant(attribute: str) -> None:
    """These take turns; a call of the one of which much waits is refused."""

    def push(name: str, allowed_s: float | None = None) -> Call:
        call = service.call(1, allowed_s)
        call.tenant = call.key = name
        service.driver.push(call)
        return call

    service = Service(KeyedQueues if attribute == "key" else with_tenants(Queue))
    for _ in range(10 * FULL):
        push("crowd")
    batch = service.start()
    call = push("other", allowed_s=4 * FULL_S)
    assert isinstance(push("crowd", allowed_s=4 * FULL_S).error, OverloadError)
    service.now += FULL_S
    service.driver.finish(batch, service.now)
    service.run()
    service.run()
    assert not call.missing
    assert call.error is None


def test_more_slots_are_known_at_once() -> None:
    """A call that was told of a batch that runs need not wait for it any more."""
    service = Service()
    service.push(FULL)
    service.start()
    assert isinstance(service.push(allowed_s=0.030).error, OverloadError)
    batcher = service.driver.batcher
    batcher.configure(replace(batcher.options, max_concurrent_batches=2))
    assert service.push(allowed_s=0.030).error is None


def test_a_function_that_was_slow_and_is_fast_again_is_soon_known_to_be() -> None:
    """After the first batch that may show it, callers are not refused for as long as the slow ones took."""
    service = Service()
    for _ in range(20):
        service.push(FULL)
        batch = service.start()
        service.now += 10.0
        service.driver.finish(batch, service.now)
    service.now += 9 * 10.5
    calls = []
    for _ in range(400):
        service.now += 0.1
        calls.append(service.push(allowed_s=0.1))
        service.run()
    assert all(call.error is None for call in calls[300:])


def test_no_call_is_told_to_come_back_before_it_is_refused() -> None:
    """Though there is room for it: another call waits for more. The next batch starts now, and makes some."""
    service = Service(max_queue_size=10)
    calls = service.driver.batcher
    assert calls.admit(service.call(8), wait=False)
    assert not calls.admit(service.call(5), wait=True)
    with pytest.raises(QueueFullError) as caught:
        calls.admit(service.call(), wait=False)
    assert 0.0 < caught.value.retry_after_s < cost(10) / 4  # type: ignore[operator]


def test_nothing_is_kept_of_calls_that_were_refused() -> None:
    """Their callers drop them, and no batch has ended since."""
    service = Service()
    service.push(FULL)
    service.start()
    call = service.push(allowed_s=1e-9)
    assert isinstance(call.error, OverloadError)
    assert not call.missing
    assert not call.waiting


def test_a_call_is_not_refused_for_items_that_a_cache_knows() -> None:
    """A list of which one item is to run is answered as soon as that item."""

    class Known(Call):
        unanswered = 1

    service = Service()
    call = Known().begin(id, None, 100 * FULL, True, service.now, service.now + FULL_S)
    service.driver.batcher.door(call, service.now)
    assert isinstance(service.push(100 * FULL, allowed_s=FULL_S).error, OverloadError)
