"""Deadlines that change while their calls wait."""

from __future__ import annotations

from batched._core.call import Call
from batched._core.lazy_heap import Deadlines


def test_a_deadline_that_is_put_off_makes_way_for_the_next() -> None:
    """As when a caller with more time, or with no deadline, joins an equal item in flight."""
    calls = [Call().begin(list, None, 1, False, 0.0, deadline) for deadline in (1.0, 2.0, 3.0)]
    deadlines = Deadlines()
    for call in calls:
        deadlines.add(call, call.deadline or 0.0)
    assert deadlines.start() == 0.5
    calls[0].deadline = 8.0
    calls[1].deadline = None
    assert (deadlines.start(), deadlines.first()) == (1.5, calls[2])
    assert list(deadlines.passed(4.0)) == [calls[2]]
    assert deadlines.start() == 4.0
    calls[0].waiting = 0
    assert (deadlines.start(), list(deadlines.passed(9.0))) == (float("inf"), [])


def test_lists_that_wait_are_found_behind_many_that_do_not() -> None:
    """As behind small lists that have started, while an older one waits."""
    deadlines = Deadlines()
    calls = [Call().begin(list, None, 2, True, 0.0, 9.0) for _ in range(1000)]
    for call in calls:
        deadlines.add(call, 9.0)
        if 0 < calls.index(call) < 990:
            call.waiting = 0
    assert deadlines.lists() == [calls[0], *calls[990:]]
