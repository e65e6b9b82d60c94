"""The feature that watches deadlines, and what gives calls up, without a batcher."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.call import Call
from batched._core.counters import Counters
from batched._core.lazy_heap import Deadlines
from batched._core.options import Options
from batched._core.queue import Queue
from batched._features.deadlines import WithDeadlines
from batched._policy.window import StartReason
from batched.errors import OverloadError
from tests.kit.calls import listed, single
from tests.kit.river import StandInRiver

BATCH_SIZE, THRESHOLD = 8, 4
WATCHES = ("queued", "look", "urgent", "start", "room", "ended")
NOW = 100.0
REASON = StartReason.WAITED


class Times:
    """What batches take: a second for each item, and one more to be safe."""

    is_known = True

    def seconds(self, items: int) -> float:
        """Return how long a batch takes."""
        return float(items)

    def safe_seconds(self, items: int) -> float:
        """Return how long a batch takes at most."""
        return items + 1.0


class Waits:
    """What is known of waits, as a test says; it notes what calls are told."""

    def __init__(self) -> None:
        self.times: Any = Times()
        self.free = False
        self.told: list[tuple[Call, float, float]] = []

    def is_free(self, now: float, items: int = 0) -> bool:
        """Return what a test says."""
        return self.free

    def overload(self, call: Call, too_long: float, now: float, *, in_vain: bool) -> OverloadError:
        """Write it down."""
        self.told.append((call, too_long, now))
        return OverloadError("late")


class River(StandInRiver):
    """A river with a queue; calls that it is told to answer leave that, and count, if some of them waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(BATCH_SIZE, THRESHOLD)
        self.counters = Counters()

    def expire(self, call: Call, error: TimeoutError | None = None) -> None:
        """Write it down, if some of the call waits."""
        if call.waiting:
            super().expire(call, error)
            self.counters.expired += self.queue.drop(call)


class Alone:
    """The feature, and what it sees."""

    def __init__(self) -> None:
        self.river = River()
        self.deadlines = Deadlines()
        self.waits = Waits()
        self.feature = WithDeadlines(self.deadlines, self.waits)
        self.feature.begin(self.river, Options())

    def call(self, call: Call, allowed_s: float | None = None) -> Call:
        """Queue a call that comes now, with so much time; return it."""
        call.arrived = NOW
        call.deadline = None if allowed_s is None else NOW + allowed_s
        self.feature.queued([call])
        self.river.queue.push_all([call])
        return call

    def single(self, allowed_s: float | None = None) -> Call:
        """Queue a call of one item."""
        return self.call(single(), allowed_s)

    def room(self, room: int) -> int:
        """Return how many items the next batch has, where it could have so many."""
        return self.feature.room(self.river.queue, room, NOW)

    @property
    def given_up(self) -> list[Call]:
        """The calls that are not to run, as they would be late."""
        return [call for call, error in self.river.expired if isinstance(error, OverloadError)]


# -- it begins with the first call that has a deadline ------------------------------------------------------


def test_before_the_first_call_with_a_deadline_it_is_on_no_path_but_the_door() -> None:
    alone = Alone()
    assert (alone.feature.hooks, alone.river.hooked, alone.feature.limit) == (("door",), 0, None)


def test_the_first_call_with_a_deadline_has_it_take_part_before_it_is_queued() -> None:
    """Callers have no lock: the batcher does it later, once. Then it is asked at the door no more."""
    alone = Alone()
    for _ in range(2):
        alone.feature.door(single(), NOW)
    assert (alone.feature.hooks, len(alone.river.later)) == (("door",), 1)
    alone.river.later.popleft()()
    assert (alone.feature.hooks, alone.river.hooked) == (WATCHES, 1)


def test_a_batcher_that_begins_anew_has_no_deadlines_and_goes_on_watching() -> None:
    alone = Alone()
    alone.feature.door(single(), NOW)
    alone.river.later.popleft()()
    alone.single(5)
    river = River()
    alone.feature.begin(river, Options())
    assert (len(alone.deadlines.entries), alone.feature.hooks) == (0, WATCHES)
    alone.feature.door(single(), NOW)
    assert [*river.later] == []
    alone.waits.free = True
    call = single()
    call.deadline = NOW - 1
    river.queue.push_all([call])
    alone.feature.queued([call])
    alone.feature.look(NOW)
    assert (alone.river.expired, river.expired) == ([], [(call, None)])


def test_calls_without_a_deadline_are_not_watched() -> None:
    alone = Alone()
    calls = [single(), single()]
    calls[1].deadline = NOW
    alone.feature.queued(calls)
    assert (len(alone.deadlines.entries), alone.deadlines.first_call()) == (1, calls[1])


