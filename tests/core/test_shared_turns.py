"""Which of the functions that share workers is next."""

from __future__ import annotations

from collections import Counter
from math import inf
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._core.lazy_heap import LEAST_LIMIT
from batched._core.shared_turns import Seat, SharedTurns


class Function:
    """One seat that always has calls, the oldest of which came `age` before it is asked."""

    def __init__(
        self, turns: SharedTurns, name: str, *, weight: float | None = None, is_large: bool = False
    ) -> None:
        self.account = turns.account(name, weight)
        self.seat = Seat(self.account)
        self.is_large = is_large
        self.oldest = 0.0
        self.start_by = inf

    def ask(self, turns: SharedTurns) -> None:
        """Have a batch that could start."""
        turns.due(self.seat, self.oldest, self.start_by, self.is_large)


def served(turns: SharedTurns, functions: list[Function], batches: int, seconds: float = 1.0) -> list[str]:
    """Run so many batches, of functions that always have more; return their names in order."""
    names = []
    for number in range(1, batches + 1):
        now = number * seconds
        for function in functions:
            function.ask(turns)
        seat = turns.next(now)
        assert seat is not None
        turns.taken(seat, now)
        turns.ended(seat.account, seconds)
        names.append(seat.account.name)
    return names


def test_functions_that_have_run_do_not_pile_up_while_others_are_due() -> None:
    """Nor do those with far deadlines behind those with near ones: many instances may come and go."""
    turns = SharedTurns()
    always = Function(turns, "always")
    always.start_by = 5.0
    came = WeakSet[Seat]()
    for number in range(10 * LEAST_LIMIT):
        always.ask(turns)
        instance = Function(turns, "instances")
        instance.start_by = 1000.0
        came.add(instance.seat)
        instance.ask(turns)
        while instance.seat.is_due:
            seat = turns.next(float(number))
            assert seat is not None
            turns.taken(seat, float(number))
            turns.ended(seat.account, 1.0)
            always.ask(turns)
    del instance, seat
    assert len(came) <= LEAST_LIMIT


def test_the_function_of_the_oldest_call_is_next() -> None:
    """Whatever the order in which they ask."""
    turns = SharedTurns()
    functions = [Function(turns, name) for name in "abc"]
    for function, oldest in zip(functions, (2.0, 3.0, 1.0), strict=True):
        function.oldest = oldest
        function.ask(turns)
    found = []
    while (seat := turns.next(10.0)) is not None:
        turns.taken(seat, 10.0)
        found.append(seat.account.name)
    assert found == ["c", "a", "b"]
    assert not len(turns)


def test_functions_with_much_to_run_take_turns() -> None:
    """A function with a backlog has not always the oldest call, though it came first."""
    turns = SharedTurns()
    flood, quiet = Function(turns, "flood"), Function(turns, "quiet")
    flood.oldest, quiet.oldest = 0.0, 0.5
    assert served(turns, [flood, quiet], 10)[1:] == ["quiet", "flood"] * 4 + ["quiet"]


def test_small_calls_go_ahead_of_large_ones_but_for_one_batch_in_eight() -> None:
    """So that large ones are through in the end."""
    turns = SharedTurns()
    functions = [Function(turns, "small"), Function(turns, "large", is_large=True)]
    found = Counter(served(turns, functions, 80))
    assert found == {"small": 70, "large": 10}


def test_a_call_of_which_half_the_time_is_over_goes_ahead_of_small_and_large_ones() -> None:
    """From that moment on, and the soonest of them first."""
    turns = SharedTurns()
    old, soon, sooner = (Function(turns, name, is_large=name != "old") for name in ("old", "soon", "sooner"))
    old.oldest, soon.oldest, sooner.oldest = 0.0, 1.0, 2.0
    soon.start_by, sooner.start_by = 4.0, 3.0
    for function in (old, soon, sooner):
        function.ask(turns)
    assert turns.next(2.5) is old.seat
    assert turns.next(3.5) is sooner.seat
    assert turns.next(5.0) is sooner.seat
    turns.taken(sooner.seat, 5.0)
    assert turns.next(5.0) is soon.seat


