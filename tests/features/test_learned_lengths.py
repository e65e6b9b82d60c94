"""The feature that learns what length costs, without a batcher: when it looks, what the window is told."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.options import Options
from batched._features.learned_lengths import LearnedLengths
from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Choice, Lengths
from tests.kit.lengths import call_of
from tests.kit.river import StandInRiver, batch_of, run_of

OPTIONS = Options()
HEARS, LOOKS = ("lesson",), ("took", "lesson")


class Rule(Lengths):
    """The rule of lengths, which notes what it hears; it is not used, until a test says so."""

    def __init__(self) -> None:
        super().__init__(reorders=True, padded=False)
        self.is_used = self.chooses = False
        self.heard: list[tuple[Any, float]] = []
        self.then = dict[str, Any]()
        """What changes with the next batch."""

    def ran(self, batch: Any, duration: float) -> None:
        """Note the batch."""
        self.heard.append((batch, duration))
        vars(self).update(self.then)


class Alone:
    """The feature, the rule that a queue has, and what the window is told of costs."""

    def __init__(self, **rule: Any) -> None:
        self.rule = Rule()
        vars(self.rule).update(rule)
        self.river = StandInRiver(self.rule)
        self.told: list[LengthCost | None] = []
        self.feature = LearnedLengths(self.told.append)
        self.feature.begin(self.river, OPTIONS)


def test_where_no_lengths_are_known_it_takes_no_part() -> None:
    alone = Alone()
    river = StandInRiver(lengths=None)
    feature = LearnedLengths(alone.told.append)
    feature.begin(river, OPTIONS)
    feature.look_soon()
    feature.took(batch_of(2), 1.0)
    feature.lesson(run_of(2))
    assert (feature.is_used, feature.is_open, feature.is_at_rest) == (False, False, True)
    assert (feature.hooks, river.hooked, alone.told) == ((), 0, [])


@pytest.mark.parametrize("name", ["looks", "chooses", "is_used"])
def test_it_is_told_of_batches_that_start_only_while_it_looks_at_them(name: str) -> None:
    """Where lengths are used or tried, it counts how batches were chosen."""
    alone = Alone()
    assert alone.feature.hooks == HEARS
    for is_so, hooks in [(True, LOOKS), (True, LOOKS), (False, HEARS)]:
        alone.rule.then = {name: is_so}
        alone.feature.lesson(run_of(2))
        assert alone.feature.hooks == hooks
    assert alone.river.hooked == 3  # with the first time
    assert Alone(**{name: True}).feature.hooks == LOOKS


def test_the_next_batch_is_looked_at_where_that_is_asked_for() -> None:
    alone = Alone()
    alone.feature.look_soon()
    assert (alone.rule.looks, alone.feature.hooks) == (True, LOOKS)


def test_the_window_shares_the_costs_while_lengths_are_used() -> None:
    """It hears of each change once."""
    alone = Alone()
    assert alone.told == []
    cost = alone.rule.cost
    for is_used, told in [(True, [cost]), (True, [cost]), (False, [cost, None]), (True, [cost, None, cost])]:
        alone.rule.then = {"is_used": is_used}
        alone.feature.lesson(run_of(2))
        assert alone.told == told
        assert (alone.feature.is_used, alone.feature.is_at_rest) == (is_used, not is_used)


def test_the_window_hears_at_once_of_lengths_that_are_used_from_the_start() -> None:
    """Also after a fault, when it has forgotten all, as the queue has."""
    alone = Alone(is_used=True)
    assert alone.told == [alone.rule.cost]
    alone.river.queue.lengths = other = Rule()
    other.is_used = True
    alone.feature.begin(alone.river, OPTIONS)
    assert alone.feature.lengths is other
    assert alone.told == [alone.rule.cost, other.cost]


def test_the_queue_is_told_that_the_rule_may_have_changed() -> None:
    """From the start on, and with each lesson, until it follows the rule no more."""
    alone = Alone(chooses=True)
    alone.river.is_plain = False
    for followed in (1, 2, 3):
        assert alone.river.followed == followed
        alone.feature.lesson(run_of(2))
    alone.rule.chooses = False
    for followed in (5, 6):
        alone.feature.lesson(run_of(2))
        assert alone.river.followed == followed
    alone.river.is_plain = True
    for _ in range(3):
        alone.feature.lesson(run_of(2))
    assert alone.river.followed == 7
    alone.rule.then = {"chooses": True}
    alone.feature.lesson(run_of(2))
    assert alone.river.followed == 8


@pytest.mark.parametrize(
    ("rule", "hears"),
    [({}, False), ({"looks": True}, True), ({"chooses": True}, True), ({"is_open": True}, True)],
)
def test_batches_that_are_not_felt_are_no_news_while_nothing_is_looked_at(
    rule: dict[str, Any], hears: bool
) -> None:
    alone = Alone(felt_s=0.5, **rule)
    alone.feature.lesson(run_of(2, 0.25))
    assert len(alone.rule.heard) == hears
    alone.feature.lesson(run_of(2, 0.5))
    assert len(alone.rule.heard) == 1 + hears


def test_after_other_options_the_queue_hears_of_the_rule_once_more() -> None:
    """It may have a budget by now: of the next batch, felt or not."""
    alone = Alone(felt_s=0.5)
    alone.feature.configure(OPTIONS)
    for _ in range(3):
        alone.feature.lesson(run_of(2, 0.25))
    assert alone.river.followed == 2


@pytest.mark.parametrize("is_open", [True, False])
def test_it_says_whether_lengths_may_soon_be_used(is_open: bool) -> None:
    assert Alone(is_open=is_open).feature.is_open is is_open


@pytest.mark.parametrize("looks", [True, False])
def test_a_batch_knows_the_lengths_of_its_items_if_they_are_looked_at(looks: bool) -> None:
    """What they add up to, and what they would if each was padded to the longest."""
    alone = Alone(looks=looks)
    batch = Batch([(call_of([1.0, 2.0, 4.0]), 1, 3), (call_of([1.0]), 0, 1)], 3)
    alone.feature.took(batch, 1.0)
    assert (batch.real, batch.padded) == ((7, 12) if looks else (0, 0))


def test_where_lengths_are_used_it_counts_how_batches_were_chosen() -> None:
    alone = Alone(is_used=True)
    for how in (Choice.LENGTH, Choice.ARRIVAL, Choice.LENGTH):
        alone.rule.how = how
        alone.feature.took(batch_of(2), 1.0)
    alone.rule.is_used = False
    alone.feature.took(batch_of(2), 1.0)
    assert alone.river.counters.chosen == {Choice.LENGTH: 2, Choice.ARRIVAL: 1}


def test_no_call_is_kept_once_a_batch_has_started() -> None:
    """Whatever waited most urgently: an idle batcher keeps none."""
    alone = Alone(urgent=call_of([1.0]))
    alone.feature.took(batch_of(2), 1.0)
    assert alone.rule.urgent is None


@pytest.mark.parametrize(("failed", "hears"), [(0, True), (2, True), (3, False)])
def test_it_learns_from_batches_of_which_an_item_has_worked(failed: int, hears: bool) -> None:
    alone = Alone()
    run = run_of(3, 0.25, failed=failed)
    alone.feature.lesson(run)
    assert alone.rule.heard == ([(run.batch, 0.25)] if hears else [])
