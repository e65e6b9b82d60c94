"""Which calls of known lengths share a batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batched._core.call import Call
from batched._core.length_queue import LengthQueue
from batched._core.queue import Queue
from batched._policy.lengths import Lengths
from benchmarks.simulated.lengths import Server, by_length, in_order_of_arrival, saturated
from tests.kit.batcher_rules import COLLATOR, echo
from tests.kit.effort import times
from tests.kit.lengths import Known, batches_of, call_of, driver_of, known


@settings(max_examples=times(200))
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


def test_a_call_in_a_hurry_goes_whatever_its_length() -> None:
    """Once half of its time is over. In the next batch is the item that had to wait for that."""
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
def test_an_item_that_was_passed_over_and_has_gone_stands_in_no_way(
    cheap: float, budget: float | None
) -> None:
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


@pytest.mark.parametrize(("per_length_s", "least", "most"), [(2e-6, 600, 1000), (0.0, 0, 50)])
def test_that_padding_costs_is_found_out_though_every_batch_has_an_item_of_the_same_longest_length(
    per_length_s: float, least: int, most: int
) -> None:
    """As where inputs are cut to a limit: only batches in order of length can tell."""
    source = random.Random(0)
    driver = driver_of(Lengths(reorders=True, padded=False), 16)
    now = 0.0
    for _ in range(1000):
        while driver.queue.items < 64:
            driver.push(call_of([source.choice([5, 10, 200])]))
        assert driver.delay(now) == 0.0
        batch = driver.pop(now)
        now += 5e-4 + len(batch) * (1e-5 + per_length_s * max(COLLATOR.collate(batch)))
        driver.run(batch, now)
    assert least <= driver.stats(now).chosen.get("length", 0) <= most


@pytest.mark.parametrize(("length", "items"), [(10, 8), (5, 8), (20, 4), (40, 2), (1000, 1)])
def test_a_chunk_of_longer_items_than_usual_has_fewer(length: float, items: int) -> None:
    """It is limited because of the time it takes; shorter ones are no more."""
    lengths = known(1e-6, 1e-3)
    lengths.cost.each = 1e-2  # of the mean length, which is so 10
    queue = LengthQueue(32, 1, lengths)
    queue.large_limit = 8
    queue.push_all([call_of([length] * 100), call_of([length])])
    taken = queue.take(32)
    assert sum(stop - start for call, start, stop in taken.slices if call.size > 1) == items


def test_while_the_rule_does_not_choose_the_queue_does_what_a_plain_one_does() -> None:
    """Not while there is a budget, nor while lists wait of which the rule has chosen items."""
    rule = known(1.0, 1.0)
    queue = LengthQueue(2, 2, rule)
    for chooses, budget in [(False, None), (True, None), (False, 10.0), (False, None)]:
        rule.chooses, rule.budget = chooses, budget
        queue.follow_rule()
        is_plain = not (chooses or budget)
        assert (type(queue).take is Queue.take, type(queue).is_full is Queue.is_full) == (is_plain, is_plain)
    rule.chooses = True
    queue.follow_rule()
    queue.push_all([call_of([5.0, 50.0, 5.0, 50.0])])
    assert [start for _, start, _ in queue.take(2).slices] == [0, 2]
    rule.chooses = False
    queue.follow_rule()
    assert type(queue).take is not Queue.take
    assert queue.take(2).slices[0][1:] == (1, 2)
    queue.follow_rule()
    assert type(queue).take is Queue.take
