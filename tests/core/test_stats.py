"""The histograms behind `stats`, and the table that it prints."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.histograms import Sizes, Times
from batched._core.stats import Distribution


def exact_percentile(values: list[Any], percent: float) -> Any:
    """The least value that `percent` % of all are at most."""
    rank = len(values) * percent / 100
    return sorted(values)[max(ceil(rank), 1) - 1]


def times_of(values: list[float]) -> Distribution:
    """Count the values in three portions."""
    times = Times()
    for start in range(3):
        times.add(values[start::3])
    return times.snapshot()


def sizes_of(values: list[int]) -> Distribution:
    sizes = Sizes()
    for size, times in Counter(values).items():
        sizes.add(size, times)
    return sizes.snapshot()


SECONDS = st.lists(st.floats(0, 1e6), min_size=1)


SIZES = st.lists(st.integers(1, 4096), min_size=1)


@given(SECONDS, st.floats(0, 100))
def test_a_percentile_of_times_is_within_9_percent_of_the_exact_one(
    values: list[float], percent: float
) -> None:
    """Or a microsecond; count, sum, least and greatest are exact, and nothing is outside of what was seen."""
    found = times_of(values)
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))
    assert found.sum == pytest.approx(sum(values))
    exact = exact_percentile(values, percent)
    assert found.percentile(percent) == pytest.approx(exact, rel=2 ** (1 / 8) - 1 + 1e-9, abs=1e-6)
    assert found.min <= found.percentile(percent) <= found.max
    assert found.percentile(100) == found.max


@given(SIZES, st.floats(0, 100))
def test_a_percentile_of_sizes_is_exact(values: list[int], percent: float) -> None:
    """However they are spread."""
    found = sizes_of(values)
    assert (found.count, found.sum, found.min, found.max) == (
        len(values),
        sum(values),
        min(values),
        max(values),
    )
    assert found.percentile(percent) == exact_percentile(values, percent)


@given(st.lists(st.integers(1, 10**9), min_size=1), st.floats(0, 100))
def test_a_percentile_of_large_sizes_is_almost_exact(values: list[int], percent: float) -> None:
    """Within 0.05 %, and one that all batches have is exact."""
    found = sizes_of(values)
    assert found.percentile(percent) == pytest.approx(exact_percentile(values, percent), rel=0.0005)
    assert found.min <= found.percentile(percent) <= found.max
    alike = sizes_of(values[:1] * 5)
    assert alike.percentile(percent) == values[0]


def test_sizes_take_bounded_memory() -> None:
    """Whatever the batch size: here a million, where every size that is counted is another."""
    found = sizes_of(list(range(1, 1_000_000, 5)))
    assert found.count == 200_000
    assert len(found.bounds) < 25_000


@given(SECONDS, st.integers(-2, 40))
def test_times_up_to_a_doubling_of_a_microsecond_are_counted_exactly(
    values: list[float], doublings: int
) -> None:
    """As Prometheus asks for them: a value that is the bound counts."""
    bound = 1e-6 * 2.0**doublings
    values = [*values, bound]
    if doublings < 0:
        assert times_of(values).at_most(bound) == 0
    else:
        assert times_of(values).at_most(bound) == sum(value <= bound for value in values)


@given(SIZES, st.integers(0, 5000))
def test_sizes_up_to_any_bound_are_counted_exactly(values: list[int], bound: int) -> None:
    """As Prometheus asks for them: a size that is the bound counts."""
    assert sizes_of(values).at_most(bound) == sum(value <= bound for value in values)


def test_an_empty_distribution_is_all_zeros() -> None:
    """And a percentile outside 0 to 100 is refused."""
    distribution = Times().snapshot()
    assert (distribution.count, distribution.mean, distribution.percentile(99)) == (0, 0.0, 0.0)
    assert (distribution.min, distribution.max, distribution.at_most(1)) == (0.0, 0.0, 0)
    with pytest.raises(ValueError, match="percent must be from 0 to 100, got 101"):
        distribution.percentile(101)
