"""A batcher without a driver and without features: calls arrive, run and are answered, and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batched._core import effects
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call, Slice
from batched._core.counters import Counters
from batched._core.effects import Effects
from batched._core.hooks import HOOKS, Feature, Run
from batched._core.lessons import NOTHING
from batched._core.mending import close, give_up_all, give_up_batch
from batched._core.options import Options
from batched._core.queue import Queue
from batched._policy.window import StartReason, Window
from batched.errors import QueueFullError
from tests.kit.batcher_rules import echo
from tests.kit.calls import listed, single

OPTIONS = Options(batch_size=4)


class Collator:
    """What knows of inputs only that they are lists; a batch can be repeated if a test says so."""

    def collate(self, batch: Batch) -> list[Any]:
        """Return the places of all items; note whether some are of lists."""
        batch.has_lists = any(call.many for call in batch.calls)
        return [at for _, start, stop in batch.slices for at in range(start, stop)]

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return the part of each slice."""
        rows = iter(outputs)
        return [
            [next(rows) for _ in range(start, stop)] if call.many else next(rows)
            for call, start, stop in batch.slices
        ]

    def place(self, piece: Slice, part: Any) -> None:
        """Keep a part."""
        call, start, stop = piece
        call.results = call.results or [None] * call.size
        call.results[start:stop] = part

    def can_repeat(self, batch: Batch) -> bool:
        """Return whether it is of one call."""
        return not batch.has_several


class Alone:
    """A batcher, and what was counted."""

    def __init__(self, options: Options = OPTIONS, **more: Any) -> None:
        self.counters = Counters()
        collator: Any = Collator()
        self.collator = collator
        self.batcher = Batcher(options, Queue, collator, "f", self.counters, **more)

    def arrive(self, *calls: Call) -> None:
        """Have calls come."""
        for call in calls:
            self.batcher.arrive(call)

    def next(self, now: float = 1.0) -> Batch:
        """Return the next batch, which is due."""
        batch = self.batcher.next(now)
        assert isinstance(batch, Batch)
        return batch

    def finish(self, batch: Batch, now: float = 2.0) -> None:
        """Have a batch work."""
        places = self.collator.collate(batch)
        self.batcher.finish(batch, batch.split(places, self.collator), now)

    @property
    def counted(self) -> dict[str, int]:
        """What was counted of items, but for what is 0."""
        names = ("accepted", "processed", "failed", "cancelled", "expired", "rejected")
        return {name: count for name in names if (count := getattr(self.counters, name))}


def test_without_features_no_hook_has_a_method() -> None:
    """So nothing but queue and window is on the path of a call; no door refuses, nothing is learned."""
    batcher = Alone().batcher
    assert {name: getattr(batcher, f"_{name}") for name in HOOKS} == dict.fromkeys(HOOKS, ())
    assert (batcher.queue.batch_size, batcher.lessons, batcher.figures()) == (4, NOTHING, {})
    batcher.door(single(), 0.0)


def test_without_calls_there_is_nothing_to_wait_for() -> None:
    """The next call is reason to look."""
    batcher = Alone().batcher
    assert batcher.next(1.0) is None
    assert (batcher.wake_after, batcher.unfinished, batcher.effects.answered) == (1, 0, [])


def test_one_call_arrives_runs_and_is_answered() -> None:
    alone = Alone()
    batcher, call = alone.batcher, single()
    alone.arrive(call)
    assert batcher.unanswered_calls() == [call]
    batch = alone.next(1.0)
    assert (batch.calls, batch.size, batch.reason) == ([call], 1, StartReason.NO_GAIN)
    assert (batcher.running, batcher.unfinished, batcher.waiting()) == ({batch: 1.0}, 1, [])
    assert (batcher.running_calls(), batcher.effects.answered) == ([call], [])
    alone.finish(batch)
    assert (call.results, call.error, call.missing) == (0, None, 0)
    assert (batcher.running, batcher.unfinished, batcher.unanswered_calls()) == ({}, 0, [])
    assert (batcher.effects.answered, batcher.effects.released) == ([call], [call])
    assert alone.counted == {"accepted": 1, "processed": 1}
    assert batcher.next(3.0) is None


def test_effects_are_taken_by_a_driver_and_what_was_broken_off_is_put_back() -> None:
    alone = Alone()
    batcher, first, second = alone.batcher, single(), single()
    alone.arrive(first)
    alone.finish(alone.next())
    effects, batcher.effects = batcher.effects, type(batcher.effects)()
    alone.arrive(second)
    alone.finish(alone.next())
    batcher.effects.put_back(effects)
    assert batcher.effects.answered == batcher.effects.released == [first, second]
    assert batcher.effects.has_moved


