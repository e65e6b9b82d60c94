"""When refused callers may come back: one after the other, and further apart while that is too soon."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._policy.coming_back import ComingBack


def times(coming: ComingBack, callers: int, takes_s: float = 1.0) -> list[float]:
    return [coming.after_s(0.5, takes_s, 0.0) for _ in range(callers)]


@given(st.floats(0.01, 1.0), st.integers(2, 20))
def test_callers_come_back_as_fast_as_the_function_answers(takes_s: float, callers: int) -> None:
    found = times(ComingBack(), callers, takes_s)
    assert found[0] == 0.5
    assert [after - before for before, after in pairwise(found)] == pytest.approx([takes_s] * (callers - 1))


def test_no_caller_is_sent_away_for_more_than_a_minute() -> None:
    """Not all come back."""
    assert 59.0 < max(times(ComingBack(), 1000)) <= 60.0


def test_no_caller_is_told_to_come_back_in_no_time() -> None:
    """Programs take 0 for "not known"."""
    assert ComingBack().after_s(0.0, 0.01, 5.0) == 0.001
    assert ComingBack().after_s(-1.0, 0.01, 5.0) == 0.001


def test_when_nothing_waits_the_next_caller_comes_at_once() -> None:
    coming = ComingBack()
    times(coming, 10)
    coming.all_came()
    assert times(coming, 1) == [0.5]


def apart_s(coming: ComingBack) -> float:
    coming.all_came()
    first, second = times(coming, 2)
    return second - first


def test_times_are_further_apart_while_callers_come_back_too_soon() -> None:
    """As far apart as before once few are refused."""
    coming = ComingBack()
    for _ in range(20):
        coming.started(1, 32.0)
    assert apart_s(coming) == 1.0
    for _ in range(20):
        coming.started(32, 32.0)
    assert apart_s(coming) > 2.0
    for _ in range(500):
        coming.started(0, 32.0)
    assert apart_s(coming) == 1.0


def test_times_are_further_apart_while_the_queue_is_full_but_not_without_end() -> None:
    """Callers would wait for long and find room little more often."""
    coming = ComingBack()
    for _ in range(200):
        coming.started(0, 32.0, is_full=True)
    assert 7.0 < apart_s(coming) < 9.0


def test_a_caller_without_a_place_reads_the_line_and_does_not_move_it() -> None:
    """A list of many batches, which takes turns with others."""
    coming = ComingBack()
    first, second = times(coming, 2)
    assert coming.after_s(30.0, 100.0, 0.0, has_place=False) == 30.0
    (third,) = times(coming, 1)
    assert third - second == second - first


def rooms(coming: ComingBack, *sizes: int, missing: int, left_s: float = 0.5) -> list[int]:
    """Return with which batch the callers of lists find room, one by one.

    Batches have 8 items, which take a second each. So many items of the first list are too many, and all of
    the others.
    """
    found = []
    for size in sizes:
        after_s = coming.room_after_s(missing, size, left_s, 8.0, 100.0)
        missing = size
        batches, late = divmod(after_s - left_s, 8.0)
        assert 0.0 < late < 2.0
        found.append(int(batches))
    return found


def test_a_list_comes_back_once_there_is_room_for_its_last_item() -> None:
    """Behind those that were told before. The first batch starts in half a second, or has just started."""
    assert rooms(ComingBack(), 6, 6, 6, 6, missing=2) == [0, 0, 1, 2]
    assert rooms(ComingBack(), 6, 6, 6, missing=8) == [0, 1, 2]
    assert rooms(ComingBack(), 20, 4, missing=20) == [2, 2]
    assert rooms(ComingBack(), *[1] * 17, missing=1) == [0] * 8 + [1] * 8 + [2]
    assert rooms(ComingBack(), 6, 6, missing=8, left_s=0.0) == [0, 1]


def test_no_caller_waits_for_room_for_no_time_or_for_more_than_a_minute() -> None:
    assert ComingBack().room_after_s(1e-6, 1e-6, 0.0, 1e-6, 0.0) == 0.001
    assert ComingBack().room_after_s(1e6, 1.0, 0.0, 8.0, 0.0) <= 60.0
