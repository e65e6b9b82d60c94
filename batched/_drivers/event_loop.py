"""The event loop: every loop that calls has a queue of its own, a timer, and a task for each running batch.

A loop's callers only append to its inbox, and start a task if one is wanted; the task chooses its batch when
it runs, so that all calls of the same turn of the loop share it. The lock guards the schedulers, their
queues, and what of their items calls still miss: other threads take snapshots and change options.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import types
import weakref
from _thread import get_ident
from asyncio import Task, current_task, get_running_loop
from collections import deque
from contextlib import aclosing
from contextvars import Context
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from batched._core.counters import Counters
from batched._core.scheduler import Scheduler, is_guarded
from batched._drivers.current_batch import RUNNING
from batched._drivers.fork_and_exit import register
from batched._drivers.wakeups import refusal, resolve_on_loop, set_unless_done, watch
from batched._parts.cache import CachingCollator, Lookup
from batched._parts.group_by import Family
from batched.errors import ClosedError, raise_as_was, without_own_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Literal

    from batched._core.call import Batch, Call, Collator
    from batched._core.options import Options
    from batched._core.scheduler import NewQueue
    from batched._core.stats import Stats

__all__ = ["LoopBatcher"]

_LOOK_S = 0.1  # how often `aclose`, while it waits for other loops, looks whether they still run

_HURRY_S = 0.0005  # for how long full batches of a function that never waits keep others from their turn

# Where `nest_asyncio` says that it has made loops run below callbacks.
_ASYNCIO = vars(asyncio)

_logger = logging.getLogger("batched")


class LoopBatcher:
    """The queues of one batcher, one for each event loop that calls; their stats are one.

    Each loop runs up to `max_concurrent_batches` at once, and has a queue of up to `max_queue_size` items.

    A queue at rest refers to nothing of its loop and is kept here, until the loop is gone. A busy one is kept
    by its loop alone, by way of the timer or the task that will go on with it: a loop that is closed with
    calls pending takes them along.
    """

    def __init__(
        self, options: Options, queue: NewQueue, collator: Collator, name: str, *, streams: bool
    ) -> None:
        self.options = options
        self.name = name
        self.closed = False
        self.collator = collator
        self.streams = streams
        self.task_name = f"batched: {name}"
        self._queue = queue
        self.guarded = is_guarded(options)
        self.after_fork()
        register(self)

    def after_fork(self) -> None:
        """Start afresh in the child: the loops, and what is queued on them, are the parent's."""
        self.lock = _thread.allocate_lock()
        self.resting: dict[int, _Dispatcher] = {}  # by the id of their loop, as below
        self._dispatchers: dict[int, weakref.ref[_Dispatcher]] = {}
        self._recent: Callable[[], _Dispatcher | None] = _nobody  # of the loop that has called last
        self.counters = Counters()
        # Who wakes callers, its loop and thread: the tasks that go on need not ask where they are, and need
        # no `check`, which takes as long as all else to queue a call: below a callback of a loop no other
        # callback runs, nor another loop.
        self.waking: tuple[_Dispatcher, asyncio.AbstractEventLoop, int] | None = None

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters, of all loops together."""
        with self.lock:
            known = self._alive()
            dispatchers = [each for each in known if each.has_loop()]
            arriving = sum(call.size for each in dispatchers for call in each.arriving.copy())
            waiting = sum(each.scheduler.queue.items for each in dispatchers)
            now = monotonic()
            running = [batch for each in dispatchers for batch in each.scheduler.running(now)]
            fitting = [each.scheduler.fits for each in dispatchers if each.scheduler.fits is not None]
            most = max((each.scheduler for each in known), key=_cohorts, default=None)
            stats = self.counters.snapshot(
                waiting=waiting + arriving,
                running=running,
                again=sum(each.scheduler.retrying for each in dispatchers),
                fits=min(fitting, default=None),
                learned=None if most is None else most.learned,
            )
        accepted = stats.total_accepted + arriving
        ended = stats.total_processed + stats.total_cancelled + stats.total_expired
        lost = accepted - ended - stats.queue_size - stats.running_items  # with the loop that they waited on
        return replace(stats, total_accepted=accepted, total_cancelled=stats.total_cancelled + lost)

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        with self.lock:
            self.options = options
            self.guarded = is_guarded(options)
            dispatchers = self._alive()
            for dispatcher in dispatchers:
                # What came when there was no bound, lists too, must not count as single items under one.
                dispatcher.scheduler.take_in(dispatcher.arriving, dispatcher.leaving)
                dispatcher.scheduler.configure(options)
        for dispatcher in dispatchers:
            dispatcher.replan()

    def count_cached(self, call: Call) -> None:
        """Count the items of a call of which nothing is queued: the cache knew them, or has been too slow."""
        if isinstance(call, Lookup):
            with self.lock:
                self.counters.unqueued(call.hits, call.unanswered)

    def _alive(self) -> list[_Dispatcher]:
        found = (reference() for reference in list(self._dispatchers.values()))
        return [dispatcher for dispatcher in found if dispatcher is not None]

    def check(self) -> None:
        """Raise if a call from here cannot be answered."""
        if self.closed:
            raise ClosedError(f"{self.name} was shut down")
        if self._is_inside():
            raise RuntimeError(
                f"{self.name} was called from inside its own batch function, where it would wait for itself"
            )

    def check_outside(self) -> None:
        """Raise if this is inside the batch function, which cannot wait for its own end."""
        if self._is_inside():
            raise ClosedError(f"{self.name} cannot wait for its end inside its own batch function")

    def _is_inside(self) -> bool:
        """Whether a batch of the running loop is waiting for whoever asks. A task it has started counts."""
        batch = RUNNING.get(None)
        if batch is None:
            return False
        reference = self._dispatchers.get(id(get_running_loop()))
        dispatcher = None if reference is None else reference()
        return dispatcher is not None and batch in dispatcher.running

    def post_async(self, call: Call, patient: bool = False) -> None:  # noqa: FBT001, FBT002
        """Queue `call` for the running task, which then waits until it is answered or late."""
        waking = self.waking
        if waking is not None and waking[2] == get_ident():
            dispatcher, loop, _ = waking
        else:
            loop = get_running_loop()
            dispatcher = self._of(loop)
            if self.closed or dispatcher.running:
                self.check()
        call.loop = dispatcher
        call._loop = loop  # noqa: SLF001  so it is called where tasks look for it
        arriving = dispatcher.arriving
        if self.guarded and (patient or not dispatcher.lets_in(call)):
            try:
                self._admit(call, dispatcher, patient=patient)
            finally:  # also if it was refused: others may have been taken in
                dispatcher.plan(loop)
            if call.deadline is not None:  # after it has been admitted
                watch(call, loop)
            return
        if call.deadline is not None:
            watch(call, loop)
        arriving.append(call)
        wanted = dispatcher.wanted
        if wanted is not None and (
            len(arriving) >= wanted
            or call.size > 1
            or (call.deadline and call.latest_start() < dispatcher.until)
        ):
            dispatcher.start(loop)

    def open_async(self, call: Call) -> None:
        """Queue `call`, whose pieces a task will take as they come."""
        call.take_pieces()
        call.waiter = asyncio.Event()
        self.post_async(call)
        call.cancel()  # nobody waits for that

    def _admit(self, call: Call, dispatcher: _Dispatcher, *, patient: bool) -> None:
        wait = patient or self.options.on_full == "wait"
        call.note_context()
        with self.lock:
            dispatcher.scheduler.take_in(dispatcher.arriving, dispatcher.leaving)
            try:
                dispatcher.scheduler.admit(call, wait=wait, patient=patient)
            except BaseException:
                call.missing = call.waiting = 0  # so that nothing is left to be cancelled
                raise
            dispatcher.scheduler.let_in.clear()  # they wait for their answers, not at the door
        if not call.missing:  # the cache knew it all by now
            resolve_on_loop([call])

    def cancel(self, call: Call) -> None:
        """Say that nobody waits for `call` any more: what of it has not started never runs."""
        self._leave(call, "cancelled")

    def _leave(self, call: Call, why: Literal["cancelled", "expired"]) -> None:
        # Without the lock: it may be the garbage collector that ends a caller, wherever it runs.
        if call.missing and call.left is None:
            call.left = why
            dispatcher: _Dispatcher = call.loop
            dispatcher.leaving.append(call)
            if isinstance(call, Family | Lookup) and dispatcher.running:
                dispatcher.replan()

    def refuse(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.error is None:
            self._leave(call, "expired")
        raise_as_was(refusal(call, self.name))

    async def aclose(self) -> None:
        """Take no more calls, run what is queued, and return when no loop runs a batch any more.

        A loop that stops meanwhile is not waited for.
        """
        self.closed = True
        self.waking = None
        loop = get_running_loop()
        draining = []
        for dispatcher in self._alive():
            rested = loop.create_future()
            if dispatcher.drain(partial(_wake, loop, rested)):
                draining.append((dispatcher, rested))
        for dispatcher, rested in draining:
            while not rested.done() and dispatcher.is_running():
                await asyncio.wait([rested], timeout=_LOOK_S)  # a loop says nothing when it stops

    def new_scheduler(self) -> Scheduler:
        """Return one that nothing waits in."""
        return Scheduler(self.options, self._queue, self.name, self.counters)

    def _of(self, loop: asyncio.AbstractEventLoop) -> _Dispatcher:
        """Return the queue of `loop`, a new one if it has none."""
        recent = self._recent  # found as an attribute, as in `acall`
        dispatcher = recent()
        if dispatcher is not None and dispatcher.loop() is loop:
            return dispatcher
        key = id(loop)
        known = self._dispatchers.get(key, _nobody)
        dispatcher = known()
        if dispatcher is not None and dispatcher.loop() is loop:  # not one of the same id that is gone
            self._recent = known
            return dispatcher
        gone = weakref.ref(loop, partial(_forget_loop, self.resting, key))
        dispatcher = _Dispatcher(self, self.new_scheduler(), key, gone)
        reference = weakref.ref(dispatcher, partial(_forget, self._dispatchers, key))
        with self.lock:
            self._dispatchers[key] = self._recent = reference
            self.resting[key] = dispatcher
        return dispatcher


def _nobody() -> None:
    return None


def _cohorts(scheduler: Scheduler) -> int:
    cohorts: int = scheduler.patience.cohorts
    return cohorts


def _forget_loop(resting: dict[int, _Dispatcher], key: int, _: object) -> None:
    resting.pop(key, None)


def _forget(
    dispatchers: dict[int, weakref.ref[_Dispatcher]], key: int, reference: weakref.ref[_Dispatcher]
) -> None:
    if dispatchers.get(key) is reference:  # else the id is another loop's by now
        del dispatchers[key]


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits there any more
        loop.call_soon_threadsafe(set_unless_done, future)


class _Dispatcher:
    """One loop's queue, timer, and the tasks that run its batches. Only for the thread of the loop."""

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_batcher",
        "_busy",
        "_is_full",
        "_key",
        "_lock",
        "_stays",
        "_timer",
        "_when_resting",
        "arriving",
        "leaving",
        "loop",
        "running",
        "scheduler",
        "until",
        "wanted",
    )

    def __init__(
        self,
        batcher: LoopBatcher,
        scheduler: Scheduler,
        key: int,
        loop: weakref.ref[asyncio.AbstractEventLoop],
    ) -> None:
        self.scheduler = scheduler
        self.running: set[Batch | None] = set()
        self.arriving: list[Call] = []
        self.leaving: deque[Call] = deque()
        self.loop = loop
        self._batcher = batcher
        self._lock = batcher.lock
        self._key = key
        self._busy = 0
        self._is_full = False  # as of the last look at the queue
        self._awaited = 1
        self._stays = False  # whether a task that has answered looks who comes back: last time somebody did
        self.wanted: int | None = 1  # calls in the inbox worth starting a task for; None: none is to be
        self._timer: asyncio.TimerHandle | None = None
        self.until = 0.0  # when that is over
        self._when_resting: list[Callable[[], object]] = []

    def lets_in(self, call: Call) -> bool:
        """Whether `call` need not be admitted, where others have to be."""
        with self._lock:
            return self.scheduler.is_welcome(call, len(self.arriving))

    def has_loop(self) -> bool:
        """Whether the loop is there, and can still run."""
        loop = self.loop()
        return loop is not None and not loop.is_closed()

    def is_running(self) -> bool:
        """Whether the loop runs; one that has stopped may run again."""
        loop = self.loop()
        return loop is not None and loop.is_running()

    def drain(self, then: Callable[[], object]) -> bool:
        """Have the loop, whose thread may be another, run what is queued and call `then`.

        Returns whether it will: not if it does not run.
        """
        return self.is_running() and self._ask(self._drain, then)

    def replan(self) -> None:
        """Have the loop, whose thread may be another, plan anew: callers have left, or options changed."""
        self._ask(self._replan)

    def _replan(self) -> None:
        self.plan(get_running_loop())

    def _ask(self, callback: Callable[..., object], *args: object) -> bool:
        """Have the loop call `callback` soon; return whether it can, as it is not closed."""
        loop = self.loop()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def _drain(self, then: Callable[[], object]) -> None:
        with self._lock:
            self.scheduler.drain()
        if not self._busy and self._timer is None:
            then()
            return
        self._when_resting.append(then)
        if self._timer is not None:
            self.start(get_running_loop())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task that chooses and runs the next batch."""
        if self._timer is not None:
            self._stop_timer()
        self.wanted = None
        self._busy += 1
        self._batcher.resting.pop(self._key, None)
        context = Context()  # empty, so that nothing of one caller's reaches the function or other callers
        work = self._work(loop, context)
        work.send(None)  # so that a cancel before the task's first step is raised in it, not instead of it
        # Not by the loop's factory, which may run the task at once, before others have come.
        task = Task(work, loop=loop, name=self._batcher.task_name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  its loop may be closed

    async def _work(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Run the next batch, and further ones as long as they are due at once."""
        collator = self._batcher.collator
        streams = self._batcher.streams
        going_on = turn_due = True
        hurrying_since = None
        while going_on:
            calls: list[Call] = []
            batch = None
            try:
                if turn_due:
                    await _turn()
                    hurrying_since = None
                batch = self._next()
                if batch is not None:
                    if self._busy < self._batcher.options.max_concurrent_batches:
                        self.plan(loop)
                    self.running.add(batch)
                    RUNNING.set(batch)
                    if streams:
                        calls = await self._stream(batch)
                    else:
                        calls = self._answer(batch, collator.split(await batch.run(collator), batch))
            except BaseException as error:  # noqa: BLE001  the callers' to handle, whatever it is
                if isinstance(error, GeneratorExit) and (batch is None or RUNNING.get(None) is not batch):
                    return  # not raised by the function: loop and callers are gone, and the task with them
                calls = self._failed(error, batch)
                going_on = isinstance(error, Exception)  # else somebody has ended this task
            self._busy -= 1
            self.running.discard(batch)
            # Not if the function has not listened to a cancel, or what it has set in its context would stay.
            can_go_on = going_on and len(context) <= 1 and not _is_cancelled(loop)
            going_on = self.plan(loop, batch, calls, can_go_on)
            turn_due = True
            if going_on and self._is_full:
                now = monotonic()
                hurrying_since = hurrying_since or now
                turn_due = now - hurrying_since > _HURRY_S
            # As in the thread: an error whose calls are found by way of this frame would keep itself alive.
            calls.clear()
            if batch is not None:
                batch.clear()

    async def _stream(self, batch: Batch) -> list[Call]:
        """Run a function that yields its results; return the calls that it has left without an end."""
        batcher = self._batcher
        async with aclosing(batch.run(batcher.collator)) as steps:
            async for pieces in steps:
                split = batcher.collator.split(pieces, batch)
                with self._lock:
                    told, wanted = batch.step(split, batcher.name, batcher.options.max_pieces)
                _tell(told)
                if not wanted:
                    break
                await _turn()  # the function may never wait: the consumers take their pieces now
        with self._lock:
            calls = batch.end()
        batch.let_go()
        return calls

    def _answer(self, batch: Batch, parts: list[Any]) -> list[Call]:
        """Hand the calls of `batch` their parts; return those that are now done."""
        with self._lock:
            calls = batch.answer(parts, self._batcher.collator)
        batch.let_go()
        return calls

    def _next(self) -> Batch | None:
        """Remove and return the next batch, None if none is due any more."""
        scheduler = self.scheduler
        with self._lock:
            if self.arriving and not self.leaving:
                came = len(self.arriving)
                batch = scheduler.pop_arriving(self.arriving, came, monotonic())
                if batch is not None:
                    return batch
            scheduler.take_in(self.arriving, self.leaving)
            now = monotonic()
            batch = scheduler.pop(now) if scheduler.delay(now) == 0.0 else None
            if scheduler.let_in:
                scheduler.let_in.clear()  # they wait for their answers, not at the door
            return batch

    def plan(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Batch | None = None,
        calls: list[Call] | None = None,
        can_go_on: bool = False,  # noqa: FBT001, FBT002  a name would cost
    ) -> bool:
        """Count `batch`, which has run, release the callers of `calls`, and plan what a free slot does.

        Returns whether the running task has to go on with another batch.
        """
        done, delay = self._count(batch, calls or [])
        if self._timer is not None:
            self._stop_timer()
        try:
            if done:
                self._release(done, loop)
            if self._busy >= self._batcher.options.max_concurrent_batches:
                self.wanted = None
            elif can_go_on and (delay == 0.0 or (delay is None and done and self._stays)):
                self.wanted = None
                self._busy += 1
                return True
            elif delay is None:
                self._rest()
            elif delay > 0.0:
                self.wanted = self._awaited
                self.until = monotonic() + delay
                self._timer = loop.call_later(delay, self.start, loop)
            else:
                self.start(loop)
        except RuntimeError:  # the loop was closed
            pass
        return False

    def _count(self, batch: Batch | None, calls: list[Call]) -> tuple[list[Call], float | None]:
        """Return the calls to answer now that `calls` are done, and the seconds until the next batch is due.

        Notes how many calls would make it due at once, and whether it is due because it is full.
        """
        scheduler = self.scheduler
        guarded = self._batcher.guarded
        fault = None
        if guarded and calls:
            calls = self._whole(calls)
        with self._lock:
            now = monotonic()
            if guarded and calls:
                calls = scheduler.answered(calls)
            try:
                if batch is not None:
                    scheduler.done(batch, now)
                if self.arriving or self.leaving:
                    scheduler.take_in(self.arriving, self.leaving)
                delay = scheduler.delay(now)
                self._is_full = delay == 0.0 and scheduler.queue.is_full()
                self._awaited = scheduler.awaited() if delay else 1
            except Exception as error:  # noqa: BLE001  a fault of this library
                fault, delay = error, None
            expired = scheduler.expired
            if expired:
                scheduler.expired = []
            if scheduler.let_in:
                scheduler.let_in.clear()  # as in `_next`
        if fault is not None:
            expired += self._give_up(fault, batch)
        return ([*calls, *self._late(expired)] if expired else calls), delay

    def _release(self, calls: list[Call], loop: asyncio.AbstractEventLoop) -> None:
        """Release the callers of `calls`."""
        if self._batcher.streams:
            _tell(calls)
        else:
            loop.call_soon(self._wake, tuple(calls), loop)

    def _wake(self, calls: tuple[Call, ...], loop: asyncio.AbstractEventLoop) -> None:
        """Wake those who wait for `calls`, and note whether anybody has called by then."""
        batcher = self._batcher
        if not (self.running or batcher.closed or "_nest_patched" in _ASYNCIO):
            batcher.waking = self, loop, get_ident()
        try:
            resolve_on_loop(calls)
        finally:
            batcher.waking = None
        self._stays = bool(self.arriving)

    def _whole(self, calls: list[Call]) -> list[Call]:
        """Return which calls are done now that these are, and keep their results in the cache."""
        with self._lock:
            calls = self.scheduler.whole(calls)
            found = self.scheduler.found(calls)
        collator = self._batcher.collator
        if isinstance(collator, CachingCollator):
            interrupt = collator.store(found)  # before their callers can ask again, and without the lock
            if interrupt is not None:
                get_running_loop().call_soon(_raise, interrupt)  # once this batch is answered
        return calls

    def _late(self, calls: list[Call]) -> list[Call]:
        """Return whom to answer now that `calls` have expired."""
        if not self._batcher.guarded:
            return calls
        calls = self._whole(calls)
        with self._lock:
            return self.scheduler.answered(calls)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _rest(self) -> None:
        self.wanted = 1
        if not self._busy:
            self._batcher.resting[self._key] = self
            if self._when_resting:
                then, self._when_resting = self._when_resting, []
                for callback in then:
                    callback()

    def _failed(self, error: BaseException, batch: Batch | None) -> list[Call]:
        """Answer the calls of `batch` with `error`, or have it run again; return those that are now done."""
        if batch is not None:
            failed = batch.failed
            with self._lock:
                self.scheduler.take_in(self.arriving, self.leaving)
                if not batch.begun and self.scheduler.retry(batch, error, monotonic()):
                    return []
            with self._lock:
                calls = batch.fail(without_own_frames(error), self._batcher.collator)
            batch.let_go()
            if self._batcher.streams:
                batch.failed = failed + len(calls)  # the others had ended, or left
            return calls
        if isinstance(error, asyncio.CancelledError):  # of the task, whose batch another will choose
            return []
        return self._give_up(error)

    def _give_up(self, fault: BaseException, batch: Batch | None = None) -> list[Call]:
        """Fail all that waits with a fault of this library, start afresh, and return the calls.

        `batch` has run, and its calls are answered.
        """
        batcher = self._batcher
        _logger.error("%s: its event loop's task failed", batcher.name, exc_info=fault)
        with self._lock:
            if batch is not None:
                self.scheduler.forget(batch)
            return self.scheduler.abandon(fault, self.arriving)


def _tell(calls: list[Call]) -> None:
    """Wake the consumers of streams, who look for themselves what there is."""
    for call in calls:
        call.waiter.set()


def _raise(interrupt: KeyboardInterrupt) -> NoReturn:
    raise interrupt


@types.coroutine
def _turn() -> Generator[None, None, Any]:
    """Wait for the next turn of the loop."""
    yield


def _is_cancelled(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether somebody wants the running task to end, even if the batch function has not listened."""
    task = current_task(loop)
    return task is not None and task.cancelling() > 0
