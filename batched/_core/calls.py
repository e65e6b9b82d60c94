"""The calls of one batcher: they come in, wait, leave, and get their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from batched._core.admission import Admission
from batched._core.backlog import Backlog
from batched._core.batch import Batch
from batched._core.batch_fault import BatchFault
from batched._core.call import Call, Slice, completed
from batched._core.counters import Counters
from batched._core.inbox import Inbox
from batched._core.keyed_queues import KeyedQueues
from batched._core.keys import KnownKeys, keys_of
from batched._core.lazy_heap import Deadlines
from batched._core.options import Options
from batched._core.queue import Queue
from batched.errors import QueueFullError

NewQueue: TypeAlias = Callable[[int, int], Queue | KeyedQueues]
"""Makes the queue, from `batch_size` and `small_batch_threshold`."""


class Calls:
    """Where each call of a batcher is: on its way in, waiting for room, in the queue, or done."""

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        new_queue: NewQueue,
        name: str,
        counters: Counters,
        in_flight: Any,
        *,
        streams: bool = False,
    ) -> None:
        self._name = name
        self._new_queue = new_queue
        self.counters = counters
        self.in_flight = in_flight  # the items that run for a cache: calls for equal items wait for these
        self.inbox: Inbox = Inbox()
        self.backlog: Backlog = Backlog(self, options, name, streams=streams)
        self._has_parts = False  # whether any call has been divided so far
        self._known_keys: KnownKeys = KnownKeys()
        self.keys_may_change: bool = False
        """Whether any call has come so far that has a key which may change."""
        self.answered: list[Call] = []
        """Calls that have their answer: their callers are to be woken."""
        self.let_in: list[Call] = []
        """Calls that have waited for room and now are in the queue."""
        self.released: list[Call] = []
        """Calls that have ended: their inputs are to be released, without the lock."""
        self.gone: list[Call | BatchFault] = []
        """What is kept until the lock is free: calls, as the finalizer of an item may call the batcher, and
        faults that are to be logged."""
        self._ending: list[Call] = []  # that are being answered with an error
        self.taking_from: Queue | None = None
        """The queue of which a batch is being taken, that of one key if calls have keys."""
        self.begin(options)

    def begin(self, options: Options) -> None:
        """Begin with an empty queue."""
        self.queue: Any = self._new_queue(options.batch_size, options.small_batch_threshold)
        self.admission: Admission = Admission(self._name, options, self.queue.tenants, self.backlog)
        self.deadlines: Deadlines = Deadlines()
        self.policy_listens = False
        """Whether the delay policy wants to hear of calls."""
        self.unreported: list[Call] = []
        """Calls in the queue that it has yet to hear of."""
        self.fault: Exception | None = None
        """An error of this library, while it queued calls."""
        self._in_hand: list[Call] = []  # these calls

    # -- calls come -------------------------------------------------------------------------------------

    def take_in(self) -> None:
        """Queue the calls that have arrived, and drop those that leave; callers may be adding to both."""
        inbox = self.inbox
        gone = len(inbox.leaving)  # counted first: the calls that have left by now came before
        if inbox.arriving:
            inbox.has_moved = True
            new = inbox.arriving[:]  # calls that come meanwhile come later
            self.add(new)
            self.admission.arriving = 0
            del inbox.arriving[: len(new)]  # last, so that Ctrl-C loses nothing
        while inbox.refused:
            self.counters.refused += inbox.refused.popleft()
        while gone:
            gone -= 1
            call = inbox.leaving.popleft()
            self.gone.append(call)
            self.drop(call)

    def add(self, calls: list[Call]) -> None:
        """Put `calls` into the queue."""
        in_hand = self._in_hand
        in_hand += calls  # first: no error in the middle loses them
        if self.policy_listens:
            self.unreported += calls
        try:
            for call in calls:
                if call.deadline is not None:
                    self.deadlines.add(call, call.deadline)
            self.counters.accepted += self.queue.push_all(calls)
        except Exception as fault:  # noqa: BLE001  of this library: the driver that asks for a batch meets it
            self.counters.accepted += sum(call.size for call in calls)
            self.fault = fault
        if self.fault is None:
            in_hand.clear()

    def enter(self, call: Call) -> list[Call]:
        """Return the calls to queue in the place of `call`; raise if their keys cannot be compared."""
        calls = [*call.enter(self.in_flight)]
        for each in calls:
            keys = keys_of(each)
            for key in keys:
                key.settle(self._known_keys)
                self.keys_may_change = True
            if keys:
                self.queue.check_key(each)
        if call.is_divided:
            self._has_parts = True
        return calls

    def admit(self, call: Call, *, wait: bool, of_map: bool = False) -> bool:
        """Have `call` arrive if there is room; return False if it will be let in once there is.

        Raises `QueueFullError` if it cannot `wait`, and `ValueError` if there will never be room.
        """
        self.backlog.note(call.arrived)
        if self.inbox.leaving:  # calls that leave make room
            self.take_in()
        parts: list[Call] = []
        try:
            parts = self.enter(call)
            large = call.bulk if call.bulk is not None else call.size > self.queue.threshold
            has_room = self.admission.admit(
                call, parts, self.queue.items, large=large, wait=wait, of_map=of_map
            )
        except BaseException as error:
            if isinstance(error, QueueFullError):
                self.counters.rejected += sum(part.size for part in parts)
            call.leave()
            call.missing = call.waiting = 0  # nothing is left to be cancelled
            raise
        self.counters.cached += call.hits
        if not call.missing:
            self.answered.append(call)
        elif has_room and (self.queue.is_keyed or self.queue.tenants is not None):
            self.add(parts)  # compared with the keys there are, so that no other can come
            self.inbox.has_moved = True
            while self.admission.in_the_way:
                self._refuse(self.admission.in_the_way.pop())
        elif has_room:
            self.admission.arriving += sum([part.size for part in parts])
            self.inbox.arriving += parts
        return has_room

    def _refuse(self, part: Call) -> None:
        """Answer the call of `part`, which waits, with `QueueFullError`: another tenant has its room."""
        call = part.whole
        if call.unstarted:  # else another part of it was refused before
            self._ending.append(call)
            call.left = "rejected"
            call.error = self.admission.refused(call.unstarted, self.queue.items)
            self.drop(call)
            self.answer([call])
            self._ending.clear()

    def admit_waiting(self) -> None:
        """Queue the calls that wait for room, as far as there is room."""
        while (found := self.admission.next(self.queue.items)) is not None:
            call, parts = found
            self.let_in.append(call)
            self._in_hand += parts
            self.admission.leave(call)
            self.add(parts)

    # -- calls leave ------------------------------------------------------------------------------------

    def drop_all(self, calls: list[Call]) -> None:
        """Forget the items of `calls` that still wait; some of these calls may only be arriving."""
        self.take_in()
        for call in calls:
            self.drop(call)

    def drop(self, call: Call) -> None:
        """Forget the items of `call` that still wait, if any: it has been left, or is late, or has failed."""
        if call.missing and call.error is None and call.left is None:
            call.left = "cancelled"  # a part that no call waits for: some of it may still be in a batch
        parts = call.leave()
        self._end_wait_for_room(call)
        for part in parts:
            part.left = part.left or call.left
            if part is call:
                self._drop(part)
            else:
                self.drop(part)
        call.missing = 0  # the items of it that run have no caller any more

    def drop_rest(self, calls: list[Call]) -> list[Call]:
        """Forget the items that wait behind an error in lists; return the calls that are done with that."""
        done: list[Call] = []
        for part in [part for call in calls if call.error is not None for part in call.siblings]:
            if part.missing and part.waiting and part.error is not None:
                dropped = self.queue.drop(part, part.failed_at)
                self.counters.cancelled += dropped
                part.missing -= dropped
                if not part.missing:
                    done.append(part)
                    self.released.append(part)  # nothing of it runs
                self._note_dropped()
        return done

    def _end_wait_for_room(self, call: Call) -> None:
        """Have `call`, which is to be dropped, wait for room no more.

        It is queued, as what is dropped is counted there; or else it waits on behalf of other callers.
        """
        parts = self.admission.awaiting_room.get(call)
        if parts is None:
            return
        self.let_in.append(call)
        miss_call = parts[0].whole
        if miss_call.parent is not None and miss_call.parent.is_wanted:
            self.admission.hand_over(call, miss_call)
        else:
            self._in_hand += parts
            self.admission.leave(call)
            self.add(parts)

    def _drop(self, call: Call) -> None:
        if not hasattr(call, "large"):  # a refusal, or Ctrl-C, came before it could arrive
            call.waiting = 0
        waiting = call.waiting
        if waiting:
            if waiting in {call.size, call.missing}:  # else a part of it may be running
                self.released.append(call)
            dropped = self.queue.drop(call)
            if call.left == "expired":
                self.counters.expired += dropped
            elif call.left == "rejected":  # as if it had never been let in: each item counts once
                self.counters.accepted -= dropped
                self.counters.rejected += dropped
            else:
                self.counters.cancelled += dropped
            self._note_dropped()

    def _note_dropped(self) -> None:
        if not self.queue.items:  # an idle batcher keeps no calls
            self.unreported.clear()
        self.admit_waiting()

    def expire(self, call: Call, error: TimeoutError | None = None) -> None:
        """Answer `call`, which is late or will be, with `error` or else a `TimeoutError`.

        It must be taken in. Not if all of it has started.
        """
        if call.missing and call.unstarted:
            self._ending.append(call)
            call.left = "expired"
            call.error = error or TimeoutError(call.overdue(self._name))  # first: its caller may be looking
            self.drop(call)
            self.answer([call])
            self._ending.clear()

    # -- calls are answered -----------------------------------------------------------------------------

    def answer(self, calls: list[Call]) -> None:
        """Have the callers of `calls`, which are done, be woken; of a part, of what it is a part of."""
        unwanted: list[Call] = []
        if self._has_parts:
            calls, unwanted = completed(calls)
        self.answered += calls
        if self.in_flight is not None:
            self.in_flight.landing.clear()
        if self.admission.awaiting_room:
            for call in calls:  # one part that was in flight has failed before the others had room
                self._end_wait_for_room(call)
        if unwanted:
            self.drop_all(unwanted)

    def close(self, error: BaseException, left: Literal["cancelled"] | None = None) -> None:
        """Answer all calls that wait with `error`; `left` says that they count as cancelled by callers."""
        self.take_in()
        if outside := self.admission.clear():
            self.add(outside)  # and out again, so that they count
        calls = self.waiting()
        self._ending += [call for call in calls if call.missing]
        unanswered = _set_error(calls, error)
        for call in calls:
            self.drop(call)
        for call in unanswered:
            call.left = left
        self.answer(unanswered)
        self._ending.clear()

    def abandon(self, error: BaseException, retried: list[Call], options: Options) -> None:
        """Answer all calls that wait, and those `retried`, with `error`, and begin with a new queue.

        The queue may be broken, so nothing is asked of it but which calls it has.
        """
        arriving = self.inbox.arriving
        new = arriving[:]
        del arriving[: len(new)]
        new += self.admission.clear()
        self.counters.accepted += sum(call.waiting for call in new)
        taken: list[Call] = []
        if self.taking_from is not None:
            taken = [call for call, _, _ in self.taking_from.taking]
            taken += self.taking_from.known_calls()
            self.taking_from = None
        calls = list(dict.fromkeys([*new, *self.waiting(), *self._in_hand, *self._ending, *taken, *retried]))
        self.counters.cancelled += sum(call.waiting for call in calls)
        unanswered = _set_error(calls, error)
        for call in calls:
            if call.waiting in {call.size, call.missing}:  # else a part of it may be running
                self.released.append(call)
            call.waiting = call.missing = 0
        self.begin(options)
        self.answer(unanswered)

    def lose(self, call: Call, error: BaseException) -> None:
        """Answer what `call` is a part of, after a step was broken off: with `error` if it has no answer.

        Its caller may have been told before: that does no harm.
        """
        if call.parent is not None:
            self.answered += call.parent.abandon(error)
            if self.in_flight is not None:
                self.answered += [call for call in self.in_flight.landing if not call.missing]
            call.missing = 0
            return
        if call.missing:
            call.fail(error)
        self.answered.append(call)

    def mend(self, error: BaseException, running: list[Batch], options: Options) -> None:
        """Begin with a new queue of the calls that wait, after `error` broke off a step in the middle.

        What each call knows of itself holds; what the queue knows may not. A list of which the step was
        taking some items, but not the first, gets `error`.
        """
        queues, admission = [self.queue], self.admission
        runs = {call for batch in running for call in batch.calls}
        taken: dict[Call, int] = {}
        if self.taking_from is not None:
            queues.append(self.taking_from)
            taken = _starts(self.taking_from.taking, runs)
            self.taking_from = None
        new = self.inbox.arriving[:]
        found = [*(call for queue in queues for call in queue.known_calls()), *self._in_hand, *taken, *new]
        outside = set(admission.waiting_calls())
        calls = sorted((call for call in dict.fromkeys(found) if call not in outside), key=_arrived)
        uneven = {call for call in calls if any(queue.is_uneven(call) for queue in queues)}
        ending, unreported = self._ending, self.unreported
        self._ending = []
        awaiting_room = admission.awaiting_room
        del self.inbox.arriving[: len(new)]
        self.begin(options)
        self.unreported = unreported
        for call in ending:
            self.lose(call, error)
        if self.in_flight is not None:
            self.answered += [call for call in self.in_flight.landing if not call.missing]
        for call in calls:
            start = taken.get(call)
            if start == 0 and call.missing == call.size:
                call.waiting = call.size
            elif (start is not None or call in uneven) and call.missing:
                self.lose(call, error)
        for call in calls:
            if not call.missing or call.left is not None:
                call.waiting = 0
        self.add([call for call in calls if call.waiting])
        for call, parts in awaiting_room.items():
            self.admission.await_room(call, parts)
        self.admit_waiting()

    def waiting(self) -> list[Call]:
        """Return the calls of which a part waits, also for room in the queue."""
        waiting = [*self.queue.waiting_calls(), *self.admission.waiting_calls(), *self._in_hand]
        return list(dict.fromkeys(waiting))


def _arrived(call: Call) -> float:
    return call.arrived


def _starts(slices: list[Slice], runs: set[Call]) -> dict[Call, int]:
    """Return the first place of each call in `slices`, but for calls that are in `runs`."""
    starts: dict[Call, int] = {}
    for call, start, _ in slices:
        if call not in runs:
            starts[call] = min(start, starts.get(call, start))
    return starts


def _set_error(calls: list[Call], error: BaseException) -> list[Call]:
    """Give `error` to those of `calls` that have no answer, and return them. Their callers may be looking."""
    unanswered = [call for call in calls if call.missing]
    for call in unanswered:
        call.error = error
    return unanswered
