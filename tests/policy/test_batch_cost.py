"""The cost of batches, as it is learned."""

from __future__ import annotations

from random import Random

import pytest

from batched._policy.batch_cost import BatchCost
from tests.kit.server import EACH_S, FIXED_S


def test_the_first_batch_and_outliers_hardly_count() -> None:
    """One that compiles or loads says nothing of the others."""
    cost = BatchCost()
    cost.add(4, 30.0)
    random = Random(4)
    for number in range(100):
        size = random.randint(1, 20)
        cost.add(size, 5.0 if number % 20 == 19 else FIXED_S + EACH_S * size)
    assert cost.fixed == pytest.approx(FIXED_S, rel=0.3)
    assert cost.each == pytest.approx(EACH_S, rel=0.9)


def test_sizes_that_are_alike_teach_nothing_about_items() -> None:
    """What was known of them stays, whatever noise there is."""
    cost = BatchCost()
    random = Random(5)
    for _ in range(100):
        size = random.randint(1, 20)
        cost.add(size, FIXED_S + EACH_S * size)
    known = cost.each
    for _ in range(200):
        cost.add(20, (FIXED_S + EACH_S * 20) * random.uniform(0.9, 1.1))
    assert known == pytest.approx(EACH_S, rel=0.01)
    assert cost.each == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(("fixed", "each"), [(2e-3, 1e-5), (1e-4, 0.0), (0.0, 1e-3)])
def test_what_is_known_never_runs_away(fixed: float, each: float, noise: float) -> None:
    """Where an item costs next to nothing, or everything, and noise hides it."""
    random = Random(6)
    for _ in range(10):
        cost = BatchCost()
        least = random.choice((1, 8, 24, 56))
        for number in range(3000):
            size = random.randint(least, 64)
            cost.add(size, (fixed + each * size) * max(random.gauss(1.0, noise), 0.05))
            full = fixed + each * 64
            assert number < 30 or 0.0 < cost.fixed + 64 * cost.each < 2 * full
            assert number < 30 or min(cost.fixed, cost.each) >= 0.0


@pytest.mark.parametrize("slow", [1, 2, 3, 5])
def test_batches_that_warm_up_are_no_samples(slow: int) -> None:
    """However many of the first ones load or compile something."""
    cost = BatchCost()
    random = Random(7)
    for number in range(40):
        size = random.randint(1, 32)
        cost.add(size, FIXED_S + EACH_S * size + (0.265 if number < slow else 0.0))
    assert cost.is_known
    assert cost.fixed == pytest.approx(FIXED_S, rel=0.1)
    assert cost.each == pytest.approx(EACH_S, rel=0.2)


def test_the_first_batch_of_a_size_that_compiles_is_no_sample() -> None:
    """A later one of that size, which takes as long, is one."""
    cost = BatchCost()
    random = Random(8)
    for _ in range(60):
        size = random.choice((4, 16))
        cost.add(size, FIXED_S + EACH_S * size)
    before = cost.fixed, cost.each
    cost.add(32, 0.265)
    assert (cost.fixed, cost.each) == before
    cost.add(16, 0.265)
    assert (cost.fixed, cost.each) != before


@pytest.mark.parametrize(
    ("sizes", "noise"),
    [([8], 0.0), ([20, 21], 0.0), ([20, 21], 0.2), ([1, 2], 0.9)],
    ids=["one size", "about one", "about one, noisy", "too noisy"],
)
def test_what_batches_do_not_tell_is_not_known(sizes: list[int], noise: float) -> None:
    """After hundreds of batches as little as after the first."""
    cost = BatchCost()
    random = Random(9)
    for _ in range(300):
        size = random.choice(sizes)
        cost.add(size, (FIXED_S + EACH_S * size) * random.uniform(1 - noise, 1 + noise))
        assert not cost.is_known


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize(("fixed", "each"), [(0.01, 0.0), (0.01, 0.001), (0.0, 0.001)])
def test_what_is_known_is_near_the_truth(fixed: float, each: float, noise: float) -> None:
    """Within a fifth of the time of a usual batch, nearly always; and it is known before long."""
    off = []
    for seed in range(20):
        cost, random = BatchCost(), Random(seed)
        for _ in range(150):
            size = random.randint(1, 64)
            cost.add(size, (fixed + each * size) * random.uniform(1 - noise, 1 + noise) + 1e-7)
            if cost.is_known:
                usual = fixed + each * cost.usual_size
                off.append(max(abs(cost.fixed - fixed), abs(cost.each - each) * cost.usual_size) / usual)
    assert len(off) > 20 * 80
    assert sorted(off)[int(0.99 * len(off))] < 0.2


@pytest.mark.parametrize("slower", [10.0, 0.1])
def test_what_is_known_is_near_the_truth_where_the_speed_changes(slower: float) -> None:
    """Large batches at one speed and single items at the other told a cost of items that there is not."""
    off = []
    for seed in range(60):
        cost, random, speed = BatchCost(), Random(seed), 1.0
        for _ in range(4):
            most = random.choice((1, 3, 20))
            for number in range(random.choice((60, 150))):
                size = random.randint(1, most) if random.random() < 0.3 else 1
                fixed, each = FIXED_S * speed, EACH_S * speed
                cost.add(size, fixed + each * size)
                if number > 30 and cost.is_known:
                    usual = fixed + each * cost.usual_size
                    off.append(max(abs(cost.fixed - fixed), abs(cost.each - each) * cost.usual_size) / usual)
            speed = slower if speed == 1.0 else 1.0
    assert len(off) > 60 * 100
    assert sum(each < 0.2 for each in off) > 0.97 * len(off), sum(each < 0.2 for each in off) / len(off)
