"""Which calls run together, and when: told the time, never asking for it.

A driver pushes calls, asks `delay` how long to wait, takes a batch with `pop` once it is due and a slot is
free, and reports it `done`. Nothing is assigned to a batch before that (late binding), so the queue keeps
growing behind a running batch. Knows nothing of threads, event loops or what the items are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from batched._core.call import Batch, Call
from batched._core.counters import Counters
from batched._core.deadlines import Deadlines
from batched._core.memory_limit import MemoryLimit, is_out_of_memory
from batched._core.queue import Queue
from batched._parts.cache import Flights, Lookup
from batched._parts.group_by import Family, complete
from batched._policy.delay import new_window
from batched._policy.start_reason import StartReason
from batched.errors import QueueFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, TypeAlias

    from batched._core.call import Slice
    from batched._core.keyed_queues import Groups
    from batched._core.options import Options
    from batched._core.stats import Stats
    from batched._policy.learned import Learned

    AnyQueue: TypeAlias = Queue | Groups
    NewQueue: TypeAlias = Callable[[int, int], AnyQueue]
    """From `batch_size` and `small_batch_threshold`."""

__all__ = ["Scheduler", "is_guarded"]

_TURNS = 256  # counted at once: together they take a fraction of the time


class Scheduler:
    """The queue of one batcher. `now` and all times are seconds on one monotonic clock.

    A batch starts when it is full; otherwise when `patience` says so; and earlier for a call with a
    deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(
        self, options: Options, queue: NewQueue, name: str, counters: Counters | None = None
    ) -> None:
        self._new_queue = queue
        self.name = name
        self._counters = Counters() if counters is None else counters  # several may count together
        self._capacity = MemoryLimit()
        self._flights = Flights()
        self._running: dict[Batch, float] = {}  # since when
        self._turns: list[float] = []  # when runs of the list that a batch is midway in ended; to be counted
        self._draining = False
        self._reason = ""  # why the next batch is due, once it is
        self.expired: list[Call] = []
        """Calls whose deadline passed before they had run: for the driver to answer and clear."""
        self.let_in: list[Call] = []
        """Calls for which there was no room and now is: for the driver to tell their callers and clear."""
        self._begin(options)

    def _begin(self, options: Options) -> None:
        """Begin with nothing that waits, and nothing learned."""
        # Typed as what it may be too: asking costs as much as what is asked.
        self.queue: Any = self._new_queue(options.batch_size, options.small_batch_threshold)
        self._one_queue = isinstance(self.queue, Queue)
        self._lengths = self.queue.lengths
        self._is_plain = self._one_queue and self._lengths is None  # full means a number of items
        self.again: deque[Batch] = deque()  # the halves of batches that failed
        self._fault: Exception | None = None  # of this library, while it queued these calls
        self._in_hand: list[Call] = []
        self._urgent: list[Call] = []  # calls with a deadline that have just come
        self._untold: list[Call] = []  # calls that patience is told of when the worker asks it
        self._deadlines = Deadlines()
        # For which there was no room, in order, and whether they are patient; then the patient ones let in.
        self._outside: OrderedDict[Call, bool] = OrderedDict()
        self._patient: list[Call] = []
        self.patience = new_window(options, None if self._lengths is None else self._lengths.cost)
        self._follow(options)
        self._resize()

    def abandon(self, error: BaseException, arriving: list[Call]) -> list[Call]:
        """Answer all that waits with `error`, a fault of this library, and begin with an empty queue.

        The queue may be broken: calls that the fault found half-way into it are answered too. Empties
        `arriving`; returns the calls to answer. Running batches and counters go on.
        """
        new = arriving[:]
        del arriving[: len(new)]
        self._counters.accepted += sum(map(_waiting, (*new, *self._outside)))
        again = [call for batch in self.again for call in batch.calls]
        calls = list(dict.fromkeys([*new, *self.waiting_calls(), *again]))
        self._counters.cancelled += sum(map(_waiting, calls)) + self.retrying
        unanswered = [call for call in calls if call.missing]
        for call in unanswered:
            call.error = error  # first: its caller may be looking
        for call in calls:
            if call.waiting in {call.size, call.missing}:  # else a part of it may be running
                call.let_go()
            call.waiting = call.missing = 0
        self._begin(self._options)
        return unanswered

    def _follow(self, options: Options) -> None:
        self._options = options
        self._max_queue_size = options.max_queue_size
        self._learns = self.patience.learns and not self.patience.is_suspended
        self._waits = options.timeout_ms > 0 and not self.patience.is_suspended
        self._at_once = StartReason.NO_GAIN if options.timeout_ms > 0 else StartReason.WINDOW
        self._is_simple = self._is_plain and options.max_concurrent_batches == 1

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self._count_turns()  # while the batch that has had them runs alone
        cost = None if self._lengths is None else self._lengths.cost
        self.patience = new_window(options, cost, self.patience)
        self._follow(options)
        if options.max_queue_size is None:
            self._patient.clear()  # without a bound they are not looked at, and would be kept
        self._resize()
        self._let_in()

    # -- calls come and go ------------------------------------------------------------------------------

    def push(self, call: Call) -> None:
        """Queue `call`, or its members; raise, with nothing queued, if their keys cannot be compared."""
        calls: list[Call] = [*call.members] if isinstance(call, Family) else [call]
        if not self._one_queue:
            for each in calls:
                self.queue.knows(each)
        self.take_in(calls, deque())

    def is_welcome(self, call: Call, arriving: int) -> bool:
        """Whether `call` can just be pushed, like the `arriving` ones before it: most single items can."""
        bound = self._max_queue_size
        return (
            call.size == 1
            and type(call) is Call
            and self._one_queue  # else comparing keys may raise, which is its caller's to know
            and (bound is None or self.queue.items + arriving < bound)
            and not self._outside
        )

    def admit(self, call: Call, *, wait: bool, patient: bool = False) -> Call | None:
        """Queue `call` if there is room; else, if it can `wait`, return what will be queued once there is.

        Raises `QueueFullError` if it cannot wait, and `ValueError` if there will never be room. A `patient`
        one, of a `map` that began before the bound was lowered, is let in alone then.
        """
        if isinstance(call, Lookup):
            try:
                miss_call = self._flights.enter(call)
                outside = None if miss_call is None else self.admit(miss_call, wait=wait, patient=patient)
            except BaseException:
                self._flights.leave(call)
                raise
            self._counters.cached += call.hits
            return outside
        bound = self._max_queue_size
        if bound is not None and call.size > bound and not patient:
            raise ValueError(
                f"{self.name} has max_queue_size={bound}: a call of {call.size} items will never fit, "
                f"so divide it or raise the bound"
            )
        behind = self._outside if wait else not all(self._outside.values())  # the patient let others pass
        if not behind and self._has_room(call, patient=patient):
            self.push(call)
            return None
        if not wait:
            self._counters.rejected += call.size
            raise QueueFullError(
                f"{self.name} has {self.queue.items} items waiting, and max_queue_size={bound}: "
                f"no room for {call.size} more"
            )
        self._outside[call] = patient
        return call

    def _has_room(self, call: Call, *, patient: bool) -> bool:
        """Whether `call` may be queued, and if so, note that it is `patient`.

        One that is alone is, though it be larger: the bound was lowered while it waited. Where others are
        turned away, those that are patient leave them half of the room.
        """
        bound = self._max_queue_size
        waiting = self.queue.items
        if bound is None:
            return True
        if waiting and waiting + call.size > bound:
            return False
        if patient and self._options.on_full == "raise":
            self._forget_patient()
            theirs = sum(map(_waiting, self._patient))
            if theirs and theirs + call.size > bound // 2:
                return False
            self._patient.append(call)
        return True

    def _forget_patient(self) -> None:
        self._patient = [call for call in self._patient if _waiting(call)]

    def _let_in(self) -> None:
        """Queue what has waited for room, as far as there is."""
        while self._outside:
            call, patient = next(iter(self._outside.items()))
            if not self._has_room(call, patient=patient):
                return
            del self._outside[call]
            self.push(call)
            self.let_in.append(call)

    def take_in(self, arriving: list[Call], leaving: deque[Call]) -> None:
        """Queue all of `arriving`, drop those of `leaving`, and empty both, to which others may be adding."""
        gone = len(leaving)  # counted first: whoever has left by now came before
        if arriving:
            new = arriving[:]  # what comes meanwhile comes later
            if self._learns:
                self._untold += new
            try:
                self._counters.accepted += self.queue.push_all(new, self._urgent)
            except Exception as fault:  # noqa: BLE001  of this library: the driver that asks `delay` deals with it
                self._counters.accepted += sum(call.size for call in new)
                self._in_hand += new
                self._fault = fault
            del arriving[: len(new)]  # last, so that Ctrl-C loses nothing
            if self._urgent:
                self._deadlines.add(self._urgent)
                self._urgent.clear()
        while gone:
            gone -= 1
            self.drop(leaving.popleft())

    def drop(self, call: Call) -> None:
        """Forget what of `call` still waits: its caller has left, its deadline has passed or it has failed.

        Saying so again changes nothing.
        """
        if call in self._outside:
            del self._outside[call]
            self.push(call)  # and out again, so that it counts
            self.let_in.append(call)
        if isinstance(call, Lookup | Family):
            call.missing = 0
            for part in self._flights.leave(call) if isinstance(call, Lookup) else call.members:
                part.left = part.left or call.left
                self.drop(part)
            return
        if call.waiting and call.waiting in (call.size, call.missing):  # else a part of it may be running
            call.let_go()
        dropped = self.queue.drop(call) if call.waiting else 0
        call.missing = 0  # what of it runs already has nobody to go to
        if call.left == "expired":
            self._counters.expired += dropped
        else:
            self._counters.cancelled += dropped
        if not self.queue.items:  # an idle batcher keeps no calls
            self._untold.clear()
            self._patient.clear()
        if self._outside:
            self._let_in()

    def _catch_up(self, now: float) -> None:
        """Tell patience who has come, and drop calls whose deadline has passed."""
        if self._untold:
            self.patience.arrived(self._untold)
            self._untold.clear()
        for call in self._deadlines.passed(now):
            if self.expire(call):  # else it has just failed, and its worker answers it
                self.expired.append(call)

    def expire(self, call: Call) -> bool:
        """Drop `call`, which is late, unless all of it has started; return whether it was dropped."""
        if not call.missing or not _waiting(call):
            return False
        call.left = "expired"
        call.error = TimeoutError(call.overdue(self.name))  # first: its caller may be looking
        self.drop(call)
        return True

    # -- calls are done ---------------------------------------------------------------------------------

    def whole(self, calls: list[Call]) -> list[Call]:
        """Return which calls are done now that these are: not a part of a list, but its family."""
        calls, orphans = complete(calls)
        for call in orphans:
            self.drop(call)
        return calls

    def found(self, calls: list[Call]) -> list[tuple[Hashable, Any]]:
        """Return what a cache should keep of `calls`, which are done: keys and results."""
        return [result for call in calls for result in self._flights.results(call)]

    def answered(self, calls: list[Call]) -> list[Call]:
        """Return whom to answer now that `calls` are done: for those of a cache, all who wait for them."""
        if self._patient:
            self._forget_patient()
        if self._options.cache is None:
            return calls
        calls, unwanted = self._flights.complete(calls)
        for call in unwanted:
            self.drop(call)
        return calls

    # -- batches ----------------------------------------------------------------------------------------

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due: 0.0 if it is, None if nothing waits.

        Raises a fault of this library that calls met while they were queued; the driver then has to `abandon`
        what waits.
        """
        if self._fault is not None:
            raise self._fault
        if self._untold or self._deadlines.heap:
            self._catch_up(now)
        if self.again and self._is_wanted_again(now):
            return 0.0
        queue = self.queue
        items = queue.items
        if not items:
            return None
        if items >= queue.batch_size if self._is_plain else queue.is_full():
            self._reason = "full"
            return 0.0
        if self._draining or self._outside:
            self._reason = self._why_early()
            return 0.0
        if not self._waits:
            self._reason = self._at_once
            return 0.0
        start = self.patience.start(queue.oldest(), items, now)
        self._reason = self.patience.reason
        if self._deadlines.heap and (urgent := self._deadlines.start()) < start:
            start = urgent
            self._reason = "deadline"
        return start - now if start > now else 0.0

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, for which `delay` has just said why it is due."""
        if self.again and self._is_wanted_again(now):
            batch = self.again.popleft()
            self._running[batch] = now
            return batch
        queue: Queue = self.queue
        if not self._is_plain:
            queue = self._choose(now)
        waiting = queue.items
        room = queue.batch_size
        batch = queue.take(room if room < waiting else waiting)  # noqa: FURB136  hot path
        batch.reason = self._reason
        if not self._is_plain:
            self._took(batch, now)
        self._running[batch] = now
        if self._learns:
            self.patience.popped(now)
        if self._outside:
            self._let_in()
        return batch

    def pop_arriving(self, arriving: list[Call], came: int, now: float) -> Batch | None:
        """Remove and return the batch of all who are `arriving`, of whom so many `came` before `now`.

        Returns None if that is not the next batch, or if one of them has to be queued: as when several wait,
        it is not due, or they are no plain single items. Others may be adding to `arriving` meanwhile.
        """
        queue = self.queue
        size = queue.batch_size
        if (
            queue.items
            or came > size
            or (came < size and self._waits)
            or not self._is_plain
            or self._learns
            or self._draining
            or self._outside
            or self.again
            or self._deadlines.heap
        ):
            return None
        batch: Batch | None = queue.pass_by(arriving[:came])
        if batch is not None:
            del arriving[:came]
            self._counters.accepted += came
            batch.reason = self._at_once if came < size else "full"
            self._running[batch] = now
        return batch

    def _took(self, batch: Batch, now: float) -> None:
        """Note how `batch` was chosen, and from which queue."""
        if self._lengths is not None:
            self._counters.chosen[self._lengths.how] += 1
            self._lengths.urgent = None  # an idle batcher holds on to no call
        if not self._one_queue:
            self.queue.taken(batch.slices[0][0].key, batch.size, now)

    def _is_wanted_again(self, now: float) -> bool:
        """Whether anybody still waits for what failed and is to run again."""
        while self.again:
            self._count_left(self.again[0], now)
            if self.again[0].size:
                return True
            self.again.popleft()
        return False

    def _why_early(self) -> str:
        """Return why a batch that is not full starts, whatever patience says."""
        return "drain" if self._draining else "crowded"

    def awaited(self) -> int:
        """Return how many more calls, of one item each, make the next batch due before its time."""
        lacks: int = self.queue.lacks()
        return min(lacks, self.patience.awaited)

    def _choose(self, now: float) -> Queue:
        """Return the queue whose turn it is, and correct the reason: it need not be the one that is full."""
        queue: Queue = self.queue if self._one_queue else self._whose_turn(now)
        queue.chunk = self.queue.chunk
        if self._lengths is not None:
            urgent = self._deadlines.heap and self._deadlines.start() <= now
            self._lengths.urgent = self._deadlines.first() if urgent else None
        if queue.is_full():
            self._reason = "full"
        elif self._reason == "full":
            if self._draining or self._outside:
                self._reason = self._why_early()
            else:
                self._reason = self.patience.reason if self._waits else self._at_once
        return queue

    def _whose_turn(self, now: float) -> Queue:
        """Return, of the queues that are due, the one whose turn it is."""
        groups: Groups = self.queue
        at_once = self._draining or self._outside or not self._waits
        start = self.patience.start

        def is_due(oldest: float) -> bool:
            return bool(at_once) or start(oldest, groups.items, now) <= now

        deadlines = self._deadlines
        return groups.next(is_due, deadlines.first() if deadlines.heap and deadlines.start() <= now else None)

    def retry(self, batch: Batch, error: BaseException, now: float) -> bool:
        """Return whether `batch`, which failed with `error`, runs again in halves; if so, count its run."""
        if batch.size == 1 or batch not in self._running:
            return False
        if is_out_of_memory(error):
            self._capacity.exceeded(batch.size)
            self._resize()
        elif not (self._options.isolate_errors and isinstance(error, Exception)):
            return False
        self._count_turns()
        started = self._running.pop(batch)
        counters = self._counters
        counters.ran(batch.reason, batch.size, now - started)
        counters.real += batch.real
        counters.padded += batch.padded
        self._count_left(batch, started)
        self.again.extendleft(reversed(batch.halves()))
        return True

    def _count_left(self, batch: Batch, started: float) -> None:
        """Count what of `batch`, which has started and is to run again, has no callers any more."""
        waits = [started - call.arrived for call, start, stop in batch.prune() for _ in range(start, stop)]
        self._counters.processed += len(waits)
        self._counters.waits(waits)

    def done(self, batch: Batch, now: float) -> None:
        """Count `batch`, which has run and answered its calls; drop the rest of those that failed."""
        if self._turns:
            self._count_turns()
        started = self._running.pop(batch, None)
        if started is None:  # said before
            return
        size = batch.size
        calls = batch.calls
        counters = self._counters
        counters.processed += size
        counters.real += batch.real
        counters.padded += batch.padded
        if len(calls) == 1:
            counters.ran(batch.reason, size, now - started, started - calls[0].arrived)
        else:
            counters.ran(batch.reason, size, now - started)
            counters.waits([started - call.arrived for call in calls])  # one item of each
        if len(calls) < size:
            self._ran_lists(batch.slices, started)
        if batch.failed:
            counters.failed += batch.failed
            self._drop_rest(batch.slices)
        elif self._capacity.limit is not None:
            self._capacity.ran(size, self._options.batch_size)
            self._resize()
        if self._lengths is not None and batch.failed < size:
            self._lengths.ran(batch.slices, size, now - started)
        if self.patience.learns:
            self._learn(batch, started, now)
        if self._deadlines.heap and not self.queue.items:
            self._deadlines.heap.clear()  # an idle batcher holds on to nobody's call

    def forget(self, batch: Batch) -> None:
        """Count `batch`, which has run and answered its calls, where a fault came in the way of `done`."""
        if self._running.pop(batch, None) is not None:
            self._counters.processed += batch.size
            self._counters.failed += batch.failed
        self._drop_rest(batch.slices)

    def _learn(self, batch: Batch, started: float, now: float) -> None:
        patience = self.patience
        if patience.is_suspended:
            self._learns = self._waits = patience.resumes(batch.size, now - started)
            return
        calls = batch.calls
        answered = sum([not call.missing and call.left is None for call in calls])
        measured = started if batch.failed < batch.size else None
        patience.done(batch.size, len(calls), answered, now, measured)
        self.queue.chunk = patience.chunk()
        self._learns = self._waits = not patience.is_suspended

    def follow(self, batch: Batch, now: float) -> bool:
        """Make `batch` the one that `done`, `delay` and `pop` would choose, if one list is all that waits.

        Returns False, and leaves all as it was, if it is not, or fills no batch. Most batches of a long list
        follow one of the same.
        """
        if batch.failed or not self._is_simple or not (batch.midway or self._can_follow(batch)):
            return False
        slices = batch.slices
        piece = self.queue.take_next(slices[0][0], batch.size)
        if piece is None:
            return False
        turns = self._turns
        if self._learns:
            self.patience.ran(batch.size, now - (turns[-1] if turns else self._running[batch]))
        turns.append(now)
        if len(turns) == _TURNS:
            self._count_turns()
        batch.go_on(piece)
        return True

    def _count_turns(self) -> None:
        """Count the runs that the batch which is midway in a list has had so far."""
        ends = self._turns
        if not ends:
            return
        batch, started = next(iter(self._running.items()))  # no other runs
        starts = [started, *ends[:-1]]
        arrived = batch.slices[0][0].arrived
        durations = [end - start for start, end in zip(starts, ends, strict=True)]
        self._counters.processed += batch.size * len(ends)
        self._counters.ran_full(batch.size, durations, [start - arrived for start in starts])
        self._running[batch] = ends[-1]
        ends.clear()

    def _can_follow(self, batch: Batch) -> bool:
        """Whether only what waits has a say in what follows `batch`; then so it is until that ends."""
        if batch.singles is not None or len(self._running) > 1:
            return False
        call = batch.slices[0][0]
        return (
            len(batch.slices) == 1
            and call.many
            and call.results is call.inputs
            and batch.reason == "full"
            and not self._deadlines.heap
            and not self.again
            and self._capacity.limit is None
        )

    def _ran_lists(self, slices: list[Slice], started: float) -> None:
        """Count the further items of lists, and let go of lists of which nothing will run any more."""
        if len(slices) > 1:
            self._counters.waits(
                [started - call.arrived for call, start, stop in slices for _ in range(start + 1, stop)]
            )
        for call, _, _ in slices:
            if not call.missing and not self._running:  # else another part of it may be running
                call.let_go()

    def _drop_rest(self, slices: list[Slice]) -> None:
        """Drop what waits of those calls that have failed."""
        for call, start, stop in slices:
            if not call.missing:
                if call.waiting:
                    self.drop(call)
                if not self._running or stop - start == call.size:  # as above
                    call.let_go()

    def _resize(self) -> None:
        """Bring the queue up to date with the options, and with what fits into memory."""
        options = self._options
        size = options.batch_size
        changed = False
        if self._lengths is not None:
            changed = self._lengths.budget != options.max_batch_length
            self._lengths.budget = options.max_batch_length
        if self._capacity.limit is not None:
            size = min(size, self._capacity.limit)
        if changed or (size, options.small_batch_threshold) != (self.queue.batch_size, self.queue.threshold):
            self.queue.resize(size, options.small_batch_threshold)

    def drain(self) -> None:
        """Wait for company no more: whatever is queued is due."""
        self._draining = True

    def batches(self) -> list[Batch]:
        """Return the batches that run."""
        return list(self._running)

    def running_calls(self) -> list[Call]:
        """Return the calls of which something runs."""
        return [call for batch in (*self._running, *self.again) for call in batch.calls]

    def waiting_calls(self) -> list[Call]:
        """Return the calls of which something waits, those for which there is no room too."""
        waiting = [*self.queue.waiting_calls(), *self._outside]
        return list(dict.fromkeys([*waiting, *self._in_hand])) if self._in_hand else waiting

    def clear(self, error: BaseException) -> list[Call]:
        """Answer all that waits with `error`; return the calls it belongs to but those answered already."""
        calls = self.waiting_calls()
        unanswered = [call for call in calls if call.missing]
        for call in unanswered:
            call.error = error  # first: its caller may be looking
        for call in calls:
            self.drop(call)
        self.let_in.clear()
        return unanswered

    def stats(self, now: float) -> Stats:
        """Return a snapshot of the counters."""
        self._count_turns()
        return self._counters.snapshot(
            waiting=self.queue.items,
            running=self.running(now),
            again=self.retrying,
            fits=self.fits,
            learned=self.learned,
        )

    def running(self, now: float) -> list[tuple[int, float]]:
        """Return the batches that run: their items, and seconds since."""
        return [(batch.size, now - started) for batch, started in self._running.items()]

    @property
    def retrying(self) -> int:
        """The items that are about to run again, in parts."""
        return sum(batch.size for batch in self.again)

    @property
    def fits(self) -> int | None:
        """The most items of a batch as far as memory is known to go."""
        return self._capacity.limit

    @property
    def learned(self) -> Learned | None:
        """What it has learned of its function and its callers."""
        learned = self.patience.learned()
        if learned is None or self._lengths is None:
            return learned
        cost = self._lengths.cost
        return replace(learned, item_ms=cost.each_alone * 1000, length_ms=cost.per_length * 1000)


def _waiting(call: Call) -> int:
    """Return how many items of `call` wait, or of the calls that wait in its place."""
    if isinstance(call, Family):
        return sum(map(_waiting, call.members))
    if isinstance(call, Lookup):
        return sum(_waiting(flight.miss_call) for flight in call.flights if flight.miss_call is not None)
    return call.waiting


def is_guarded(options: Options) -> bool:
    """Whether calls must be let in one by one, not just pushed: they are counted, divided or looked up."""
    return (options.max_queue_size, options.group_by, options.cache) != (None, None, None)
