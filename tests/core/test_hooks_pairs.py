"""Which features meet, in one table, and a test of each pair that does."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import pytest

from batched._collate.copies import CopyingCollator
from batched._core.batcher import with_tenants
from batched._core.call import Call
from batched._core.hooks import Feature
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog
from batched._features.best_size import BestSizes
from batched._features.deadlines import WithDeadlines
from batched._features.fixed_sizes import FixedSizes
from batched._features.isolation import Isolation
from batched._features.learned_lengths import LearnedLengths
from batched._features.memory import FitsMemory
from batched._features.waiting import Waiting
from batched._parts.stack import features
from batched._policy.lengths import Lengths
from batched._policy.window import StartReason
from batched.errors import OverloadError, QueueFullError
from tests.kit import backlog as kit
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import single
from tests.kit.known_service import FULL, Service, cost

MEET: dict[tuple[type[Feature], type[Feature]], str] = {
    (BestSizes, LearnedLengths): "test_where_lengths_are_used_no_size_is_tried",
    (BestSizes, WithDeadlines): "test_no_trial_takes_a_good_part_of_the_time_that_a_deadline_leaves",
    (BestSizes, FitsMemory): "test_no_trial_is_larger_than_what_fits",
    (Waiting, LearnedLengths): "test_the_window_takes_the_cost_of_batches_from_lengths_while_they_are_used",
    (Waiting, WithDeadlines): "test_a_deadline_ends_the_wait_of_the_window",
    (Waiting, FitsMemory): "test_the_window_knows_that_fewer_items_fill_a_batch_as_more_do_not_fit",
    (Waiting, BestSizes): "test_the_window_knows_that_fewer_items_fill_a_batch_as_fewer_serve_best",
    (FixedSizes, Waiting): "test_no_share_is_filled_up_with_copies",
    (WithDeadlines, Backlog): "test_a_call_that_waits_is_given_up_once_it_is_known_to_be_late",
    (FitsMemory, FixedSizes): "test_a_limit_of_memory_is_one_of_the_sizes",
    (Isolation, FixedSizes): "test_parts_of_a_batch_that_failed_are_filled_up",
    (FixedSizes, BestSizes): "test_only_these_sizes_are_tried",
    (FixedSizes, WithDeadlines): "test_a_batch_that_deadlines_cut_is_filled_up",
    (FixedSizes, LearnedLengths): "test_lengths_see_a_batch_as_it_was_cut",
    (FitsMemory, Isolation): "test_memory_is_asked_before_items_are_to_blame",
    (FitsMemory, Backlog): "test_waits_are_those_of_batches_that_fit",
    (Isolation, LearnedLengths): "test_lengths_see_what_isolation_lets_run",
    (Isolation, Waiting): "test_of_a_divided_run_the_window_hears_only_when_it_started",
    (Isolation, Backlog): "test_waits_are_longer_where_batches_run_again_in_parts",
}
"""The pairs of which one reads, tells or comes before the other, and the test of that."""

APART: dict[tuple[type[Feature], type[Feature]], str] = {
    (FitsMemory, LearnedLengths): "a half counts as chosen no second time, as that of isolation does not",
    (FitsMemory, WithDeadlines): "a part runs, late or not: it comes before the queue",
    (Isolation, WithDeadlines): "a part runs, late or not: it comes before the queue",
    (
        Isolation,
        BestSizes,
    ): "a batch with an item that failed tells nothing; a part that works is as any batch",
    (Waiting, Backlog): "a wait for more calls is no part of what is known of a wait",
    (LearnedLengths, WithDeadlines): "the queue puts the urgent call first, and its lengths around it",
    (LearnedLengths, Backlog): "batches are as long as they were",
    (FixedSizes, Backlog): "batches of so many items take as long as they did, copies and all",
    (BestSizes, Backlog): "the queue knows how many items a batch has",
}
"""All other pairs, and why neither knows of the other."""

DOOR = {
    ("the bound", "Backlog"): "test_a_call_without_room_is_told_when_to_come_back",
    ("tenants", "the bound"): "test_a_tenant_with_less_takes_the_room_of_the_one_that_has_most",
}
"""What meets at the door."""


def test_every_pair_of_features_is_in_the_table_once() -> None:
    """So that a new feature has to say which others it meets."""
    kinds = [type(feature) for feature in features("f")]
    told = [frozenset(pair) for pair in (*MEET, *APART)]
    assert len(told) == len(set(told))
    assert set(told) == {frozenset(pair) for pair in combinations(kinds, 2)}


def test_every_pair_that_meets_has_a_test_of_its_own() -> None:
    named = [*MEET.values(), *DOOR.values()]
    assert len(named) == len(set(named))
    assert set(named) <= {name for name, found in globals().items() if callable(found)}


def batches(driver: ManualDriver, calls: int, now: float = 0.0, deadline: float | None = None) -> list[Call]:
    """Have so many calls of one item come."""
    found = []
    for _ in range(calls):
        call = single()
        call.arrived, call.deadline, call.lengths = now, deadline, [1.0]
        found.append(call)
    driver.push(*found)
    return found


def fail(driver: ManualDriver, error: BaseException, now: float = 0.0) -> int:
    """Have the next batch raise `error`; return its size."""
    assert driver.delay(now) == 0.0
    batch = driver.pop(now)
    size = batch.size
    driver.fail(batch, error, now)
    return size


def using_lengths() -> tuple[Lengths, Any]:
    """Return a rule of lengths that is used, and the queue that has it."""
    lengths = Lengths(reorders=True, padded=False)
    return lengths, partial(LengthQueue, lengths=lengths)


class Heard:
    """What stands for a window: it starts each batch at once, and writes down what it hears."""

    timeout_s = 0.004
    learns = True
    is_suspended = False
    is_immediate = True
    awaited = 1
    large_limit: int | None = None
    reason = StartReason.NO_GAIN

    def __init__(self) -> None:
        self.came: list[float] = []
        self.said: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.said.append((name, *args))

    def heard(self, name: str) -> list[tuple[Any, ...]]:
        """Return what it was told by this method."""
        return [tuple(said) for which, *said in self.said if which == name]


def heard_by_window(driver: ManualDriver) -> Heard:
    """Return a new window of `driver`."""
    heard = Heard()
    driver.batcher.feature(Waiting).use(heard)
    return heard


# -- best size ------------------------------------------------------------------------------------------


def test_where_lengths_are_used_no_size_is_tried() -> None:
    """They explain what batches take; what was learned of sizes before is forgotten."""
    lengths, queue = using_lengths()
    lengths.is_used = False
    backlog = kit.Backlog(Options(), queue)
    backlog.run(1000)
    assert backlog.run(1) == [kit.KNEE]
    lengths.is_used = True
    backlog.run(2)
    assert set(backlog.run(300)) == {kit.MOST}


def test_no_trial_takes_a_good_part_of_the_time_that_a_deadline_leaves() -> None:
    """A full batch takes 90 ms here."""
    assert set(kit.Backlog(Options(), deadline_s=0.5).run(300)) == {kit.MOST}
    assert len(set(kit.Backlog(Options(), deadline_s=10.0).run(300))) > 1


def test_no_trial_is_larger_than_what_fits() -> None:
    """Though it is known what larger ones take."""
    backlog = kit.Backlog(Options(batch_size=16, timeout_ms=0))
    assert set(backlog.run(20)) == {16}
    backlog.driver.push(*[backlog.call() for _ in range(16)])
    assert [fail(backlog.driver, MemoryError(), backlog.now) for _ in range(3)] == [16, 8, 8]
    assert max(backlog.run(60)) == 4


# -- the window -----------------------------------------------------------------------------------------


def test_the_window_takes_the_cost_of_batches_from_lengths_while_they_are_used() -> None:
    lengths, queue = using_lengths()
    driver = ManualDriver(Options(), queue, COLLATOR)
    heard = heard_by_window(driver)
    for is_used in (True, False, True):
        lengths.is_used = is_used
        batches(driver, 2)
        assert driver.delay(0.0) == 0.0
        driver.run(driver.pop(0.0), 1.0)
    assert heard.heard("follow")[-2:] == [(None,), (lengths.cost,)]


def test_a_deadline_ends_the_wait_of_the_window() -> None:
    """After half of its time."""
    driver = ManualDriver(Options(timeout_ms=1000, adaptive=False), Queue, COLLATOR)
    batches(driver, 1)
    assert driver.delay(0.0) == 1.0
    batches(driver, 1, deadline=0.5)
    assert driver.delay(0.0) == pytest.approx(0.25)
    driver.delay(0.25)
    assert driver.pop(0.25).reason == StartReason.DEADLINE


def test_the_window_knows_that_fewer_items_fill_a_batch_as_more_do_not_fit() -> None:
    driver = ManualDriver(Options(batch_size=8), Queue, COLLATOR)
    heard = heard_by_window(driver)
    batches(driver, 8)
    fail(driver, MemoryError())
    assert heard.heard("configure") == [(None, 4)]


def test_the_window_knows_that_fewer_items_fill_a_batch_as_fewer_serve_best() -> None:
    backlog = kit.Backlog(Options())
    heard = heard_by_window(backlog.driver)
    backlog.run(1000)
    assert heard.heard("configure")[-1] == (None, kit.KNEE)


def half_of_eight(options: Options) -> int:
    """Return how many of eight items the next batch has where a worker's share is half of what waits."""
    driver = ManualDriver(options, Queue, COLLATOR)
    driver.batcher.feature(Waiting).window.share = lambda items: items // 2
    batches(driver, 8)
    assert driver.delay(1.0) == 0.0
    return driver.pop(1.0).size


