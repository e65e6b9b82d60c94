"""Lengths that are not named: strings of a function that pads, without any option."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from batched._collate.item_length import length_in_list
from batched._core.call import Call
from batched._core.explanation import explain
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.waiting import Waiting
from batched._policy.auto_lengths import AutoLengths
from batched._policy.lengths import Choice
from tests.kit.batcher_rules import COLLATOR, echo


class Padding:
    """A function that pads strings to the longest, on a driver whose clock is turned by hand."""

    def __init__(self, timeout_ms: float = 0) -> None:
        self.rng = Random(1)
        self.lengths = AutoLengths(length_in_list)
        options = Options(batch_size=32, timeout_ms=timeout_ms)
        self.driver = ManualDriver(options, partial(LengthQueue, lengths=self.lengths), COLLATOR)
        self.now = 0.0
        self.padding = 0
        self.per_length = 20e-6

    def length(self, item: Any) -> int:
        return len(item)

    def text(self) -> Any:
        return "x" * min(int(self.rng.lognormvariate(3, 0.8)) + 1, 256)

    def push(self, *inputs: Any) -> list[Call]:
        many = [isinstance(each, list) for each in inputs]
        calls = [
            Call().begin(echo, each, len(each) if lists else 1, lists, self.now)
            for each, lists in zip(inputs, many, strict=True)
        ]
        self.driver.push(*calls)
        return calls

    def run_one(self, fails: Any = None) -> None:
        batch = self.driver.pop(self.now)
        items = COLLATOR.collate(batch)
        lengths = [*map(self.length, items)]
        self.now += 0.002 + self.per_length * max(lengths) * len(lengths)
        self.padding += max(lengths) * len(lengths) - sum(lengths)
        if fails is not None and any(item in fails for item in items):
            self.driver.fail(batch, ValueError(*sorted(set(items) & {*fails}, key=len)), self.now)
        else:
            self.driver.run(batch, self.now)

    def run_all(self, fails: Any = None) -> None:
        while self.driver.delay(self.now) == 0.0:
            self.run_one(fails)

    def learn(self) -> None:
        self.push(*(self.text() for _ in range(32 * 24)))
        self.run_all()
        assert self.lengths.is_used

    def call_often(self) -> None:
        """Have one call come after another, so that it is learned when to wait."""
        for _ in range(8):
            self.push(self.text())
            self.now += 0.001
            self.run_all()


def test_a_list_is_answered_in_its_own_order() -> None:
    """With a fraction of the padding, though it was not sorted at the door."""
    there = Padding()
    texts = [there.text() for _ in range(32 * 24)]
    (first,) = there.push(texts[:])
    there.run_all()
    before, there.padding = there.padding, 0
    (second,) = there.push(texts[:])
    there.run_all()
    assert first.results == second.results == texts
    assert there.lengths.is_used
    assert there.padding < before / 2
    assert there.driver.stats(there.now).chosen[Choice.LENGTH] > 0


@pytest.mark.parametrize("callers", [8, 32])
@pytest.mark.parametrize("alone", [10, 100, 1000])
def test_where_a_lone_caller_came_first_padding_is_found_out_before_batches_get_smaller(
    alone: int, callers: int
) -> None:
    """Small batches have little padding: there it would never be found."""
    there = Padding()
    for _ in range(alone):
        there.push(there.text())
        there.run_all()
    for _ in range(24):
        there.push(*(there.text() for _ in range(callers)))
        there.run_all()
    assert there.lengths.is_used


@pytest.mark.parametrize("at", [(3, 40), (40, 3), (90, 95)])
def test_of_a_list_the_first_error_in_its_own_order_is_raised(at: tuple[int, int]) -> None:
    """Whichever ran first; and what is behind it is dropped."""
    there = Padding()
    there.learn()
    texts = [there.text() for _ in range(100)]
    fails = {at[0]: "!" * 200, at[1]: "?" * 5}
    for place, text in fails.items():
        texts[place] = text
    (call,) = there.push(texts[:])
    there.run_all(set(fails.values()))
    assert call.error is not None
    assert fails[min(at)] in call.error.args
    assert not call.missing
    assert there.driver.queue.items == 0
    stats = there.driver.stats(there.now)
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled


def test_a_caller_that_leaves_midway_takes_its_items_along() -> None:
    """Wherever in its list they are."""
    there = Padding()
    there.learn()
    (call,) = there.push([there.text() for _ in range(200)])
    there.run_one()
    call.left = "cancelled"
    there.driver.drop(call)
    assert there.driver.queue.items == 0
    assert there.driver.delay(there.now) is None


def test_what_is_learned_is_one_cost_that_explains_batches() -> None:
    """Once lengths are in use, all figures are those of the cost by length."""
    there = Padding(timeout_ms=1)
    there.learn()
    there.call_often()
    learned = there.driver.stats(there.now).learned
    assert learned is not None
    assert learned.batch_ms == pytest.approx(2, rel=0.2)
    assert learned.length_ms == pytest.approx(0.02, rel=0.2)
    each_ms = learned.item_ms + learned.length_ms * learned.mean_length
    assert learned.capacity == pytest.approx(32_000 / (learned.batch_ms + 32 * each_ms))


def test_a_function_that_pads_no_more_is_not_said_to_pad() -> None:
    """How many batches were chosen by length stands still from then on."""
    there = Padding(timeout_ms=1)

    def said() -> str:
        return explain(there.driver.stats(there.now), Options(batch_size=32, timeout_ms=1))

    there.learn()
    there.call_often()
    assert "so items of similar length share a batch where padding would take much" in said()
    there.per_length = 0.0
    for _ in range(20):
        there.push(*(there.text() for _ in range(32 * 8)))
        there.run_all()
        there.call_often()
    assert not there.lengths.is_used
    assert "share a batch where" not in said()
    assert "Length no longer takes noticeable time" in said()


def test_waits_are_weighed_by_what_lengths_cost_while_they_are_used() -> None:
    """As with `length=len`; and by the number of items again, once length costs nothing."""
    there = Padding(timeout_ms=5)
    there.learn()
    there.call_often()
    policy = there.driver.batcher.feature(Waiting).window
    assert policy.learned().batch_ms == there.lengths.cost.fixed * 1000
    there.per_length = 0.0
    for _ in range(20):
        there.push(*(there.text() for _ in range(32 * 24)))
        there.run_all()
    assert not there.lengths.is_used
    assert policy.learned().batch_ms != there.lengths.cost.fixed * 1000


PAIRS: dict[str, Any] = {
    "tuple": lambda one, other: (one, other),
    "list": lambda one, other: [one, other],
    "dict": lambda one, other: {"query": one, "passage": other},
    "row with a number": lambda one, other: (7, one, other),
}


@pytest.mark.parametrize("make", PAIRS)
def test_pairs_are_as_long_as_their_texts_together(make: str) -> None:
    """A pair is not 2 long: batches of pairs are put in order of length as those of texts are."""

    class Pairs(Padding):
        def length(self, item: Any) -> int:
            parts = item.values() if isinstance(item, dict) else item
            return sum(len(part) for part in parts if isinstance(part, str))

        def text(self) -> Any:
            return PAIRS[make]("a query", super().text())

        def push(self, *inputs: Any) -> list[Call]:
            calls = [Call().begin(echo, each, 1, False, self.now) for each in inputs]
            self.driver.push(*calls)
            return calls

    service = Pairs()
    service.learn()
    before, padded = service.driver.batcher.counters.chosen[Choice.LENGTH], service.padding
    service.push(*(service.text() for _ in range(32 * 8)))
    service.run_all()
    assert service.driver.batcher.counters.chosen[Choice.LENGTH] > before
    assert service.padding - padded < padded / 9  # a third of the items
