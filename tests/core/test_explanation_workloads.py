"""What `stats` and `explain` say of workloads of which the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.kit.effort import few
from tests.kit.truth import Truth, check
from tests.kit.workload import Workload, by_length, by_length_and_key

AT = (0, 1, 2, 3, 5, 8, 12, 13, 16, 20, 26, 33, 45, 64, 90, 130, 200, 400)
"""After so many batches all is checked."""


def line(fixed: float, each: float) -> Callable[[list[Any]], float]:
    """Return a function that takes so many milliseconds a batch, and an item."""
    return lambda items: fixed + each * len(items)


def loop(workload: Workload, callers: int, think_s: float = 100e-6, items: Any = "a", **call: Any) -> None:
    """Have callers call again a little after each answer."""
    random = Random(callers)
    for _ in range(callers):
        workload.call(items, lambda: random.uniform(0.5, 1.5) * think_s, after=random.random() * 1e-4, **call)


def arrive(workload: Workload, gap_s: float, calls: int = 3000, **call: Any) -> None:
    """Have independent calls come."""
    random = Random(7)
    at = 0.0
    for _ in range(calls):
        at += random.expovariate(1 / gap_s)
        workload.call("a" * random.randint(1, 50), after=at, **call)


class Known(NamedTuple):
    """A workload, and what is true of it."""

    workload: Workload
    truth: Truth
    amid: dict[int, Callable[[], None]] = {}  # noqa: RUF012  it is not changed
    """What happens after so many batches."""


def warmed(
    cost: Callable[[list[Any]], float], batches: int, slow: float = 265.0
) -> Callable[[list[Any]], float]:
    """Return a function of which the first batches take longer."""
    left = [slow] * batches
    return lambda items: cost(items) + (left.pop() if left else 0.0)


def compiled(cost: Callable[[list[Any]], float], slow: float = 265.0) -> Callable[[list[Any]], float]:
    """Return a function of which the first batch of each size takes longer."""
    sizes: set[int] = set()

    def of(items: list[Any]) -> float:
        is_new = len(items) not in sizes
        sizes.add(len(items))
        return cost(items) + slow * is_new

    return of


WORKLOADS: dict[str, Callable[[], Known]] = {}


def known(make: Callable[[], Known]) -> Callable[[], Known]:
    """Add a workload."""
    WORKLOADS[make.__name__] = make
    return make


def simple(cost: Callable[[list[Any]], float], callers: int, truth: Truth, **options: Any) -> Known:
    """Return a closed loop of callers."""
    workload = Workload(cost, by_length(), **options)
    loop(workload, callers)
    return Known(workload, truth)


def mixed(cost: Callable[[list[Any]], float], truth: Truth, gap_s: float = 1e-3, **options: Any) -> Known:
    """Return independent calls, of which batches have all sizes."""
    workload = Workload(cost, by_length(), **options)
    arrive(workload, gap_s)
    return Known(workload, truth)


def two_sizes(workload: Workload) -> Workload:
    """Have lists of two sizes come, one after another."""
    sizes = Random(3)
    for number in range(500):
        workload.call(["a"] * sizes.choice((4, 16)), after=number * 0.1)
    return workload


WORKLOADS |= {
    "nothing called": lambda: Known(Workload(line(10, 1), by_length()), Truth(10, 1)),
    "lone caller": lambda: simple(line(10, 1), 1, Truth(10, 1)),
    "lone caller, slow first": lambda: simple(warmed(line(10, 0), 1), 1, Truth(10, 0)),
    "lone caller of lists": lambda: Known(two_sizes(Workload(line(10, 1), by_length())), Truth(10, 1)),
    "constant cost": lambda: mixed(line(10, 0), Truth(10, 0)),
    "cost of items": lambda: mixed(line(0, 1), Truth(0, 1), gap_s=1.5e-3),
    "fixed and items": lambda: mixed(line(10, 1), Truth(10, 1), gap_s=2e-3),
    "slow first batch": lambda: mixed(warmed(line(10, 0), 1), Truth(10, 0)),
    "two slow batches": lambda: mixed(warmed(line(10, 0), 2), Truth(10, 0)),
    "five slow batches": lambda: mixed(warmed(line(10, 0.1), 5), Truth(10, 0.1)),
    "each size compiled": lambda: Known(
        two_sizes(Workload(compiled(line(10, 1)), by_length())), Truth(10, 1)
    ),
    "one size": lambda: simple(line(10, 1), 8, Truth(10, 1), batch_size=8),
    "crowd": lambda: simple(line(4, 0.1), 64, Truth(4, 0.1)),
    "crowd, slow first": lambda: simple(warmed(line(4, 0.1), 2, 500), 64, Truth(4, 0.1)),
    "crowd that fills two batches": lambda: simple(line(10, 0.1), 48, Truth(10, 0.1), batch_size=24),
    "crowd that fills one batch": lambda: simple(line(10, 0.1), 24, Truth(10, 0.1), batch_size=24),
    "batch size of one": lambda: simple(line(10, 1), 4, Truth(10, 1), batch_size=1),
    "no timeout": lambda: mixed(line(10, 1), Truth(10, 1), gap_s=3e-3, timeout_ms=0),
    "not adaptive": lambda: mixed(line(10, 1), Truth(10, 1), gap_s=3e-3, adaptive=False),
    "knee": lambda: mixed(
        lambda items: 1 + 0.1 * min(len(items), 8) + max(len(items) - 8, 0), Truth(), 1.2e-3
    ),
    "short batches": lambda: mixed(line(0.05, 0.001), Truth(0.05, 0.001), gap_s=1e-4),
    "no lengths looked at": lambda: mixed(line(10, 1), Truth(10, 1), gap_s=3e-3, length=None),
}


def noisy(noise: float) -> Known:
    """Return a function of which the times vary by chance."""
    random = Random(11)
    return mixed(lambda items: (10 + len(items)) * random.uniform(1 - noise, 1 + noise), Truth(10, 1), 2e-3)


WORKLOADS |= {"noise": lambda: noisy(0.2), "much noise": lambda: noisy(0.8)}


@known
def padding_that_costs() -> Known:
    """Items are padded, and that takes most of the time."""
    workload = Workload(
        lambda items: 2 + 0.02 * len(items) * max(map(len, items)), by_length(), batch_size=32
    )
    arrive(workload, 0.8e-3)
    return Known(workload, Truth(2, 0, 0.02))


@known
def items_without_length() -> Known:
    """Nothing to look at."""
    workload = Workload(line(10, 1), by_length())
    random = Random(5)
    for _ in range(8):
        workload.call(random.random(), lambda: random.uniform(0, 0.02))
    return Known(workload, Truth(10, 1))


@known
def some_items_without_length() -> Known:
    """A batch of which one item has no length tells nothing."""
    workload = Workload(line(10, 1), by_length())
    random = Random(5)
    for number in range(8):
        workload.call("abc" if number % 2 else random.random(), lambda: random.uniform(0, 0.001))
    return Known(workload, Truth(10, 1))


@known
def items_of_one_length() -> Known:
    """Lengths are there, and tell nothing."""
    workload = Workload(line(10, 1), by_length())
    random = Random(5)
    for _ in range(8):
        workload.call("abc", lambda: random.uniform(0, 0.02))
    return Known(workload, Truth(10, 1))


@known
def large_lists() -> Known:
    """Of a list of many batches, the ones in its midst answer no call."""
    workload = Workload(line(10, 1), by_length(), batch_size=32)
    for number in range(20):
        workload.call(["a"] * 200, after=number)
    return Known(workload, Truth(10, 1))


@known
def failing_items() -> Known:
    """One item in fifty fails, and its batch runs again in halves."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: ValueError("bad") if "bad" in items else None
    )
    random = Random(6)
    for _ in range(16):
        workload.call("bad" if random.random() < 0.06 else "a", lambda: random.uniform(0, 0.02))
    return Known(workload, Truth(10, 1))


