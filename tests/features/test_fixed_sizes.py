"""The feature that gives batches one of a few sizes, without a batcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.batch import Batch
from batched._core.halves import Half
from batched._core.options import Options, StreamOptions
from batched._features.fixed_sizes import FixedSizes
from batched._policy.search import Search
from batched._policy.size_choice import SizeChoice
from tests.kit.calls import listed, single
from tests.kit.river import StandInRiver, batch_of, run_of

ALL = ("room", "took", "ended", "lesson")


class Alone:
    """The feature, and what it sees."""

    def __init__(self, *sizes: int, streams: bool = False, lengths: Any = None) -> None:
        self.river: Any = StandInRiver(lengths)
        kind = StreamOptions if streams else Options
        self.river.options = kind(batch_sizes=sizes or None, batch_size=max(sizes, default=8))
        self.feature = FixedSizes(SizeChoice())
        self.feature.begin(self.river, self.river.options)

    def take(self, batch: Batch) -> Any:
        """Have a batch taken; return its copies, None if it has none."""
        self.feature.took(batch, 1.0)
        return getattr(batch, "copies", None)


def test_without_the_option_it_has_no_hook_and_every_size_is_one() -> None:
    alone = Alone()
    assert alone.feature.hooks == ()
    choice = alone.feature.choice
    assert [choice.size_of(5), choice.at_most(5), choice.choose(5), choice.smallest] == [5, 5, 5, 1]


def test_of_streams_no_time_is_learned() -> None:
    assert Alone(2, 4).feature.hooks == ALL
    assert Alone(2, 4, streams=True).feature.hooks == ("took", "ended")


def test_sizes_around_a_number() -> None:
    choice = Alone(2, 4).feature.choice
    assert [choice.size_of(items) for items in (1, 2, 3, 4)] == [2, 2, 4, 4]
    assert [choice.at_most(items) for items in (1, 2, 3, 9)] == [0, 2, 2, 4]
    assert choice.smallest == 2


def test_a_batch_is_filled_up_with_its_last_item() -> None:
    assert Alone(2, 4).take(batch_of(3)) == (1, (2, 0))
    assert Alone(2, 4).take(Batch([(single(), 0, 1), (listed(9), 3, 5)], 3)) == (1, (1, 4))
    assert Alone(2, 4).take(batch_of(4)) is None


def test_or_with_its_shortest_item_where_lengths_are_known() -> None:
    batch = batch_of(3)
    for call, length in zip(batch.calls, (3.0, 1.0, 2.0), strict=True):
        call.lengths = length
    assert Alone(4).take(batch) == (1, (1, 0))


@pytest.mark.parametrize(("padded", "copies"), [(False, (1, (2, 0))), (True, None)])
def test_a_batch_that_copies_bring_over_the_budget_is_cut(padded: bool, copies: Any) -> None:
    """Of lists lengths add up; rows of arrays are as long as the longest."""
    alone = Alone(1, 2, 4, lengths=SimpleNamespace(budget=9, padded=padded))
    batch = batch_of(3)
    for call, length in zip(batch.calls, (3.0, 3.0, 1.5), strict=True):
        call.lengths = length
    calls = batch.calls
    assert alone.take(batch) == copies
    if copies is None:
        [rest] = alone.river.first
        assert (batch.calls, rest.calls) == (calls[:2], calls[2:])
        assert (batch.size, rest.size, rest.reason) == (2, 1, batch.reason)


def test_the_smallest_size_holds_whatever_the_budget() -> None:
    alone = Alone(4, lengths=SimpleNamespace(budget=1, padded=False))
    batch = batch_of(1)
    batch.calls[0].lengths = 5.0
    assert alone.take(batch) == (3, (0, 0))


def test_items_that_are_used_up_have_no_copy() -> None:
    """Another one is looked for; else the batch is cut, and if it fills no size, the collator says so."""
    alone = Alone(2, 4)
    used_up: set[Any] = set()
    alone.river.can_repeat = lambda batch: batch.calls[0] not in used_up
    batch = batch_of(3)
    used_up.update(batch.calls[1:])
    assert alone.take(batch) == (1, (0, 0))
    batch = batch_of(3)
    used_up.update(batch.calls)
    assert alone.take(batch) is None
    assert (batch.size, alone.river.first[0].size) == (2, 1)
    assert alone.take(alone.river.first[0]) == (1, None)


def test_what_is_cut_off_stays_in_its_search() -> None:
    alone = Alone(1, 2, 4)
    alone.river.can_repeat = lambda _: False
    error, search = ValueError(), Search(4, 0.0)
    part = Half(batch_of(3).slices, 3, error, search)
    alone.take(part)
    [rest] = alone.river.first
    assert (rest.error, rest.search, part.search) == (error, search, search)


def test_copies_are_counted_with_each_run_and_times_are_those_of_sizes() -> None:
    alone = Alone(2, 4)
    for _ in range(10):
        run = run_of(3, 0.5)
        alone.take(run.batch)
        alone.feature.ended(run)
        alone.feature.lesson(run)
    assert alone.river.counters.copies == 10
    assert alone.feature.choice.seconds(4) == pytest.approx(0.5)
    for _ in range(10):
        alone.feature.lesson(run_of(4, 9.0, failed=1))  # it tells nothing
    assert alone.feature.choice.seconds(4) == pytest.approx(0.5)


def test_where_the_queue_has_chosen_another_number_it_is_weighed_too() -> None:
    """But not of parts of a batch: what becomes of these is for others to say."""
    alone = Alone(1, 4, 8)
    for size in (1, 4, 8):
        for _ in range(10):
            alone.feature.lesson(run_of(size, size / 10))
    assert alone.feature.room(None, 8, 1.0) == 8
    batch = batch_of(5)
    assert alone.take(batch) is None
    assert (batch.size, alone.river.first[0].size) == (4, 1)
    assert alone.take(Half(batch_of(5).slices, 5, None, None)) == (3, (4, 0))


def test_it_says_how_many_items_a_batch_has() -> None:
    alone = Alone(4, 8)
    assert alone.feature.room(None, 6, 1.0) == 6
    for size in (4, 8):
        for _ in range(10):
            alone.feature.lesson(run_of(size, {4: 0.1, 8: 0.9}[size]))
    assert alone.feature.room(None, 6, 1.0) == 4
