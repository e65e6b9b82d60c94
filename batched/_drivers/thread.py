"""The worker threads: clock, wake-up, and the ways a caller waits for its answer.

Callers append to an inbox and wake a worker only if it sleeps and has reason to get up; they never take
the lock, unless the queue is bounded. The lock guards the scheduler, its queue, and what of their items
calls still miss: none of these is looked at or changed without it. Every holder of the lock may empty the
inbox into the scheduler, so that a snapshot of the stats is always whole and never waits for a batch.

Of several workers one at a time looks for the next batch, and leaves with it: a burst that fits into one
batch is not divided among those who are idle.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import sys
import threading
import traceback
import weakref
from asyncio import _get_running_loop, get_running_loop
from collections import deque
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from functools import partial
from inspect import isasyncgen
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from batched._core.counters import Counters
from batched._core.memory_limit import is_out_of_memory
from batched._core.scheduler import Scheduler, is_guarded
from batched._drivers.blocking import warn_of_blocking
from batched._drivers.current_batch import HEED, IN_THREAD, RUNNING
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.fork_and_exit import park_at_exit, register, start_thread
from batched._drivers.wakeups import FUTURE, Bell, refusal, release, set_unless_done, settle, tell, watch
from batched._parts.cache import CachingCollator, Lookup
from batched.errors import ClosedError, raise_as_was, without_own_frames

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from batched._core.call import Batch, Call, Collator
    from batched._core.options import Options
    from batched._core.scheduler import NewQueue
    from batched._core.stats import Stats

__all__ = ["Batcher"]

_UNCLOSED = "%s: the generator could not be closed"

_inherited: list[object] = []

_logger = logging.getLogger("batched")


class Batcher:
    """One queue and the threads that run its batches; they start when calls come.

    The threads keep the batcher alive, but not `owner`, the object that callers reach it through: when that
    is collected they end. Nothing here refers to `owner` or to the batch function; each call brings the
    function with it.
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
        self._scheduler = Scheduler(self.options, self._queue, self.name, self.counters)
        self._guarded = is_guarded(self.options)
        self._inbox: list[Call] = []
        self._leaving: deque[Call] = deque()
        self._blocked: dict[Call, _thread.LockType] = {}  # whose `submit` waits for room
        self._lock = _thread.allocate_lock()
        self._wake = _thread.allocate_lock()  # a binary semaphore: released means "get up"
        self._wake.acquire()
        # Calls in the inbox worth waking for: 0 if there is no thread to wake, None if one is awake.
        self._wanted: int | None = 0
        self._until = 0.0  # when one that sleeps while calls wait gets up in any case
        self._most_threads = self.options.max_concurrent_batches
        self._threads: list[threading.Thread] = []  # all that may be alive; `shutdown` waits for them
        self._workers: set[threading.Thread] = set()  # those of them that may take a batch
        self._turn = _thread.allocate_lock()  # held by the worker that looks for the next batch
        self._may_start = False  # `configure` has left it to the worker that has the turn to start another
        self._idle = 0  # workers that wait for their turn
        self._watch = DeadlineWatch(self.name, partial(_drop_late, weakref.ref(self)))
        self.idents: set[int] = set()
        self._ended = False
        self._runners: dict[int, asyncio.Runner] = {}
        self._when_ended: list[Callable[[], object]] = []

    def after_fork(self) -> None:
        """Start afresh in the child: it has no worker, and the calls in the queue are the parent's.

        They fail here, so that no consumer of a stream waits for ever.
        """
        # Without the lock: a thread of the parent may hold it, and no other thread is here.
        for call in (*self._inbox, *self._scheduler.waiting_calls(), *self._scheduler.running_calls()):
            if call.missing:
                call.waiting = 0
                call.fail(ClosedError(f"{self.name}: this call belongs to the parent process"))
        # Closing an inherited loop would take its file descriptors out of the parent's epoll.
        _inherited.append(self._runners)
        self._reset()

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        with self._lock:
            moved = bool(self._inbox)
            self._empty_inbox()
            stats = self._scheduler.stats(monotonic())
        if moved:
            # A sleeping worker counts on the inbox to fill up; it must plan anew.
            self._get_up()
        return stats

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        with self._lock:
            self._empty_inbox()
            self.options = options
            self._most_threads = options.max_concurrent_batches
            self._guarded = is_guarded(options)
            self._scheduler.configure(options)
            self._unblock()
            # A worker that has the turn starts another when it has a batch. It gives the turn back before it
            # looks at `_may_start`, so either side sees the other.
            self._may_start = True
            if not self._turn.locked():
                self._start_another()
        if self._wanted != 0:  # else there is no thread, and nothing that waits for one
            self._get_up()

    def stack(self) -> str:
        """Return the workers' stacks as tracebacks show them, "" if there is no worker."""
        frames = sys._current_frames()  # noqa: SLF001
        stacks = [traceback.format_stack(frames[ident]) for ident in list(self.idents) if ident in frames]
        return "\n".join("".join(stack) for stack in stacks)

    def check(self) -> None:
        """Raise if a call from this thread cannot be answered."""
        if self.closed:
            park_at_exit()
            raise ClosedError(f"{self.name} was shut down")
        if _thread.get_ident() in self.idents:
            raise RuntimeError(
                f"{self.name} was called from inside its own batch function, or from a callback of its own "
                f"future, where it would wait for itself"
            )

    def check_outside(self) -> None:
        """Raise if this is a worker's own thread, which cannot wait for its own end."""
        if _thread.get_ident() in self.idents:
            raise ClosedError(f"{self.name} cannot wait for its end inside its own batch function")

    def warn_on_loop(self, blocking: str, instead: str) -> None:
        """Warn, the first time, if this thread runs an event loop, that `blocking` is about to block it."""
        if self.may_warn and _get_running_loop() is not None:
            with self._lock:
                is_first, self.may_warn = self.may_warn, False
            if is_first:
                warn_of_blocking(self.name, blocking, instead)

    def push(self, call: Call, patient: bool = False) -> None:  # noqa: FBT001, FBT002  as below
        """Queue `call`, whose waiter is set; if the queue is bounded and full, later, if it is `patient`."""
        inbox = self._inbox
        if not self._guarded:
            inbox.append(call)
        elif patient or not self._lets_in(call):
            self._admit(call, wait=patient or self.options.on_full == "wait", patient=patient)
            return
        wanted = self._wanted
        if wanted is not None and (
            len(inbox) >= wanted or call.size > 1 or (call.deadline and call.latest_start() < self._until)
        ):
            # As `_get_up`, but nothing comes after the release: the worker wants the interpreter lock then.
            if not wanted:
                try:
                    self._start()
                except BaseException:  # Ctrl-C
                    self.cancel(call)
                    raise
            elif self._wake.locked():
                try:  # noqa: SIM105
                    self._wake.release()
                except RuntimeError:
                    pass

    def _lets_in(self, call: Call) -> bool:
        """Put `call` into the inbox if it need not be admitted; return whether it is there now."""
        with self._lock:
            if self._scheduler.is_welcome(call, len(self._inbox)):
                self._inbox.append(call)
                return True
        return False

    def _admit(self, call: Call, *, wait: bool, patient: bool = False) -> _thread.LockType | None:
        """Queue `call` now, or later if it can `wait`; then return the lock that is released when it is."""
        gate = None
        futures: list[Call] = []
        with self._lock:
            moved = bool(self._inbox)
            self._empty_inbox()
            try:
                outside = self._scheduler.admit(call, wait=wait, patient=patient)
            except BaseException:
                call.missing = call.waiting = 0  # so that nothing is left to be cancelled
                if moved and self._wanted != 0:  # else who has put them there starts a thread
                    self._get_up()  # as in `stats`
                raise
            if outside is not None:
                self._blocked[outside] = gate = _thread.allocate_lock()
                gate.acquire()
            if not call.missing:  # the cache knew it all by now
                futures = release([call])
        settle(futures)
        try:
            self._get_up()
        except BaseException:  # Ctrl-C
            self.cancel(call)
            raise
        return gate

    def count_cached(self, call: Call) -> None:
        """Count the items of a call of which nothing is queued: the cache knew them, or has been too slow."""
        if isinstance(call, Lookup):
            with self._lock:
                self.counters.unqueued(call.hits, call.unanswered)

    def _whole(self, calls: list[Call]) -> list[Call]:
        """Return which calls are done now that these are: not a part of a list, but its family."""
        with self._lock:
            calls = self._scheduler.whole(calls)
            found = self._scheduler.found(calls)
        if isinstance(self.collator, CachingCollator):
            self.collator.store(found)  # before their callers can ask again, and without the lock
        return calls

    def _release(self, calls: list[Call]) -> list[Call]:
        """Wake the callers of `calls`; return the calls that have futures instead. Needs the lock."""
        if self._guarded:
            calls = self._scheduler.answered(calls)
        return release(calls) if calls else calls

    def _unblock(self) -> None:
        """Tell those whose call has been let in. Needs the lock."""
        for call in self._scheduler.let_in:
            if gate := self._blocked.pop(call, None):
                gate.release()
        self._scheduler.let_in.clear()

    def cancel(self, call: Call) -> None:
        """Say that nobody waits for `call` any more: what of it has not started never runs."""
        self._leave(call, "cancelled")

    def _leave(self, call: Call, why: Literal["cancelled", "expired"]) -> None:
        if call.missing and call.left is None:
            call.left = why
            self._leaving.append(call)

    def post(self, call: Call, patient: bool = False) -> None:  # noqa: FBT001, FBT002  keywords only would cost
        """Queue `call` for a thread that will `collect` it."""
        call.loop = None
        call.waiter = waiter = _thread.allocate_lock()
        waiter.acquire()
        self.push(call, patient)

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

    def post_async(self, call: Call, patient: bool = False) -> None:  # noqa: FBT001, FBT002
        """Queue `call` for the running task, which then waits until it is answered or late."""
        if self.closed or _thread.get_ident() in self.idents:
            self.check()
        call.note_context()  # a worker may be faster than the task, which has yet to wait
        call.loop = loop = get_running_loop()
        call._loop = loop  # noqa: SLF001  so it is called where tasks look for it
        self.push(call, patient)
        if call.deadline is not None:  # after the push, which may be refused
            watch(call, loop)

    def refuse(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.error is None:
            self._leave(call, "expired")
            if self._blocked:
                self._heed()  # others wait for the room that it has taken
        raise_as_was(refusal(call, self.name))

    def submit(self, call: Call) -> Future[Any]:
        """Queue `call` and return the future of its answer; may block while there is no room."""
        future: Future[Any] = Future()
        call.waiter = future
        call.loop = FUTURE
        future.add_done_callback(partial(self._notice_cancel, call))
        try:
            if not self._guarded:
                self.push(call)
            else:
                gate = self._admit(call, wait=self.options.on_full == "wait")
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

    def drop_late(self, calls: list[Call]) -> None:
        """Answer those of `calls`, which have futures and are late, that have not wholly started."""
        with self._lock:
            moved = bool(self._inbox)
            self._empty_inbox()
            late = [call for call in calls if self._scheduler.expire(call)]
            self._unblock()
        if moved:
            self._get_up()  # as in `stats`
        settle(late)

    def _notice_cancel(self, call: Call, future: Future[Any]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`
            self.cancel(call)

    def open(self, call: Call) -> None:
        """Queue `call`, whose pieces a thread will take as they come."""
        call.take_pieces()
        self.post(call)

    def open_async(self, call: Call) -> None:
        """Queue `call`, whose pieces a task of the running loop will take as they come."""
        call.take_pieces()
        call.loop = asyncio.get_running_loop()
        call.waiter = Bell()
        self.push(call)

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel what is queued, and end the threads."""
        if wait:
            self.check_outside()
        self.closed = True
        if cancel_futures:
            error = CancelledError(f"{self.name} was shut down")
            with self._lock:
                calls = self._clear(error)
            for call in calls:
                call.left = "cancelled"
            self._resolve(calls)
        with self._lock:  # `_start` holds it until the thread has started
            has_worker = bool(self._workers)
            if not has_worker:
                self._ended = True  # a call at the door starts no worker
        if has_worker:
            self._get_up()
        me = threading.current_thread()  # a worker that ends may run a callback of a future
        while wait:
            with self._lock:
                threads = [thread for thread in self._threads if thread.is_alive() and thread is not me]
            if not threads:
                break
            for thread in threads:  # meanwhile others may start, for calls in the queue
                thread.join()

    async def aclose(self) -> None:
        """As `shutdown()`, without blocking the event loop."""
        self.shutdown(wait=False, cancel_futures=False)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        with self._lock:
            if not self._workers and not self.idents:
                return
            self._when_ended.append(lambda: loop.call_soon_threadsafe(set_unless_done, ended))
        await ended

    # -- wake-up: called by anyone, at any time, without the lock ----------------------------------

    def _get_up(self) -> None:
        if self._wanted == 0:
            self._start()
        elif self._wake.locked():
            with contextlib.suppress(RuntimeError):  # another caller was faster
                self._wake.release()

    def _start(self) -> None:
        """Start a thread for the first call, or turn away what came after the end of all."""
        error: BaseException = ClosedError(f"{self.name} was shut down")
        with self._lock:
            if not self._ended:
                if any(thread.is_alive() for thread in self._workers):
                    return
                self._workers.clear()
                try:
                    self._start_thread()
                except RuntimeError as no_thread:  # the process has too many
                    error = no_thread
                else:
                    return
            calls = self._clear(error)
        self._resolve(calls)

    def _start_thread(self) -> None:
        """Start one more worker. Needs the lock."""
        # A daemon thread outlives the main thread only as long as `at_exit` waits for it.
        thread = threading.Thread(target=self._work, name=f"batched: {self.name}", daemon=True)
        try:
            self._workers.add(thread)
            start_thread(thread)
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        except BaseException:  # Ctrl-C, or too many threads. A thread that runs all the same ends at once
            self._workers.discard(thread)
            raise

    def _retire(self, _: object) -> None:
        # Runs wherever the owner is collected, perhaps in a thread that holds the lock.
        self.closed = True
        if self._wanted != 0:  # else there is no thread to wake, and `_start` would want the lock
            self._get_up()

    # -- the workers --------------------------------------------------------------------------------

    def _work(self) -> None:
        me = _thread.get_ident()
        with self._lock:
            if threading.current_thread() not in self._workers:
                return  # Ctrl-C came while this thread was started
            self.idents.add(me)
            self._wanted = self._wanted or None  # else another worker, asleep by now, has said so
        HEED.set(self._heed)
        run = self._run_stream if self._streams else self._run
        batch: Batch | None = None
        while True:
            try:
                if batch is None:  # else the last one left it, and an idle worker holds on to nobody's items
                    batch = self._next_in_turn()
                if batch is None:
                    break
                IN_THREAD[me] = batch
                batch = run(batch)
            except BaseException as error:
                # A fault of this library, or an exception thrown into this thread: answer and go on.
                _logger.exception("%s: the worker failed", self.name)
                self._give_up(batch, error)
                batch = None
        self._end()

    def _heed(self) -> None:
        """Let go of the calls whose callers have left."""
        if self._leaving:
            with self._lock:
                moved = bool(self._inbox)
                self._empty_inbox()
            if moved:
                self._get_up()  # as in `stats`

    def _next_in_turn(self) -> Batch | None:
        """Wait for the turn and the next batch, and give the turn back; None if this worker is to end."""
        if not self._turn.acquire(False):  # noqa: FBT003
            with self._lock:
                self._idle += 1
            self._turn.acquire()
            with self._lock:
                self._idle -= 1
        try:
            batch = self._next()
            if self._most_threads > 1 and batch is not None:
                with self._lock:
                    self._start_another()
        finally:
            self._turn.release()
        if self._may_start:
            with self._lock:
                self._start_another()
        return batch

    def _start_another(self) -> None:
        """Start one more worker, if all workers are busy and there may be more. Needs the lock."""
        self._may_start = False
        if not self._idle and 0 < len(self._workers) < self._most_threads:
            with contextlib.suppress(RuntimeError):  # too many threads: the present workers run all batches
                self._start_thread()

    def _next(self) -> Batch | None:
        inbox = self._inbox
        while True:
            with self._lock:
                if len(self._workers) > self._most_threads:  # `configure` has lowered the number
                    self._workers.remove(threading.current_thread())
                    return None
                delay, batch = self._choose()
                wanted = self._scheduler.awaited() if delay else 1
                late = self._take_expired()
            if late:
                try:
                    self._resolve(late)
                except BaseException as error:
                    if batch is not None:
                        self._give_up(batch, error)  # no other worker knows of it
                    raise
                late.clear()  # an idle worker holds on to no call
            if batch is not None:
                return batch
            if self.closed and delay is None and not inbox:
                return None
            # Callers read these after they have filled the inbox, so one of the two sees the other.
            if delay is not None:
                self._until = monotonic() + delay
            self._wanted = wanted
            if not inbox and not self.closed:
                self._wake.acquire(True, -1 if delay is None else delay)  # noqa: FBT003
            self._wanted = None

    def _choose(self, now: float | None = None) -> tuple[float | None, Batch | None]:
        """Return the seconds until the next batch is due, and the batch if it is. Needs the lock."""
        scheduler = self._scheduler
        inbox = self._inbox
        if inbox or self._leaving:
            if inbox and not self._leaving and not self.closed:
                came = len(inbox)
                batch = scheduler.pop_arriving(inbox, came, monotonic())
                if batch is not None:
                    return 0.0, batch
            scheduler.take_in(inbox, self._leaving)
            now = None  # nobody has arrived later
        if now is None:
            now = monotonic()
        if self.closed:
            scheduler.drain()
        delay = scheduler.delay(now)
        batch = scheduler.pop(now) if delay == 0.0 else None
        if scheduler.let_in:
            self._unblock()
        return delay, batch

    def _take_expired(self) -> list[Call]:
        """Return the calls that the scheduler has found to be late, to be answered. Needs the lock."""
        expired, self._scheduler.expired = self._scheduler.expired, []
        return expired

    def _run(self, batch: Batch) -> Batch | None:
        """Run `batch`; return the next one if it is due by then and nobody has to be asked.

        While a long list is alone, all of its full batches are run.
        """
        collator = self.collator
        inbox = self._inbox
        while True:
            try:
                outputs = batch.run(collator)
                if type(outputs) is not list and hasattr(outputs, "__await__"):
                    outputs = self._await(outputs)
                outputs = collator.split(outputs, batch)
                with self._lock:
                    calls = batch.answer(outputs, collator)
                batch.let_go()
            except BaseException as error:  # noqa: BLE001  the callers' to handle, whatever it is
                if self._retry(batch, error):
                    batch.clear()
                    return None
                with self._lock:
                    calls = batch.fail(without_own_frames(error), collator)
                batch.let_go()
            outputs = None  # they need not outlive their batch
            if calls or inbox or self._leaving or self.closed or self._guarded or self._runners:
                break  # also where what an `async def` has started may still look at its batch
            with self._lock:
                if not self._scheduler.follow(batch, monotonic()):
                    break
        return self._finish(batch, calls)

    def _retry(self, batch: Batch, error: BaseException) -> bool:
        self._heed()
        with self._lock:
            again = self._scheduler.retry(batch, error, monotonic())
        if again and len(self._workers) > 1:
            self._get_up()  # another worker, asleep, has the turn
        return again

    def _run_stream(self, batch: Batch) -> None:
        """Run a function that yields, for each item, its next piece."""
        steps: Any = None
        try:
            steps = batch.run(self.collator)
            if isasyncgen(steps):
                self._await(self._walk(batch, cast("AsyncGenerator[Any]", steps)))
            else:
                for pieces in steps:
                    if not self._step(batch, pieces):
                        break
            with self._lock:
                calls = batch.end()
            batch.let_go()
        except BaseException as error:  # noqa: BLE001  the callers' to handle, whatever it is
            if not batch.begun and is_out_of_memory(error) and self._retry(batch, error):
                batch.clear()
                return
            failed = batch.failed
            with self._lock:
                calls = batch.fail(without_own_frames(error), self.collator)
            batch.failed = failed + len(calls)  # the others had ended, or left
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                try:
                    close()
                except BaseException:  # its callers have their pieces
                    _logger.exception(_UNCLOSED, self.name)
        with self._lock:
            self._scheduler.done(batch, monotonic())
        tell(calls)
        calls.clear()
        batch.clear()

    async def _walk(self, batch: Batch, steps: AsyncGenerator[Any]) -> None:
        """Run an asynchronous generator, all of it in one task."""
        try:
            async for pieces in steps:
                if not self._step(batch, pieces):
                    break
        finally:
            try:
                await steps.aclose()
            except BaseException:  # its callers have their pieces
                _logger.exception(_UNCLOSED, self.name)

    def _step(self, batch: Batch, pieces: Any) -> bool:
        """Hand each caller its next piece; return whether any wants more."""
        split = self.collator.split(pieces, batch)
        with self._lock:
            told, wanted = batch.step(split, self.name, self.options.max_pieces)
        tell(told)
        return wanted

    def end_streams(self) -> None:
        """Let go of the consumers of the batches that run, so that those end with their next pieces."""
        with self._lock:
            calls = (
                [call for call in self._scheduler.running_calls() if call.missing] if self._streams else []
            )
            for call in calls:
                call.left = "cancelled"
                call.fail(CancelledError(f"{self.name} was shut down"))
        tell(calls)

    def _finish(self, batch: Batch, calls: list[Call]) -> Batch | None:
        """Release the callers of `calls`, count `batch`, and return the next one as `_run` does."""
        guarded = self._guarded
        scheduler = self._scheduler
        following = None
        futures: list[Call] = []
        late: list[Call] = []
        if guarded:
            calls = self._whole(calls)
        try:
            with self._lock:
                now = monotonic()  # before anybody can call again
                if guarded:
                    calls = scheduler.answered(calls)
                # Released first, they wake while this thread counts; the lock keeps them from seeing stats in
                # which they are not counted yet.
                futures = release(calls) if calls else calls
                scheduler.done(batch, now)
                if guarded and scheduler.let_in:
                    self._unblock()
                if scheduler.queue.items and not futures and self._most_threads == len(self._workers) == 1:
                    # What `_next` would find, without another turn of the lock.
                    _, following = self._choose(now)
                    late = self._take_expired()
        finally:  # also after a fault of this library
            if futures:
                settle(futures)
        if late:
            self._resolve(late)
        # An error's traceback leads to this frame, by way of the function's: were its calls still found here,
        # the error would keep itself alive, and all that the function had at hand, until the collector comes.
        calls.clear()
        batch.clear()
        return following

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

    def _empty_inbox(self) -> None:
        """Move what callers left at the door into the scheduler. Needs the lock."""
        self._scheduler.take_in(self._inbox, self._leaving)
        if self._scheduler.let_in:
            self._unblock()

    def _clear(self, error: BaseException) -> list[Call]:
        """Answer all that waits with `error`, and return it. Needs the lock."""
        self._empty_inbox()
        calls = self._scheduler.clear(error)
        self._open_gates()
        return calls

    def _open_gates(self) -> None:
        """Let go of all threads that wait for room: their calls are answered. Needs the lock."""
        for gate in self._blocked.values():
            gate.release()
        self._blocked.clear()

    def _give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Fail what this worker had taken, or all that waits if it was about to choose."""
        taken = [] if batch is None else [batch]
        with self._lock:
            if len(self._workers) == 1:  # else some of what runs is the others'
                taken += [other for other in self._scheduler.batches() if other is not batch]
        for each in taken:
            with self._lock:
                each.fail(error, self.collator)
                self._scheduler.forget(each)
            each.let_go()
            for call in each.calls:
                if not call.missing:
                    with contextlib.suppress(Exception):  # its caller has been released before
                        self._resolve([call])
            each.clear()  # `RUNNING` still leads there
        if batch is not None:
            return
        with self._lock:
            calls = self._scheduler.abandon(error, self._inbox)
            self._open_gates()
        self._resolve(calls)

    def _end(self) -> None:
        me = _thread.get_ident()
        runner = self._runners.pop(me, None)
        if runner is not None:
            runner.close()
        IN_THREAD.pop(me, None)
        with self._lock:
            self.idents.discard(me)
            self._workers.discard(threading.current_thread())
            if self._workers:
                return
            self._ended = True
            self._wanted = 0
            # A worker that was one too many may end after the last one.
            then: list[Callable[[], object]] = []
            if not self.idents:
                then, self._when_ended = self._when_ended, then
        self._start()  # answers calls that came after the last look into the inbox
        self._watch.stop()
        for callback in then:
            with contextlib.suppress(RuntimeError):  # the loop to be told was closed
                callback()

    def _resolve(self, calls: list[Call]) -> None:
        """Release the callers of `calls`, which are done."""
        if self._streams:
            tell(calls)
        else:
            calls = self._whole(calls)
            with self._lock:
                futures = self._release(calls)
                if self._scheduler.let_in:
                    self._unblock()
            settle(futures)


def _drop_late(batcher: weakref.ref[Batcher], calls: list[Call]) -> None:
    """Drop late calls of a batcher that is still there."""
    if (known := batcher()) is not None:
        known.drop_late(calls)