def test_functions_have_time_by_their_weights() -> None:
    """Of which batches of different lengths have more or fewer."""
    turns = SharedTurns()
    embed, rerank = Function(turns, "embed", weight=3), Function(turns, "rerank", weight=1)
    takes = {"embed": 0.5, "rerank": 2.0}
    had: Counter[str] = Counter()
    now = 0.0
    for _ in range(600):
        for function in (embed, rerank):
            function.ask(turns)
        seat = turns.next(now)
        assert seat is not None
        name = seat.account.name
        turns.taken(seat, now)
        now += takes[name]
        turns.ended(seat.account, takes[name])
        had[name] += int(takes[name] * 10)
    assert had["embed"] / had["rerank"] == pytest.approx(3.0, rel=0.05)


def test_a_function_that_had_nothing_to_run_saves_up_no_time() -> None:
    """When it comes back it shares, and does not have the workers for itself."""
    turns = SharedTurns()
    busy, idle = Function(turns, "busy", weight=1), Function(turns, "idle", weight=1)
    served(turns, [idle], 3)
    served(turns, [busy], 500)
    assert Counter(served(turns, [busy, idle], 20)) == {"busy": 10, "idle": 10}


def test_a_function_that_comes_while_none_runs_or_waits_is_owed_nothing() -> None:
    """Else the one that has run for long would wait until the new one has had as much."""
    turns = SharedTurns()
    old, new = Function(turns, "old", weight=1), Function(turns, "new", weight=1)
    served(turns, [old], 500)
    served(turns, [new], 1)
    assert Counter(served(turns, [old, new], 20)) == {"old": 10, "new": 10}


def test_a_function_that_never_waits_is_owed_a_few_batches_at_most() -> None:
    """Two workers are enough for one batch of each; then more is asked of both."""
    turns = SharedTurns()
    heavy, light = Function(turns, "heavy", weight=3), Function(turns, "light", weight=1)
    for number in range(500):
        for function in (heavy, light):
            function.ask(turns)
            assert turns.next(float(number)) is function.seat
            turns.taken(function.seat, float(number))
        for function in (heavy, light):
            turns.ended(function.account, 1.0)
    found = served(turns, [heavy, light], 40)
    assert "light" in found[:10]
    assert found.count("light") >= 7


def test_a_seat_that_has_left_is_skipped() -> None:
    """And is kept by nothing."""
    turns = SharedTurns()
    first, second = Function(turns, "first"), Function(turns, "second")
    second.oldest = 1.0
    for function in (first, second):
        function.ask(turns)
    turns.not_due(first.seat)
    assert turns.next(2.0) is second.seat
    assert turns.seats() == [second.seat]
    turns.not_due(second.seat)
    turns.not_due(second.seat)
    assert turns.next(2.0) is None
    assert first.account.first() is None


def test_in_a_child_process_nothing_is_due() -> None:
    """But functions keep their weights."""
    turns = SharedTurns()
    function = Function(turns, "embed", weight=2)
    function.ask(turns)
    turns.clear()
    assert turns.next(1.0) is None
    assert turns.account("embed").weight == 2


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from("abcd"), st.booleans(), st.floats(0.0, 50.0), st.booleans()),
        min_size=1,
        max_size=9,
    )
)
def test_no_seat_waits_longer_than_eight_batches_for_each_that_waits(
    kinds: list[tuple[str, bool, float, bool]],
) -> None:
    """Small or large, with deadlines or without, of one function or several."""
    turns = SharedTurns()
    functions = []
    for name, is_large, oldest, is_urgent in kinds:
        function = Function(turns, name, is_large=is_large)
        function.oldest = oldest
        function.start_by = 0.0 if is_urgent else inf
        functions.append(function)
    last = dict.fromkeys(functions, 0)
    for number in range(1, 40 * len(functions)):
        for function in functions:
            function.ask(turns)
        seat = turns.next(50.0 + number)
        assert seat is not None
        turns.taken(seat, 50.0 + number)
        turns.ended(seat.account, 1.0)
        last[next(function for function in functions if function.seat is seat)] = number
        assert all(number - before <= 8 * len(functions) for before in last.values())