@known
def function_that_takes_no_batch() -> Known:
    """Each item works alone, and no two together."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: ValueError("unlike") if len(items) > 1 else None
    )
    loop(workload, 8)
    return Known(workload, Truth(10, 1))


@known
def an_item_in_each_batch_fails() -> Known:
    """So no batch works as a whole, only parts."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: ValueError("bad") if "bad" in items else None
    )
    loop(workload, 7)
    loop(workload, 1, items="bad")
    return Known(workload, Truth(10, 1))


@known
def outage() -> Known:
    """All batches fail."""
    workload = Workload(line(10, 1), by_length(), fault=lambda _: ConnectionError("down"))
    loop(workload, 8)
    return Known(workload, Truth(10, 1))


@known
def outage_later() -> Known:
    """All batches fail from some time on, at once."""
    down: list[bool] = []
    workload = Workload(
        lambda items: 0.1 if down else 10 + len(items),
        by_length(),
        fault=lambda _: ConnectionError("down") if down else None,
    )
    arrive(workload, 3e-3)
    return Known(workload, Truth(10, 1), {64: lambda: down.append(True)})


@known
def memory() -> Known:
    """No more than 10 items fit."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: MemoryError() if len(items) > 10 else None
    )
    loop(workload, 40)
    return Known(workload, Truth(10, 1))


def overload(deadline_s: float, gap_s: float, **options: Any) -> Known:
    """Return more calls than can be answered in time."""
    workload = Workload(line(10, 1), by_length(), **options)
    arrive(workload, gap_s, deadline_s=deadline_s)
    return Known(workload, Truth(10, 1))


WORKLOADS |= {
    "deadlines, overload": lambda: overload(0.05, 0.3e-3, batch_size=16),
    "deadlines, less overload": lambda: overload(0.03, 0.9e-3, batch_size=8),
    "deadlines in time": lambda: overload(0.5, 3e-3),
    "deadlines too short for one": lambda: overload(0.008, 20e-3),
    "deadline that forbids more": lambda: simple(
        line(10, 0.5), 48, Truth(10, 0.5), batch_size=24, default_deadline_ms=60
    ),
    "queue that forbids more": lambda: simple(
        line(10, 0.1), 60, Truth(10, 0.1), batch_size=24, max_queue_size=24
    ),
    "queue that is full": lambda: mixed(line(10, 1), Truth(10, 1), 0.5e-3, batch_size=8, max_queue_size=20),
}


@known
def deadlines_that_pass() -> Known:
    """A batch hangs, and the calls behind it are late."""
    workload = Workload(lambda items: 500 if len(items) == 3 else 10 + len(items), by_length())
    for number in range(60):
        for _ in range(number % 4 + 1):
            workload.call("a", after=number * 0.05, deadline_s=0.1)
    return Known(workload, Truth())


@known
def callers_that_leave() -> Known:
    """What waits is cancelled now and then."""
    workload = Workload(line(10, 1), by_length(), batch_size=4)
    arrive(workload, 2e-3)
    leave = workload.leave
    return Known(workload, Truth(10, 1), {12: leave, 20: leave, 64: leave})


@known
def keys() -> Known:
    """Four keys keep batches small."""
    workload = Workload(line(10, 0.1), by_length_and_key(), group_by=len)
    random = Random(8)
    for number in range(24):
        workload.call("a", lambda: random.uniform(0, 1e-3), key=number % 4)
    return Known(workload, Truth(10, 0.1))


@known
def one_key() -> Known:
    """Keys that do not differ keep nothing apart."""
    workload = Workload(line(10, 0.1), by_length_and_key(), group_by=len)
    loop(workload, 24, key=0)
    return Known(workload, Truth(10, 0.1))


def changed(callers: int, before: int, *, amid: bool = False, **changes: Any) -> Known:
    """Return a closed loop in the midst of which options are changed; perhaps while a batch runs."""
    workload = Workload(line(10, 0.5), by_length(), batch_size=before)
    loop(workload, callers)

    def later() -> None:
        workload.amid = partial(workload.configure, **changes)

    return Known(workload, Truth(10, 0.5), {45: later if amid else partial(workload.configure, **changes)})


WORKLOADS |= {
    "smaller batches": lambda: changed(64, 64, batch_size=4),
    "smaller batches while one runs": lambda: changed(64, 64, amid=True, batch_size=4),
    "larger batches": lambda: changed(64, 4, batch_size=64),
    "larger batches, in part": lambda: changed(32, 4, batch_size=8),
    "no timeout from now on": lambda: changed(8, 64, timeout_ms=0),
    "adaptive no more": lambda: changed(8, 64, adaptive=False),
    "several workers": lambda: changed(8, 64, max_concurrent_batches=4),
    "one item from now on": lambda: changed(8, 64, batch_size=1),
}


@known
def one_long_wait() -> Known:
    """Long ago, and the last batches did not wait."""
    workload = Workload(line(5000, 10), by_length())
    arrive(workload, 0.5, calls=1500)
    return Known(workload, Truth(5000, 10))


@known
def idle() -> Known:
    """A night without calls."""
    workload = Workload(line(10, 1), by_length())
    arrive(workload, 3e-3, calls=300)
    return Known(workload, Truth(10, 1), {64: partial(setattr, workload, "now", workload.now + 30_000.0)})


@known
def crowd_after_a_lone_caller() -> Known:
    """What was learned while it rested is gone on with."""
    workload = Workload(line(10, 0.5), by_length())
    loop(workload, 1)
    return Known(workload, Truth(10, 0.5), {130: partial(loop, workload, 30)})


@known
def slower_from_now_on() -> Known:
    """The function becomes five times as slow."""
    slow = [1.0]
    workload = Workload(lambda items: slow[0] * (10 + len(items)), by_length())
    arrive(workload, 8e-3)
    return Known(workload, Truth(), {64: partial(slow.__setitem__, 0, 5.0)})


@known
def memory_that_is_probed() -> Known:
    """No more than 12 items fit; batches of 15 ran out of it, and are tried again much later."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: MemoryError() if len(items) > 12 else None
    )
    arrive(workload, 2e-3)
    return Known(workload, Truth(10, 1))


