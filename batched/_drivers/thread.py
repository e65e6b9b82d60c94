"""The driver whose batches run in worker threads, for callers in threads and on event loops.

Callers append to `arriving` and wake a worker only if it sleeps and has reason to look; they never take the
lock, unless calls are admitted one by one. The lock guards the batcher, and what calls still miss.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import sys
import traceback
import weakref
from asyncio import _get_running_loop, get_running_loop
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from batched._core.admission import is_guarded
from batched._core.batcher import Batcher, snapshot
from batched._core.counters import Counters
from batched._drivers.blocking import warn_of_blocking
from batched._drivers.current_batch import DROP_DEPARTED, IN_THREAD, RUNNING
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.fork_and_exit import park_at_exit, register
from batched._drivers.generators import run_steps, walk_steps
from batched._drivers.wakeups import (
    FUTURE,
    Bell,
    refusal,
    release,
    release_one_by_one,
    set_unless_done,
    settle,
    tell,
    watch,
)
from batched._drivers.workers import Workers
from batched._parts.cache import CachingCollator
from batched._parts.in_flight import InFlight
from batched.errors import ClosedError, raise_as_was

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from batched._core.batch import Batch, Collator
    from batched._core.batcher import NewQueue
    from batched._core.call import Call
    from batched._core.options import Options
    from batched._core.stats import Stats

__all__ = ["ThreadDriver"]

_inherited: list[object] = []

_logger = logging.getLogger("batched")


class ThreadDriver:
    """One batcher and the threads that run its batches; they start when calls come.

    The threads keep the driver alive, but not `owner`, the object that callers reach it through: when that is
    collected they end. Nothing here refers to `owner` or to the batch function; each call brings the function
    with it.
    """

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        queue: NewQueue,
        collator: Collator,
        name: str,
        owner: object,
        *,
        streams: bool = False,
        awaits: bool = True,
    ) -> None:
        self.options = options
        self.name = name
        self.closed = False
        self.collator = collator
        self._queue = queue
        self._streams = streams
        self._awaits = awaits  # whether a function may be `async def`: it would run on a loop of this thread
        self.may_warn = True  # of a call that blocks an event loop; once
        self._owner = weakref.ref(owner, self._retire)
        self._reset()
        register(self)

    def _reset(self) -> None:
        self.counters = Counters()
        self.batcher = Batcher(
            self.options,
            self._queue,
            self.collator,
            self.name,
            self.counters,
            in_flight=InFlight() if isinstance(self.collator, CachingCollator) else None,
            streams=self._streams,
        )
        self.batcher.wake_after = 0  # there is no worker
        self.lock = _thread.allocate_lock()
        self._deciding = _Deciding(self)
        self._guarded = is_guarded(self.options)
        self._blocked: dict[Call, _thread.LockType] = {}  # for each `submit` that waits for room
        self._watch = DeadlineWatch(self.name, partial(_drop_late, weakref.ref(self)))
        self.workers = Workers(self, self.options.max_concurrent_batches, self._watch.stop)
        self.idents = self.workers.idents
        self._runners: dict[int, asyncio.Runner] = {}

    def after_fork(self) -> None:
        """Start afresh in the child: it has no worker, and the calls in the queue are the parent's.

        They fail here, so that no consumer of a stream waits for ever.
        """
        # Without the lock: a thread of the parent may hold it, and no other thread is here.
        batcher = self.batcher
        for call in (*batcher.arriving, *batcher.waiting_calls(), *batcher.running_calls()):
            if call.missing:
                call.waiting = 0
                call.fail(ClosedError(f"{self.name}: this call belongs to the parent process"))
        # Closing an inherited loop would take its file descriptors out of the parent's epoll.
        _inherited.append(self._runners)
        self._reset()

    # -- options and stats --------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        with self._deciding as batcher:
            batcher.take_in()
            return snapshot(self.counters, [batcher], monotonic())

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        with self._deciding as batcher:
            batcher.take_in()
            self.options = options
            self._guarded = is_guarded(options)
            batcher.configure(options)
            self.workers.set_most(options.max_concurrent_batches)
        if self.batcher.wake_after != 0:  # else there is no worker, and no call that waits for one
            self.workers.wake()

    def stack(self) -> str:
        """Return the workers' stacks as tracebacks show them, "" if there is no worker."""
        frames = sys._current_frames()  # noqa: SLF001
        stacks = [traceback.format_stack(frames[ident]) for ident in list(self.idents) if ident in frames]
        return "\n".join("".join(stack) for stack in stacks)

    # -- a call comes -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if a call from this thread cannot be answered."""
        if self.closed:
            park_at_exit()
            raise self.closed_error()
        if _thread.get_ident() in self.idents:
            raise RuntimeError(
                f"{self.name} was called from inside its own batch function, or from a callback of its own "
                f"future, where it would wait for itself"
            )

    def closed_error(self) -> ClosedError:
        """Return what calls raise after the end."""
        return ClosedError(f"{self.name} was shut down")

    def check_outside(self) -> None:
        """Raise if this is a worker's own thread, which cannot wait for its own end."""
        if _thread.get_ident() in self.idents:
            raise ClosedError(f"{self.name} cannot wait for its end inside its own batch function")

    def warn_on_loop(self, blocking: str, instead: str) -> None:
        """Warn, the first time, if this thread runs an event loop, that `blocking` is about to block it."""
        if self.may_warn and _get_running_loop() is not None:
            with self.lock:
                is_first, self.may_warn = self.may_warn, False
            if is_first:
                warn_of_blocking(self.name, blocking, instead)

    def push(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002  keywords only would cost
        """Have `call`, whose waiter is set, arrive; when there is room, if it `waits`."""
        try:
            if self._guarded:
                self._admit(call, of_map=waits)
            elif self.batcher.arrive(call):
                self.workers.wake()
        except BaseException:  # Ctrl-C, or a refusal: no caller waits for this call
            self.cancel(call)
            raise

    def _admit(self, call: Call, *, of_map: bool = False) -> _thread.LockType | None:
        """Have `call` arrive, or later if it can wait; then return the lock that will be released."""
        gate = None
        wait = of_map or self.options.on_full == "wait"
        with self._deciding as batcher:
            arrived = batcher.admit(call, wait=wait, of_map=of_map)
            if not arrived:
                self._blocked[call] = gate = _thread.allocate_lock()
                gate.acquire()
        if not arrived or self.batcher.wakes(call):
            self.workers.wake()
        return gate

    def count_cached(self, call: Call) -> None:
        """Count the items of a call of which nothing is queued: the cache knew them, or has been too slow."""
        with self.lock:
            self.counters.unqueued(call.hits, call.unanswered)

    def post(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Have `call` arrive, for a thread that will `collect` it."""
        call.loop = None
        call.waiter = waiter = _thread.allocate_lock()
        waiter.acquire()
        self.push(call, waits)

    def post_async(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Have `call` arrive, for the running task, which then waits until it is answered or late."""
        if self.closed or _thread.get_ident() in self.idents:
            self.check()
        call.note_context()  # a worker may be faster than the task, which has yet to wait
        call.loop = loop = get_running_loop()
        call._loop = loop  # noqa: SLF001  tasks look for it by this name
        self.push(call, waits)
        if call.deadline is not None:  # after the push, which may be refused
            watch(call, loop)

    def submit(self, call: Call) -> Future[Any]:
        """Have `call` arrive, and return the future of its answer; may block while there is no room."""
        future: Future[Any] = Future()
        call.waiter = future
        call.loop = FUTURE
        future.add_done_callback(partial(self._notice_cancel, call))
        try:
            if not self._guarded:
                self.push(call)
            else:
                gate = self._admit(call)
                if gate is not None:
                    self._wait_for_room(call, gate)
            if call.deadline is not None:
                self._watch.add(call, call.deadline)
        except BaseException:  # Ctrl-C, or a refusal: no caller has this future
            self.cancel(call)
            raise
        return future

    def _wait_for_room(self, call: Call, gate: _thread.LockType) -> None:
        """Block until `gate` is released, as there is room for `call`; raise if it is late by then."""
        self.warn_on_loop("fn.submit(x)", "await fn.acall(x)")
        if not gate.acquire(timeout=-1 if call.deadline is None else max(call.deadline - monotonic(), 0.0)):
            self.refuse(call)

    def open(self, call: Call) -> None:
        """Have `call` arrive, whose pieces a thread will take as they come."""
        call.take_pieces()
        self.post(call)

    def open_async(self, call: Call) -> None:
        """Have `call` arrive, whose pieces a task of the running loop will take as they come."""
        call.take_pieces()
        call.loop = get_running_loop()
        call.waiter = Bell()
        self.push(call)

    # -- a caller waits, and leaves -------------------------------------------------------------------------

    def collect(self, call: Call) -> None:
        """Block until `call` has its results, or raise its error."""
        try:
            if call.deadline is None:
                call.waiter.acquire()
            else:
                call.waiter.acquire(timeout=max(call.deadline - monotonic(), 0.0))
        except BaseException:  # Ctrl-C
            self.cancel(call)
            raise
        if call.missing or call.error is not None:
            self.refuse(call)

    def cancel(self, call: Call) -> None:
        """Say that the caller of `call` has left: the items that have not started never run."""
        self._leave(call, "cancelled")

    def _leave(self, call: Call, why: Literal["cancelled", "expired"]) -> None:
        if call.missing and call.left is None:
            call.left = why
            self.batcher.leaving.append(call)

    def refuse(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.error is None:
            self._leave(call, "expired")
            if self._blocked:
                self.drop_departed()  # others wait for the room that it has taken
        raise_as_was(refusal(call, self.name))

    def drop_departed(self) -> None:
        """Drop the calls whose callers have left."""
        if self.batcher.leaving:
            with self._deciding as batcher:
                batcher.take_in()

    def drop_late(self, calls: list[Call]) -> None:
        """Answer those of `calls`, which have futures and are late, that have not wholly started."""
        with self._deciding as batcher:
            batcher.take_in()
            for call in calls:
                batcher.expire(call)

    def _notice_cancel(self, call: Call, future: Future[Any]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`
            self.cancel(call)

    # -- the end ------------------------------------------------------------------------------------------

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel those in the queue, and end the threads."""
        if wait:
            self.check_outside()
        self.closed = True
        if cancel_futures:
            with self._deciding as batcher:
                batcher.close(CancelledError(f"{self.name} was shut down"), "cancelled")
                self.open_gates([*self._blocked])
        self.workers.end()
        if wait:
            self.workers.join()

    async def aclose(self) -> None:
        """As `shutdown()`, without blocking the event loop."""
        self.shutdown(wait=False, cancel_futures=False)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        with self.lock:
            if not len(self.workers) and not self.idents:
                return
            self.workers.then.append(lambda: loop.call_soon_threadsafe(set_unless_done, ended))
        await ended

    def end_streams(self) -> None:
        """Fail the streams of the batches that run, so that those end with their next pieces."""
        with self.lock:
            calls = self.batcher.end_streams(CancelledError(f"{self.name} was shut down"))
        tell(calls)

    def turn_away(self, error: BaseException | None) -> None:
        """Answer all calls that wait with `error`, or as after the end: no worker will run them."""
        with self._deciding as batcher:
            batcher.close(error or self.closed_error())
            self.open_gates([*self._blocked])

    def _retire(self, _: object) -> None:
        # Runs wherever the owner is collected, perhaps in a thread that holds the lock.
        self.closed = True
        if self.batcher.wake_after != 0:  # else there is no worker, and to start one needs the lock
            self.workers.wake()

    # -- for the workers ------------------------------------------------------------------------------------

    def look(self) -> Batch | float | None:
        """Return the next batch, or the seconds until it is due, None if no call waits."""
        with self._deciding as batcher:
            batcher.take_in()
            if self.closed:
                batcher.drain()
            return batcher.next(monotonic())

    def run(self, batch: Batch) -> None:
        """Run `batch` and answer its calls."""
        IN_THREAD[_thread.get_ident()] = batch
        DROP_DEPARTED.set(self.drop_departed)
        if self._streams:
            self._run_stream(batch)
        else:
            self._run_once(batch)
        # An error's traceback leads to this frame, by way of the function's: were its calls still found here,
        # the error would keep itself alive, and all that the function had at hand, until the collector comes.
        batch.clear()

    def _run_once(self, batch: Batch) -> None:
        try:
            outputs = batch.run(self.collator)
            if type(outputs) is not list and hasattr(outputs, "__await__"):
                outputs = self._await(outputs)
            parts = self.collator.split(outputs, batch)
        except BaseException as error:  # noqa: BLE001  for the callers to handle, whatever it is
            self._fail(batch, error)
        else:
            with self._deciding as batcher:
                batcher.finish(batch, parts, monotonic())

    def _fail(self, batch: Batch, error: BaseException) -> None:
        with self._deciding as batcher:
            batcher.fail(batch, error, monotonic())
        if len(self.workers) > 1:
            self.workers.wake()  # a half may run in another worker, which is asleep and has the turn

    def _run_stream(self, batch: Batch) -> None:
        """Run a function that yields, for each item, its next piece."""
        step = partial(self._step, batch)
        try:
            steps = batch.run(self.collator)
            if isasyncgen(steps):
                self._await(walk_steps(cast("AsyncGenerator[Any]", steps), step, self.name))
            else:
                run_steps(steps, step, self.name)
        except BaseException as error:  # noqa: BLE001  as for any batch
            self._fail(batch, error)
        else:
            with self._deciding as batcher:
                batcher.finish_stream(batch, monotonic())

    def _step(self, batch: Batch, pieces: Any) -> bool:
        """Hand each caller its next piece; return whether any wants more."""
        split = self.collator.split(pieces, batch)
        with self.lock:
            told, wanted = self.batcher.step(batch, split)
        tell(told)
        return wanted

    def _await(self, awaitable: Any) -> Any:
        """Run what an `async def` batch function returned, on a loop of this thread's own."""
        if not self._awaits:
            if hasattr(awaitable, "close"):
                awaitable.close()  # a coroutine would warn that it was never awaited
            raise TypeError(
                f"{self.name} returned an awaitable but is no `async def`, so it ran in a thread and not on "
                f"the event loop; write `async def f(items): return await ...`"
            )
        me = _thread.get_ident()
        runner = self._runners.get(me)
        if runner is None:
            runner = self._runners[me] = asyncio.Runner()

        async def outputs() -> Any:
            return await awaitable

        try:
            context = copy_context()
            context.run(RUNNING.set, IN_THREAD[me])
            return runner.run(outputs(), context=context)
        except BaseException as error:
            if not isinstance(error, Exception):  # it has broken the loop in the middle
                runner.close()
                del self._runners[me]
            raise

    def give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""
        lost = [] if batch is None else [batch]
        with self._deciding as batcher:
            if batch is None and len(self.workers) == 1:  # else some of the batches are the others'
                lost = [*batcher.running]
            for each in lost:
                batcher.give_up(error, each)
            if batch is None:
                batcher.give_up(error, None)
                self.open_gates([*self._blocked])
        for each in lost:
            each.clear()

    def end_thread(self) -> None:
        """Release what belongs to this thread, which ends."""
        me = _thread.get_ident()
        runner = self._runners.pop(me, None)
        if runner is not None:
            runner.close()
        IN_THREAD.pop(me, None)

    def open_gates(self, calls: list[Call]) -> None:
        """Have each `submit` go on that waits for room for one of `calls`. Needs the lock."""
        for call in calls:
            if gate := self._blocked.pop(call, None):
                gate.release()

    def wake_callers(self, calls: list[Call]) -> None:
        """Wake the callers of `calls`, which have their answers."""
        if self._streams:
            tell(calls)
            return
        if isinstance(self.collator, CachingCollator):
            in_flight: Any = self.batcher.in_flight
            self.collator.store(in_flight.take_landed())  # before callers can ask again
        settle(release(calls))


class _Deciding:
    """Holds the lock; after it, wakes the callers of calls that have got an answer meanwhile."""

    __slots__ = ("_driver",)

    def __init__(self, driver: ThreadDriver) -> None:
        self._driver = driver

    def __enter__(self) -> Batcher:
        self._driver.lock.acquire()
        return self._driver.batcher

    def __exit__(self, *_: object) -> None:
        driver = self._driver
        batcher = driver.batcher
        answered, batcher.answered = batcher.answered, []
        released = batcher.take_released()
        if batcher.let_in:
            driver.open_gates(batcher.let_in)
            batcher.let_in.clear()
        has_moved, batcher.has_moved = batcher.has_moved, False
        driver.lock.release()
        for call in released:  # first: a caller that has its answer finds its instance kept by no batch
            call.release_inputs()
        if answered:
            try:
                driver.wake_callers(answered)
            except Exception:  # a fault of this library: each caller is to be woken all the same
                _logger.exception("%s: callers could not be woken together", driver.name)
                release_one_by_one(answered)
        if has_moved and batcher.wake_after:
            driver.workers.wake()  # a worker that sleeps counts on `arriving` to fill up


def _drop_late(driver: weakref.ref[ThreadDriver], calls: list[Call]) -> None:
    """Drop late calls of a driver that is still there."""
    if (known := driver()) is not None:
        known.drop_late(calls)