# -- it looks, before each decision -------------------------------------------------------------------------


def test_calls_that_are_late_are_answered_and_no_others() -> None:
    """With the error that all late calls get: the batcher makes it."""
    alone = Alone()
    alone.waits.free = True
    late = [alone.single(-1), alone.single(0)]
    alone.single(0.5)
    alone.feature.look(NOW)
    assert alone.river.expired == [(call, None) for call in late]


@pytest.mark.parametrize(("batch_s", "gone"), [(1.9, False), (2.0, True)])
def test_nothing_is_looked_at_while_all_deadlines_are_farther_than_a_batch_takes(
    batch_s: float, gone: bool
) -> None:
    alone = Alone()
    alone.river.batch_s = batch_s
    call = alone.single(2)
    alone.feature.look(NOW)
    assert alone.given_up == [call] * gone


@pytest.mark.parametrize(("allowed_s", "gone"), [(2.0, True), (2.1, False)])
def test_a_call_that_would_be_late_though_it_ran_at_once_is_given_up(allowed_s: float, gone: bool) -> None:
    alone = Alone()
    alone.river.batch_s = 5.0
    call = alone.single(allowed_s)
    alone.feature.look(NOW)
    assert alone.given_up == [call] * gone
    assert alone.waits.told == [(call, 0.0, NOW)] * gone
    assert alone.river.counters.given_up == gone


@pytest.mark.parametrize("why", ["not known", "free"])
def test_no_call_is_given_up_where_it_is_not_known_to_be_late(why: str) -> None:
    """Until its deadline has passed."""
    alone = Alone()
    alone.waits.free = why == "free"
    alone.waits.times.is_known = why != "not known"
    alone.river.batch_s = 5.0
    call = alone.single(1)
    alone.feature.look(NOW)
    assert alone.river.expired == []
    alone.feature.look(NOW + 1)
    assert alone.river.expired == [(call, None)]


@pytest.mark.parametrize(
    ("started", "slots", "needs_s"),
    [(0, 1, 2 * 8 + 5), (0, 2, 8 + 5), (16, 1, 5), (19, 1, 2)],
)
@pytest.mark.parametrize("spare_s", [0.0, 0.1])
def test_a_list_that_cannot_be_finished_is_not_begun_nor_gone_on_with(
    started: int, slots: int, needs_s: float, spare_s: float
) -> None:
    """It takes full batches, of which several may run at once, and a last one."""
    alone = Alone()
    alone.river.slots = slots
    call = listed(20)
    call.waiting -= started
    alone.call(call, needs_s + spare_s)
    alone.feature.look(NOW)
    assert alone.given_up == [call] * (spare_s == 0.0)


def test_by_how_much_a_list_would_be_late_is_told() -> None:
    alone = Alone()
    call = alone.call(listed(20), 15)
    alone.feature.look(NOW)
    assert alone.waits.told == [(call, 6.0, NOW)]
    assert alone.river.counters.given_up == 20


def test_a_list_without_a_deadline_is_never_given_up() -> None:
    """Nor one that has lost its deadline, as a call without one waits for the same items."""
    alone = Alone()
    alone.call(listed(20))
    alone.call(listed(20), 1.0).deadline = None
    alone.feature.look(NOW)
    assert alone.river.expired == []


# -- it has batches start sooner ----------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_without_deadlines_a_batch_starts_when_it_would_and_no_call_is_urgent(known: bool) -> None:
    alone = Alone()
    alone.waits.times.is_known = known
    alone.single()
    assert alone.feature.start(NOW + 3, REASON, NOW) == (NOW + 3, REASON)
    assert alone.feature.urgent(NOW) is None


@pytest.mark.parametrize(
    ("allowed_s", "known", "start_s"),
    [(8.0, False, 4.0), (8.0, True, 4.0), (3.0, True, 0.0), (3.0, False, 1.5)],
)
def test_a_call_waits_for_half_of_its_time_or_as_long_as_the_batch_can_be_in_time(
    allowed_s: float, known: bool, start_s: float
) -> None:
    """One of two items takes three seconds, to be safe."""
    alone = Alone()
    alone.waits.times.is_known = known
    call = alone.single(allowed_s)
    alone.single(99)
    start = NOW + start_s
    assert alone.feature.start(start + 0.1, REASON, NOW) == (start, StartReason.DEADLINE)
    assert alone.feature.start(start, REASON, NOW) == (start, REASON)
    assert alone.feature.urgent(start) is call
    assert alone.feature.urgent(start - 0.1) is None


