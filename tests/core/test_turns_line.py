"""Calls in order of arrival, in a line of their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batched._core.call import Call, Slice
from batched._core.line import Line
from tests.kit.calls import listed

SIZES = st.lists(st.integers(1, 9), max_size=8)
ROOMS = st.lists(st.integers(0, 12), max_size=8)

Item = tuple[Call, int]
"""A call, and the place of an item in it."""


def line_of(*calls: Call) -> Line:
    """Return a line in which these calls wait."""
    line = Line()
    line.extend(calls)
    return line


def items_of(slices: list[Slice]) -> list[Item]:
    """Return the items of slices, one by one."""
    return [(call, at) for call, start, stop in slices for at in range(start, stop)]


def all_items(*calls: Call) -> list[Item]:
    """Return the items that wait, one by one."""
    return [(call, at) for call in calls for at in range(call.size - call.waiting, call.size)]


@given(SIZES, ROOMS)
@example([3, 1, 4], [2, 0, 3, 9])
def test_items_are_taken_in_order_and_no_more_than_there_is_room_for(
    sizes: list[int], rooms: list[int]
) -> None:
    """As many as there are, up to that; each once, and those of a call in one slice for each time."""
    calls = [listed(size) for size in sizes]
    line, waiting = line_of(*calls), all_items(*calls)
    for room in rooms:
        slices: list[Slice] = []
        taken = line.take(room, slices)
        assert taken == min(room, len(waiting))
        assert items_of(slices) == waiting[:taken]
        assert all(start < stop for _, start, stop in slices)
        assert len(slices) == len({call for call, _, _ in slices})
        waiting = waiting[taken:]
        assert all_items(*calls) == waiting
        assert list(line) == [call for call in calls if call.waiting]


def test_slices_come_behind_those_that_there_are() -> None:
    call, other = listed(2), listed(1)
    slices: list[Slice] = [(other, 0, 1)]
    line_of(call).take(9, slices)
    assert slices == [(other, 0, 1), (call, 0, 2)]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=8), st.integers(0, 12))
@example([(2, True), (3, False), (1, True), (4, False), (2, False)], 4)
def test_calls_that_have_left_take_no_room(cases: list[tuple[int, bool]], room: int) -> None:
    """Wherever in the line they are."""
    calls = [listed(size) for size, _ in cases]
    line = line_of(*calls)
    for call, (_, leaves) in zip(calls, cases, strict=True):
        if leaves:
            call.waiting = 0
            line.removed(call, call.size)
    waiting = all_items(*calls)
    slices: list[Slice] = []
    line.take(room, slices)
    assert items_of(slices) == waiting[:room]
    assert all(start < stop for _, start, stop in slices)


@given(SIZES, st.integers(0, 30), st.sets(st.integers(0, 7)), st.integers(0, 4))
@example([3, 1, 4], 5, {1}, 1)
def test_what_is_upcoming_is_what_is_taken_next(
    sizes: list[int], most: int, gone: set[int], begun: int
) -> None:
    """To say so takes nothing; only calls that have left are forgotten."""
    calls = [listed(size) for size in sizes]
    line = line_of(*calls)
    line.take(begun, [])
    for at in gone & {*range(len(calls))}:
        calls[at].waiting = 0
    waiting = all_items(*calls)
    upcoming = line.upcoming(most)
    assert all_items(*calls) == waiting
    slices: list[Slice] = []
    line.take(most, slices)
    assert upcoming == [(call, stop - start) for call, start, stop in slices]


def test_calls_that_have_left_are_forgotten_when_they_are_come_across() -> None:
    """So that they are not looked at each time, behind calls that wait for long."""
    calls = [listed(2) for _ in range(4)]
    line = line_of(*calls)
    for call in (calls[1], calls[3]):
        call.waiting = 0
    assert line.upcoming(4) == [(calls[0], 2), (calls[2], 2)]
    assert [*line] == [calls[0], calls[2], calls[3]]


def test_the_oldest_is_the_first_that_waits() -> None:
    """Though it has begun, and whatever has left before it."""
    line = line_of(*(calls := [listed(3, arrived) for arrived in (1.0, 2.0, 5.0)]))
    line.take(1, [])
    assert line.oldest() == 1.0
    calls[0].waiting = calls[1].waiting = 0
    assert line.oldest() == 5.0


@pytest.mark.parametrize("keeps", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("room", [1, 3, 4, 7])
def test_a_call_that_is_taken_as_a_ctrl_c_comes_is_not_lost(room: int, keeps: bool) -> None:
    """It is in the line, or among the slices, or both, with all of its items."""

    class Interrupted(list[Any]):
        """A list that Ctrl-C comes to, as something is appended: before that, or after."""

        def append(self, piece: Any, /) -> None:
            if keeps:
                super().append(piece)
            raise KeyboardInterrupt

    calls = [listed(3), listed(3), listed(3)]
    line = line_of(*calls)
    line.take(3 * (room > 3), [])
    before = all_items(*calls)
    slices: list[Slice] = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        line.take(room, slices)
    assert {*all_items(*line), *items_of(slices)} == {*before}


def test_a_line_is_one_flow_that_is_told_of_nothing() -> None:
    """What runs in another order is skipped in its turn."""
    calls = [listed(2), listed(2)]
    line = line_of(*calls)
    calls[0].waiting = 0
    line.removed(calls[0], 2, ran=True)
    assert (line.flows, [*line]) == (1, calls)