@known
def memory_that_is_enough_for_less() -> Known:
    """Memory is no limit any more where `batch_size` is smaller than what fits."""
    workload = Workload(
        line(10, 1), by_length(), fault=lambda items: MemoryError() if len(items) > 10 else None
    )
    loop(workload, 40)
    less, more = (partial(workload.configure, batch_size=size) for size in (4, 64))
    return Known(workload, Truth(10, 1), {64: less, 200: more})


@known
def lists_and_single_calls() -> Known:
    """Lists of up to 200 items beside single calls."""
    workload = Workload(line(10, 1), by_length())
    random = Random(1)
    for number in range(3000):
        workload.call("a", after=number * 2e-3 * random.uniform(0.5, 1.5))
    for number in range(60):
        workload.call(["a"] * random.choice((4, 40, 200)), after=number * 0.15)
    return Known(workload, Truth(10, 1))


@known
def rare_keys() -> Known:
    """Nine of ten items have one key, and the others have 49."""
    workload = Workload(line(10, 0.1), by_length_and_key(), group_by=len)
    random, at = Random(8), 0.0
    for _ in range(4000):
        at += random.expovariate(800)
        workload.call("a", after=at, key=0 if random.random() < 0.9 else random.randrange(1, 50))
    return Known(workload, Truth(10, 0.1))