def test_a_batch_has_no_more_items_than_options_allow_so_it_takes_no_longer() -> None:
    alone = Alone()
    for _ in range(20):
        alone.single(10)
    assert alone.feature.start(NOW + 9, REASON, NOW)[0] == NOW + 10 - (BATCH_SIZE + 1)


# -- it says how many items a batch has ---------------------------------------------------------------------


@pytest.mark.parametrize("why", ["not known", "free", "in time"])
def test_where_no_call_is_known_to_be_late_a_batch_has_as_many_items_as_it_would(why: str) -> None:
    alone = Alone()
    alone.waits.free = why == "free"
    alone.waits.times.is_known = why != "not known"
    for _ in range(4):
        alone.single(5 if why == "in time" else 2)
    assert alone.room(4) == 4
    assert alone.river.expired == []


def test_calls_that_are_too_late_for_a_batch_of_as_many_as_can_be_in_time_are_given_up() -> None:
    """And no others: it has as many items as can all be answered in time. They would be late by so much."""
    alone = Alone()
    late = alone.single(2)
    for _ in range(3):
        alone.single(10)
    assert alone.room(4) == 3
    assert alone.given_up == [late]
    assert alone.waits.told == [(late, 2.0, NOW)]
    assert alone.river.counters.given_up == 1


def test_later_calls_take_the_places_of_those_that_are_given_up() -> None:
    alone = Alone()
    late = [alone.single(2), alone.single(3)]
    for _ in range(8):
        alone.single(10)
    assert alone.room(4) == 4
    assert alone.given_up == late


def test_calls_that_are_late_behind_a_batch_are_not_given_up_for_it() -> None:
    """They are not in its way, and may be in time for a smaller one."""
    alone = Alone()
    late = alone.single(2)
    for _ in range(4):
        alone.single(10)
    alone.single(3)
    assert alone.room(4) == 4
    assert alone.given_up == [late]


def test_a_call_that_is_given_up_makes_the_batch_no_smaller() -> None:
    alone = Alone()
    late = alone.single(1.5)
    alone.single(99)
    alone.call(listed(20))
    assert alone.room(8) == 8
    assert alone.given_up == [late]


def test_a_call_is_late_only_if_the_batch_ends_after_its_deadline() -> None:
    alone = Alone()
    late = alone.single(3.9)
    for _ in range(3):
        alone.single(4)
    assert alone.room(4) == 3
    assert alone.given_up == [late]


def test_if_all_calls_are_late_for_any_batch_it_is_as_large_as_it_would_be() -> None:
    """The look before has spared them, so they run."""
    alone = Alone()
    for _ in range(4):
        alone.single(1)
    assert alone.room(4) == 4
    assert alone.river.expired == []


def test_calls_without_a_deadline_are_always_in_time() -> None:
    alone = Alone()
    late = alone.single(2)
    for _ in range(3):
        alone.single()
    assert alone.room(4) == 3
    assert alone.given_up == [late]


@pytest.mark.parametrize(("allowed_s", "room"), [(4, 2), (5, 4), (9, 8)])
def test_large_calls_fill_a_batch_as_far_as_small_ones_are_in_time(allowed_s: float, room: int) -> None:
    """It is halved until they are."""
    alone = Alone()
    alone.single(allowed_s)
    alone.call(listed(20))
    assert alone.room(8) == room
    assert alone.river.expired == []


def test_a_large_call_that_is_late_for_the_batch_is_not_given_up_for_its_size() -> None:
    """Only small calls are: a large one has a look of its own."""
    alone = Alone()
    alone.call(listed(20), 3)
    assert alone.room(8) == 8
    assert alone.river.expired == []


def test_a_call_that_the_batcher_does_not_answer_does_not_count_as_given_up() -> None:
    """All of it may have started by then."""
    alone = Alone()
    alone.river.expire = StandInRiver.expire.__get__(alone.river)  # type: ignore[method-assign]
    alone.river.batch_s = 5.0
    call = alone.single(1)
    alone.feature.look(NOW)
    assert (alone.given_up, alone.river.counters.given_up) == ([call], 0)


def test_a_feature_that_was_asked_for_takes_part_after_a_step_that_was_broken_off() -> None:
    """Ctrl-C may come after the request has been taken, and before it was heard."""
    alone = Alone()
    feature = WithDeadlines(alone.deadlines, alone.waits)
    feature.begin(alone.river, Options())
    feature.door(alone.single(1), NOW)
    alone.river.later.clear()
    feature.begin(alone.river, Options())
    assert "look" in feature.hooks
