"""When items join a batch that runs, on made-up steps."""

from __future__ import annotations

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._policy.joining import Joining

STEP_S = 0.01


def saturated(
    fixed_s: float, each_s: float, places: int, length: int, items: int = 2000
) -> tuple[Joining, float]:
    """Run a batch of so many places, for which calls always wait; return the items per step."""
    rng = random.Random(0)
    joining = Joining()
    live: list[int] = []
    steps = done = joined = 0
    while done < items:
        room = places - len(live)
        joined = joining.room(len(live), places, 10 * places) if room and live else room
        live += [rng.randint(1, 2 * length - 1) for _ in range(joined)]
        ended = live.count(1)
        joining.stepped(len(live), joined, STEP_S + (fixed_s + each_s * joined if joined else 0.0), ended)
        live = [left - 1 for left in live if left > 1]
        done += ended
        steps += 1
    return joining, items / steps


@given(
    live=st.integers(1, 64),
    more=st.integers(1, 64),
    waiting=st.integers(1, 200),
    steps=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8), st.floats(0, 1), st.integers(0, 8))),
)
def test_all_that_fit_join_or_none(
    live: int, more: int, waiting: int, steps: list[tuple[int, int, float, int]]
) -> None:
    """Whatever steps have taken, also nothing at all."""
    joining = Joining()
    for there, joined, seconds, ended in steps:
        joining.stepped(there, joined, seconds, ended)
    assert joining.room(live, live + more, waiting) in {0, min(more, waiting)}


def test_where_joining_is_free_items_join_at_once() -> None:
    """And nothing is lost."""
    joining, _ = saturated(0.0, 0.0, 32, 20)
    assert joining.room(31, 32, 5) == 1
    assert joining.room(3, 32, 1) == 1


@pytest.mark.parametrize(("fixed", "places", "length"), [(1.0, 32, 20), (5.0, 64, 50), (10.0, 16, 30)])
def test_where_joining_is_dear_items_join_together(fixed: float, places: int, length: int) -> None:
    """As many as the formula says: with one fewer none do."""
    joining, _ = saturated(fixed * STEP_S, 0.0, places, length)
    ends = places / length
    half = fixed * ends
    best = sqrt(half**2 + 2 * half * places) - half
    joins = next(free for free in range(1, places + 1) if joining.room(places - free, places, 10 * places))
    assert joins == pytest.approx(best, abs=0.25 * best + 1)


def test_a_lone_item_joins_where_few_are_there() -> None:
    """Though joining is dear: callers that come by themselves would only wait."""
    joining, _ = saturated(5 * STEP_S, 0.0, 64, 50)
    assert joining.room(2, 64, 1) == 1


def test_it_is_found_out_what_a_step_takes_where_items_join_at_each() -> None:
    """A step in a while has none that join, until two have told: the first may have compiled something."""
    joining = Joining()
    joins = []
    for _ in range(24):
        joined = joining.room(4, 8, 4)
        joins.append(joined)
        joining.stepped(8, joined, STEP_S, 4)
    assert 0 in joins[:6]
    assert joins[12:].count(0) == 0


@pytest.mark.parametrize("compiles", [0, 3])
def test_a_step_that_compiles_teaches_nothing(compiles: int) -> None:
    """The first without items that join, or the first with some of which the time is known."""
    learned = []
    for times in (1, 1000):
        joining = Joining()
        for at in range(40):
            joined = 2 * (at % 2)
            usual = STEP_S * (6 if joined else 1)
            joining.stepped(8, joined, usual * (times if at == compiles else 1), 1)
        learned.append([joining.room(16 - free, 16, 160) for free in range(1, 16)])
    assert learned[0] == learned[1]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_items_do_not_wait_for_more_than_may_join_at_one_step(limit: int) -> None:
    """Though it would pay if more could."""
    joining, _ = saturated(10 * STEP_S, 0.0, 16, 30)
    assert joining.room(12, 16, 4) == 0
    assert joining.room(12, 16, 4, limit) == limit
    assert joining.room(12, 16, limit, limit) == limit


def test_a_batch_that_never_ends_lets_items_join() -> None:
    """As nothing ends, no place is worth a wait for others."""
    joining, _ = saturated(10 * STEP_S, 0.0, 8, 20)
    for _ in range(500):
        joining.stepped(4, 0, STEP_S, 0)
    assert joining.room(4, 8, 1) == 1
