"""All that is decided: which calls share a batch, when it starts, and what becomes of them.

Pure: a driver tells the time and does the waiting. Callers put calls into the inbox, `arriving`; a
driver asks `next` for the batch to run, or for how long to wait, and reports the batch by `finish` or `fail`.
After each step it takes the `effects`.

Nothing is assigned to a batch before a driver is free to run it (late binding), so the queue keeps growing
behind a running batch. All but the inbox needs the lock of the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from batched._core.admission import Admission
from batched._core.batch import Batch
from batched._core.call import Call, Left, Slice, completed
from batched._core.collator import Collator
from batched._core.counters import Counters
from batched._core.effects import Effects
from batched._core.first import First
from batched._core.gate import SHORT_S, Gate
from batched._core.halves import Aside, Half
from batched._core.hooks import HOOKS, Feature, Run
from batched._core.keyed_queues import KeyedQueues
from batched._core.keys import KnownKeys, fault_of, keys_of
from batched._core.lessons import NOTHING, Lessons, of_all
from batched._core.options import Options, have_changed, knows_lengths
from batched._core.queue import Queue
from batched._core.stats import Stats
from batched._core.tenants import Tenants
from batched._policy.window import AtOnce, StartReason, Window
from batched.errors import QueueFullError, without_own_frames

_IS_AT_REST = attrgetter("is_at_rest")
_FULL = StartReason.FULL

FeatureT = TypeVar("FeatureT", bound=Feature)

NewQueue: TypeAlias = Callable[[int, int], Queue | KeyedQueues]
"""Makes the queue, from `batch_size` and `small_batch_threshold`."""


class Batcher:
    """The way of each call: it arrives, waits in the queue, runs in a batch, has its answer.

    It knows an order, the queue, and a time, the window; what else takes part are `features`, of which it has
    the hooks. Each item counts as processed once: when its last run has ended. `now` and all times are
    seconds on one monotonic clock.
    """

    # Of an object that has more than 30 attributes in its `__dict__`, Python looks up each method anew.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "arrive",
        "arrive_all",
        "arriving",
        "batch_s",
        "later",
        "leave",
        "leaving",
        "slots",
        "until",
        "wake_after",
        *(f"_{hook}" for hook in HOOKS),
    )

    _door: tuple[Callable[[Call, float], None], ...]
    _queued: tuple[Callable[[list[Call]], None], ...]
    _look: tuple[Callable[[float], None], ...]
    _urgent: tuple[Callable[[float], Call | None], ...]
    _start: tuple[Callable[[float, StartReason, float], tuple[float, StartReason]], ...]
    _room: tuple[Callable[[Any, int, float], int], ...]
    _took: tuple[Callable[[Batch, float], None], ...]
    _failed: tuple[Callable[[Batch, BaseException, float, float], bool], ...]
    _ended: tuple[Callable[[Run], None], ...]
    _answered: tuple[Callable[[Run], None], ...]
    _lesson: tuple[Callable[[Run], None], ...]

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        new_queue: NewQueue,
        collator: Collator,
        name: str,
        counters: Counters,
        *,
        features: Sequence[Feature] = (),
    ) -> None:
        self.arriving: list[Call] = []
        self.arrive: Callable[[Call], None] = self.arriving.append
        """Note a call that has come. (The list's own method, as a method of ours would cost more than it.)"""
        self.arrive_all: Callable[[list[Call]], None] = self.arriving.extend
        """Note calls that have come together, in one step."""
        self.leaving: deque[Call] = deque()
        """Calls that are to be dropped: their callers have left."""
        self.leave: Callable[[Call], None] = self.leaving.append
        """Note that the caller of a call has left. The garbage collector may do so, at any moment."""
        self.later: deque[Callable[[], None]] = deque()
        """What callers want to have done with the lock, before calls that arrive later are queued."""
        self.batch_s: float = 0.0
        """The least seconds that a batch takes, as far as they are known."""
        self.wake_after: int | None = None
        """So many calls in `arriving` are reason to wake the driver before `until`.

        None: the driver is about to look by itself. 0: there is no worker thread, and the call starts one.
        """
        self.until: float = 0.0
        """When the driver looks in any case, if calls wait."""
        self._features = features
        self.options: Options = options
        self._name = name
        self._new_queue = new_queue
        self._collator = collator
        self.counters: Counters = counters
        self.in_flight: Any = None
        """The items that run for a cache: calls for equal items wait for these. None until there is one."""
        self.effects: Effects = Effects()
        self.running: dict[Batch, float] = {}
        """When each batch started that runs."""
        self.first: First = First()
        """What is to run before the queue."""
        self._has_divided = False  # whether any call is a part of another
        self._known_keys: KnownKeys = KnownKeys()
        self.keys_may_change: bool = False
        """Whether any call has come so far that has a key which may change."""
        self._is_draining = False
        self.taking_from: Queue | None = None
        """The queue of which a batch is being taken, that of one key if calls have keys."""
        self.begin()

    def begin(self) -> None:
        """Begin with an empty queue; features begin anew, with what they keep."""
        options = self.options
        self.queue: Any = self._new_queue(options.batch_size, options.small_batch_threshold)
        """A `Queue`, or `KeyedQueues`: `is_keyed` says which, where it matters."""
        self.admission: Admission = Admission(self._name, options, self.queue.tenants)
        self.fault: Exception | None = None
        """An error of this library, while it queued calls."""
        self.in_hand: list[Call] = []  # these calls
        self.ending: list[Call] = []  # that are being answered with an error
        self._ahead: Half | None = None  # what of `first` is the next batch, as `plan` has found
        self.window: Window = AtOnce(StartReason.NO_GAIN)
        """Says until when a batch that is not full is held back."""
        self._reason = StartReason.FULL  # why the next batch is due
        self._gate = Gate()
        self.slots: float = options.max_concurrent_batches
        for feature in self._features:
            feature.begin(self, options)
        self.hook()
        self.resize()

    def hook(self) -> None:
        """Ask and tell the features that have a hook at present, in their order."""
        found: dict[str, list[Any]] = {name: [] for name in HOOKS}
        for feature in self._features:
            for name in feature.hooks:
                found[name].append(getattr(feature, name))
        for name, methods in found.items():
            setattr(self, f"_{name}", tuple(methods))
        # Most often it is one, and then a caller need not pass another frame.
        self.door: Callable[[Call, float], None] = self._door[0] if len(self._door) == 1 else self._ask_doors
        """Raise if a call that has a deadline would be late. Needs no lock."""

    def feature(self, kind: type[FeatureT]) -> FeatureT:
        """Return the feature of this kind."""
        for feature in self._features:
            if isinstance(feature, kind):
                return feature
        raise LookupError(f"this batcher was made without {kind.__name__}")

    def resize(self) -> None:
        """Have the queue know how many items a batch has, at most."""
        options, queue = self.options, self.queue
        limits = [feature.limit for feature in self._features]
        size = min([options.batch_size, *(limit for limit in limits if limit is not None)])
        for feature in self._features:
            feature.resized(options, size)
        lengths = queue.lengths
        changed = lengths is not None and lengths.budget != options.max_batch_length
        if lengths is not None:
            lengths.budget = options.max_batch_length
        if changed or (size, options.small_batch_threshold) != (queue.batch_size, queue.threshold):
            queue.resize(size, options.small_batch_threshold)

    def drain(self) -> None:
        """Hold no batch back any more: every call in the queue is due."""
        if not self._is_draining:
            self._is_draining = True
            self.use_window(self.window)

    def use_window(self, window: Window) -> None:
        """Hold batches that are not full back as long as `window` says."""
        self.window = AtOnce(StartReason.DRAIN) if self._is_draining else window

    def take_turns(self) -> None:
        """Have tenants take turns from now on; calls that have none, such as those that wait, are of one."""
        if self.queue.tenants is None:
            self._new_queue = with_tenants(self._new_queue)
            tenants = Tenants()
            self.queue.take_turns(tenants)
            self.admission.take_turns(tenants)

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self.take_in()
        if have_changed(options, self.options):
            self.counters.configured()
        self.options = options
        self.slots = options.max_concurrent_batches
        for feature in self._features:
            feature.configure(options)
        self._gate = Gate()
        self.resize()
        self.admission.configure(options)
        self.admit_waiting()

    # -- calls come ---------------------------------------------------------------------------------------

    def wakes(self, call: Call) -> bool:
        """Whether `call`, which has just been added to `arriving`, is reason to look at once."""
        after = self.wake_after
        return after is not None and (
            len(self.arriving) >= after
            or call.size > 1
            or (
                call.deadline is not None
                and min(call.latest_start(), call.deadline - self.batch_s) < self.until
            )
        )

    def take_in(self) -> None:
        """Queue the calls that have arrived, and drop those that leave; callers may be adding to both."""
        gone = len(self.leaving)  # counted first: the calls that have left by now came before
        if self.arriving:
            self.effects.has_moved = True
            new = self.arriving[:]  # calls that come meanwhile come later
            if self.later:
                self.do_later()
            for queued in self._queued:
                queued(new)
            self.counters.accepted += self.queue.push_all(new)
            self.admission.arriving = 0
            del self.arriving[: len(new)]  # last, so that Ctrl-C loses nothing
        if self.later:
            self.do_later()
        while gone:
            gone -= 1
            call = self.leaving.popleft()
            self.effects.gone.append(call)
            self.drop(call)

    def do_later(self) -> None:
        """Do what callers could not do without the lock."""
        while self.later:
            self.later.popleft()()

    def _ask_doors(self, call: Call, now: float) -> None:
        for door in self._door:
            door(call, now)

    def add(self, calls: list[Call]) -> None:
        """Put `calls` into the queue."""
        in_hand = self.in_hand
        in_hand += calls  # first: no error in the middle loses them
        for queued in self._queued:
            queued(calls)
        self.counters.accepted += self.queue.push_all(calls)
        in_hand.clear()

    def enter(self, call: Call) -> list[Call]:
        """Return the calls to queue in the place of `call`; raise if their keys cannot be compared."""
        calls = [*call.enter(self)]
        for each in calls:
            for key in keys_of(each):
                key.settle(self._known_keys)
                self.keys_may_change = True
        if call.is_divided:
            self._has_divided = True
        return calls

    def admit(self, call: Call, *, wait: bool, of_map: bool = False) -> bool:
        """Have `call` arrive if there is room; return False if it will be let in once there is.

        Raises `QueueFullError` if it cannot `wait`, and `ValueError` if there will never be room.
        """
        if self.later:
            self.do_later()
        if self.leaving:  # calls that leave make room
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
                self.counters.rejected += call.size  # with those that a cache knows
            _leave(call)
            call.missing = call.waiting = 0  # nothing is left to be cancelled
            raise
        self.counters.cached += call.hits
        if not call.missing:
            self.effects.answered.append(call)
        elif has_room and (self.queue.is_keyed or self.queue.tenants is not None):
            self.add(parts)  # compared with the keys there are, so that no other can come
            self.effects.has_moved = True
            while self.admission.in_the_way:  # another tenant has their room
                other = self.admission.in_the_way.pop().whole
                self.withdraw(other, self.admission.refused(other.unstarted, self.queue.items), "rejected")
        elif has_room:
            self.admission.arriving += sum([part.size for part in parts])
            self.arriving.extend(parts)
        return has_room

    def admit_waiting(self) -> None:
        """Queue the calls that wait for room, as far as there is room."""
        while (found := self.admission.next(self.queue.items)) is not None:
            self._let_in(*found)

    def _let_in(self, call: Call, parts: list[Call]) -> None:
        """Queue `parts` in the place of `call`, which has waited for room."""
        self.effects.let_in.append(call)
        self.in_hand += parts
        self.admission.end_wait(call)
        self.add(parts)

    # -- calls leave --------------------------------------------------------------------------------------

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
                self.counters.dropped(part, dropped)
                part.missing -= dropped
                if not part.missing:
                    done.append(part)
                    self.effects.released.append(part)  # nothing of it runs
                self.admit_waiting()
        return done

    def _end_wait_for_room(self, call: Call) -> None:
        """Have `call`, which is to be dropped, wait for room no more.

        It is queued, as what is dropped is counted there; or else it waits on behalf of other callers.
        """
        parts = self.admission.awaiting_room.get(call)
        if parts is None:
            return
        miss_call = parts[0].whole
        if miss_call.is_wanted:
            self.effects.let_in.append(call)
            self.admission.hand_over(call, miss_call)
        else:
            self._let_in(call, parts)

    def _drop(self, call: Call) -> None:
        if not hasattr(call, "large"):  # a refusal, or Ctrl-C, came before it could arrive
            call.waiting = 0
        if call.waiting:
            if call.waiting in {call.size, call.missing}:  # else a part of it may be running
                self.effects.released.append(call)
            self.counters.dropped(call, self.queue.drop(call))
            self.admit_waiting()

    def expire(self, call: Call, error: TimeoutError | None = None) -> None:
        """Answer `call`, which is late or will be, with `error` or else a `TimeoutError`.

        It must be taken in. Not if all of it has started.
        """
        self.withdraw(call, error or TimeoutError(call.overdue(self._name)), "expired")

    def withdraw(self, call: Call, error: BaseException, left: Left) -> None:
        """Answer `call` with `error`; `left` says why it is not wanted any more.

        It must be taken in. Not if all of it has started, but for a stream: that ends at its next step.
        """
        if not call.missing or not (call.unstarted or call.takes_pieces):
            return
        self.ending.append(call)
        call.left = left
        call.error = error  # first: its caller may be looking
        self.drop(call)
        self.answer([call])
        self.ending.clear()

    # -- the next batch -----------------------------------------------------------------------------------

    def next(
        self, now: float, *, answers_first: bool = False, full_only: bool = False
    ) -> Batch | float | None:
        """Remove and return the next batch if it is due.

        Else return the seconds until it is worth asking again, None if no call waits: only the next call is
        reason to look. If it `answers_first`, callers that have their answers are to be told before, and have
        a chance to call again, or to leave: then 0.0, and this is to be asked after that. Likewise if it is
        `full_only` and no full batch waits. Raises a fault of this library that calls met while they were
        queued; the driver then has to give all calls up (`give_up_all`).
        """
        waits = self.queue.items or self.arriving or self.leaving or self.later or self.first
        if not (waits or self.fault or self.admission.awaiting_room):
            self.wake_after = 1
            self.effects.has_moved = False
            return None
        if answers_first and (self.effects.answered or self.effects.released):
            return 0.0
        while (delay := self.plan(now)) == 0.0:
            if full_only and self._reason is not _FULL:
                return 0.0
            batch = self.pop(now)
            if batch.size:
                return batch
        return delay

    def plan(self, now: float) -> float | None:  # noqa: C901  one more call costs each batch a frame
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits.

        Notes how many more calls are reason to ask earlier; if it is due, none are.
        """
        if self.arriving or self.leaving or self.later:
            self.take_in()
        if self.fault is not None:
            raise self.fault
        for look in self._look:
            look(now)
        queue = self.queue
        delay: float | None = None
        ahead = self._find_first(now) if self.first else None
        if ahead is not None and not self.first.yields(ahead):
            delay = 0.0
        elif not queue.items:
            pass
        elif queue.items >= queue.batch_size if queue.by_number else queue.is_full():
            self._reason = _FULL
            delay = 0.0
        elif self.window.is_immediate and not self.admission.awaiting_room:
            self._reason = self.window.reason
            delay = 0.0
        else:
            start = self._start_at(queue.oldest(), now)
            for sooner in self._start:
                start, self._reason = sooner(start, self._reason, now)
            delay = start - now if start > now else 0.0
        if ahead is not None and self.first.yields(ahead):
            ahead, delay = (None if delay == 0.0 else ahead), 0.0
        self._ahead = ahead
        self.effects.has_moved = False
        self.wake_after = 1
        if delay is not None:
            self.wake_after = min(queue.lacks(), self.window.awaited) if delay else None
            self.until = now + delay
        return delay

    def _start_at(self, oldest: float, now: float) -> float:
        """Return when a batch starts that is not full, if its oldest item came then; and note why."""
        if self.admission.awaiting_room and not self._is_draining:
            self._reason = StartReason.CROWDED
            return -inf
        window = self.window
        start = window.start_at(oldest, self.queue.items, now)
        self._reason = window.reason
        return start

    def worker_freed(self, at: float, idle: int) -> None:
        """Note when a worker became free that other functions use too, and how many are idle now."""
        self.window.free_at = at
        self.window.workers = len(self.running) + idle

    def standing(self, now: float) -> tuple[float, float, bool]:
        """Return what tells whether this is next at workers that several functions share, as it is due.

        When its oldest call came, when a deadline wants it to start, and whether it has large calls only.
        """
        oldest, is_large = inf, False
        if self._ahead is not None:
            oldest = min(call.arrived for call in self._ahead.calls)
        elif self.queue.items:
            oldest, is_large = self.queue.oldest(), not self.queue.small_items
        return oldest, self._start_by(now), is_large

    def _start_by(self, now: float) -> float:
        """Return when the next call with a deadline is to start."""
        start_by = inf  # as if no window said when: what is left is what deadlines want
        for sooner in self._start:
            start_by, _ = sooner(start_by, StartReason.DEADLINE, now)
        return start_by

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, for which `plan` has just said that it is due.

        It is empty if the keys of all of its calls have changed.
        """
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            batch: Batch = ahead
            self.first.take(ahead, self.running, now)
            if isinstance(batch, Aside):
                return batch
        else:
            queue = self.queue
            self.first.aside_ran = False
            urgent = self._ask_for_urgent(now) if self._urgent and queue.may_choose() else None
            if queue.is_keyed:
                batch = self._take_in_turn(now, urgent)
            else:
                self.taking_from = queue
                size = queue.batch_size
                room = queue.items if queue.items < size else size  # noqa: FURB136  `min` takes ten times as long
                batch = queue.take(self._room_in(queue, now) if self._room else room)
                batch.reason = self._reason
            if self.admission.awaiting_room:
                self.admit_waiting()
            if not batch.size:  # an earlier fault: without this, the driver would ask for ever
                raise RuntimeError("more items were counted than are in the queue")
            if self.keys_may_change:
                self._refuse_changed(batch, now)
                if not batch.size:
                    self.taking_from = None
                    return batch
            self.running[batch] = now
        for took in self._took:
            took(batch, now)
        self.taking_from = None
        return batch

    def _ask_for_urgent(self, now: float) -> Call | None:
        """Return the call that has to be in the next batch, if there is one; the rule of lengths knows it."""
        lengths = self.queue.lengths
        for ask in self._urgent:
            if (urgent := ask(now)) is not None:
                if lengths is not None and lengths.chooses:
                    lengths.urgent = urgent
                return urgent
        return None

    def _take_in_turn(self, now: float, urgent: Call | None) -> Batch:
        """Remove and return the next batch of the key that has its turn."""
        queues = self.queue
        reason = self._reason
        queue = queues.in_turn(lambda oldest: self._start_at(oldest, now) <= now, urgent)
        self.taking_from = queue
        queue.large_limit = queues.large_limit
        if queue.is_full():
            reason = StartReason.FULL
        elif reason == StartReason.FULL:  # another key's was
            self._start_at(queue.oldest(), now)
            reason = self._reason
        batch: Batch = queue.take(self._room_in(queue, now))
        queues.taken(batch, now)
        if reason != StartReason.FULL and not queue.items and queues.items:
            batch.is_apart = True
        batch.reason = reason
        return batch

    def _room_in(self, queue: Any, now: float) -> int:
        """Return how many items the next batch of `queue` has, at most."""
        room: int = min(queue.batch_size, queue.items)
        for limit in self._room:
            room = limit(queue, room, now)
        return room

    def _find_first(self, now: float) -> Half | None:
        """Return what of `first` may run now."""

        def prune(part: Half) -> None:  # one that has no error was cut off a batch before that ran
            self.prune(part, None if part.error is None else now)

        return self.first.find(self.running, self.options.batch_size, prune)

    def _refuse_changed(self, batch: Batch, now: float) -> None:
        """Remove from `batch`, which has just been taken, the calls of which a key has changed; they fail."""
        faults = [(piece, fault) for piece in batch.slices if (fault := fault_of(piece[0])) is not None]
        for piece, fault in faults:
            refused = Batch([piece], piece[2] - piece[1], batch.reason)
            batch.slices.remove(piece)
            batch.size -= refused.size
            self.end_unrun(refused, fault, now, now)

    # -- a batch ends -------------------------------------------------------------------------------------

    def finish(  # noqa: C901  one more call costs each batch a frame
        self,
        batch: Batch,
        parts: list[Any],
        now: float,
        error: BaseException | None = None,
        done: list[Call] | None = None,
    ) -> None:
        """Hand the calls of `batch`, which has run, their parts, as the collator has split them; count it.

        Where the calls have been answered before, after an `error` or piece by piece, there are no `parts`,
        and `done` has the calls that are done.
        """
        if done is None:
            done = batch.answer(parts, self._collator)
        started = self.running.pop(batch, None)
        try:
            if batch.failed:
                done += self.drop_rest(batch.calls)
            if started is not None:  # else it did not run, or a fault came in the way: it is counted
                self.counters.ran(batch, started, now)
                if self.first or self.window.is_holding:  # for what has waited for this end a worker wakes
                    self.effects.has_moved = True
                gate = self._gate
                is_lesson = False
                if gate.short_passes and now - started < SHORT_S:  # most batches of a fast function
                    gate.short_passes -= 1
                    gate.ended = now
                else:
                    is_lesson = gate.opens(batch, started, now)
                is_amid_list = not done and batch.slices[0][1] > 0
                told = self._answered if is_lesson or not is_amid_list else ()
                if is_lesson or told or self._ended:
                    self._learn(Run(batch, started, now, len(done), error, is_lesson=is_lesson), told)
        finally:  # also after a fault of this library
            if self._has_divided or self.admission.awaiting_room:
                self.answer(done)
            elif done:
                self.effects.answered += done
            slices = batch.slices
            if len(done) == len(slices) and not batch.failed:
                self.effects.released += done
            elif batch.failed or len(slices) > 1 or not slices[0][0].missing:  # else it is amid a list
                self.release(batch)

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """Answer the calls of `batch`, which raised `error`, unless it runs again in halves."""
        error = without_own_frames(error)
        started = self.running.get(batch)
        if started is not None:
            self.take_in()  # callers may have left: what runs again is less than what ran
            ran = batch.as_it_ran()
            for failed in self._failed:
                if failed(batch, error, started, now):
                    self.effects.gone.append(error)  # what it holds may be the memory that is short
                    self.counters.ran(ran, started, now, again=True)
                    self._learn(Run(ran, started, now, 0, error, is_divided=True), self._answered)
                    return
        self.finish(batch, [], now, error=error, done=batch.fail(error, self._collator))

    def can_repeat(self, batch: Batch) -> bool:
        """Whether the items of `batch`, which has run, are as they were."""
        return self._collator.can_repeat(batch)

    def prune(self, batch: Batch, started: float | None) -> bool:
        """Forget what of `batch` no caller wants; return whether that was any. None: it has not `started`.

        The callers have left, or their lists have failed.
        """
        gone = batch.prune()
        if gone and started is not None:
            self.counters.left(gone, sum(stop - start for _, start, stop in gone), started)
            self.counters.late += sum(stop - start for call, start, stop in gone if call.has_expired)
        for call, start, stop in gone:
            if started is None:
                self.counters.dropped(call, stop - start)
            self.effects.gone.append(call)
            if call.missing:
                call.missing -= stop - start
                if call.missing:
                    continue
                self.answer([call])
            if not self._may_run_elsewhere((call, start, stop)):
                self.effects.released.append(call)
        return bool(gone)

    def run_again(self, batch: Batch, parts: list[Half]) -> None:
        """Have `parts` of `batch`, which has failed, run before what waits; but behind its other half."""
        del self.running[batch]
        # Without parts, all callers have left. Those of one that was misanswered show if it was right.
        if parts and not batch.is_misanswered:
            self.counters.divided += len(parts) > 1 or not hasattr(batch, "blames_worker")  # it was to blame
        self.first.put_again(batch, parts)

    def afterwards(self, do: Callable[[], object]) -> None:
        """Have something done after this step, without the lock, and before callers are told."""
        self.effects.gone.append(do)

    def _learn(self, run: Run, answered: Sequence[Callable[[Run], None]]) -> None:
        """Tell the features of a run, those that `answered` names too; and learners, if it is a lesson."""
        lessons = self._lesson  # as they were when the batch ended
        for tell in (*self._ended, *answered):
            tell(run)
        if run.is_lesson:
            for lesson in lessons:
                lesson(run)
            self._gate.taught(run.now - run.started, at_rest=all(map(_IS_AT_REST, self._features)))

    def run_aside(self, batches: Sequence[Aside]) -> None:
        """Have `batches` run that never were in the queue."""
        self.first.extend(batches)

    @property
    def has_asides(self) -> bool:
        """Whether such a batch is to run: perhaps not every worker may run it. Needs the lock."""
        return bool(self.first) and bool(self.first.asides)

    def end_first(self, error: BaseException, now: float) -> None:
        """Answer the calls of the parts that were to run before the queue with `error`: they do not run."""
        for part in self.first.parts:
            self.first.remove(part)
            self.end_unrun(part, error, now, now)

    def may_join(self, batch: Batch) -> int:
        """Take in calls that have come; return how many items could join `batch`, prepared but not run.

        Only small calls, in order of arrival, and only where neither keys, lengths nor a feature choose.
        """
        self.take_in()
        self.effects.has_moved = False
        queue = self.queue
        chooses = queue.may_choose() or knows_lengths(self.options) or bool(self._took or self.first)
        if chooses or type(batch) is not Batch or batch.search is not None or queue.items > queue.small_items:
            return 0
        first = next((call for call in queue.small_calls() if call.waiting), None)
        if first is None or first.waiting < first.size:  # the rest of it may be in the batch
            return 0
        room: int = min(queue.items, queue.batch_size - batch.size)
        return max(room, 0)

    def join(self, batch: Batch, items: int, queue: Any, now: float) -> list[Slice]:
        """Have so many items of `queue` join `batch`, which has room for them; return their slices."""
        self.taking_from = queue
        more: Batch = queue.take(items)
        if self.queue.is_keyed:
            self.queue.taken(more, now, more.size / self.queue.batch_size)
        if self.keys_may_change:
            self._refuse_changed(more, now)
        joined = more.slices[:]
        batch.slices += joined
        batch.size += more.size
        self.taking_from = None
        more.clear()  # the queue knows it until it takes the next
        if self.admission.awaiting_room:
            self.admit_waiting()
        return joined

    def end_unwanted(self, batch: Batch, now: float) -> None:
        """Forget `batch`, which has started, and of which all callers have left: it does not run on."""
        started = self.running.pop(batch, now)
        self.drop_all([call for call in batch.calls if call.missing])  # some are about to say it
        self.prune(batch, started)
        self.effects.has_moved = True  # a part may have waited for its end

    def spent(self, batch: Batch, stage_s: tuple[float, ...], now: float) -> None:
        """Note how long `batch` was in each stage that it has reached: so long it has taken."""
        batch.stage_s = stage_s
        if batch in self.running:
            self.running[batch] = now - sum(stage_s)
            self.counters.passed(stage_s)

    def end_unrun(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Answer the calls of `batch`, which does not run, with `error`."""
        done = batch.fail(error, self._collator)
        self.counters.left(batch.slices, batch.size, started, batch.failed)
        self.finish(batch, [], now, error=error, done=done)

    def release(self, batch: Batch) -> None:
        """Drop the items of calls that have failed, and release the inputs of calls that have ended."""
        if batch.failed:
            self.drop_all([call for call in batch.calls if call.waiting and not call.missing])
        for piece in batch.slices:
            if not piece[0].missing and not self._may_run_elsewhere(piece):
                self.effects.released.append(piece[0])

    def _may_run_elsewhere(self, piece: Slice) -> bool:
        """Whether another part may run of a call that has ended; `piece` does not run any more."""
        call, start, stop = piece
        if stop - start == call.size or call.has_all_results:
            return False
        return any(call is other for batch in self.running for other, _, _ in batch.slices)

    # -- calls are answered -------------------------------------------------------------------------------

    def answer(self, calls: list[Call]) -> None:
        """Have the callers of `calls`, which are done, be woken; of a part, of what it is a part of."""
        unwanted: list[Call] = []
        if self._has_divided:
            calls, unwanted = completed(calls)
        self.effects.answered += calls
        if self.in_flight is not None:
            self.in_flight.landing.clear()
        if self.admission.awaiting_room:
            for call in calls:  # one part that was in flight has failed before the others had room
                self._end_wait_for_room(call)
        if unwanted:
            self.drop_all(unwanted)

    # -- what is there ------------------------------------------------------------------------------------

    def unanswered_calls(self) -> list[Call]:
        """Return all calls, wherever they are on their way. Needs no lock where no other thread is left."""
        return [*self.arriving, *self.waiting(), *self.running_calls()]

    def waiting(self) -> list[Call]:
        """Return the calls of which a part waits, also for room in the queue."""
        waiting = [*self.queue.waiting_calls(), *self.admission.waiting_calls(), *self.in_hand]
        return list(dict.fromkeys(waiting))

    def running_calls(self) -> list[Call]:
        """Return the calls of which a part runs."""
        return [call for batch in (*self.running, *self.first) for call in batch.calls]

    @property
    def has_calls(self) -> bool:
        """Whether calls wait for a worker. Needs no lock."""
        return bool(self.queue.items or self.arriving or self.first)

    @property
    def unfinished(self) -> int:
        """How many items wait or run."""
        waiting: int = self.queue.items
        return waiting + sum(batch.size for batch in self.running) + self.first.items

    def figures(self) -> dict[str, Any]:
        """What its features add to `stats`."""
        found: dict[str, Any] = {}
        for feature in self._features:
            found |= feature.figures()
        return found

    @property
    def lessons(self) -> Lessons:
        """What it has learned, in numbers that outlive it."""
        found: dict[str, Any] = {}
        for feature in self._features:
            found |= feature.lessons()
        return Lessons(**found)


def with_tenants(new_queue: NewQueue) -> NewQueue:
    """Return what makes a queue as `new_queue` does, in which tenants take turns."""

    def new(batch_size: int, threshold: int) -> Queue | KeyedQueues:
        queue = new_queue(batch_size, threshold)
        if queue.tenants is None:
            queue.take_turns(Tenants())
        return queue

    return new


def snapshot(counters: Counters, batchers: Sequence[Batcher], now: float, gone: Lessons = NOTHING) -> Stats:
    """Return what `batchers`, which count together, have done so far, and what was learned by one `gone`."""
    return counters.snapshot(
        waiting=sum(batcher.queue.items for batcher in batchers),
        running=[(batch.size, now - since) for each in batchers for batch, since in each.running.items()],
        again=sum(each.first.items for each in batchers),
        paused=any(each.figures().get("isolation_paused", False) for each in batchers),
        lessons=of_all([batcher.lessons for batcher in batchers], gone),
    )


def _leave(call: Call) -> None:
    """Have `call`, which is refused, and the calls in its place wait for nothing."""
    for each in call.leave():
        if each is not call:
            _leave(each)