def test_no_share_is_filled_up_with_copies() -> None:
    """Where only some sizes are allowed, a batch has all items that fill one."""
    assert half_of_eight(Options(batch_sizes=(1, 8), batch_size=8, max_concurrent_batches=2)) == 8
    assert half_of_eight(Options(max_concurrent_batches=2)) == 4
    assert half_of_eight(Options()) == 8  # with one worker, all items are for that one


# -- deadlines ------------------------------------------------------------------------------------------


def test_a_call_that_waits_is_given_up_once_it_is_known_to_be_late() -> None:
    """Its deadline has not passed: what batches take is known."""
    service = Service()
    late = service.push(allowed_s=0.030)
    service.push()
    service.now += 0.015
    assert service.run() == 1
    assert isinstance(late.error, OverloadError)


# -- batches that fail ----------------------------------------------------------------------------------


def test_memory_is_asked_before_items_are_to_blame() -> None:
    """Also of a part that isolation has run again, which goes on in halves."""
    driver = ManualDriver(Options(timeout_ms=0, batch_size=8), Queue, COLLATOR)
    calls = batches(driver, 8)
    assert fail(driver, ValueError()) == 8
    assert fail(driver, MemoryError()) == 4
    assert driver.batcher.feature(FitsMemory).limit == 2
    sizes, searches = [], []
    while driver.delay(0.0) == 0.0:
        batch = driver.pop(0.0)
        sizes.append(batch.size)
        searches.append(batch.search)
        driver.run(batch, 0.0)
    assert sizes == [4, 2, 2]  # the other half first, as isolation asks for
    assert searches[0] is not None
    assert all(search is searches[0] for search in searches)  # which goes on
    assert all(call.error is None and not call.missing for call in calls)


