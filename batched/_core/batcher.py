"""All that is decided: which calls share a batch, when it starts, and what becomes of them.

Pure: a driver tells the time and does the waiting. Callers put calls into `arriving` and `leaving`; a driver
asks `next` for the batch to run, or for how long to wait, and reports the batch by `finish` or `fail`.
After each step it takes the calls of `answered`, whose callers are to be woken.

Nothing is assigned to a batch before a driver is free to run it (late binding), so the queue keeps growing
behind a running batch. All but `arriving`, `leaving` and `wakes` needs the lock of the driver.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from batched._core.accounting import Accounting
from batched._core.admission import Admission
from batched._core.call import completed
from batched._core.deadlines import Deadlines
from batched._core.delay import new_window
from batched._core.retries import Retries
from batched._policy.start_reason import StartReason
from batched.errors import QueueFullError, without_own_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, TypeAlias

    from batched._core.batch import Batch, Collator
    from batched._core.call import Call
    from batched._core.counters import Counters
    from batched._core.keyed_queues import Groups
    from batched._core.options import Options
    from batched._core.queue import Queue
    from batched._core.stats import Stats
    from batched._policy.learned import Learned

    AnyQueue: TypeAlias = Queue | Groups
    NewQueue: TypeAlias = Callable[[int, int], AnyQueue]
    """From `batch_size` and `small_batch_threshold`."""

__all__ = ["Batcher", "snapshot"]


class Batcher:
    """The queue of one batcher. `now` and all times are seconds on one monotonic clock.

    A batch starts when it is full; otherwise when the delay policy says so; and earlier for a call with a
    deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        new_queue: NewQueue,
        collator: Collator,
        name: str,
        counters: Counters,
        *,
        in_flight: Any = None,
        streams: bool = False,
    ) -> None:
        self.name = name
        self._new_queue = new_queue
        self._collator = collator
        self.in_flight = in_flight  # what calls that a cache may answer share
        self._streams = streams
        self._accounting = Accounting(counters)
        self._retries = Retries()
        self._running: dict[Batch, float] = {}  # since when
        self._draining = False
        # Filled by callers, without a lock.
        self.arriving: list[Call] = []
        self.leaving: deque[Call] = deque()
        self.wake_after: int | None = None
        """So many calls in `arriving` are reason to ask `next` before `until`; None: it will be asked."""
        self.until = 0.0
        """When the driver asks `next` in any case, if calls wait."""
        self.has_moved = False
        """Whether calls have left `arriving` since `plan`, so that `wake_after` is too many."""
        # Filled here, for the driver to take.
        self.answered: list[Call] = []
        """Calls that have their answer, whose callers are to be woken."""
        self.let_in: list[Call] = []
        """Calls that have waited for room and now are in the queue."""
        self._released: list[Call] = []
        self._begin(options)

    def _begin(self, options: Options) -> None:
        """Begin with an empty queue, and nothing learned."""
        self.queue: Any = self._new_queue(options.batch_size, options.small_batch_threshold)
        self._lengths = self.queue.lengths
        self._cost = None if self._lengths is None else self._lengths.cost
        self._retries.clear()
        self._admission = Admission(self.name, options)
        self._fault: Exception | None = None  # of this library, while it queued the calls in hand
        self._in_hand: list[Call] = []
        self._unreported: list[Call] = []  # calls that the delay policy has yet to hear of
        self._deadlines = Deadlines()
        self._reason = StartReason.FULL  # why the next batch is due, once it is
        self.policy: Any = new_window(options, self._cost)
        self._follow(options)

    def _follow(self, options: Options) -> None:
        self._options = options
        self._learns = self.policy.learns and not self.policy.is_suspended
        self._waits = options.timeout_ms > 0 and not self.policy.is_suspended
        self._at_once = StartReason.NO_GAIN if options.timeout_ms > 0 else StartReason.WINDOW
        self._resize()

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self.policy = new_window(options, self._cost, self.policy)
        self._admission.configure(options)
        self._follow(options)
        self._let_in()

    def _resize(self) -> None:
        """Bring the queue up to date with the options, and with what fits into memory."""
        options = self._options
        size = self._retries.fitting(options.batch_size)
        lengths = self._lengths
        changed = lengths is not None and lengths.budget != options.max_batch_length
        if lengths is not None:
            lengths.budget = options.max_batch_length
        if changed or (size, options.small_batch_threshold) != (self.queue.batch_size, self.queue.threshold):
            self.queue.resize(size, options.small_batch_threshold)

    # -- calls come -------------------------------------------------------------------------------------

    def arrive(self, call: Call) -> bool:
        """Have `call`, which need not be admitted, arrive; return what `wakes` does. Needs no lock."""
        if call.is_divided:
            self.arriving += call.parts
        else:
            self.arriving.append(call)
        return self.wakes(call)

    def wakes(self, call: Call) -> bool:
        """Whether `call`, which has just arrived, is reason to ask `next` at once. Needs no lock."""
        after = self.wake_after
        return after is not None and (
            len(self.arriving) >= after
            or call.size > 1
            or (call.deadline is not None and call.latest_start() < self.until)
        )

    def take_in(self) -> None:
        """Queue the calls of `arriving`, and drop those of `leaving`; callers may be adding to both."""
        gone = len(self.leaving)  # counted first: the calls that have left by now came before
        if self.arriving:
            self.has_moved = True
            new = self.arriving[:]  # calls that come meanwhile come later
            self._queue(new)
            self._admission.arriving = 0
            del self.arriving[: len(new)]  # last, so that Ctrl-C loses nothing
        while gone:
            gone -= 1
            self.drop(self.leaving.popleft())

    def push(self, call: Call) -> None:
        """Queue `call`, or its parts; raise, with nothing queued, if their keys cannot be compared."""
        self._queue(self._entered(call))

    def _entered(self, call: Call) -> list[Call]:
        """Return the calls to queue in the place of `call`."""
        calls = [*call.enter(self.in_flight)]
        for each in calls:
            self.queue.check_key(each)
        return calls

    def _queue(self, calls: list[Call]) -> None:
        counters = self._accounting.counters
        if self._learns:
            self._unreported += calls
        try:
            counters.accepted += self.queue.push_all(calls)
        except Exception as fault:  # noqa: BLE001  of this library: the driver that asks `next` deals with it
            counters.accepted += sum(call.size for call in calls)
            self._in_hand += calls
            self._fault = fault
        self._deadlines.add([call for call in calls if call.deadline is not None])

    def admit(self, call: Call, *, wait: bool, of_map: bool = False) -> bool:
        """Have `call` arrive if there is room; return False if it will be let in once there is.

        Raises `QueueFullError` if it cannot `wait`, and `ValueError` if there will never be room.
        """
        if self.leaving:  # calls that leave make room
            self.take_in()
        parts: list[Call] = []
        try:
            parts = self._entered(call)
            has_room = self._admission.admit(call, parts, self.queue.items, wait=wait, of_map=of_map)
        except BaseException as error:
            if isinstance(error, QueueFullError):
                self._accounting.counters.rejected += sum(part.size for part in parts)
            call.leave()
            call.missing = call.waiting = 0  # nothing is left to be cancelled
            raise
        self._accounting.counters.cached += call.hits
        if not call.missing:
            self.answered.append(call)
        elif has_room and self.queue.is_keyed:  # compared with the keys there are, so that no other can come
            self._queue(parts)
            self.has_moved = True
        elif has_room:
            self._admission.arriving += sum([part.size for part in parts])
            self.arriving += parts
        return has_room

    def _let_in(self) -> None:
        """Queue the calls that wait for room, as far as there is room."""
        while (found := self._admission.next(self.queue.items)) is not None:
            call, parts = found
            self.let_in.append(call)
            self._queue(parts)

    # -- calls leave ------------------------------------------------------------------------------------

    def drop(self, call: Call) -> None:
        """Forget the items of `call` that still wait: its caller has left, it is late, or it has failed.

        Saying so again changes nothing.
        """
        self._end_wait_for_room(call)
        for part in call.leave():
            part.left = part.left or call.left
            if part is call:
                self._drop(part)
            else:
                self.drop(part)
        call.missing = 0  # the items of it that run have no caller any more

    def _end_wait_for_room(self, call: Call) -> None:
        """Queue `call`, which is to be dropped, if it waits for room: what is dropped is counted there."""
        if parts := self._admission.leave(call):
            self.let_in.append(call)
            self._queue(parts)

    def _drop(self, call: Call) -> None:
        waiting = call.waiting
        if waiting:
            if waiting in {call.size, call.missing}:  # else a part of it may be running
                self._released.append(call)
            dropped = self.queue.drop(call)
            if call.left == "expired":
                self._accounting.counters.expired += dropped
            else:
                self._accounting.counters.cancelled += dropped
            if not self.queue.items:  # an idle batcher keeps no calls
                self._unreported.clear()
            self._let_in()

    def expire(self, call: Call) -> None:
        """Answer `call`, which is late, with a `TimeoutError`, unless all of it has started."""
        if call.missing and call.unstarted:
            call.left = "expired"
            call.error = TimeoutError(call.overdue(self.name))  # first: its caller may be looking
            self.drop(call)
            self._answer([call])

    # -- the next batch ---------------------------------------------------------------------------------

    def next(self, now: float) -> Batch | float | None:
        """Remove and return the next batch if it is due.

        Else return the seconds until it is worth asking again, None if no call waits. Raises a fault of this
        library that calls met while they were queued; the driver then has to `give_up`.
        """
        delay = self.plan(now)
        if delay != 0.0:
            return delay
        self.wake_after = None
        return self.pop(now)

    def plan(self, now: float) -> float | None:
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits.

        Notes how many more calls are reason to ask earlier.
        """
        delay = self.delay(now)
        self.has_moved = False
        self.wake_after = min(self.queue.lacks(), self.policy.awaited) if delay else 1
        self.until = now + (delay or 0.0)
        return delay

    def delay(self, now: float) -> float | None:
        """Return what `plan` does, and note nothing for callers."""
        if self._fault is not None:
            raise self._fault
        self._catch_up(now)
        if self._retries.has_next(now, self._accounting):
            return 0.0
        queue = self.queue
        if not queue.items:
            return None
        start, self._reason = self._start(now)
        return start - now if start > now else 0.0

    def _start(self, now: float) -> tuple[float, StartReason]:
        """Return when the next batch starts, and why. At least one item must wait."""
        if self.queue.is_full():
            return now, StartReason.FULL
        if self._starts_at_once:
            return now, self._why_early()
        start = self.policy.start(self.queue.oldest(), self.queue.items, now)
        if self._deadlines.heap and (urgent := self._deadlines.start()) < start:
            return urgent, StartReason.DEADLINE
        return start, self.policy.reason

    @property
    def _starts_at_once(self) -> bool:
        """Whether a batch that is not full starts without a wait."""
        return self._draining or self._admission.is_crowded or not self._waits

    def _why_early(self) -> StartReason:
        """Return why a batch that is not full starts."""
        if self._draining:
            return StartReason.DRAIN
        if self._admission.is_crowded:
            return StartReason.CROWDED
        reason: StartReason = self.policy.reason if self._waits else self._at_once
        return reason

    def _catch_up(self, now: float) -> None:
        """Tell the delay policy which calls have come, and answer calls whose deadline has passed."""
        if self._unreported:
            self.policy.arrived([call.arrived for call in self._unreported])
            self._unreported.clear()
        if self._deadlines.heap:
            for call in self._deadlines.passed(now):
                self.expire(call)

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, for which `plan` has just said that it is due."""
        batch = self._retries.pop()
        if batch is None:
            batch = self._take(now)
            if self._learns:
                self.policy.popped(now)
            self._let_in()
        self._running[batch] = now
        return batch

    def _take(self, now: float) -> Batch:
        """Remove and return the batch of the queue whose turn it is."""
        deadlines = self._deadlines
        urgent = deadlines.first() if deadlines.heap and deadlines.start() <= now else None
        lengths = self._lengths
        if lengths is not None:
            lengths.urgent = urgent
        queue: Queue = self.queue.next(lambda oldest: self._is_due(oldest, now), urgent)
        queue.chunk = self.queue.chunk
        if queue.is_full():
            reason = StartReason.FULL
        elif self._reason == StartReason.FULL:  # another queue was
            reason = self._why_early()
        else:
            reason = self._reason
        batch = queue.take(min(queue.batch_size, queue.items))
        batch.reason = reason
        self.queue.taken(batch, now)
        if lengths is not None:
            self._accounting.counters.chosen[lengths.how] += 1
            lengths.urgent = None  # an idle batcher holds on to no call
        return batch

    def _is_due(self, oldest: float, now: float) -> bool:
        """Whether a batch starts now whose oldest item is of the time `oldest`."""
        return self._starts_at_once or self.policy.start(oldest, self.queue.items, now) <= now

    # -- the end of a batch -----------------------------------------------------------------------------

    def finish(self, batch: Batch, parts: list[Any], now: float) -> None:
        """Hand the calls of `batch`, which has run, their parts, as the collator has split them."""
        self.take_in()  # what is dropped is to be in the queue
        self._end(batch, batch.answer(parts, self._collator), now)

    def step(self, batch: Batch, pieces: list[Any]) -> tuple[list[Call], bool]:
        """Hand the calls of `batch`, which streams, their next pieces.

        Returns the calls that have something new, and whether any of the batch wants more.
        """
        return batch.step(pieces, self.name, self._options.max_pieces)

    def finish_stream(self, batch: Batch, now: float) -> None:
        """End the streams of `batch`, which has no more pieces."""
        self.take_in()
        self._end(batch, batch.end(), now)

    def fail(self, batch: Batch, error: BaseException, now: float) -> bool:
        """Answer the calls of `batch`, which raised `error`, unless it runs again in halves; return that."""
        self.take_in()
        if self._runs_again(batch, error, now):
            return True
        done = batch.fail(without_own_frames(error), self._collator, streams=self._streams)
        self._end(batch, done, now)
        return False

    def _runs_again(self, batch: Batch, error: BaseException, now: float) -> bool:
        """Have `batch` run again in halves if that may help; return whether it does."""
        if batch.size == 1 or batch.begun or batch not in self._running:
            return False
        if not self._retries.may_help(batch, error, isolates=self._options.isolate_errors):
            return False
        self._resize()
        started = self._running.pop(batch)
        self._accounting.ran(batch, started, now)
        self._accounting.left(batch.prune(), started)
        self._retries.add(batch)
        return True

    def _end(self, batch: Batch, done: list[Call], now: float) -> None:
        """Count `batch`, which has answered the calls `done`, and learn from it."""
        started = self._running.pop(batch, None)
        if started is not None:  # else a fault came in the way, and it is counted
            self._accounting.ended(batch, started, now)
            if not batch.failed and self._retries.fitted(batch.size, self._options.batch_size):
                self._resize()
            if self._lengths is not None and batch.failed < batch.size:
                self._lengths.ran(batch.slices, batch.size, now - started)
            if self.policy.learns:
                self._learn(batch, started, now)
        self._forget(batch, done)
        self._answer(done)

    def _forget(self, batch: Batch, done: list[Call]) -> None:
        """Drop the items of calls that have failed, and release the inputs of calls that have ended."""
        alone = not self._running  # else another part of a call that has failed may be running
        for call, start, stop in batch.slices:
            if not call.missing:
                if call.waiting:
                    self.drop(call)
                if alone or stop - start == call.size:
                    self._released.append(call)
        self._released += [call for call in done if call.has_all_results]
        if not self.queue.items:
            self._deadlines.heap.clear()  # an idle batcher holds on to no call

    def _learn(self, batch: Batch, started: float, now: float) -> None:
        policy = self.policy
        if policy.is_suspended:
            self._learns = self._waits = policy.resumes(batch.size, now - started)
            return
        calls = batch.calls
        answered = sum([not call.missing and call.left is None for call in calls])
        measured = started if batch.failed < batch.size else None
        policy.done(batch.size, len(calls), answered, now, measured)
        self.queue.chunk = policy.chunk()
        self._learns = self._waits = not policy.is_suspended

    def _answer(self, calls: list[Call]) -> None:
        """Have the callers of `calls`, which are done, be woken; of a part, of what it is a part of."""
        unwanted: list[Call] = []
        if any(call.parent is not None for call in calls):
            calls, unwanted = completed(calls)
        self.answered += calls
        if self._admission.is_crowded:
            for call in calls:  # one part that was in flight has failed before the others had room
                self._end_wait_for_room(call)
        for part in unwanted:
            self.drop(part)

    def take_released(self) -> list[Call]:
        """Return the calls whose inputs are to be released, without the lock."""
        released, self._released = self._released, []
        return released

    # -- the end ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Wait for company no more: every call in the queue is due."""
        self._draining = True

    def close(self, error: BaseException, left: Literal["cancelled"] | None = None) -> None:
        """Answer all calls that wait with `error`; `left` says that they count as cancelled by callers."""
        self.take_in()
        if outside := self._admission.clear():
            self._queue(outside)  # and out again, so that they count
        calls = self.waiting_calls()
        unanswered = [call for call in calls if call.missing]
        for call in unanswered:
            call.error = error  # first: its caller may be looking
        for call in calls:
            self.drop(call)
        for call in unanswered:
            call.left = left
        self._answer(unanswered)

    def end_streams(self, error: BaseException) -> list[Call]:
        """Fail the calls of batches that run and stream; return them."""
        calls = [call for call in self.running_calls() if call.missing and self._streams]
        for call in calls:
            call.left = "cancelled"
            call.fail(error)
        return calls

    def give_up(self, error: BaseException, batch: Batch | None) -> None:
        """Answer with `error`, a fault of this library, the calls of `batch`, or else all that wait.

        The queue may be broken: a new one begins, and calls that were half-way into the old one are answered
        too. Counters, and other batches that run, go on.
        """
        if batch is not None:
            done = batch.fail(error, self._collator, streams=self._streams)
            if self._running.pop(batch, None) is not None:
                self._accounting.counters.processed += batch.size
                self._accounting.counters.failed += batch.failed
            try:
                self._answer(done)
                self._forget(batch, done)
            except Exception as fault:  # noqa: BLE001  the queue is broken: `next` raises it
                self._fault = fault
            return
        new = self.arriving[:]
        del self.arriving[: len(new)]
        counters = self._accounting.counters
        new += self._admission.clear()
        counters.accepted += sum(call.waiting for call in new)
        calls = list(dict.fromkeys([*new, *self.waiting_calls(), *self._retries.calls()]))
        counters.cancelled += sum(call.waiting for call in calls) + self._retries.items
        unanswered = [call for call in calls if call.missing]
        for call in unanswered:
            call.error = error  # first: its caller may be looking
        for call in calls:
            if call.waiting in {call.size, call.missing}:  # else a part of it may be running
                self._released.append(call)
            call.waiting = call.missing = 0
        self._begin(self._options)
        self._answer(unanswered)

    # -- what is there ----------------------------------------------------------------------------------

    @property
    def running(self) -> dict[Batch, float]:
        """The batches that run, each with the time at which it started."""
        return self._running

    def running_calls(self) -> list[Call]:
        """Return the calls of which a part runs."""
        return [*(call for batch in self._running for call in batch.calls), *self._retries.calls()]

    def waiting_calls(self) -> list[Call]:
        """Return the calls of which a part waits, also for room in the queue."""
        waiting = [*self.queue.waiting_calls(), *self._admission.waiting_calls(), *self._in_hand]
        return list(dict.fromkeys(waiting))

    @property
    def retrying(self) -> int:
        """The items that are about to run again, in halves."""
        return self._retries.items

    @property
    def fits(self) -> int | None:
        """The most items of a batch as far as memory is known to go."""
        return self._retries.memory.limit

    @property
    def learned(self) -> Learned | None:
        """What it has learned of its function and its callers."""
        learned: Learned | None = self.policy.learned()
        if learned is None or self._lengths is None:
            return learned
        cost = self._lengths.cost
        return replace(learned, item_ms=cost.each_alone * 1000, length_ms=cost.per_length * 1000)


def snapshot(counters: Counters, batchers: Sequence[Batcher], now: float) -> Stats:
    """Return what `batchers`, which count together, have done so far."""
    fits = [batcher.fits for batcher in batchers if batcher.fits is not None]
    known = [batcher for batcher in batchers if batcher.learned is not None]
    most = max(known, key=lambda batcher: batcher.policy.cohorts, default=None)
    return counters.snapshot(
        waiting=sum(batcher.queue.items for batcher in batchers),
        running=[
            (batch.size, now - since) for batcher in batchers for batch, since in batcher.running.items()
        ],
        again=sum(batcher.retrying for batcher in batchers),
        fits=min(fits, default=None),
        learned=None if most is None else most.learned,
    )
