"""How long batches take: known soon, never guessed to be long, and soon as the function is now."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batched._policy.service_time import ServiceTime


def cost(size: int) -> float:
    return 0.02 + 0.001 * size


def learned(sizes: list[int], seconds: Callable[[int], float] = cost) -> ServiceTime:
    times = ServiceTime()
    for size in [1, *sizes]:  # the first does not count
        times.ran(size, seconds(size))
    return times


@given(st.lists(st.integers(1, 64), min_size=40, max_size=200))
def test_a_cost_that_is_a_line_is_known_where_batches_ran(sizes: list[int]) -> None:
    times = learned(sizes)
    for size in {*sizes}:
        assert times.seconds(size) == pytest.approx(cost(size), rel=0.25)
        assert times.safe_seconds(size) >= times.seconds(size)


def test_nothing_is_known_of_two_batches_nor_of_the_first() -> None:
    """The first may load or compile something."""
    times = ServiceTime()
    times.ran(8, 100.0)
    times.ran(8, 1.0)
    assert not times.is_known
    times.ran(8, 1.0)
    assert times.is_known
    assert times.seconds(8) == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 64, 10**6, 2**31]),
            st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e5]),
            st.sampled_from([1, 2, 5, 251]),
        ),
        max_size=20,
    )
)
@example([(1, 0.0, 2), (10**6, 1.0, 251), (2, 1e5, 5), (2**31, 0.0, 2)])
def test_any_times_can_be_learned(runs: list[tuple[int, float, int]]) -> None:
    """Also where a clock that stands still in tests is moved on by a day: all times are some time."""
    times = ServiceTime()
    for size, seconds, number in runs:
        for _ in range(number):
            times.ran(size, seconds)
            if times.is_known:
                told = [times.seconds(each) for each in (1, 2, size, 2**31)]
                assert all(each > 0.0 and isfinite(each) for each in told)


@given(st.integers(2, 64), st.integers(1, 200))
def test_sizes_that_did_not_run_are_not_taken_to_be_slow(size: int, other: int) -> None:
    """A larger batch takes as long as the largest, a smaller one its share of the smallest."""
    times = learned([size] * 10)
    assert times.seconds(other) == pytest.approx(cost(size) * min(other / size, 1.0))


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_function_that_has_changed_is_known_within_ten_batches(factor: float) -> None:
    times = learned([32] * 50)
    for _ in range(10):
        times.ran(32, factor * cost(32))
    assert times.seconds(32) == pytest.approx(factor * cost(32), rel=0.15)


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_change_is_not_taken_for_spread(factor: float) -> None:
    """Else calls would be refused for long after it that could be answered in time."""
    times = learned([32] * 50)
    times.caution = 1.0
    for _ in range(10):
        times.ran(32, factor * cost(32))
    assert times.safe_seconds(32) < 1.3 * times.seconds(32)


def test_one_batch_that_hangs_is_forgotten_within_ten_batches() -> None:
    times = learned([32] * 50)
    times.ran(32, 40 * cost(32))
    assert times.seconds(32) < 2 * cost(32)
    for _ in range(10):
        times.ran(32, cost(32))
    assert times.seconds(32) == pytest.approx(cost(32), rel=0.1)


def test_few_batches_take_longer_than_what_is_safe() -> None:
    random = Random(1)
    times = learned([32] * 100, lambda size: cost(size) * random.uniform(0.7, 1.3))
    times.caution = 1.0
    exceeded = 0
    for _ in range(1000):
        seconds = cost(32) * random.uniform(0.7, 1.3)
        exceeded += seconds > times.safe_seconds(32)
        times.ran(32, seconds)
    assert exceeded < 50
    assert times.safe_seconds(32) < 2 * cost(32)


def test_a_size_that_seemed_slow_and_is_avoided_is_forgotten() -> None:
    times = learned([8] * 20 + [32] * 3, lambda size: 1.0 if size == 32 else cost(size))
    assert times.seconds(32) > 10 * cost(8)
    for _ in range(600):
        times.ran(8, cost(8))
    assert times.seconds(32) < 2 * cost(8)


def test_a_cost_that_never_varies_is_known_after_thousands_of_batches() -> None:
    times = learned([32] * 3000)
    assert times.seconds(32) == pytest.approx(cost(32))


def test_noise_does_not_add_up() -> None:
    """The speed and the levels, of which each time is the product, stay what they are."""
    random = Random(1)
    times = learned([random.choice([1, 2, 8, 32]) for _ in range(100 * 256)], _noisy(random))
    assert 0.1 < times.speed < 10.0  # what is told is right until a float is too small
    assert times.seconds(32) == pytest.approx(1.3 * cost(32), rel=0.35)


def _noisy(random: Random) -> Callable[[int], float]:
    return lambda size: cost(size) * (1.0 + random.expovariate(1 / 0.3))
