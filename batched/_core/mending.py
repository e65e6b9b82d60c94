"""What becomes of calls when a batcher is closed, or when an error has broken off a step of it.

After a fault of this library, or a Ctrl-C, the queue may be broken, so a new one begins, and nothing is asked
of the old one but which calls it has. All calls that are half-way into it, or out of it, are found: the
batcher notes those that it has in hand. All of this needs the lock.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Literal

from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call, Slice

_ARRIVED = attrgetter("arrived")


def close(batcher: Batcher, error: BaseException, left: Literal["cancelled"] | None = None) -> None:
    """Answer all calls that wait with `error`; `left` says that they count as cancelled by callers."""
    batcher.take_in()
    batcher.effects.let_in += batcher.admission.awaiting_room
    if outside := batcher.admission.clear():
        batcher.add(outside)  # and out again, so that they count
    asides = batcher.first.asides
    calls = [*batcher.waiting(), *(call for aside in asides for call in aside.calls)]
    batcher.ending += [call for call in calls if call.missing]
    unanswered = _set_error(calls, error)
    for call in calls:
        batcher.drop(call)
    for aside in asides:
        batcher.first.remove(aside)
        batcher.effects.released += aside.calls
    for call in unanswered:
        call.left = left
    batcher.answer(unanswered)
    batcher.ending.clear()


def give_up_batch(batcher: Batcher, batch: Batch, error: BaseException) -> None:
    """Answer the calls of `batch` with `error`, a fault of this library. What waits goes on."""
    batcher.effects.has_moved = True  # a part may have waited for its end
    runs = batcher.running.pop(batch, None) is not None
    calls = list(dict.fromkeys(batch.calls))
    lost = [call for call in calls if call.missing]
    if runs:  # else it has ended before the fault, and is counted
        batch.failed = batch.failed + len(lost) if batch.begun else batch.size
        batcher.counters.processed += batch.size
        batcher.counters.failed += batch.failed
    for call in calls:
        _lose(batcher, call, error)
    rest = [part for call in calls for part in call.siblings if part.waiting and not part.missing]
    try:
        batcher.drop_all(rest)
        batcher.release(batch)
    except Exception as fault:  # noqa: BLE001  the queue is broken: the next look raises it
        batcher.fault = fault


def give_up_all(batcher: Batcher, error: BaseException) -> None:
    """Answer all calls that wait with `error`, a fault of this library. Counters, and what runs, go on."""
    counters = batcher.counters
    counters.cancelled += batcher.first.items
    retried = [call for part in batcher.first for call in part.calls]
    batcher.first.clear()
    new = batcher.arriving[:]
    del batcher.arriving[: len(new)]
    batcher.effects.let_in += batcher.admission.awaiting_room
    new += batcher.admission.clear()
    counters.accepted += sum(call.waiting for call in new)
    taken: list[Call] = []
    if batcher.taking_from is not None:
        taken = [call for call, _, _ in batcher.taking_from.taking]
        taken += batcher.taking_from.known_calls()
        batcher.taking_from = None
    # `waiting` has those in hand.
    calls = list(dict.fromkeys([*new, *batcher.waiting(), *batcher.ending, *taken, *retried]))
    counters.cancelled += sum(call.waiting for call in calls)
    unanswered = _set_error(calls, error)
    for call in calls:
        if call.waiting in {call.size, call.missing}:  # else a part of it may be running
            batcher.effects.released.append(call)
        call.waiting = call.missing = 0
    batcher.begin()
    batcher.answer(unanswered)


def mend(batcher: Batcher, error: BaseException) -> None:
    """Have calls that wait go on waiting, in a new queue, after `error`, a Ctrl-C say. What runs goes on too.

    What each call knows of itself holds; what the queue knows may not. What was learned is forgotten. A list
    of which the step was taking some items, but not the first, gets `error`.
    """
    queues, admission = [batcher.queue], batcher.admission
    runs = {call for batch in (*batcher.running, *batcher.first) for call in batch.calls}
    taken: dict[Call, int] = {}
    if batcher.taking_from is not None:
        queues.append(batcher.taking_from)
        taken = _starts(batcher.taking_from.taking, runs)
        batcher.taking_from = None
    new = batcher.arriving[:]
    found = [*(call for queue in queues for call in queue.known_calls()), *batcher.in_hand, *taken, *new]
    outside = set(admission.waiting_calls())
    calls = sorted((call for call in dict.fromkeys(found) if call not in outside), key=_ARRIVED)
    uneven = {call for call in calls if any(queue.is_uneven(call) for queue in queues)}
    ending, awaiting_room = batcher.ending, admission.awaiting_room
    del batcher.arriving[: len(new)]
    batcher.begin()
    for call in ending:
        _lose(batcher, call, error)
    if batcher.in_flight is not None:
        batcher.effects.answered += [call for call in batcher.in_flight.landing if not call.missing]
    for call in calls:
        start = taken.get(call)
        if start == 0 and call.missing == call.size:
            call.waiting = call.size
        elif (start is not None or call in uneven) and call.missing:
            _lose(batcher, call, error)
    for call in calls:
        if not call.missing or call.left is not None:
            call.waiting = 0
    for call, parts in awaiting_room.items():
        batcher.admission.await_room(call, parts)
    batcher.effects.has_moved = True  # the driver may have looked since the error, and found nothing
    _queue_again(batcher, [call for call in calls if call.waiting])


def _queue_again(batcher: Batcher, calls: list[Call]) -> None:
    """Queue `calls`, and those that wait for room, as far as there is some."""
    try:
        batcher.add(calls)
        batcher.admit_waiting()
    except Exception as fault:  # one of this library: the next look gives up all calls with it
        batcher.fault = fault
        raise


def _set_error(calls: list[Call], error: BaseException) -> list[Call]:
    """Give `error` to those of `calls` that have no answer, and return them. Their callers may be looking."""
    unanswered = [call for call in calls if call.missing]
    for call in unanswered:
        call.error = error
    return unanswered


def _lose(batcher: Batcher, call: Call, error: BaseException) -> None:
    """Answer what `call` is a part of, after a step was broken off: with `error` if it has no answer.

    Its caller may have been told before: that does no harm.
    """
    answered = batcher.effects.answered
    if call.parent is not None:
        answered += call.parent.abandon(error)
        if batcher.in_flight is not None:
            answered += [call for call in batcher.in_flight.landing if not call.missing]
        call.missing = 0
        return
    if call.missing:
        call.fail(error)
    answered.append(call)


def _starts(slices: list[Slice], runs: set[Call]) -> dict[Call, int]:
    """Return the first place of each call in `slices`, but for calls that are in `runs`."""
    starts: dict[Call, int] = {}
    for call, start, _ in slices:
        if call not in runs:
            starts[call] = min(start, starts.get(call, start))
    return starts
