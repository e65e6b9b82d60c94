"""Whether the length of items costs time, found out from samples."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from batched._policy.auto_lengths import AutoLengths
from tests.kit.effort import times

FIXED_S, EACH_S, NOISE = 0.002, 0.0001, 0.05
Cost = Callable[[list[int]], float]


def padded(lengths: list[int]) -> float:
    return FIXED_S + 20e-6 * max(lengths) * len(lengths)


def added_up(lengths: list[int]) -> float:
    return FIXED_S + 20e-6 * sum(lengths)


def flat(lengths: list[int]) -> float:
    return FIXED_S


def by_number(lengths: list[int]) -> float:
    return FIXED_S + EACH_S * len(lengths)


class Batches:
    """Batches of a function that costs what it is told to, as a batcher reports them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.lengths = AutoLengths(lambda call, at: call[at])
        self.looks = 0

    def run(self, cost: Cost, batches: int, *, most: int = 32, least: int = 1, alike: bool = False) -> None:
        for _ in range(batches):
            size = self.rng.choice((most, most, self.rng.randint(least, most)))
            items = [24 if alike else min(int(self.rng.lognormvariate(3, 0.8)) + 1, 256) for _ in range(size)]
            batch: Any = SimpleNamespace(size=size, real=0, padded=0)
            if self.lengths.looks:
                self.looks += 1
                longest, real = self.lengths.look([(items, 0, size)])
                batch.real, batch.padded = round(real), round(longest * size)
            self.lengths.ran(batch, cost(items) * self.rng.lognormvariate(0, NOISE))


@pytest.mark.parametrize("seed", range(times(20)))
def test_padding_that_costs_is_found_out_within_a_few_batches(seed: int) -> None:
    """And lengths are used from then on, with every batch looked at."""
    batches = Batches(seed)
    batches.run(padded, 24)
    assert batches.lengths.is_used
    assert batches.lengths.looks


@pytest.mark.parametrize("seed", range(times(20)))
@pytest.mark.parametrize("cost", [flat, by_number, added_up])
def test_elsewhere_the_order_stays_that_of_arrival_and_few_batches_are_looked_at(
    cost: Cost, seed: int
) -> None:
    """Also where long items take longer, but nothing is padded."""
    batches = Batches(seed)
    for _ in range(40):
        batches.run(cost, 50)
        assert not batches.lengths.is_used
    assert batches.looks <= 24 + 2000 / 16 + 1


@pytest.mark.parametrize("seed", range(times(20)))
def test_items_that_are_all_alike_have_no_padding(seed: int) -> None:
    """Whatever length costs."""
    batches = Batches(seed)
    batches.run(padded, 500, alike=True)
    assert not batches.lengths.is_used


@pytest.mark.parametrize("seed", range(times(20)))
@pytest.mark.parametrize("alone", [10, 100, 10_000])
def test_a_lone_caller_before_does_not_keep_padding_from_being_found(seed: int, alone: int) -> None:
    """Batches of one item have none: what they tell is what length costs. Few of them are looked at."""
    batches = Batches(seed)
    batches.run(padded, alone, most=1)
    assert not batches.lengths.is_used
    assert batches.looks <= 24 + alone / 16
    batches.run(padded, 24, least=2)
    assert batches.lengths.is_used


@pytest.mark.parametrize("seed", range(times(20)))
def test_a_batch_of_one_between_others_does_not_keep_padding_from_being_found(seed: int) -> None:
    """As where a caller that comes back first always starts alone."""
    batches = Batches(seed)
    batches.run(padded, 100, most=1)
    for _ in range(24):
        batches.run(padded, 1, most=1)
        batches.run(padded, 1, least=2)
    assert batches.lengths.is_used


@pytest.mark.parametrize("seed", range(times(20)))
def test_more_callers_are_noticed_where_few_before_had_hardly_any_padding(seed: int) -> None:
    """A look that finds padding has the next batch looked at, too."""
    batches = Batches(seed)
    batches.run(padded, 200, alike=True)
    assert not batches.lengths.is_used
    batches.run(padded, 96, least=2)
    assert batches.lengths.is_used


@pytest.mark.parametrize("seed", range(times(20)))
def test_where_length_costs_nothing_any_more_it_is_used_no_more(seed: int) -> None:
    """And used again, once it does."""
    batches = Batches(seed)
    batches.run(padded, 50)
    assert batches.lengths.is_used
    batches.run(flat, 400)
    assert not batches.lengths.is_used
    batches.run(padded, 1600)
    assert batches.lengths.is_used


def test_batches_that_take_no_time_and_items_without_a_length_are_not_learned_from() -> None:
    """Nor is a batch looked at while batches are that short."""
    batches = Batches(0)
    batches.run(lambda lengths: 1e-6 * padded(lengths), 200)
    assert not batches.lengths.is_used
    without = AutoLengths(lambda call, at: None)
    for _ in range(100):
        batch: Any = SimpleNamespace(size=8, real=0, padded=0)
        if without.looks:
            assert without.look([([], 0, 8)]) == (0.0, 0.0)
        without.ran(batch, 0.01)
    assert not without.is_used


@pytest.mark.parametrize("seed", range(times(20)))
def test_a_batch_that_is_not_felt_changes_nothing_where_no_batch_is_looked_at(seed: int) -> None:
    """So it need not be told of it."""
    batches = Batches(seed)
    lengths = batches.lengths
    for _ in range(times(40)):
        batches.run(batches.rng.choice([padded, flat]), batches.rng.randint(0, 8))
        if not (lengths.looks or lengths.chooses or lengths.is_open):
            before = dict(vars(lengths))
            lengths.ran(SimpleNamespace(size=8, real=0, padded=0), lengths.felt_s / 2)
            assert vars(lengths) == before
