"""Entries in order of a rank that only grows."""

from __future__ import annotations

from math import inf
from typing import Any
from weakref import ref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batched._core.lazy_heap import LEAST_LIMIT, DeadlineHeap, LazyHeap
from tests.kit.effort import times


class Entry:
    """What has a rank, or none any more; it counts how often it is asked for it."""

    def __init__(self, rank: float | None) -> None:
        self.rank = rank
        self.asked = 0

    def told(self) -> float | None:
        """Return the rank."""
        self.asked += 1
        return self.rank

    @property
    def deadline(self) -> float | None:
        """The same, as calls have it."""
        return self.rank


def heap_of(*entries: Entry) -> Any:
    """Return a heap to which these entries have been added, one after another."""
    heap = LazyHeap(Entry.told)
    for entry in entries:
        heap.add(entry, entry.rank or 0.0)
    return heap


def deadlines_of(*entries: Entry) -> Any:
    """Return a heap of deadlines, likewise."""
    heap: Any = DeadlineHeap(lambda entry: entry.deadline is not None)
    for entry in entries:
        heap.add(ref(entry), entry.rank or 0.0)
    return heap


def drained(heap: LazyHeap[Entry, float]) -> list[Entry]:
    """Remove and return all entries, the first one first."""
    found = []
    while heap.first() is not None:
        found.append(heap.pop())
    return found


@given(st.lists(st.integers(0, 9), max_size=4 * LEAST_LIMIT))
@example([2, 0, 2, 1, 0, 2])
@example(
    [*range(2 * LEAST_LIMIT, 0, -1), *[LEAST_LIMIT] * LEAST_LIMIT]
)  # more than are kept without a look at all of them
def test_entries_come_in_order_of_their_rank_and_equal_ones_as_they_came(ranks: list[int]) -> None:
    entries = [Entry(rank) for rank in ranks]
    assert drained(heap_of(*entries)) == sorted(entries, key=lambda entry: entry.rank or 0)


CHANGES = st.tuples(
    st.sampled_from(["add", "raise", "forget", "pop", "look"]), st.integers(0, 5), st.integers(0, 4)
)


@given(st.lists(CHANGES, max_size=60))
@settings(max_examples=times(500))
def test_the_first_has_the_least_rank_whatever_has_changed_since(
    changes: list[tuple[str, int, int]],
) -> None:
    """Beside a plain table: ranks that grow or end, entries that are taken, and come again."""
    entries = [Entry(0) for _ in range(6)]
    ranks = [0] * 6
    heap: LazyHeap[Entry, float] = LazyHeap(Entry.told)
    known: set[Entry] = set()
    for change, at, by in changes:
        entry = entries[at]
        if change == "add" or (change == "raise" and entry.rank is not None):
            ranks[at] += by
            entry.rank = ranks[at]
        if change == "add":
            heap.add(entry, ranks[at])
            known.add(entry)
        elif change == "forget":  # it comes again only if it is added
            entry.rank = None
            known.discard(entry)
        least = min((each.rank for each in known if each.rank is not None), default=None)
        if change in {"pop", "look"}:
            first = heap.first()
            assert (None if first is None else first.rank) == least
            assert first in known or not known
            if first is not None and change == "pop":
                assert heap.pop() is first
                known.remove(first)
    left = drained(heap)
    assert len(left) == len({*left})
    assert {*left} == known


def test_an_entry_has_one_place_however_often_it_is_added() -> None:
    """Until it is taken or forgotten; then it can come again."""
    one, other = Entry(1), Entry(2)
    heap = heap_of(one, other, one, one)
    assert len(heap) == 2
    assert drained(heap) == [one, other]
    heap.add(one, 1)
    one.rank = None
    assert heap.first() is None
    one.rank = 3
    heap.add(one, 3)
    assert drained(heap) == [one]


def test_a_rank_that_grows_to_that_of_others_goes_behind_them() -> None:
    late, early = Entry(1), Entry(2)
    heap = heap_of(late, early)
    late.rank = 2
    assert drained(heap) == [early, late]


def test_a_change_is_found_when_its_entry_comes_to_the_top_and_no_sooner() -> None:
    """Adding asks for no rank, and a look for that of the first alone, unless this has changed."""
    entries = [Entry(rank) for rank in range(LEAST_LIMIT)]
    heap = heap_of(*entries)
    entries[0].rank = None
    entries[1].rank = LEAST_LIMIT
    entries[9].rank = None
    assert [entry.asked for entry in entries] == [0] * LEAST_LIMIT
    assert heap.first() is entries[2]
    assert [entry.asked for entry in entries] == [1, 1, 1] + [0] * (LEAST_LIMIT - 3)


@pytest.mark.parametrize("alive", [1, 5 * LEAST_LIMIT])
def test_entries_without_a_rank_do_not_pile_up_behind_one_that_has_one(alive: int) -> None:
    """No more than as many as have a rank, or a few; each is asked two times on average at most."""
    entries = [Entry(rank) for rank in range(alive)]
    heap = heap_of(*entries)
    for rank in range(alive, alive + 5000):
        entries.append(Entry(rank))
        heap.add(entries[-1], rank)
        entries[-1].rank = None
        assert len(heap) <= max(LEAST_LIMIT, 2 * (alive + 1))
    asked = sum(entry.asked for entry in entries)
    assert asked <= 2 * len(entries)
    assert drained(heap) == entries[:alive]


def test_entries_that_have_been_swept_out_can_come_again() -> None:
    """Those that were forgotten because there were many, though they never came to the top."""
    first, gone = Entry(0), Entry(1)
    heap = heap_of(first, gone)
    gone.rank = None
    others = [Entry(2) for _ in range(LEAST_LIMIT)]
    for other in others:
        heap.add(other, 2)
    gone.rank = 3
    heap.add(gone, 3)
    assert drained(heap) == [first, *others, gone]


def test_a_heap_that_is_cleared_is_as_new() -> None:
    entries = [Entry(rank) for rank in (2, 1)]
    heap = heap_of(*entries)
    heap.clear()
    assert (len(heap), heap.first()) == (0, None)
    for entry in entries:
        heap.add(entry, entry.rank)
    assert drained(heap) == entries[::-1]


@given(st.lists(st.integers(0, 20), max_size=30), st.lists(st.integers(0, 20), max_size=3))
@example([5, 1, 3, 3], [3])
def test_what_has_passed_are_the_deadlines_up_to_now_soonest_first(
    deadlines: list[int], looks: list[int]
) -> None:
    """Each once; `next` is the soonest of the others, and `inf` without any."""
    entries = [Entry(deadline) for deadline in deadlines]
    heap = deadlines_of(*entries)
    entries.sort(key=lambda entry: entry.rank or 0)
    for now in [*sorted(looks), 20]:
        passed = [entry for entry in entries if (entry.rank or 0) <= now]
        assert list(heap.passed(now)) == passed
        entries = entries[len(passed) :]
        assert heap.next() == (entries[0].rank if entries else inf)


def test_the_next_deadline_is_that_of_an_entry_that_has_one_still() -> None:
    entries = [Entry(1), Entry(2)]
    heap = deadlines_of(*entries)
    assert heap.next() == 1
    entries[0].rank = None
    assert heap.next() == 2
    entries[1].rank = 4
    assert list(heap.passed(3)) == []
    assert heap.next() == 4
