"""Values in buckets, made by hand."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batched._core.stats import Distribution

Counts = dict[int, int]
"""How many values there are in each bucket, by the power of two that bounds it."""

COUNTS = st.dictionaries(st.integers(-3, 10), st.integers(1, 9), max_size=6)
EMPTY = Distribution((), (), 2.0, 0.0, 0.0, 0.0)


def of(counts: Counts) -> Distribution:
    """Return a distribution of values that all lie in the middle of their bucket."""
    if not counts:
        return EMPTY
    powers = sorted(counts)
    middles = [0.75 * 2.0**power for power in powers]
    return Distribution(
        tuple(2.0**power for power in powers),
        tuple(accumulate(counts[power] for power in powers)),
        2.0,
        sum(0.75 * 2.0**power * number for power, number in counts.items()),
        middles[0],
        middles[-1],
    )


@given(COUNTS)
@example({})
@example({3: 2, 4: 2})
def test_count_and_mean_are_those_of_all_values(counts: Counts) -> None:
    """Without a value, the mean is 0."""
    found = of(counts)
    assert found.count == sum(counts.values())
    values = [0.75 * 2.0**power for power, number in counts.items() for _ in range(number)]
    assert found.mean == pytest.approx(sum(values) / len(values) if values else 0.0)


@pytest.mark.parametrize(
    ("percent", "value"),
    [(0, 6.0), (10, 6.0), (25, 6.0), (37.5, 7.0), (50, 8.0), (75, 12.0), (90, 14.4), (100, 15.0)],
)
def test_a_percentile_lies_in_its_bucket_as_far_as_its_share_of_it(percent: float, value: float) -> None:
    """Four values between 4 and 8, none below 6; and four between 8 and 16, none above 15."""
    assert Distribution((8.0, 16.0), (4, 8), 2.0, 80.0, 6.0, 15.0).percentile(percent) == pytest.approx(value)


@given(COUNTS.filter(bool), st.lists(st.floats(0, 100), min_size=2))
@example({0: 1}, [0.0, 100.0])
@example({0: 1, 5: 1}, [50.0, 50.1])
def test_percentiles_grow_from_the_least_value_to_the_greatest(counts: Counts, percents: list[float]) -> None:
    """And each lies in the bucket of the value that it stands for."""
    found = of(counts)
    percentiles = [found.percentile(percent) for percent in sorted(percents)]
    assert all(lower <= upper for lower, upper in pairwise(percentiles))
    assert all(found.min <= percentile <= found.max for percentile in percentiles)
    assert found.percentile(100) == found.max
    powers = [power for power in sorted(counts) for _ in range(counts[power])]
    for percent, percentile in zip(sorted(percents), percentiles, strict=True):
        power = powers[max(ceil(len(powers) * percent / 100), 1) - 1]
        assert 2.0 ** (power - 1) <= percentile <= 2.0**power


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan")])
@pytest.mark.parametrize("counts", [{}, {0: 1}])
def test_a_percent_that_is_none_is_refused(percent: float, counts: Counts) -> None:
    with pytest.raises(ValueError, match="percent must be from 0 to 100, got"):
        of(counts).percentile(percent)


@given(COUNTS, st.integers(-4, 11))
@example({2: 3, 4: 1}, 3)
@example({2: 3, 4: 1}, 4)
def test_values_up_to_a_bound_are_those_of_the_buckets_that_lie_below(counts: Counts, power: int) -> None:
    """A bucket counts if it ends at the value or below; one that has the value inside does not."""
    found = of(counts)
    below = sum(number for each, number in counts.items() if each <= power)
    assert found.at_most(2.0**power) == below
    assert found.at_most(2.0 ** (power + 0.5)) == below


@given(COUNTS, COUNTS)
@example({1: 2, 3: 1}, {2: 4, 3: 1})
@example({}, {5: 1})
@example({5: 1}, {})
def test_what_has_come_since_is_what_there_was_not_before(before: Counts, more: Counts) -> None:
    """Bucket by bucket, whichever there were before; the least and greatest value are as its buckets say."""
    both = {power: before.get(power, 0) + more.get(power, 0) for power in {*before, *more}}
    found, expected = of(both).since(of(before)), of(more)
    assert (found.bounds, found.cumulative) == (expected.bounds, expected.cumulative)
    assert found.sum == pytest.approx(expected.sum)
    assert found.growth == of(both).growth
    if more:
        assert max(2.0 ** (min(more) - 1), of(both).min) <= found.min <= expected.min
        assert expected.max <= found.max <= min(2.0 ** max(more), of(both).max)


@given(COUNTS)
@example({1: 1})
def test_nothing_has_come_since_now(counts: Counts) -> None:
    assert of(counts).since(of(counts)) == EMPTY
