"""The worker thread: clock, wake-up, and the three ways a caller waits for its answer.

Callers append to an inbox and wake the worker only if it sleeps and has reason to get up; they never take
the lock. The lock guards the scheduler, and whoever holds it may empty the inbox into it, so that a
snapshot of the stats is always whole and never waits for a batch.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import traceback
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from batched.errors import ClosedError, copied, for_event_loop, raise_as_was

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from batched._call import Batch, Call, Collator
    from batched._scheduler import Scheduler
    from batched._stats import Stats

__all__ = ["Batcher"]

_AWAKE = 1 << 60  # more calls than an inbox ever holds
_FUTURE = object()  # the `loop` of a call whose waiter is a concurrent future

_logger = logging.getLogger("batched")


class Batcher:
    """One queue and the thread that runs its batches; the thread starts with the first call.

    The thread keeps the batcher alive, but not `owner`, the object that callers reach it through: when that
    is collected the thread ends. Nothing here refers to `owner` or to the batch function; each call brings
    the function with it.
    """

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler],
        collator: Collator,
        name: str,
        owner: object,
    ) -> None:
        self.name = name
        self.closed = False
        self._make_scheduler = make_scheduler
        self._collator = collator
        self._owner = weakref.ref(owner, self._retire)
        self._reset()
        with _live_lock:
            _live.add(self)

    def _reset(self) -> None:
        self._scheduler = self._make_scheduler()
        self._inbox: deque[Call] = deque()
        self._leaving: deque[Call] = deque()
        self._lock = _thread.allocate_lock()
        self._wake = _thread.allocate_lock()  # a binary semaphore: released means "get up"
        self._wake.acquire()
        self._wanted = 0  # calls in the inbox worth waking for; 0 if there is no thread to wake
        self._thread: threading.Thread | None = None
        self.ident = 0
        self._ended = False
        self._runner: asyncio.Runner | None = None
        self._when_ended: list[Callable[[], object]] = []

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

    def stack(self) -> str:
        """Return the worker's stack as a traceback shows it, "" if there is no worker."""
        frame = sys._current_frames().get(self.ident)  # noqa: SLF001
        return "".join(traceback.format_stack(frame)) if self.ident and frame else ""

    def check(self) -> None:
        """Raise if a call from this thread cannot be answered."""
        if self.closed:
            _park_at_exit()
            raise ClosedError(f"{self.name} was shut down")
        if self.ident == _thread.get_ident():
            raise RuntimeError(
                f"{self.name} was called from inside its own batch function, or from a callback of its own "
                f"future, where it would wait for itself"
            )

    def check_outside(self) -> None:
        """Raise if this is the worker's own thread, which cannot wait for its own end."""
        if self.ident == _thread.get_ident():
            raise ClosedError(f"{self.name} cannot wait for its end inside its own batch function")

    def push(self, call: Call) -> None:
        """Queue `call`, whose waiter is set."""
        inbox = self._inbox
        inbox.append(call)
        wanted = self._wanted
        if len(inbox) >= wanted or (wanted != _AWAKE and (call.size > 1 or call.deadline)):
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

    def cancel(self, call: Call) -> None:
        """Say that nobody waits for `call` any more: what of it has not started never runs."""
        self._leave(call, "cancelled")

    def _leave(self, call: Call, why: Literal["cancelled", "expired"]) -> None:
        if call.missing:
            call.left = why
            self._leaving.append(call)

    def post(self, call: Call) -> None:
        """Queue `call` for a thread that will `collect` it."""
        call.loop = None
        call.waiter = waiter = _thread.allocate_lock()
        waiter.acquire()
        self.push(call)

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

    def post_async(self, call: Call, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Queue `call` and return the future that is done once `call` is answered or late."""
        call.loop = loop
        call.waiter = future = loop.create_future()
        if call.deadline is not None:
            timer = loop.call_later(max(call.deadline - monotonic(), 0.0), _wake_task, future)
            future.add_done_callback(lambda _: timer.cancel())
        self.push(call)
        return future

    def refuse(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.error is None:
            self._leave(call, "expired")
            raise TimeoutError(call.overdue(self.name))
        _park_at_exit()
        raise_as_was(copied(call.error) if call.loop is None else for_event_loop(copied(call.error)))

    def submit(self, call: Call) -> Future[Any]:
        """Queue `call` and return the future of its answer."""
        future: Future[Any] = Future()
        call.waiter = future
        call.loop = _FUTURE
        future.add_done_callback(partial(self._notice_cancel, call))
        self.push(call)
        return future

    def _notice_cancel(self, call: Call, future: Future[Any]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes `concurrent.futures.wait`
            self.cancel(call)

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel what is queued, and end the thread."""
        if wait:
            self.check_outside()
        self.closed = True
        if cancel_futures:
            with self._lock:
                self._empty_inbox()
                calls = self._scheduler.clear()
            for call in calls:
                call.left = "cancelled"
                call.fail(CancelledError(f"{self.name} was shut down"))
            _resolve(calls)
        with self._lock:  # which `_start` holds until the thread has started
            thread = self._thread
        if thread is not None and thread.ident is not None:
            self._get_up()
            if wait:
                thread.join()

    def when_ended(self, then: Callable[[], object]) -> None:
        """Call `then`, from whatever thread, once no batch runs and none ever will."""
        with self._lock:
            if self._thread is not None and not self._ended:
                self._when_ended.append(then)
                return
        then()

    # -- wake-up: called by anyone, at any time, without the lock ----------------------------------

    def _get_up(self) -> None:
        if not self._wanted:
            self._start()
        elif self._wake.locked():
            with contextlib.suppress(RuntimeError):  # another caller was faster
                self._wake.release()

    def _start(self) -> None:
        """Start the thread for the first call, or turn away what came after its end."""
        error: BaseException = ClosedError(f"{self.name} was shut down")
        with self._lock:
            if not self._ended:
                if self._thread is not None and self._thread.is_alive():
                    return
                # A daemon, so that it outlives the main thread only as long as `_at_exit` waits.
                thread = threading.Thread(target=self._work, name=f"batched: {self.name}", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError as no_thread:  # the process has too many
                    error = no_thread
                    self._thread = None
                else:
                    return
            self._empty_inbox()
            calls = self._scheduler.clear()
        for call in calls:
            call.fail(error)
        _resolve(calls)

    def _retire(self, _: object) -> None:
        # Runs wherever the owner is collected, perhaps in a thread that holds the lock.
        self.closed = True
        if self._wanted:  # else there is no thread to wake, and `_start` would want the lock
            self._get_up()

    # -- the worker ---------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return  # Ctrl-C came while this thread was started, and another has been since
            self.ident = _thread.get_ident()
            self._wanted = _AWAKE
        while True:
            batch = None  # an idle worker holds on to nobody's items
            try:
                batch = self._next()
                if batch is None:
                    break
                self._run(batch)
            except BaseException as error:
                # A fault of this library, or an exception thrown into this thread: answer and go on.
                _logger.exception("%s: the worker failed", self.name)
                self._give_up(batch, error)
        self._end()

    def _next(self) -> Batch | None:
        """Wait for the next batch; None when there will be none."""
        scheduler = self._scheduler
        queue = scheduler.queue
        inbox = self._inbox
        while True:
            delay = None
            if inbox or queue.items or self._leaving:
                delay, batch = self._plan()
                if batch is not None:
                    return batch
            if self.closed and delay is None and not inbox:
                return None
            # Callers read `_wanted` after they have filled the inbox, so one of the two sees the other.
            self._wanted = scheduler.awaited() if delay else 1
            if not inbox and not self.closed:
                self._wake.acquire(timeout=-1 if delay is None else delay)
            self._wanted = _AWAKE

    def _plan(self) -> tuple[float | None, Batch | None]:
        """Return the seconds until the next batch is due, and the batch if it is."""
        scheduler = self._scheduler
        with self._lock:
            if self._inbox or self._leaving:
                self._empty_inbox()
            if self.closed:
                scheduler.drain()
            now = monotonic()
            delay = scheduler.delay(now)
            batch = scheduler.pop(now) if delay == 0.0 else None
            expired = scheduler.expired
            if expired:
                scheduler.expired = []
        if expired:
            _resolve(expired)
        return delay, batch

    def _run(self, batch: Batch) -> None:
        try:
            outputs = batch.run(self._collator)
            if type(outputs) is not list and hasattr(outputs, "__await__"):
                outputs = self._await(outputs)
            calls = batch.deliver(outputs, self._collator)
        except BaseException as error:  # noqa: BLE001  the callers' to handle, whatever it is
            calls = batch.fail(_without_own_frames(error), self._collator)
        self._finish(batch, calls)

    def _finish(self, batch: Batch, calls: list[Call]) -> None:
        """Release the callers of `calls`, and count `batch`."""
        with self._lock:
            # Released first, they wake while this thread counts; the lock keeps them from seeing stats in
            # which they are not counted yet.
            now = monotonic()  # before anybody can call again
            futures = _release(calls) if calls else calls
            self._scheduler.done(batch, now)
        if futures:
            _settle(futures)
        # An error's traceback leads to this frame, by way of the function's: were its calls still found here,
        # the error would keep itself alive, and all that the function had at hand, until the collector comes.
        calls.clear()
        batch.slices.clear()

    def _await(self, awaitable: Awaitable[Any]) -> Any:
        """Run what an `async def` batch function returned, on a loop of this thread's own."""
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def outputs() -> Any:
            return await awaitable

        try:
            return self._runner.run(outputs())
        except BaseException as error:
            if not isinstance(error, Exception):  # it has broken the loop in the middle
                self._runner.close()
                self._runner = None
            raise

    def _empty_inbox(self) -> None:
        """Move what callers left at the door into the scheduler. Needs the lock."""
        leaving = len(self._leaving)  # counted first: whoever leaves by now has come before
        self._scheduler.push_all(self._inbox)
        while leaving:
            leaving -= 1
            self._scheduler.drop(self._leaving.popleft())

    def _give_up(self, batch: Batch | None, error: BaseException) -> None:
        if batch is not None:
            batch.fail(error, self._collator)
            with self._lock:
                self._scheduler.done(batch, monotonic())
            for call, _, _ in batch.slices:
                if not call.missing:
                    with contextlib.suppress(RuntimeError):  # its caller has been released before
                        _resolve([call])
            return
        with self._lock:
            calls = self._scheduler.clear()
            self._scheduler = self._make_scheduler()
        for call in calls:
            call.fail(error)
        _resolve(calls)

    def _end(self) -> None:
        if self._runner is not None:
            self._runner.close()
        with self._lock:
            self._ended = True
            self._wanted = 0
            then, self._when_ended = self._when_ended, []
        self.ident = 0
        self._start()  # what slipped in
        for callback in then:
            with contextlib.suppress(RuntimeError):  # the loop to be told was closed
                callback()


def _resolve(calls: list[Call]) -> None:
    """Release the callers of `calls`, which are done."""
    _settle(_release(calls))


def _release(calls: list[Call]) -> list[Call]:
    """Wake the threads and event loops that wait for `calls`; return the calls that have futures instead."""
    if len(calls) == 1 and calls[0].loop is None:
        calls[0].waiter.release()
        return []
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    futures: list[Call] = []
    for call in calls:
        loop = call.loop
        if loop is None:
            call.waiter.release()
        elif loop is _FUTURE:
            futures.append(call)
        elif loop in loops:
            loops[loop].append(call)
        else:
            loops[loop] = [call]
    for loop, theirs in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_resolve_on_loop, theirs)
    return futures


def _settle(calls: list[Call]) -> None:
    """Resolve the futures of `calls`, which runs their callbacks: not to be done under the lock."""
    for call in calls:
        try:
            if call.left == "cancelled":
                call.waiter.cancel()
            elif call.error is not None:
                call.waiter.set_exception(copied(call.error))
            else:
                call.waiter.set_result(call.results)
        except InvalidStateError:  # cancelled by its caller
            pass
        except BaseException:  # a callback of the caller's; an Exception is logged by the future
            _logger.exception("exception in a callback of %r", call.waiter)


def _resolve_on_loop(calls: list[Call]) -> None:
    for call in calls:
        future = call.waiter
        if not future.done():
            if call.left == "cancelled":
                _park_at_exit()
                future.cancel()
            else:
                future.set_result(None)


def _wake_task(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _without_own_frames(error: BaseException) -> BaseException:
    """Start the traceback in the batch function: the worker's frames would keep the batch alive."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__", "").startswith("batched._"):
        trace = trace.tb_next
    return BaseException.with_traceback(error, trace)


# -- the process: exit and fork ---------------------------------------------------------------------

_live: weakref.WeakSet[Batcher] = weakref.WeakSet()
_live_lock = _thread.allocate_lock()
_inherited: list[object] = []
_exiting = False


def _living() -> list[Batcher]:
    with _live_lock:
        return list(_live)


def _park_at_exit() -> None:
    """Stop a daemon thread whose call fails because the interpreter exits: that would only be printed."""
    if _exiting and threading.current_thread().daemon:
        me = _thread.get_ident()
        if all(batcher.ident != me for batcher in _living()):
            parked = _thread.allocate_lock()
            parked.acquire()
            parked.acquire()


def _at_exit() -> None:
    """Wait for running batches and cancel what is only queued. All non-daemon threads have ended."""
    global _exiting  # noqa: PLW0603
    _exiting = True
    batchers = _living()
    for batcher in batchers:
        batcher.shutdown(wait=False, cancel_futures=True)
    for batcher in batchers:
        batcher.shutdown(wait=True, cancel_futures=True)


def _after_fork() -> None:
    """Start afresh in the child: it has no worker, and the calls in the queue are the parent's."""
    global _live_lock  # noqa: PLW0603
    _live_lock = _thread.allocate_lock()
    for batcher in _living():
        # Closing an inherited loop would take its file descriptors out of the parent's epoll.
        _inherited.append(batcher._runner)  # noqa: SLF001
        batcher._reset()  # noqa: SLF001


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
