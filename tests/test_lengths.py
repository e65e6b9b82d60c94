"""Items of like length together: no thread, no clock and no sleep, except where callers are asked."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import batched
from batched import inference
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.batch_cost import LengthCost
from batched._policy.lengths import Lengths, _split, choose, longest_first
from benchmarks.simulated.lengths import Server, by_length, in_order_of_arrival, saturated
from tests.kit.gate import Gate
from tests.test_batcher_rules import COLLATOR, BatcherRules, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

# -- the contract of the batcher, with lengths -------------------------------------------------------------


class Known(Lengths):
    """Lengths whose cost is known and stays as it is."""

    __slots__ = ()

    def ran(self, *_: Any) -> None:
        """Learn nothing."""


def known(fixed: float, per_length: float, *, reorders: bool = True, padded: bool = False) -> Known:
    lengths = Known(reorders=reorders, padded=padded)
    cost = lengths.cost
    cost.fixed, cost.per_length, cost._seen = fixed, per_length, 10
    return lengths


class LengthRules(BatcherRules):
    """Whatever the lengths, the cost and the budget: every item runs once, and nobody waits for long."""

    @initialize(
        batch_size=st.integers(1, 9),
        threshold=st.integers(0, 4),
        per_length=st.sampled_from([0.0, 0.001, 0.01, 1.0]),
        budget=st.sampled_from([None, None, 3, 40]),
        reorders=st.booleans(),
        padded=st.booleans(),
    )
    def start_with_lengths(  # noqa: PLR0913, PLR0917  what a run depends on
        self,
        batch_size: int,
        threshold: int,
        per_length: float,
        budget: int | None,
        reorders: bool,
        padded: bool,
    ) -> None:
        """Begin with an empty queue that knows what padding costs."""
        self.lengths = known(0.1, per_length, reorders=reorders, padded=padded)
        self.queue = partial(self.new_queue, lengths=self.lengths)
        super().start(batch_size, threshold)
        self.configure(budget)
        self.left_out: dict[tuple[int, bool], tuple[Call, int]] = {}

    new_queue: Any = LengthQueue

    def start(self, batch_size: int, threshold: int) -> None:
        """Begin once only, with lengths."""

    @rule(
        lengths=st.one_of(
            st.lists(st.integers(0, 60), min_size=1, max_size=20),
            st.integers(0, 60).map(lambda length: [length]),
        ),
        bulk=st.sampled_from([None, None, True, False]),
        allowed_s=st.sampled_from([None, None, 0.5, 5.0]),
        keep_errors=st.booleans(),
        key=st.integers(0, 9),
    )
    def push(  # type: ignore[override]
        self, lengths: list[int], bulk: bool | None, allowed_s: float | None, keep_errors: bool, key: int
    ) -> None:
        """A caller comes, with items in order of length."""
        deadline = None if allowed_s is None else self.now + allowed_s
        items = [(len(self.calls), index) for index in range(len(lengths))]
        call = Call().begin(echo, items[:], len(items), True, self.now, deadline, bulk, keep_errors)
        call.key = key % self.keys
        call.lengths = sorted(lengths, reverse=True)
        self.calls.append(call)
        self.driver.push(call)

    def call_of(self, size: int, *args: Any, **named: Any) -> Call:
        """Return a call of items that are all as long."""
        call = super().call_of(size, *args, **named)
        call.lengths = [10.0] * call.size
        return call

    @rule(budget=st.sampled_from([None, 1, 50]))
    def configure(self, budget: int | None) -> None:
        """The budget changes while calls wait."""
        batcher = self.driver.batcher
        policy = batcher.next_batch.policy
        batcher.configure(replace(batcher.next_batch.options, max_batch_length=budget))
        batcher.next_batch.policy = policy

    @precondition(lambda self: self.driver.delay(self.now) == 0.0)
    @rule()
    def pop(self) -> None:
        """A slot is free: the next batch is within its bounds, and leaves nobody out too often."""
        before = {id(call): call.waiting for call in self.calls}
        waiting = self.waiting()

        batch = self.driver.pop(self.now)

        key = batch.slices[0][0].key
        mine = [call for call in waiting if call.key == key]
        assert 1 <= len(batch) <= self.batch_size
        assert len(batch) == sum(stop - start for _, start, stop in batch.slices)
        assert all(call.key == key and before[id(call)] for call, _, _ in batch.slices)
        assert all(call.deadline is None or call.deadline > self.now for call, _, _ in batch.slices)
        lengths = [length for call, start, stop in batch.slices for length in call.lengths[start:stop]]  # type: ignore[index]
        if self.lengths.budget is not None and len(batch) > 1:
            spent = len(lengths) * max(lengths) if self.lengths.padded else sum(lengths)
            assert spent <= self.lengths.budget
        if not self.lengths.reorders or not self.lengths.cost.per_length:
            assert self.lengths.how == "arrival"
            small = [call for call in mine if not call.large]
            self.check_classes(small, [call for call in mine if call.large], before)
        self.check_oldest(batch, mine)
        items = COLLATOR.collate(batch)
        self.ran += items
        self.running.append((batch, items))

    def check_oldest(self, batch: Batch, mine: list[Call]) -> None:
        """The oldest of the small calls, and of the large while no small ones wait, is soon taken."""
        taken = [call for call, _, _ in batch.slices]
        small = [call for call in mine if not call.large]
        for is_large, calls in ((False, small), (True, [] if small else mine)):
            which = (batch.slices[0][0].key, is_large)
            oldest, times = self.left_out.get(which, (None, 0))
            if not calls or calls[0] in taken:
                self.left_out.pop(which, None)
                continue
            times = times + 1 if calls[0] is oldest else 1
            self.left_out[which] = (calls[0], times)
            # One batch may start for a deadline that is near. In between, large calls lead every other one.
            assert times <= (1 if is_large else 3)

    @invariant()
    def every_item_runs_at_most_once_and_in_order(self) -> None:
        """An item that was taken is never taken again, and everyone is answered with its own."""
        assert len(self.ran) == len(set(self.ran))
        for number, call in enumerate(self.calls):
            if call.error is None and call.left is None and not call.missing:
                assert sum(owner == number for owner, _ in self.ran) == call.size
                for index, result in enumerate(call.results if call.many else [call.results]):
                    assert result == ("out", number, index) or isinstance(result, ZeroDivisionError)


class LengthGroupRules(LengthRules):
    """The same for three keys."""

    keys = 3

    @staticmethod
    def new_queue(batch_size: int, threshold: int, lengths: Lengths) -> KeyedQueues:
        """Return queues by key."""
        return KeyedQueues(batch_size, threshold, lengths, LengthQueue)


TestLengthRules = LengthRules.TestCase
TestLengthGroupRules = LengthGroupRules.TestCase
TestLengthRules.settings = settings(max_examples=200, stateful_step_count=60)
TestLengthGroupRules.settings = settings(max_examples=100, stateful_step_count=60)


# -- who goes together -------------------------------------------------------------------------------------


def driver_of(lengths: Lengths, batch_size: int = 8, threshold: int = 8) -> ManualDriver:
    options = Options(
        batch_size=batch_size,
        small_batch_threshold=threshold,
        timeout_ms=0,
        max_batch_length=None if lengths.budget is None else int(lengths.budget),
    )
    return ManualDriver(options, partial(LengthQueue, lengths=lengths), COLLATOR)


def call_of(lengths: list[float], *, bulk: bool | None = None) -> Call:
    call = Call().begin(echo, list(lengths), len(lengths), True, 0.0, None, bulk)
    call.lengths = lengths
    return call


def batches_of(driver: ManualDriver) -> list[list[float]]:
    """Return the lengths of the batches that run now, one after another."""
    batches = []
    while driver.delay(0.0) is not None:
        batch = driver.pop(0.0)
        batches.append(COLLATOR.collate(batch))
        driver.finish(batch, 0.0, batches[-1])
    return batches


@settings(max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 9))
def test_where_padding_costs_nothing_the_order_is_that_of_arrival(lengths: list[float], size: int) -> None:
    """Not one item goes earlier or later."""
    driver = driver_of(known(1.0, 1e-9), size)
    for length in lengths:
        driver.push(call_of([length]))
    assert sum(batches_of(driver), []) == lengths


def test_where_padding_costs_more_than_a_batch_like_lengths_go_together() -> None:
    """Those first that have the oldest among them."""
    driver = driver_of(known(1.0, 1.0))
    for length in [5, 50, 5, 50, 5, 50]:
        driver.push(call_of([length]))
    assert batches_of(driver) == [[5, 5, 5], [50, 50, 50]]


def items_of(*lengths: float) -> list[Any]:
    """Return waiting items in order of arrival."""
    return [(length, at, Call().begin(echo, None, 1, False, 0.0), 0) for at, length in enumerate(lengths)]


def test_where_it_costs_less_than_a_batch_all_that_fit_go() -> None:
    """If more wait, those of like length."""
    items = items_of(20, 3, 2, 19, 18, 1)
    chosen, how = choose(items, 3, known(1.0, 0.02))
    assert (how, [item[0] for item in chosen]) == ("length", [20, 19, 18])
    assert choose(items[:3], 3, known(1.0, 0.02))[1] == "arrival"


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from([None, 5, 100]),
    st.booleans(),
)
def test_nobody_finds_batches_that_take_less_time(
    lengths: list[float], room: int, per_length: float, budget: int | None, padded: bool
) -> None:
    """Beside all ways to split the items; in order of length, if what is short makes room in the budget."""
    rule = known(1.0, per_length, padded=padded)
    rule.budget = budget
    items = items_of(*lengths)
    in_order = sorted(items, key=longest_first)
    least = min(
        sum(seconds(batch, rule) for batch in split)
        for split in splits_of(in_order, room, rule)
        if budget is None
        or padded
        or sum(sorted(split, key=lambda batch: longest_first(batch[0])), []) == in_order
    )
    split = [in_order[start:stop] for start, stop in _split(in_order, room, rule)][::-1]
    assert sum(split, []) == in_order
    assert all(len(batch) == 1 or fits(batch, room, rule) for batch in split)
    assert sum(seconds(batch, rule) for batch in split) == pytest.approx(least)
    for due in (None, *items):
        chosen, how = choose(items, room, rule, due)
        if how == "arrival":
            assert chosen == items[: len(chosen)]
        else:
            assert chosen in split
            assert (due or items[0]) in chosen


def seconds(batch: list[Any], lengths: Lengths) -> float:
    cost = lengths.cost
    return cost.another_batch + len(batch) * cost.each_of(max(item[0] for item in batch))


def fits(batch: list[Any], room: int, lengths: Lengths) -> bool:
    own = [item[0] for item in batch]
    return len(batch) <= room and not lengths.exceeds(len(batch), max(own), sum(own))


def splits_of(items: list[Any], room: int, lengths: Lengths) -> Iterator[list[list[Any]]]:
    """Yield all ways to divide `items` into batches within their bounds."""
    if not items:
        yield []
        return
    first, *others = items
    for split in splits_of(others, room, lengths):
        yield [[first], *split]
        for at, batch in enumerate(split):
            if fits([first, *batch], room, lengths):
                yield [*split[:at], [first, *batch], *split[at + 1 :]]


def test_who_is_in_a_hurry_goes_whatever_its_length() -> None:
    """Once half of its time is over. In the next batch is whoever had to wait for that."""
    driver = driver_of(known(1.0, 1.0))
    for length, deadline in ((10, None), (1, None), (1, 4.0), (90, 5.0), (90, 5.0)):
        call = Call().begin(echo, [length], 1, True, 0.0, deadline)
        call.lengths = [length]
        driver.push(call)
    batches = []
    while driver.delay(3.0) is not None:
        batches.append(COLLATOR.collate(driver.pop(3.0)))
    assert batches == [[1, 1], [10], [90, 90]]


@pytest.mark.parametrize(("cheap", "budget"), [(0.0, None), (1e-9, None), (1e-9, 1000.0)])
def test_who_was_passed_over_and_has_gone_stands_in_nobodys_way(cheap: float, budget: float | None) -> None:
    """The next item in a hurry goes at once, though the oldest went in a batch in order of arrival."""
    lengths = known(1.0, 1.0)
    lengths.budget = budget
    queue = LengthQueue(4, 1, lengths)
    for _ in range(2):
        old, urgent = call_of([1]), call_of([90])
        queue.push_all([old, urgent])
        lengths.urgent, lengths.cost.per_length = urgent, 1.0
        assert queue.take(2).slices == [(urgent, 0, 1)]
        lengths.urgent, lengths.cost.per_length = None, cheap
        assert queue.take(1).slices == [(old, 0, 1)]


def test_small_calls_go_before_large_ones_of_another_length() -> None:
    """And large ones of like length fill the room."""
    driver = driver_of(known(1.0, 1.0), 4, 1)
    driver.push(call_of([30, 30]))
    driver.push(call_of([9, 9]))
    driver.push(call_of([9]))
    assert batches_of(driver) == [[9, 9, 9], [30, 30]]


def test_a_large_call_beside_ever_more_small_ones_has_its_share() -> None:
    """An eighth of all, though it is like none of them."""
    driver = driver_of(known(1.0, 1.0), 8, 1)
    driver.push(call_of([90] * 64))
    ran: list[float] = []
    while ran.count(90) < 64:
        while driver.queue.items - ran.count(90) < 80:
            driver.push(call_of([random.Random(len(ran)).randint(1, 9)]))
            if driver.queue.items > 200:
                break
        assert driver.delay(0.0) == 0.0
        batch = driver.pop(0.0)
        ran += COLLATOR.collate(batch)
        driver.run(batch, 0.0)
    assert 64 * 7 <= len(ran) <= 64 * 9


def test_a_hundred_thousand_wait_without_harm() -> None:
    """A batch looks at a few of them."""
    lengths = known(0.1, 1.0)
    driver = driver_of(lengths, 32)
    source = random.Random(0)
    for _ in range(100_000):
        driver.push(call_of([source.randint(1, 200)]))
    looked_at = []
    lengths_fitting = Known.fitting

    def fitting(self: Lengths, items: Any, room: int) -> list[Any]:
        looked_at.append(len(items))
        return lengths_fitting(self, items, room)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Known, "fitting", fitting)
        for _ in range(100):
            assert driver.delay(0.0) == 0.0
            driver.run(driver.pop(0.0), 0.0)
    assert max(looked_at) <= 4 * 32


def test_like_lengths_together_gain_what_padding_cost() -> None:
    """Twice the throughput where it is all, and the same where it is nothing."""
    gains = []
    for per_length_s in (20e-6, 0.0):
        ours, plain = (
            saturated(Server(queue, per_length_s), 128, 6000)[0] for queue in (by_length, in_order_of_arrival)
        )
        gains.append(ours / plain)
    assert gains[0] > 2.0
    assert gains[1] > 0.99


# -- the budget --------------------------------------------------------------------------------------------


def test_a_budget_ends_batches_and_changes_no_order() -> None:
    """Who is over all of it runs alone."""
    lengths = Lengths(reorders=False, padded=False)
    lengths.budget = 10
    driver = driver_of(lengths)
    for length in [4, 6, 1, 99, 3, 3, 3, 3]:
        driver.push(call_of([length]))
    assert batches_of(driver) == [[4, 6], [1], [99], [3, 3, 3], [3]]


def test_a_large_call_is_in_every_other_batch_if_the_budget_has_no_room_for_small_ones_too() -> None:
    """However much of their share large calls have saved."""
    driver = driver_of(known(1.0, 0.0), 8, 1)
    for _ in range(300):
        driver.push(call_of([1]))
    batches_of(driver)
    driver.batcher.configure(replace(driver.batcher.next_batch.options, max_batch_length=3))
    driver.push(call_of([2] * 64))
    for _ in range(20):
        driver.push(call_of([3]))
    assert batches_of(driver)[:20] == [[2], [3]] * 10


def test_a_budget_divides_lists_and_starts_what_is_full_by_it() -> None:
    """A batch that can take no more has nobody to wait for."""
    lengths = Lengths(reorders=False, padded=True)
    driver = ManualDriver(
        Options(timeout_ms=1000, max_batch_length=10), partial(LengthQueue, lengths=lengths), COLLATOR
    )
    driver.push(call_of([2, 2]))
    assert driver.delay(0.0) == 1.0
    driver.push(call_of([3, 3, 3]))
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    assert (COLLATOR.collate(batch), batch.reason) == ([2, 2, 3], "full")
    assert driver.delay(0.0) == 1.0


# -- what it has learned -----------------------------------------------------------------------------------


def learn(cost: LengthCost, costs: tuple[float, ...], batches: int, seed: int) -> None:
    fixed, each, per_length = costs
    source = random.Random(seed)
    for _ in range(batches):
        size, longest = source.randint(1, 32), source.randint(5, 120)
        exact = fixed + each * size + per_length * size * longest
        cost.add(size, longest, exact * source.uniform(0.95, 1.05))


@pytest.mark.parametrize("costs", [(5e-3, 1e-4, 2e-5), (5e-3, 0.0, 1e-4), (1e-3, 1e-3, 0.0)])
def test_costs_are_learned(costs: tuple[float, float, float]) -> None:
    """Whatever the first batch took, and one in between."""
    cost = LengthCost()
    cost.add(1, 10, 30.0)
    learn(cost, costs, 60, 0)
    cost.add(8, 20, 30.0)
    learn(cost, costs, 20, 1)
    for size, longest in ((1, 10), (32, 20), (32, 100)):
        exact = costs[0] + costs[1] * size + costs[2] * size * longest
        assert cost.fixed + cost.each_of(longest) * size == pytest.approx(exact, rel=0.15)
    learn(cost, tuple(3 * part for part in costs), 100, 2)
    assert cost.fixed + cost.each_of(50) * 16 == pytest.approx(
        3 * (costs[0] + costs[1] * 16 + costs[2] * 16 * 50), rel=0.15
    )


def test_no_cost_is_negative_or_blows_up_where_all_is_alike() -> None:
    """What cannot be told apart is shared out."""
    cost = LengthCost()
    for _ in range(100):
        cost.add(32, 50, 0.1)
    assert cost.fixed + cost.each_of(50) * 32 == pytest.approx(0.1, rel=0.02)
    assert cost.per_length == 0.0  # as good as any: nothing differs
    for size in (32, 16, 32, 16):
        cost.add(size, 60, 0.1 * size / 32)
    assert min(cost.fixed, cost.each_alone, cost.per_length) >= 0.0


@pytest.mark.parametrize("slower", [1, 1 / 3])
def test_batches_that_are_alike_do_not_change_what_an_item_costs_beside_a_batch(slower: float) -> None:
    """What was known stays, in proportion if all of it becomes faster."""
    cost = LengthCost()
    learn(cost, (20e-3, 1e-4, 0.0), 40, 0)
    source = random.Random(1)
    for _ in range(400):
        cost.add(32, source.randint(50, 60), slower * (20e-3 + 32e-4) * source.uniform(0.98, 1.02))
    assert cost.fixed == pytest.approx(slower * 20e-3, rel=0.25)
    assert cost.fixed + 32 * cost.each_of(55) == pytest.approx(slower * (20e-3 + 32e-4), rel=0.05)


def test_a_clock_too_coarse_for_a_batch_teaches_nothing() -> None:
    """Not even how many there were."""
    cost = LengthCost()
    for _ in range(20):
        cost.add(4, 10, 0.0)
    assert not cost.known
    learn(cost, (5e-3, 0.0, 1e-4), 60, 4)
    assert cost.fixed + cost.each_of(50) * 16 == pytest.approx(5e-3 + 1e-4 * 16 * 50, rel=0.15)


def test_no_cost_is_negative_beside_lengths_never_seen_before() -> None:
    """Also in the batches between two fits."""
    cost = LengthCost()
    learn(cost, (1e-3, 0.0, 1e-4), 41, 3)
    for longest in (50_000, 1, 50_000):
        cost.add(2, longest, 1e-3 + 2e-4 * longest)
        assert cost.each_of(1) >= 0.0


@pytest.mark.parametrize("reorders", [True, False])
def test_what_was_learned_is_told(reorders: bool) -> None:
    """The three costs; with a budget alone too, or nothing would ever be waited for."""
    lengths = Lengths(reorders=reorders, padded=False)
    options = Options(batch_size=8, timeout_ms=1)
    driver = ManualDriver(options, partial(LengthQueue, lengths=lengths), COLLATOR)
    source = random.Random(4)
    now = 0.0
    for _ in range(200):
        for _ in range(source.randint(1, 8)):
            call = call_of([source.randint(1, 100)])
            call.arrived = now
            driver.push(call)
        while driver.delay(now) is not None:
            now += driver.delay(now) or 0.0
            batch = driver.pop(now)
            items = COLLATOR.collate(batch)
            now += 0.005 + len(items) * 0.0005 + len(items) * max(items) * 0.0001
            driver.finish(batch, now, items)
    learned = driver.stats(now).learned
    assert learned is not None
    assert learned.batch_ms == pytest.approx(5, rel=0.1)
    assert learned.length_ms == pytest.approx(0.1, rel=0.1)
    assert "ms a unit of length" in str(learned)
    assert ("length" in driver.stats(now).chosen) == reorders


@pytest.mark.parametrize("queue", [Queue, partial(LengthQueue, lengths=known(1.0, 1e-9))])
def test_a_list_beside_single_calls_goes_in_chunks(queue: Any) -> None:
    """As long as they come: those who call meanwhile need not wait for a full batch of it."""

    class Costly(AdaptiveWindow):
        def chunk(self) -> int | None:
            """Return the same always."""
            return 5

    driver = ManualDriver(Options(batch_size=32, timeout_ms=0), queue, COLLATOR)
    driver.batcher.next_batch.policy = Costly(0.0, 32)
    driver.batcher.next_batch.follow(driver.batcher.next_batch.options)
    driver.push(call_of([1] * 4000))
    sizes = []
    for number in range(120):
        if number in {1, 2}:
            driver.push(call_of([1, 1]))
        assert driver.delay(0.0) == 0.0
        batch = driver.pop(0.0)
        sizes.append(batch.size)
        driver.run(batch, 0.0)
    assert sizes[:5] == [32, 7, 7, 5, 5]
    assert sizes[-1] == 32


@pytest.mark.parametrize(("length", "items"), [(10, 8), (5, 8), (20, 4), (40, 2), (1000, 1)])
def test_a_chunk_of_longer_items_than_usual_has_fewer(length: float, items: int) -> None:
    """It is limited because of the time it takes; shorter ones are no more."""
    lengths = known(1e-6, 1e-3)
    lengths.cost.each = 1e-2  # of the mean length, ...
    lengths.cost._length = 10.0  # ... which is this
    queue = LengthQueue(32, 1, lengths)
    queue.chunk = 8
    queue.push_all([call_of([length] * 100), call_of([length])])
    taken = queue.take(32)
    assert sum(stop - start for call, start, stop in taken.slices if call.size > 1) == items


# -- callers -----------------------------------------------------------------------------------------------


def doubled(items: list[Any]) -> list[Any]:
    return [item * 2 for item in items]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=9), max_size=40), st.integers(1, 7))
def test_a_list_is_answered_in_its_own_order(items: list[str], batch_size: int) -> None:
    """However it was sorted and divided; by key, with a cache and through a map too."""
    for options in ({}, {"group_by": len}, {"cache": {}}, {"group_by": lambda s: s[:1], "cache": {}}):
        with batched.dynamically(doubled, batch_size, 0, length=len, **options) as fn:
            assert fn(items) == doubled(items)
            assert list(fn.map(items)) == doubled(items)
            assert [fn(item) for item in items] == doubled(items)


def test_a_list_goes_longest_first_and_is_copied() -> None:
    """So that the first to run out of memory is the first."""
    gate = Gate(doubled)
    items = ["a", "ccc", "bb"]
    with batched.dynamically(gate, 2, 0, length=len) as fn:
        assert fn(items) == doubled(items)
    assert gate.batches == [["ccc", "bb"], ["a"]]
    assert items == ["a", "ccc", "bb"]


def test_errors_of_a_list_have_their_places() -> None:
    """With `return_exceptions`, whatever part of it they come from."""

    def picky(items: list[int]) -> list[Any]:
        return [ValueError(str(item)) if item % 2 else item for item in items]

    with batched.dynamically(picky, 2, 0, length=int) as fn:
        answers = fn.options(return_exceptions=True)([1, 4, 3, 2])
        assert list(map(str, answers)) == ["1", "4", "3", "2"]
        with pytest.raises(ValueError, match="[13]"):
            fn([1, 4, 3, 2])


def test_columns_are_measured_together() -> None:
    """`length` is given all of an item's."""

    def joined(texts: list[str], times: list[int]) -> list[str]:
        return [text * number for text, number in zip(texts, times, strict=True)]

    with batched.dynamically(joined, 2, 0, length=lambda text, times: len(text) * times) as fn:
        assert fn(["a", "b", "c"], [1, 3, 2]) == ["a", "bbb", "cc"]
        assert fn("a", times=2) == "aa"


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "3", None, 1j])
def test_a_length_that_is_none_fails_its_call_only(wrong: Any) -> None:
    """And says what it was."""
    with batched.dynamically(doubled, length=lambda item: wrong if item == "bad" else 1) as fn:
        with pytest.raises(batched.BatchError, match="length must return a number .*, got"):
            fn("bad")
        with pytest.raises(batched.BatchError, match="length"):
            list(fn.map(["bad"]))
        assert fn(["a", "b"]) == ["aa", "bb"]


