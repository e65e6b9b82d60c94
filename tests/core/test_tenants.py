"""Tenants share a queue, and the room in it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest

from batched._core.batcher import with_tenants
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.mending import mend
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._parts.divided import divide
from batched.errors import QueueFullError
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed, single
from tests.kit.lengths import known

BATCH = 8


def driver_with(bound: int | None = None, kind: Any = Queue) -> ManualDriver:
    """Return a driver whose tenants take turns."""
    options = Options(batch_size=BATCH, timeout_ms=0, adaptive=False, max_queue_size=bound)
    return ManualDriver(options, with_tenants(kind), COLLATOR)


def of(tenant: str, size: int = 0, arrived: float = 0.0) -> Call:
    """Return a call of a tenant: of one item, or of a list."""
    call = listed(size, arrived) if size else single()
    call.tenant = tenant
    call.key = None
    call.lengths = [1.0 + at % 5 for at in range(call.size)]
    return call


def next_batch(driver: ManualDriver) -> Counter[str]:
    """Run the next batch; return how many items it has of each tenant."""
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    shares: Counter[str] = Counter()
    for call, start, stop in batch.slices:
        shares[call.tenant] += stop - start
    driver.run(batch, 0.0)
    return shares


KINDS = {
    "plain": Queue,
    "keys": KeyedQueues,
    "lengths": partial(LengthQueue, lengths=known(0.1, 0.01, reorders=True, padded=True)),
}


@pytest.mark.parametrize("size", [0, 20], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_tenants_share_batches_evenly(kind: str, size: int) -> None:
    """However many calls each sends."""
    driver = driver_with(kind=KINDS[kind])
    driver.push(*(of("flood", size) for _ in range(100)))
    driver.push(*(of("a", size) for _ in range(20)), *(of("b", size) for _ in range(20)))
    shares: Counter[str] = Counter()
    for _ in range(6):
        shares += next_batch(driver)
    assert sum(shares.values()) >= 6 * BATCH - 12
    assert max(shares.values()) - min(shares[tenant] for tenant in ("flood", "a", "b")) <= 2 * BATCH


def test_a_quiet_tenant_is_in_the_next_batch() -> None:
    """Behind any number of items of another."""
    driver = driver_with()
    driver.push(*(of("flood") for _ in range(100)))
    next_batch(driver)
    driver.push(of("quiet"))
    assert next_batch(driver) == {"flood": BATCH - 1, "quiet": 1}


def test_large_calls_of_a_tenant_take_turns_within_its_share() -> None:
    """A tenant with two lists has no more than one with one."""
    driver = driver_with()
    two, one = (of("two", 100), of("two", 100)), of("one", 100)
    driver.push(*two, one)
    for _ in range(10):
        assert next_batch(driver) == {"one": 4, "two": 4}
    assert two[0].waiting == two[1].waiting


def admit(driver: ManualDriver, *calls: Call, wait: bool = False) -> list[bool]:
    """Have calls arrive at the door."""
    return [driver.batcher.admit(call, wait=wait) for call in calls]


def test_a_full_queue_refuses_the_newest_call_of_the_tenant_that_has_most() -> None:
    """For each call of a tenant that has less than its share; no further."""
    driver = driver_with(bound=6)
    flood = [of("flood") for _ in range(6)]
    admit(driver, *flood)
    for had in (6, 5, 4):
        admit(driver, of("quiet"))
        assert [call.waiting for call in flood] == [1] * (had - 1) + [0] * (7 - had)
    for tenant in ("flood", "quiet"):  # each has its share
        with pytest.raises(QueueFullError):
            admit(driver, of(tenant))
    refused = driver.take_answered()
    assert refused == flood[:2:-1]
    assert all(isinstance(call.error, QueueFullError) for call in refused)
    stats = driver.stats(0.0)
    assert (stats.queue_size, stats.total_rejected, stats.total_cancelled, stats.total_accepted) == (
        6,
        5,
        3,
        9,
    )


def test_a_list_that_is_more_than_its_share_is_refused() -> None:
    """And what has begun, or is part of a `map`, is not refused for others."""
    driver = driver_with(bound=12)
    begun = of("flood", 12)
    admit(driver, begun)
    with pytest.raises(QueueFullError):
        admit(driver, of("quiet", 7))
    assert next_batch(driver) == {"flood": BATCH}
    chunk = of("flood", 8)
    chunk.flow = object()
    admit(driver, chunk)
    with pytest.raises(QueueFullError):
        admit(driver, of("quiet"))
    assert (begun.waiting, chunk.waiting) == (4, 8)


def test_calls_that_wait_for_room_are_let_in_in_turns() -> None:
    """The tenant that has least in the queue is the next, whatever others have asked for before."""
    driver = driver_with(bound=8)
    assert admit(driver, *(of("flood") for _ in range(20)), wait=True) == [True] * 8 + [False] * 12
    assert admit(driver, *(of("quiet") for _ in range(3)), wait=True) == [False] * 3
    next_batch(driver)
    let_in = [call.tenant for call in driver.let_in]
    assert sorted(let_in) == ["flood"] * 5 + ["quiet"] * 3
    assert Counter(let_in[:6]) == {"flood": 3, "quiet": 3}


def test_tenants_are_forgotten_with_their_last_item() -> None:
    """Whether it runs, leaves, or waits for room."""
    driver = driver_with(bound=2)
    tenants = driver.queue.tenants
    ran, left, waits = of("ran"), of("left"), of("waits")
    admit(driver, ran, left)
    admit(driver, waits, wait=True)
    assert len(tenants) == 3
    driver.drop(left)
    assert len(tenants) == 2
    driver.drop(waits)
    assert len(tenants) == 1
    next_batch(driver)
    assert len(tenants) == 0


def test_options_that_change_leave_tenants_as_they_are() -> None:
    """What waits is counted once."""
    driver = ManualDriver(Options(batch_size=4, timeout_ms=0), with_tenants(Queue), COLLATOR)
    tenants = driver.queue.tenants
    driver.push(*(of("a") for _ in range(9)), *(of("b") for _ in range(2)))
    driver.batcher.configure(Options(batch_size=6, timeout_ms=0))
    assert len(tenants) == 2
    while driver.queue.items:
        next_batch(driver)
    assert len(tenants) == 0


def untold(size: int = 0) -> Call:
    """Return a call that has no tenant."""
    call = of("none", size)
    del call.tenant
    return call


@pytest.mark.parametrize("kind", KINDS)
def test_tenants_may_take_turns_from_a_moment_on(kind: str) -> None:
    """Calls that waited before, and others without a tenant, are of one together."""
    options = Options(batch_size=BATCH, timeout_ms=0, adaptive=False)
    driver = ManualDriver(options, KINDS[kind], COLLATOR)
    calls = [untold(3 * (at % 2)) for at in range(40)]
    driver.push(*calls[:-4])
    driver.batcher.take_turns()
    driver.push(*(of("a", 3 * (at % 2)) for at in range(20)), *calls[-4:])
    shares: Counter[Any] = Counter()
    for _ in range(4):
        shares += next_batch_of(driver)
    assert abs(shares["a"] - shares[None]) <= BATCH
    while driver.queue.items:
        next_batch_of(driver)
    assert all(not call.missing for call in calls)
    assert driver.batcher.counters.accepted == driver.batcher.counters.processed == 120
    assert len(driver.queue.tenants) == 0


def next_batch_of(driver: ManualDriver) -> Counter[Any]:
    """Run the next batch; return how many items it has of each tenant, of those that have none too."""
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    shares: Counter[Any] = Counter()
    for call, start, stop in batch.slices:
        shares[getattr(call, "tenant", None)] += stop - start
    driver.run(batch, 0.0)
    return shares


def test_so_they_do_when_a_new_queue_begins() -> None:
    """After a fault, say; and a queue that has tenants keeps those that it has."""
    driver = ManualDriver(Options(batch_size=2, timeout_ms=0), Queue, COLLATOR)
    driver.batcher.take_turns()
    known = driver.queue.tenants
    driver.batcher.take_turns()
    assert driver.queue.tenants is known
    mend(driver.batcher, KeyboardInterrupt())
    driver.push(*(of("a") for _ in range(4)), untold(), untold())
    assert [next_batch_of(driver) for _ in range(2)] == [{"a": 1, None: 1}] * 2


def test_a_call_is_expected_to_wait_for_the_turns_of_others_without_a_tenant_too() -> None:
    """However many items of one tenant wait."""
    driver = driver_with()
    driver.push(*(of("flood") for _ in range(100)))
    divided = divide(untold(2), [[0], [1]], lambda items, places: [items[place] for place in places])
    for call in (untold(), divided):
        assert driver.queue.ahead(1, call, large=False) < BATCH
    assert driver.queue.ahead(1, None, large=False) == 100


@pytest.mark.parametrize("tenants", [5, 20, 80, 200])
def test_a_call_is_expected_to_wait_for_the_turns_that_others_have_before_it(tenants: int) -> None:
    """It was taken that each tenant has a whole turn, though most have one item: up to twice the batches."""
    told, had = Counter[str](), Counter[str]()
    for seed in range(60):
        random = Random(seed)
        driver = driver_with()
        for tenant in range(tenants):
            driver.push(*(of(f"{tenant}") for _ in range(min(int(random.paretovariate(0.8)), 60))))
        for _ in range(min(random.randrange(3), driver.queue.items // BATCH)):
            next_batch(driver)
        name = random.choice(["new", f"{random.randrange(tenants)}"])
        which = "new" if name == "new" else "known"
        call = of(name)
        told[which] += driver.queue.ahead(1, call, large=False) // BATCH
        driver.push(call)
        next_batch(driver)
        while call.waiting:
            had[which] += 1
            next_batch(driver)
    for which in ("new", "known"):
        assert told[which] == pytest.approx(had[which], rel=0.25, abs=2)


def test_tenants_that_have_left_are_not_expected_ahead_and_those_that_came_since_are() -> None:
    """Which of many tenants are looked at is found once a batch."""
    driver = driver_with()
    for day in range(3):
        driver.push(*(of(f"{day} {tenant}") for tenant in range(100)))
        assert driver.queue.ahead(1, of("new"), large=False) == 100
        driver.push(*(of(f"{day} later {tenant}") for tenant in range(100)))
        assert driver.queue.ahead(1, of("new"), large=False) == 200
        while driver.queue.items:
            next_batch(driver)
        assert not driver.queue.ahead(1, of("new"), large=False)


def test_calls_that_wait_for_room_take_turns_too() -> None:
    """Those that have waited before, as one tenant."""
    options = Options(batch_size=4, timeout_ms=0, adaptive=False, max_queue_size=4)
    driver = ManualDriver(options, Queue, COLLATOR)
    admit(driver, *(untold() for _ in range(12)), wait=True)
    driver.batcher.take_turns()
    admit(driver, of("a"), wait=True)
    next_batch_of(driver)
    assert [getattr(call, "tenant", None) for call in driver.let_in].count("a") == 1