@pytest.mark.parametrize("what", Effects.__slots__)
def test_of_what_was_broken_off_nothing_is_lost(what: str) -> None:
    """Whatever it is: callers wait for it, or memory is held until it is done."""
    later, broken_off = Effects(), Effects()
    if what == "has_moved":
        later.put_back(broken_off)  # it may have been told that nothing has moved
        assert later.has_moved
        return
    first, second = object(), object()
    getattr(broken_off, what).append(first)
    getattr(later, what).append(second)
    later.put_back(broken_off)
    assert getattr(later, what) == [first, second]


def test_a_fault_of_what_is_let_go_does_not_come_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a step is put back after an error, and each step would fail by it from then on."""

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(effects, "forget_variables", fail)
    effects.let_go([ValueError(), single()])


def test_callers_are_told_before_the_next_batch_is_looked_for() -> None:
    alone = Alone()
    batcher = alone.batcher
    alone.arrive(single())
    alone.finish(alone.next())
    assert (batcher.next(2.0, answers_first=True), batcher.wake_after) == (None, 1)
    alone.arrive(call := single())
    assert batcher.next(2.0, answers_first=True) == 0.0
    batcher.effects = type(batcher.effects)()
    batch = batcher.next(2.0, answers_first=True)
    assert isinstance(batch, Batch)
    assert batch.calls == [call]


def test_a_batch_has_as_many_items_as_options_allow_and_the_rest_waits() -> None:
    alone = Alone()
    calls = [single() for _ in range(6)]
    alone.arrive(*calls)
    batch = alone.next()
    assert (batch.calls, batch.reason) == (calls[:4], StartReason.FULL)
    assert alone.batcher.waiting() == calls[4:]
    alone.finish(batch)
    assert alone.batcher.effects.answered == calls[:4]
    assert (alone.next().calls, alone.batcher.waiting()) == (calls[4:], [])


def test_a_list_is_answered_once_all_of_its_items_are() -> None:
    alone = Alone()
    call = listed(6)
    alone.arrive(call)
    alone.finish(alone.next())
    assert (alone.batcher.effects.answered, alone.batcher.effects.released) == ([], [])
    alone.finish(alone.next())
    assert (alone.batcher.effects.answered, call.results) == ([call], [0, 1, 2, 3, 4, 5])
    assert alone.counted == {"accepted": 6, "processed": 6}


def test_a_window_holds_a_batch_back_until_it_is_full_or_its_time_has_come() -> None:
    alone = Alone()
    batcher = alone.batcher
    batcher.use_window(Window(5.0))
    alone.arrive(Call().begin(echo, 1, 1, False, 10.0))
    assert (batcher.next(12.0), batcher.wake_after, batcher.until) == (3.0, 3, 15.0)
    assert alone.next(15.0).reason == StartReason.WINDOW
    alone.arrive(*[Call().begin(echo, 1, 1, False, 20.0) for _ in range(4)])
    assert (alone.next(20.0).reason, batcher.wake_after) == (StartReason.FULL, None)


def test_a_batcher_that_drains_holds_nothing_back_whatever_window_it_is_told() -> None:
    alone = Alone()
    alone.batcher.use_window(Window(5.0))
    alone.arrive(Call().begin(echo, 1, 1, False, 10.0))
    alone.batcher.drain()
    assert alone.next(10.0).reason == StartReason.DRAIN
    alone.batcher.use_window(Window(5.0))
    assert alone.batcher.window.is_immediate


def test_what_callers_leave_to_be_done_is_done_before_their_calls_are_queued() -> None:
    """And once; also where no call comes."""
    alone = Alone()
    waiting = []
    for calls in ([single()], []):
        alone.arrive(*calls)
        alone.batcher.later.append(lambda: waiting.append(alone.batcher.waiting()))
        alone.batcher.next(1.0)
        alone.batcher.next(1.0)
    assert waiting == [[], []]


# -- a batch fails ------------------------------------------------------------------------------------------


def test_without_a_feature_that_divides_a_batch_that_fails_answers_all_of_its_calls() -> None:
    """Others are not touched."""
    alone = Alone()
    calls, error = [single() for _ in range(6)], ValueError("bad")
    alone.arrive(*calls)
    batch = alone.next()
    alone.batcher.fail(batch, error, 2.0)
    assert [call.error for call in calls] == [error] * 4 + [None] * 2
    assert alone.batcher.effects.answered == alone.batcher.effects.released == calls[:4]
    assert (alone.batcher.running, [*alone.batcher.first]) == ({}, [])
    assert alone.counted == {"accepted": 6, "processed": 4, "failed": 4}


def test_a_list_of_which_a_batch_failed_does_not_go_on() -> None:
    """What waits of it is forgotten, and counts as cancelled; its inputs are released once."""
    alone = Alone()
    call, error = listed(10), ValueError("bad")
    alone.arrive(call)
    alone.batcher.fail(alone.next(), error, 2.0)
    assert (call.error, call.missing, call.waiting) == (error, 0, 0)
    assert alone.batcher.effects.answered == [call]
    assert {*alone.batcher.effects.released} == {call}
    assert alone.counted == {"accepted": 10, "processed": 4, "failed": 4, "cancelled": 6}
    assert alone.batcher.next(3.0) is None


def test_whether_items_can_run_again_is_for_the_collator_to_say() -> None:
    batcher = Alone().batcher
    assert batcher.can_repeat(Batch([(single(), 0, 1)], 1))
    assert not batcher.can_repeat(Batch([(single(), 0, 1)] * 2, 2))


# -- calls leave --------------------------------------------------------------------------------------------


def test_a_call_that_is_dropped_never_runs() -> None:
    """It has no answer, as its caller has left. Its inputs are released."""
    alone = Alone()
    gone, stays = single(), single()
    alone.arrive(gone, stays)
    alone.batcher.drop_all([gone])
    assert (gone.left, gone.missing, gone.error) == ("cancelled", 0, None)
    assert (alone.batcher.effects.answered, alone.batcher.effects.released) == ([], [gone])
    assert alone.next().calls == [stays]
    assert alone.counted == {"accepted": 2, "cancelled": 1}


def test_a_caller_that_leaves_without_the_lock_is_heard_before_the_next_batch() -> None:
    """The call is kept until the lock is free."""
    alone = Alone()
    gone, stays = single(), single()
    alone.arrive(gone, stays)
    alone.batcher.leave(gone)
    assert alone.next().calls == [stays]
    assert (alone.batcher.effects.gone, [*alone.batcher.leaving]) == ([gone], [])


def test_a_call_that_leaves_while_it_runs_is_neither_answered_nor_cancelled() -> None:
    """Its items count as processed."""
    alone = Alone()
    gone, stays = single(), single()
    alone.arrive(gone, stays)
    batch = alone.next()
    alone.batcher.drop_all([gone])
    assert alone.batcher.effects.released == []
    alone.finish(batch)
    assert alone.batcher.effects.answered == [stays]
    assert {*alone.batcher.effects.released} == {gone, stays}
    assert alone.counted == {"accepted": 2, "processed": 2}


def test_a_call_that_is_late_is_answered_and_never_runs() -> None:
    """With the error that is given, or the one that says what was allowed."""
    alone = Alone()
    late, later = (Call().begin(echo, 1, 1, False, 10.0, 10.25) for _ in range(2))
    alone.arrive(late, later)
    alone.batcher.take_in()
    alone.batcher.expire(late)
    alone.batcher.expire(later, error := TimeoutError("early"))
    assert (str(late.error), later.error) == ("f did not answer within deadline_ms=250", error)
    assert [call.left for call in (late, later)] == ["expired"] * 2
    assert alone.batcher.effects.answered == [late, later]
    assert alone.counted == {"accepted": 2, "expired": 2}
    assert alone.batcher.next(11.0) is None


def test_a_call_of_which_all_has_started_is_not_late() -> None:
    alone = Alone()
    call = Call().begin(echo, 1, 1, False, 10.0, 10.25)
    alone.arrive(call)
    batch = alone.next(10.0)
    alone.batcher.expire(call)
    assert (call.error, call.left) == (None, None)
    alone.finish(batch)
    assert alone.batcher.effects.answered == [call]
    assert alone.counted == {"accepted": 1, "processed": 1}


# -- room ---------------------------------------------------------------------------------------------------


def test_a_call_is_refused_or_waits_for_room_and_is_let_in_as_a_batch_starts() -> None:
    """What is refused is not accepted, and nothing is left of it to cancel."""
    alone = Alone(replace(OPTIONS, max_queue_size=4))
    batcher = alone.batcher
    first, refused, waits = listed(4), listed(3), listed(2)
    assert batcher.admit(first, wait=False)
    with pytest.raises(QueueFullError):
        batcher.admit(refused, wait=False)
    assert (refused.missing, refused.waiting) == (0, 0)
    assert not batcher.admit(waits, wait=True)
    assert batcher.unanswered_calls() == [first, waits]
    assert alone.next().calls == [first]
    assert (batcher.effects.let_in, batcher.waiting()) == ([waits], [waits])
    assert alone.next().calls == [waits]
    assert alone.counted == {"accepted": 6, "rejected": 3}


def test_while_calls_wait_for_room_no_batch_is_held_back() -> None:
    alone = Alone(replace(OPTIONS, max_queue_size=2))
    alone.batcher.use_window(Window(5.0))
    assert [alone.batcher.admit(listed(2), wait=True) for _ in range(2)] == [True, False]
    assert alone.next(0.0).reason == StartReason.CROWDED
    assert alone.batcher.next(0.0) == 5.0


def test_new_options_make_room_and_are_those_of_the_next_batch() -> None:
    alone = Alone(replace(OPTIONS, max_queue_size=4))
    calls = [listed(4), listed(2)]
    assert [alone.batcher.admit(call, wait=True) for call in calls] == [True, False]
    alone.batcher.configure(Options(batch_size=5))
    assert alone.batcher.effects.let_in == calls[1:]
    assert (alone.next().size, alone.batcher.queue.items) == (5, 1)


# -- the end ------------------------------------------------------------------------------------------------


def test_all_that_waits_is_answered_when_the_batcher_is_closed() -> None:
    """What arrives and what waits for room, too; what runs goes on."""
    alone = Alone(replace(OPTIONS, max_queue_size=4))
    batcher, error = alone.batcher, RuntimeError("closed")
    runs, waits, outside, arrives = listed(4), listed(4), listed(2), single()
    assert batcher.admit(runs, wait=True)
    batch = alone.next()
    assert batcher.admit(waits, wait=True)
    assert not batcher.admit(outside, wait=True)
    alone.arrive(arrives)
    close(batcher, error, "cancelled")
    assert [call.error for call in (runs, waits, outside, arrives)] == [None, error, error, error]
    assert [call.left for call in (waits, outside, arrives)] == ["cancelled"] * 3
    assert {*batcher.effects.answered} == {waits, outside, arrives}
    assert (batcher.waiting(), batcher.next(3.0)) == ([], None)
    alone.finish(batch)
    assert runs.results == [0, 1, 2, 3]
    assert alone.counted == {"accepted": 11, "processed": 4, "cancelled": 7}


def test_after_a_fault_all_that_waits_is_answered_and_new_calls_run_in_a_new_queue() -> None:
    """The fault is met where the next batch is asked for."""
    alone = Alone()
    batcher, fault = alone.batcher, RuntimeError("broken")
    old = batcher.queue

    def push_all(calls: list[Call]) -> int:
        raise fault

    lost = single()
    batcher.queue = type("Broken", (Queue,), {"push_all": lambda _, calls: calls and push_all(calls)})(4, 0)
    alone.arrive(lost)
    with pytest.raises(RuntimeError, match="broken"):
        batcher.next(1.0)
    give_up_all(batcher, fault)
    assert (lost.error, batcher.effects.answered) == (fault, [lost])
    assert (batcher.fault, batcher.queue is old, batcher.unanswered_calls()) == (None, False, [])
    alone.arrive(call := single())
    assert alone.next().calls == [call]
    assert alone.counted == {"accepted": 2, "cancelled": 1}


def test_the_calls_of_a_batch_that_a_fault_has_broken_off_are_answered_and_others_are_not() -> None:
    alone = Alone()
    calls, fault = [single() for _ in range(6)], RuntimeError("broken")
    alone.arrive(*calls)
    give_up_batch(alone.batcher, alone.next(), fault)
    assert [call.error for call in calls] == [fault] * 4 + [None] * 2
    assert (alone.batcher.running, alone.batcher.waiting()) == ({}, calls[4:])
    assert alone.counted == {"accepted": 6, "processed": 4, "failed": 4}


class Hears(Feature):
    """Writes down the runs that it hears of, by the hook."""

    hooks = ("ended", "answered")

    def __init__(self) -> None:
        self.heard: dict[str, list[int]] = {"ended": [], "answered": []}

    def ended(self, run: Run) -> None:
        """Note where in its list a run began."""
        self.heard["ended"].append(run.batch.slices[0][1])

    def answered(self, run: Run) -> None:
        """Note where in its list a run began."""
        self.heard["answered"].append(run.batch.slices[0][1])


def test_of_runs_in_the_midst_of_lists_features_that_wait_for_answers_hear_of_lessons() -> None:
    """One in eight is one, at rest. Of the first and the last of a list they hear too; others of each."""
    feature = Hears()
    alone = Alone(features=[feature])
    alone.arrive(listed(4 * 20))
    for _ in range(20):
        alone.finish(alone.next())
    assert feature.heard == {"ended": [*range(0, 80, 4)], "answered": [0, 4, 36, 68, 76]}