def test_a_length_that_raises_fails_its_call_only() -> None:
    """As a `BatchError`, whose cause says why."""
    with batched.dynamically(doubled, length=len) as fn:
        with pytest.raises(batched.BatchError, match="length failed: TypeError") as caught:
            fn(3)
        assert isinstance(caught.value.__cause__, TypeError)
        assert fn("a") == "aa"
    with (
        batched.dynamically(doubled, max_batch_length=8) as fn,
        pytest.raises(batched.BatchError, match="which is len where none is given"),
    ):
        fn(3)


def test_a_length_is_measured_once_per_item() -> None:
    """By whoever calls."""
    measured: list[str] = []
    with batched.dynamically(doubled, 2, length=lambda item: measured.append(item) or len(item)) as fn:
        fn(["a", "bb", "c"])
        fn("d")
    assert measured == ["a", "bb", "c", "d"]


def test_options_are_checked() -> None:
    """At the door, and arrays know how long they are."""
    with pytest.raises(TypeError, match="length must be a function of one item, got 3"):
        batched.dynamically(doubled, length=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="max_batch_length must be at least 1, got 0"):
        batched.dynamically(doubled, max_batch_length=0)
    with pytest.raises(TypeError, match="length does not go with arrays"):
        inference.dynamically(doubled, length=len)  # type: ignore[call-overload]


