"""What batches take is known to a factor of two, where some take many times as long as others, at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from batched._policy.service_time import ServiceTime

COSTS: dict[str, Callable[[int], float]] = {
    "a line": lambda size: 0.02 + 0.001 * size,
    "fixed": lambda _: 0.01,
    "by item": lambda size: 0.001 * size,
    "a knee": lambda size: 0.001 + 0.0001 * min(size, 8) + 0.001 * max(size - 8, 0),
}
SIZES: dict[str, Callable[[Random], int]] = {
    "uniform": lambda random: random.randint(1, 32),
    "geometric": lambda random: min(1 + int(random.expovariate(1 / 8)), 32),
    "mostly one": lambda random: 32 if random.random() < 0.98 else random.randint(1, 32),
}


MIXTURES = [(0.1, 10), (0.5, 2), (0.05, 20), (0.02, 50), (0.2, 30), (0.01, 100)]
"""How many batches are slow, and how many times as long they take."""


def misses(seed: int, slow: float, factor: int, batches: int) -> list[tuple[int, int, float]]:
    """Return the looks at which the time of a size that has run 40 times is off by more than two.

    Each is the number of batches, the size, and what is told, relative to the truth.
    """
    random = Random(seed)
    cost, size_of = [*COSTS.values()][seed % 4], [*SIZES.values()][seed // 4 % 3]
    times, runs = ServiceTime(), [0] * 33
    missed: list[tuple[int, int, float]] = []
    for number in range(batches):
        size = size_of(random)
        runs[size] += 1
        times.ran(size, cost(size) * random.uniform(0.9, 1.1) * (factor if random.random() < slow else 1))
        if number >= 1000 and not number % 101:
            told = {
                size: times.seconds(size) / ((1 + slow * (factor - 1)) * cost(size))
                for size in range(1, 33)
                if runs[size] >= 40 and runs[size] > number / 100
            }
            missed += [(number, size, at) for size, at in told.items() if not 0.5 <= at <= 2.0]
    return missed


@pytest.mark.parametrize(("slow", "factor"), MIXTURES)
def test_each_size_is_known_to_a_factor_of_two_at_every_look(slow: float, factor: int) -> None:
    """Whatever the cost and the sizes are: after a thousand batches, of which 40 had this size."""
    assert [misses(seed, slow, factor, 2500) for seed in range(12)] == [[]] * 12


@pytest.mark.soak
@pytest.mark.parametrize(("slow", "factor"), [(0.1, 10), (0.5, 2), (0.05, 20), (0.02, 50)])
@pytest.mark.parametrize("seed", [0, 3, 5, 10])
def test_each_size_is_known_at_every_look_in_a_hundred_thousand_batches(
    seed: int, slow: float, factor: int
) -> None:
    """Where batches differ even more, some of a thousand looks miss by chance."""
    assert misses(seed, slow, factor, 100_000) == []


def shares_within_two(seed: int, batches: int) -> float:
    """Return in how many looks the time of a size that ran lately is within a factor of two of its mean."""
    random = Random(seed)
    cost, size_of = COSTS[random.choice([*COSTS])], SIZES[random.choice([*SIZES])]
    slow, factor = random.choice([0.01, 0.03, 0.1, 0.2, 0.3, 0.5]), random.choice([2, 5, 10, 30, 100])
    times, runs = ServiceTime(), [0] * 33
    looks: list[bool] = []
    for number in range(batches):
        size = size_of(random)
        runs[size] += 1
        times.ran(size, cost(size) * random.uniform(0.9, 1.1) * (factor if random.random() < slow else 1))
        if number >= 2000 and not number % 101:
            often = [size for size in range(1, 33) if runs[size] > number / 100]
            mean = 1 + slow * (factor - 1)
            looks += [0.5 <= times.seconds(size) / (mean * cost(size)) <= 2.0 for size in often]
    return sum(looks) / len(looks)


@pytest.mark.parametrize("seed", range(12))
def test_the_mean_of_each_size_is_known_to_a_factor_of_two(seed: int) -> None:
    """Of slow batches among fast ones, in any share."""
    assert shares_within_two(seed, 6000) > 0.95


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_nothing_drifts_in_a_hundred_thousand_batches(seed: int) -> None:
    assert shares_within_two(seed, 100_000) > 0.97


def test_one_in_ten_that_takes_ten_times_as_long() -> None:
    """Speed and levels drifted apart: a batch of two was expected to take half an hour."""
    random = Random(1)
    times = ServiceTime()
    for _ in range(4000):
        size = random.randint(1, 8)
        times.ran(size, 0.0009 * (10 if random.random() < 0.1 else 1))
    assert all(0.00085 < times.seconds(size) < 0.0034 for size in range(1, 9))


def test_a_hang_that_comes_again_counts_and_no_more_than_a_hundred_times() -> None:
    """The first may be a chance, and calls are not given up for it."""
    times = ServiceTime()
    for number in range(400):
        times.ran(8, 60.0 if number in {200, 300} else 0.01)
        if number == 250:
            assert times.seconds(8) == pytest.approx(0.01, rel=0.1)
    assert 0.01 < times.seconds(8) < 0.02


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_mixture_that_has_changed_is_known_within_a_few_dozen_batches(factor: float) -> None:
    random = Random(1)
    times = ServiceTime()
    for number in range(1040):
        slow = 10 if random.random() < 0.1 else 1
        times.ran(8, 0.01 * slow * (factor if number >= 1000 else 1.0))
    assert 0.5 < times.seconds(8) / (0.019 * factor) < 2.0


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_change_is_known_though_the_sizes_change_with_it(factor: float) -> None:
    """Of a slower function more calls wait, so that the next batches are larger than all before."""
    times = ServiceTime()
    for number in range(100):
        size = 4 + number % 17
        times.ran(size, 0.02 + 0.001 * size)
    for size in (8, 32, 31, 24, 28):
        times.ran(size, factor * (0.02 + 0.001 * size))
    for size in (8, 24, 32):
        assert times.seconds(size) == pytest.approx(factor * (0.02 + 0.001 * size), rel=0.3)