@known
def deadlines_and_a_bound() -> Known:
    """Calls are rejected, refused, and dropped while they wait."""
    workload = Workload(line(10, 1), by_length(), batch_size=8, max_queue_size=12)
    arrive(workload, 0.5e-3, deadline_s=0.06)
    return Known(workload, Truth(10, 1))


@known
def ten_times_as_slow_and_back() -> Known:
    """The function changes its speed by a factor of ten, three times."""
    slow = [1.0]
    workload = Workload(lambda items: slow[0] * (10 + len(items)), by_length())
    arrive(workload, 20e-3)
    speeds = {64: 10.0, 130: 1.0, 200: 0.1}
    return Known(workload, Truth(), {at: partial(slow.__setitem__, 0, to) for at, to in speeds.items()})


@known
def two_speeds() -> Known:
    """One batch in ten takes ten times as long."""
    random = Random(5)
    workload = Workload(lambda items: (10 + len(items)) * (10 if random.random() < 0.1 else 1), by_length())
    arrive(workload, 8e-3)
    return Known(workload, Truth())


@known
def huge_batches() -> Known:
    """Lists of up to 20,000 items."""
    workload = Workload(line(10, 0.01), by_length(), batch_size=4096)
    random = Random(2)
    for number in range(100):
        workload.call(["a"] * random.choice((1, 100, 5000, 20_000)), after=number * 0.15)
    return Known(workload, Truth(10, 0.01))


@known
def outages_that_end() -> Known:
    """All batches fail for a while, twice."""
    down: list[int] = []
    workload = Workload(
        lambda items: 0.1 if down else 10 + len(items),
        by_length(),
        fault=lambda _: ConnectionError("down") if down else None,
    )
    arrive(workload, 3e-3)
    falls, ends = partial(down.append, 1), down.clear
    return Known(workload, Truth(10, 1), {64: falls, 90: ends, 130: falls, 200: ends})


@known
def options_that_change_often() -> Known:
    """Smaller, larger, and both while few batches have run."""
    workload = Workload(line(10, 0.5), by_length(), batch_size=16)
    loop(workload, 30)
    sizes = {14: 4, 26: 64, 45: 8, 64: 32, 90: 2, 200: 64}
    return Known(
        workload, Truth(10, 0.5), {at: partial(workload.configure, batch_size=to) for at, to in sizes.items()}
    )


@known
def twelve_days() -> Known:
    """A hundred calls each day, and none in between."""
    workload = Workload(line(10, 1), by_length())
    random = Random(4)
    for day in range(12):
        at = day * 86_400.0
        for _ in range(100):
            at += random.expovariate(300)
            workload.call("a", after=at)
    return Known(workload, Truth(10, 1))


@known
def failing_items_with_deadlines() -> Known:
    """One item in fifty fails, and there is time for few retries."""
    workload = Workload(
        line(10, 1),
        by_length(),
        batch_size=16,
        fault=lambda items: ValueError("bad") if "bad" in items else None,
    )
    random, at = Random(5), 0.0
    for _ in range(3000):
        at += random.expovariate(500)
        workload.call("bad" if random.random() < 0.02 else "a", after=at, deadline_s=0.15)
    return Known(workload, Truth(10, 1))


@pytest.mark.parametrize("name", few(WORKLOADS, 2))
def test_all_that_is_said_is_true(name: str) -> None:
    """Each number and sentence, early and late."""
    workload, truth, amid = WORKLOADS[name]()
    ran = 0
    for at in AT:
        workload.run(at - ran)
        ran = at
        check(workload, truth)
        if at in amid:
            amid[at]()
            check(workload, truth)