def test_a_budget_is_changed_live() -> None:
    """Where lengths are known; `length` itself is not."""
    gate = Gate(doubled)
    with batched.dynamically(gate, timeout_ms=0, max_batch_length=4) as fn:
        fn(["aa", "bb", "cc"])
        fn.configure(max_batch_length=6)
        fn(["aa", "bb", "cc"])
        fn.configure(max_batch_length=None)
        fn(["aa", "bb", "ccccccc"])
        with pytest.raises(TypeError, match="length"):
            fn.configure(length=len)
    assert [len(batch) for batch in gate.batches] == [2, 1, 3, 3]
    with (
        batched.dynamically(doubled) as fn,
        pytest.raises(TypeError, match="max_batch_length where neither it nor length was given"),
    ):
        fn.configure(max_batch_length=4)


def test_stats_say_what_was_padded_and_how_batches_were_chosen() -> None:
    """In units of `length`."""
    with batched.dynamically(doubled, timeout_ms=0, length=len) as fn:
        fn(["a", "bbb"])
        stats = fn.stats
    assert (stats.padding.real, stats.padding.padded) == (4, 6)
    assert stats.padding.waste_percent == pytest.approx(100 / 3)
    assert stats.chosen == {"arrival": 1}
    assert "33.3 % of 6" in str(stats)
    with batched.dynamically(doubled, timeout_ms=0) as fn:
        fn("a")
        assert fn.stats.chosen == {}


