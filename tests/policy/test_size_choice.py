"""Fewer items, or copies: whichever takes less until all that wait have run."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from batched._policy.size_choice import SizeChoice

SIZES = (1, 2, 4, 8)
ENOUGH = 10  # batches, so that a time is known


def knowing(seconds: Callable[[int], float], sizes: tuple[int, ...] = SIZES) -> SizeChoice:
    """Return one that has seen batches of each size."""
    choice = SizeChoice(sizes)
    for size in sizes:
        for _ in range(ENOUGH):
            choice.ran(size, seconds(size))
    return choice


@given(items=st.integers(1, 50), sizes=st.sets(st.integers(1, 50), min_size=1).map(sorted))
def test_sizes_around_a_number_of_items(items: int, sizes: list[int]) -> None:
    choice = SizeChoice(tuple(sizes))
    assert choice.at_most(items) == max((size for size in sizes if size <= items), default=0)
    assert choice.size_of(items) == min((size for size in sizes if size >= items), default=sizes[-1])


def test_until_times_are_known_batches_are_filled_up_but_for_rare_trials() -> None:
    choice = SizeChoice(SIZES)
    chosen = [choice.choose(5) for _ in range(64)]
    assert set(chosen) == {4, 5}
    assert chosen.count(4) == 4


def test_a_fixed_cost_is_a_reason_to_fill_up() -> None:
    """One run of 8 takes 1.8, runs of 4 and 1 take 2.5."""
    choice = knowing(lambda size: 1.0 + 0.1 * size)
    assert choice.choose(5) == 5
    assert choice.choose(8) == 8


def test_where_items_cost_a_size_is_filled() -> None:
    """One run of 8 takes 8.1, runs of 4 and 1 take 5.2."""
    choice = knowing(lambda size: 0.1 + size)
    assert choice.choose(5) == 4
    assert choice.choose(7) == 4


def test_the_rest_may_be_filled_up_in_its_turn() -> None:
    """7 of 4 and 8 runs as 4 and 4 where 8 takes far more."""
    choice = knowing({4: 1.0, 8: 3.0}.__getitem__, (4, 8))
    assert choice.choose(7) == 4
    assert choice.choose(3) == 3


def test_one_by_one_is_weighed_too() -> None:
    assert knowing({1: 1.0, 64: 100.0}.__getitem__, (1, 64)).choose(63) == 1
    assert knowing({1: 1.0, 64: 50.0}.__getitem__, (1, 64)).choose(63) == 63


@given(
    times=st.lists(st.floats(0.001, 10.0), min_size=4, max_size=4).map(sorted),
    items=st.integers(1, 8),
)
def test_the_choice_is_never_much_worse_than_the_best_one(times: list[float], items: int) -> None:
    """Of all ways to run these items in these sizes; larger ones take no less."""
    seconds = dict(zip(SIZES, times, strict=True))
    choice = knowing(seconds.__getitem__)
    best = [0.0, *[inf] * 8]
    for many in range(1, 9):
        best[many] = min(seconds[size] + best[max(many - size, 0)] for size in SIZES)
    total, left = 0.0, items
    while left:
        taken = choice.choose(left)
        total += seconds[choice.size_of(taken)]
        left -= taken
    assert total <= seconds[choice.size_of(items)] * (1 + 1e-9)


def test_a_trial_keeps_times_true() -> None:
    """A size that was found slow once is tried again, rarely."""
    choice = knowing(lambda size: 1.0 + 0.1 * size)
    chosen = [choice.choose(5) for _ in range(1024)]
    assert chosen.count(4) == 2


def test_a_size_of_which_too_few_batches_ran_is_not_known() -> None:
    choice = SizeChoice(SIZES)
    assert choice.seconds(4) is None
    choice.ran(4, 1.0)
    choice.ran(3, 1.0)  # none of the sizes
    assert choice.seconds(4) is None
