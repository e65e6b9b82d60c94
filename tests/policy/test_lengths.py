"""Which items of known lengths go together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batched._core.call import Call
from batched._policy.lengths import Lengths, choose, longest_first
from batched._policy.size_choice import SizeChoice
from tests.kit.batcher_rules import echo
from tests.kit.effort import times
from tests.kit.lengths import Known, items_of, known


def test_where_it_costs_less_than_a_batch_all_that_fit_go() -> None:
    """If more wait, those of like length."""
    items = items_of(20, 3, 2, 19, 18, 1)
    chosen, how = choose(items, 3, known(1.0, 0.02))
    assert (how, [item[0] for item in chosen]) == ("length", [20, 19, 18])
    assert choose(items[:3], 3, known(1.0, 0.02))[1] == "arrival"


def of_sizes(*sizes: int, fixed: float = 1.0, budget: float | None = None) -> Known:
    """Return a rule for batches of these sizes, with a padded unit of length for 0.1 s."""
    rule = known(fixed, 0.1, padded=True)
    rule.sizes, rule.budget = SizeChoice(sizes), budget
    return rule


def lengths_of(items: list[Any], room: int, rule: Known) -> list[float]:
    """Return the lengths of the items that are chosen."""
    return [item[0] for item in choose(items, room, rule)[0]]


def test_where_copies_take_longer_than_another_batch_a_size_is_filled() -> None:
    """With the oldest item in it, wherever that is among items of near lengths."""
    items = items_of(20, 19, 18, 1, 1, 1, 1)
    assert lengths_of(items, 8, of_sizes(1, 2, 8)) == [20, 19]
    items = items_of(18, 19, 20, 1, 1, 1, 1)
    assert lengths_of(items, 8, of_sizes(1, 2, 8)) == [19, 18]
    assert lengths_of(items_of(6, 1, 11), 3, of_sizes(1, 4)) == [6]


def test_else_shorter_items_come_in_the_place_of_copies() -> None:
    """They run in the same time; where too few wait, the rest are copies."""
    items = items_of(20, 19, 18, 1, 1, 1, 1, 1, 1, 1)
    assert lengths_of(items, 8, of_sizes(4, 8)) == [20, 19, 18, 1]
    assert lengths_of(items, 8, of_sizes(4, 8, budget=80)) == [20, 19, 18, 1]
    assert lengths_of(items, 8, of_sizes(4, 8, budget=60)) == [20, 19, 18]
    assert len(lengths_of(items_of(20, 20, 1, 1, 1), 3, of_sizes(8, fixed=0.1))) <= 3


@settings(max_examples=times(300))
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    sizes=st.sets(st.integers(1, 9), min_size=1).map(sorted),
    room=st.integers(1, 9),
    budget=st.sampled_from([None, 30, 200]),
)
def test_of_some_sizes_the_oldest_item_is_in_the_batch_within_room_and_budget(
    lengths: list[float], sizes: list[int], room: int, budget: float | None
) -> None:
    room = min(room, sizes[-1])  # the largest size is `batch_size`
    items = items_of(*lengths)
    chosen, _ = choose(items, room, of_sizes(*sizes, budget=budget))
    assert items[0] in chosen
    assert 1 <= len(chosen) <= room
    longest = max(item[0] for item in chosen)
    assert budget is None or len(chosen) == 1 or len(chosen) * longest <= budget


@settings(max_examples=times(300))
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from([None, 5, 100]),
    st.booleans(),
)
def test_no_other_batches_take_less_time(
    lengths: list[float], room: int, per_length: float, budget: int | None, padded: bool
) -> None:
    """Beside all ways to split the items; in order of length, if what is short makes room in the budget."""
    rule = known(1.0, per_length, padded=padded)
    rule.budget = budget
    items = items_of(*lengths)
    in_order = sorted(items, key=longest_first)
    least = min(
        sum(seconds(batch, rule) for batch in split)
        for split in splits_of(in_order, room, rule)
        if budget is None
        or padded
        or sum(sorted(split, key=lambda batch: longest_first(batch[0])), []) == in_order
    )
    split = split_of(items, room, rule)
    assert sum(split, []) == in_order
    assert all(len(batch) == 1 or fits(batch, room, rule) for batch in split)
    assert sum(seconds(batch, rule) for batch in split) == pytest.approx(least)
    for due in (None, *items):
        chosen, how = choose(items, room, rule, due)
        if how == "arrival":
            assert chosen == items[: len(chosen)]
        else:
            assert chosen in split
            assert (due or items[0]) in chosen


class AlwaysByLength(Known):
    """Lengths that decide whatever they cost."""

    def is_costly(self, lengths: list[float], in_sight: int) -> bool:
        """Return that another batch is worth it."""
        return True

    def waste_s(self, lengths: list[float]) -> float:
        """Return that padding takes forever."""
        return inf


def split_of(items: list[Any], room: int, rule: Known) -> list[list[Any]]:
    """Return the batches that items go in where their lengths decide, the longest items first."""
    always = known(rule.cost.fixed, rule.cost.per_length, padded=rule.padded, kind=AlwaysByLength)
    always.budget = rule.budget
    batches: list[list[Any]] = []
    for item in sorted(items, key=longest_first):
        batch, _ = choose(items, room, always, item)
        assert item in batch
        if batch not in batches:
            batches.append(batch)
    return batches


def seconds(batch: list[Any], lengths: Lengths) -> float:
    cost = lengths.cost
    return cost.another_batch + len(batch) * cost.each_of(max(item[0] for item in batch))


def fits(batch: list[Any], room: int, lengths: Lengths) -> bool:
    own = [item[0] for item in batch]
    return len(batch) <= room and not lengths.exceeds(len(batch), max(own), sum(own))


def splits_of(items: list[Any], room: int, lengths: Lengths) -> Iterator[list[list[Any]]]:
    """Yield all ways to divide `items` into batches within their bounds."""
    if not items:
        yield []
        return
    first, *others = items
    for split in splits_of(others, room, lengths):
        yield [[first], *split]
        for at, batch in enumerate(split):
            if fits([first, *batch], room, lengths):
                yield [*split[:at], [first, *batch], *split[at + 1 :]]


def test_neighbours_in_order_are_pairs() -> None:
    """Groups never overlap in length."""
    items = [
        (length, at, Call().begin(echo, None, 1, False, 0.0), 0)
        for at, length in enumerate([9, 1, 8, 2, 7, 3])
    ]
    left = items
    groups = []
    while left:
        chosen, _ = choose(left, 4, known(1.0, 1.0))
        groups.append(sorted(item[0] for item in chosen))
        left = [item for item in left if item not in chosen]
    assert all(a[-1] <= b[0] or b[-1] <= a[0] for a, b in pairwise(groups))