def test_waits_are_those_of_batches_that_fit() -> None:
    """Half a batch fits: as many items as fill two take as long as four halves."""
    service = Service()
    service.push(FULL)
    fail(service.driver, MemoryError(), service.now)
    while service.run():
        pass
    for _ in range(2 * FULL - 1):
        service.push()
    waits = service.driver.batcher.feature(Backlog)
    assert waits.wait_s(1, service.now) == pytest.approx(4 * cost(FULL // 2), rel=0.1)


def test_lengths_see_what_isolation_lets_run() -> None:
    """In an outage one call runs ahead of the others of every other batch: only its length counts."""
    lengths, queue = using_lengths()
    seen: list[int] = []
    lengths.looks = True
    looks = lengths.look

    def look(slices: Any) -> Any:
        seen.append(len(slices))
        return looks(slices)

    lengths.look = look  # type: ignore[method-assign]
    driver = ManualDriver(Options(timeout_ms=0), queue, COLLATOR)
    ran = []
    for _ in range(10):
        batches(driver, 8)
        while driver.delay(0.0) == 0.0:
            batch = driver.pop(0.0)
            if batch.reason != StartReason.RETRY:
                ran.append(batch.size)
            driver.fail(batch, RuntimeError("503"), 0.0)
    assert {1, 8} <= {*ran}
    assert seen == ran


def test_of_a_divided_run_the_window_hears_only_when_it_started() -> None:
    """And of the parts, as they end."""
    driver = ManualDriver(Options(batch_size=4), Queue, COLLATOR)
    heard = heard_by_window(driver)
    batches(driver, 4)
    fail(driver, ValueError())
    assert not heard.heard("done")
    while driver.delay(1.0) == 0.0:
        driver.run(driver.pop(1.0), 1.0)
    assert heard.heard("let_go") == [(0.0,)]
    assert [size for size, *_ in heard.heard("done")] == [2, 2]


def test_waits_are_longer_where_batches_run_again_in_parts() -> None:
    """By the time of all runs, of which three quarters are over when a call has its answer."""
    service = Service(adaptive=False)
    waits = service.driver.batcher.feature(Backlog)
    before = waits.wait_s(FULL, service.now)
    for _ in range(60):
        began = service.now
        calls = [service.push() for _ in range(FULL)]
        while (batch := service.start()) is not None:
            service.now += cost(batch.size)
            if calls[5] in batch.calls:
                service.driver.fail(batch, ValueError(), service.now)
            else:
                service.driver.finish(batch, service.now)
    after = waits.wait_s(FULL, service.now)
    extra_s = service.now - began - cost(FULL)
    assert extra_s > cost(FULL)
    assert before == pytest.approx(cost(FULL), rel=0.05)
    assert after == pytest.approx(cost(FULL) + 0.75 * extra_s, rel=0.1)


# -- only some sizes --------------------------------------------------------------------------------------


def sized(*sizes: int, **options: Any) -> ManualDriver:
    """Return a driver that runs batches of these sizes only."""
    found = Options(timeout_ms=0, batch_sizes=sizes, batch_size=sizes[-1], **options)
    return ManualDriver(found, Queue, CopyingCollator(COLLATOR, "f", sizes))


def copies_of(batch: Any) -> int:
    """Return how many copies a batch has."""
    return int(batch.copies[0]) if hasattr(batch, "copies") else 0


def test_a_limit_of_memory_is_one_of_the_sizes() -> None:
    """What ran out of memory was the batch with its copies."""
    driver = sized(2, 3, 8)
    batches(driver, 5)
    assert fail(driver, MemoryError()) == 5
    assert driver.batcher.feature(FitsMemory).limit == 3
    sizes = []
    while driver.delay(0.0) == 0.0:
        batch = driver.pop(0.0)
        sizes.append((batch.size, copies_of(batch)))
        driver.run(batch, 0.0)
    assert sizes == [(2, 0), (3, 0)]


def test_parts_of_a_batch_that_failed_are_filled_up() -> None:
    driver = sized(2, 4)
    batches(driver, 4)
    fail(driver, ValueError())
    fail(driver, ValueError())
    sizes = []
    while driver.delay(0.0) == 0.0:
        batch = driver.pop(0.0)
        sizes.append((batch.size, copies_of(batch)))
        driver.run(batch, 0.0)
    assert sorted(sizes) == [(1, 1), (1, 1), (2, 0)]
    assert driver.stats(0.0).total_copies == 2


def test_only_these_sizes_are_tried() -> None:
    """Where items of full batches take longer, a smaller one of the sizes is learned."""
    driver = sized(3, 12)
    now, given = 0.0, set()
    for _ in range(400):
        batches(driver, 24 - driver.queue.items, now)
        driver.delay(now)
        batch = driver.pop(now)
        given.add(batch.size + copies_of(batch))
        now += 0.01 * (batch.size + copies_of(batch)) ** 2
        driver.run(batch, now)
    assert given == {3, 12}
    assert driver.stats(now).best_batch_size == 3


def test_a_batch_that_deadlines_cut_is_filled_up() -> None:
    driver = sized(4, 8)
    batches(driver, 8)
    driver.batcher.feature(WithDeadlines).have("room")
    driver.batcher.feature(WithDeadlines).room = lambda queue, room, now: 3  # type: ignore[method-assign]
    driver.batcher.hook()
    driver.delay(0.0)
    batch = driver.pop(0.0)
    assert (batch.size, copies_of(batch)) == (3, 1)


def test_lengths_see_a_batch_as_it_was_cut() -> None:
    """Copies would bring it over its budget."""
    lengths, queue = using_lengths()
    lengths.budget = 6.0
    seen: list[int] = []
    lengths.looks = True
    looks = lengths.look

    def look(slices: Any) -> Any:
        seen.append(len(slices))
        return looks(slices)

    lengths.look = look  # type: ignore[method-assign]
    found = Options(timeout_ms=0, batch_sizes=(2, 8), batch_size=8, max_batch_length=6)
    driver = ManualDriver(found, queue, CopyingCollator(COLLATOR, "f", (2, 8)))
    batches(driver, 5)
    driver.delay(0.0)
    batch = driver.pop(0.0)
    assert (batch.size, copies_of(batch)) == (2, 0)
    assert seen == [2]


# -- at the door ----------------------------------------------------------------------------------------


def test_a_call_without_room_is_told_when_to_come_back() -> None:
    """As far as it is known what batches take: not without a backlog."""
    service = Service(max_queue_size=8)
    service.push(8)
    with pytest.raises(QueueFullError) as caught:
        service.driver.batcher.admit(service.call(), wait=False)
    assert 0.0 < caught.value.retry_after_s < cost(8) / 4  # type: ignore[operator]  # a batch starts at once
    driver = ManualDriver(Options(max_queue_size=1), Queue, without=(Backlog,))
    batches(driver, 1)
    with pytest.raises(QueueFullError) as caught:
        driver.batcher.admit(single(), wait=False)
    assert caught.value.retry_after_s is None


def test_a_tenant_with_less_takes_the_room_of_the_one_that_has_most() -> None:
    driver = ManualDriver(
        Options(max_queue_size=4, timeout_ms=0),
        with_tenants(Queue),
        COLLATOR,
    )
    calls = [single() for _ in range(5)]
    for call, tenant in zip(calls, "aaaab", strict=True):
        call.tenant = tenant
        assert driver.batcher.admit(call, wait=False)
    assert driver.queue.items == 4
    assert [isinstance(call.error, QueueFullError) for call in calls] == [False] * 3 + [True, False]
