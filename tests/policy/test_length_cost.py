"""The cost of batches whose items are padded, as it is learned."""

from __future__ import annotations

import random

import pytest

from batched._policy.length_cost import LengthCost


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
    assert cost.each_alone == pytest.approx(50 * cost.per_length)  # else no batch would ever tell
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


@pytest.mark.parametrize("lengths", [(5, 90), (50, 50)], ids=["spread", "alike"])
@pytest.mark.parametrize("sizes", [(1, 32), (32, 32)], ids=["sizes differ", "one size"])
def test_what_costs_are_known_depends_on_what_batches_tell(
    lengths: tuple[int, int], sizes: tuple[int, int]
) -> None:
    """One size tells a batch from no item, and one length tells nothing of length."""
    cost, source = LengthCost(), random.Random(3)
    for _ in range(100):
        size, longest = source.randint(*sizes), source.randint(*lengths)
        cost.add(size, longest, 0.002 + (0.0001 + 0.00002 * longest) * size)
    assert cost.is_known == (sizes[0] != sizes[1])
    assert (cost.is_known and cost.tells_lengths) == (sizes[0] != sizes[1] and lengths[0] != lengths[1])
    if cost.is_known:
        assert cost.fixed == pytest.approx(0.002, rel=0.1)
    assert cost.usual_size > 0