# -- arrays ------------------------------------------------------------------------------------------------


def test_arrays_know_their_lengths() -> None:
    """Along the second axis of what is padded, and of that only."""
    gate = Gate(
        lambda features: features["x"].sum(axis=1), shut=True, note=lambda features: features["x"].shape
    )
    fn = inference.dynamically(gate, timeout_ms=0, max_batch_length=6)

    def call(length: int) -> Any:
        return fn.submit(x=np.ones((1, length)), image=np.ones((1, 100)))

    futures = [call(1)]
    gate.wait_for_batch()
    futures += [call(length) for length in (2, 3, 3)]
    gate.open()
    assert [int(future.result(10)[0]) for future in futures] == [1, 2, 3, 3]
    fn.shutdown()
    assert gate.batches == [(1, 1), (2, 3), (1, 3)]


def test_rows_of_one_call_are_as_long_as_the_longest() -> None:
    """They are not taken apart."""
    with inference.dynamically(lambda features: features["x"].sum(axis=1), timeout_ms=0) as fn:
        rows = [np.ones(3), np.ones(5), np.ones(1)]
        assert fn(x=rows).tolist() == [3, 5, 1]


def test_neighbours_in_order_are_pairs() -> None:
    """Groups never overlap in length."""
    items = [
        (length, at, Call().begin(echo, None, 1, False, 0.0), 0)
        for at, length in enumerate([9, 1, 8, 2, 7, 3])
    ]
    left = items
    groups = []
    while left:
        chosen, _ = choose(left, 4, known(1.0, 1.0))
        groups.append(sorted(item[0] for item in chosen))
        left = [item for item in left if item not in chosen]
    assert all(a[-1] <= b[0] or b[-1] <= a[0] for a, b in pairwise(groups))
