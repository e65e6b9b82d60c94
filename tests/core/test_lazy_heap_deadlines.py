"""Deadlines that change while their calls wait."""

from __future__ import annotations

from math import inf

from hypothesis import example, given
from hypothesis import strategies as st

from batched._core.call import Call
from batched._core.lazy_heap import LEAST_LIMIT, Deadlines


def call_with(deadline: float, size: int = 1, arrived: float = 0.0) -> Call:
    """Return a call that has a deadline."""
    return Call().begin(list, None, size, size > 1, arrived, deadline)


def watched(*calls: Call) -> Deadlines:
    """Return the deadlines of these calls."""
    deadlines = Deadlines()
    for call in calls:
        deadlines.watch(call, call.deadline or 0.0)
    return deadlines


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=20), st.integers(0, 9))
@example([(3, True), (1, False), (2, True), (2, True), (5, True)], 2)
def test_calls_that_wait_pass_in_order_of_their_deadline(cases: list[tuple[int, bool]], now: int) -> None:
    """Those of which no item waits do not pass: they run, or have their answer."""
    calls = [call_with(deadline) for deadline, _ in cases]
    deadlines = watched(*calls)
    for call, (_, waits) in zip(calls, cases, strict=True):
        call.waiting = int(waits)
    waiting = sorted((call for call in calls if call.waiting), key=lambda call: call.deadline or 0.0)
    passed = [call for call in waiting if (call.deadline or 0.0) <= now]
    assert list(deadlines.passed(now)) == passed
    later = waiting[len(passed) :]
    assert deadlines.first_call() is (later[0] if later else None)
    assert deadlines.next() == (later[0].deadline if later else inf)
    assert list(deadlines.passed(9)) == later


def test_a_call_waits_for_company_for_half_of_its_time() -> None:
    assert watched(call_with(14.0, arrived=10.0), call_with(20.0, arrived=0.0)).start() == 12.0
    assert watched().start() == inf


def test_no_call_is_kept() -> None:
    """It ends where it is dropped; here that is no matter of the deadlines."""
    calls = [call_with(1.0, size) for size in (1, 2)]
    deadlines = watched(*calls)
    assert deadlines.lists() == [calls[1]]
    calls.clear()
    assert (deadlines.first_call(), deadlines.next(), deadlines.lists()) == (None, inf, [])
    assert list(deadlines.passed(2.0)) == []


def test_once_all_is_forgotten_no_call_is_late() -> None:
    """As where a queue begins anew: single calls and lists."""
    deadlines = watched(call_with(1.0), call_with(2.0, size=2))
    deadlines.clear()
    assert (deadlines.first_call(), deadlines.lists(), [*deadlines.passed(9.0)]) == (None, [], [])
    assert deadlines.spare_s(0.0) == inf
    deadlines.watch(call := call_with(3.0), 3.0)
    assert deadlines.first_call() is call
    assert deadlines.spare_s(1.0) == 2.0


def test_what_is_said_to_be_after_a_time_is_after_it() -> None:
    """A call that waits no more may stand in the way, until it is looked at. A list is never far."""
    calls = [call_with(2.0), call_with(5.0)]
    deadlines = watched(*calls)
    assert [deadlines.are_after(now) for now in (1.0, 2.0, 3.0)] == [True, False, False]
    assert [deadlines.are_far(now) for now in (1.0, 2.0, 3.0)] == [True, False, False]
    calls[0].waiting = 0
    assert not deadlines.are_after(3.0)
    assert deadlines.first_call() is calls[1]
    assert (deadlines.are_after(3.0), deadlines.are_far(3.0)) == (True, True)
    deadlines.watch(many := call_with(9.0, size=2), 9.0)
    assert (deadlines.are_after(3.0), deadlines.are_far(3.0)) == (True, False)
    assert deadlines.lists() == [many]
    assert (watched().are_after(inf), watched().are_far(inf)) == (True, True)


def test_lists_are_those_that_have_waited_longest_and_no_more_than_a_few() -> None:
    """Single calls are none of them, nor lists that have started to the end."""
    calls = [call_with(9.0, size) for size in (1, 2, 3)]
    lists = [call_with(9.0, 2) for _ in range(2 * LEAST_LIMIT)]
    deadlines = watched(*calls, *lists)
    assert deadlines.lists() == [*calls[1:], *lists][:LEAST_LIMIT]
    calls[1].waiting = 0
    calls[2].waiting = 1
    assert deadlines.lists() == [calls[2], *lists][:LEAST_LIMIT]


def test_a_deadline_that_is_put_off_makes_way_for_the_next() -> None:
    """As when a caller with more time, or with no deadline, joins an equal item in flight."""
    calls = [Call().begin(list, None, 1, False, 0.0, deadline) for deadline in (1.0, 2.0, 3.0)]
    deadlines = Deadlines()
    for call in calls:
        deadlines.watch(call, call.deadline or 0.0)
    assert deadlines.start() == 0.5
    calls[0].deadline = 8.0
    calls[1].deadline = None
    assert (deadlines.start(), deadlines.first_call()) == (1.5, calls[2])
    assert list(deadlines.passed(4.0)) == [calls[2]]
    assert deadlines.start() == 4.0
    calls[0].waiting = 0
    assert (deadlines.start(), list(deadlines.passed(9.0))) == (float("inf"), [])


def test_lists_that_wait_are_found_behind_many_that_do_not() -> None:
    """As behind small lists that have started, while an older one waits."""
    deadlines = Deadlines()
    calls = [Call().begin(list, None, 2, True, 0.0, 9.0) for _ in range(1000)]
    for call in calls:
        deadlines.watch(call, 9.0)
        if 0 < calls.index(call) < 990:
            call.waiting = 0
    assert deadlines.lists() == [calls[0], *calls[990:]]
