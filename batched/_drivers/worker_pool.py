"""The worker threads that several functions share.

They start when calls come, make their states, and end. One of them at a time has the turn: it asks the
`Agenda` for a batch of the function that is next, and leaves with it.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.halves import Aside
from batched._core.shared_turns import Account
from batched._drivers.circles import forget_worker, note_worker
from batched._drivers.current_worker import BROKEN, OF_THREAD, Worker
from batched._drivers.fork_and_exit import NO_THREAD, HasThreads, new_thread, register
from batched._drivers.runners import Runners
from batched._drivers.semaphores import release
from batched._drivers.shared_workers import Agenda, SharedWorkers
from batched._drivers.step_lock import StepLock, new_step_lock
from batched._drivers.workers import TurnTakers
from batched._logs import log, log_error
from batched._policy.chains import forget_variables
from batched.errors import ClosedError

_AGAIN = 10.0  # times as long as a failed start took, a worker waits for its next try while others work
_LEAST_PAUSE_S = 1.0
_RESTARTS = "%s: restarting the worker %r after %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionShare:
    """What workers have run of one function."""

    batches: int
    """How many batches have ended. Each step of a batch that is refilled (`continuous=True`) is one."""
    items: int
    """The items of these, each of a batch that is refilled once."""
    seconds: float
    """The time that these took."""


_NOTHING = FunctionShare(batches=0, items=0, seconds=0.0)


class PoolWorker:
    """One worker: its thread while that lives, its state, and what it has run."""

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self.begin()

    def begin(self) -> None:
        """Begin with no thread, no state, and nothing run."""
        self.thread: threading.Thread | None = None
        self.current: Worker | None = None
        """What `current_worker()` returns, with the state; None until that is made."""
        self.loop_of_state: asyncio.Runner | None = None
        """On which an `async def` initializer has made the state, which ends with it."""
        self.starts_since: float | None = None
        """Since when its state is being made."""
        self.busy_since: float | None = None
        self.counted_until: float = 0.0
        """Until when `served` has the time of the batch that it runs."""
        self.runs: Account | None = None
        """The function that it runs; not the last one, which would keep its weight when it is gone."""
        self.served: dict[str, FunctionShare] = {}
        self.restarts: int = 0
        self.error: BaseException | None = None
        """Why its last start failed."""
        self.not_before = -inf
        self.when_started: list[Future[None]] = []
        """What `start` waits for."""

    def count(self, name: str, batch: Batch, size: int) -> None:
        """Count a batch of the function of this name, of this `size` as it began; or its last step.

        And the time since it last did.
        """
        now = monotonic()
        before = self.served.get(name, _NOTHING)
        items, batch.fresh = getattr(batch, "fresh", size), None
        self.served[name] = FunctionShare(
            batches=before.batches + (items is not None),
            items=before.items + (items or 0),
            seconds=before.seconds + now - self.counted_until,
        )
        self.counted_until = now

    @property
    def can_run(self) -> bool:
        """Whether it has its state, or would start with the next batch; else its state is being made."""
        return self.current is not None or (self.thread is None and self.error is None)


class WorkerPool(TurnTakers):
    """Threads, one for each name, that run the batches of several functions.

    The threads and the functions that use it keep the pool alive. When its handle is collected, which users
    and functions keep, the threads end.
    """

    def __init__(self, names: Sequence[str], initializer: Callable[[str], Any] | None, name: str) -> None:
        self.name = name
        self.initializer = initializer
        self.workers: list[PoolWorker] = [PoolWorker(index, each) for index, each in enumerate(names)]
        self.agenda: Agenda = Agenda()
        self._drivers: weakref.WeakValueDictionary[int, HasThreads] = weakref.WeakValueDictionary()
        self.idents: set[int] = set()
        self.runners: Runners = Runners()
        self._handle: weakref.ref[Any] | None = None
        self.closed: bool = False
        self.begin()
        register(self)

    def begin(self) -> None:
        """Begin without a thread."""
        super().begin()
        self._failed: set[PoolWorker] = set()  # to start, since a worker was ready
        self.free_since: float = inf  # since when a worker has been free
        self.began: float | None = None
        """When the first thread started."""

    def after_fork(self) -> None:
        """Start afresh in the child, which has none of the threads: states are made anew."""
        self.runners.after_fork()
        self.idents.clear()
        self.begin()
        self.agenda.clear()
        for worker in self.workers:
            worker.begin()

    def renew_locks(self) -> None:
        """Make the locks anew. Only while there is no worker."""
        self.lock: StepLock = new_step_lock()
        super().renew_locks()

    def end_with(self, handle: object) -> None:
        """Have the threads end when `handle` is collected."""
        self._handle = weakref.ref(handle, self._let_go)

    def _let_go(self, _: object) -> None:
        self.closed = True
        if self.members:
            release(self._wake)

    # -- functions ----------------------------------------------------------------------------------------

    def add(self, driver: HasThreads) -> None:
        """Have `driver` be shut down with these workers."""
        self._drivers[id(driver)] = driver

    def wake(self) -> None:
        """Have a worker look at the functions that ask; start one if there is none."""
        if not self.members:
            self._start()
        else:
            release(self._wake)

    @property
    def idle(self) -> int:
        """How many workers run no batch, and could."""
        return sum([each.busy_since is None and each.can_run for each in self.workers])

    # -- threads begin and end ----------------------------------------------------------------------------

    def _start_one(self) -> None:
        self._start_thread(min(self.workers, key=attrgetter("not_before")))

    def _has_asides(self) -> bool:
        return bool(self.agenda.for_others)

    def _start_another(self) -> None:
        """Start one more worker, if all workers are busy and there may be more."""
        with self.lock.later, self.lock:
            if not self.members or (self.waiting_for_turn and not self.agenda.for_others):
                return
            now = monotonic()
            for worker in self.workers:
                if worker.thread is None and worker.not_before <= now:
                    with contextlib.suppress(*NO_THREAD):  # the others run all batches
                        self._start_thread(worker)
                    return

    def _start_next(self) -> bool:
        """Start a worker that has not failed since one was ready; return whether one starts. Needs the lock.

        Once all have, the calls that wait get the error, and all may be tried for the next call.
        """
        for worker in self.workers:
            if worker not in self._failed:
                with contextlib.suppress(*NO_THREAD):
                    self._start_thread(worker)
                    return True
        self._failed.clear()
        return False

    def _start_thread(self, worker: PoolWorker) -> None:
        """Start the thread of `worker`. Needs the lock."""
        thread = new_thread(f"batched: {self.name} {worker.name}", self._run, worker)
        if self.began is None:
            self.began = monotonic()
        try:
            worker.thread = thread
            self._start_member(thread)
        except BaseException:
            worker.thread = None
            raise

    def start(self) -> None:
        """Start all workers, and return when their states are made; raise the first error."""
        if _thread.get_ident() in self.idents:
            raise RuntimeError(
                f"start() was called in a worker of {self.name!r}, which would wait for itself"
            )
        starting: list[Future[None]] = []
        if not self.closed:
            with self.lock.later, self.lock:
                for worker in self.workers:
                    if worker.thread not in self.members:  # one that has failed may still be ending
                        self._start_thread(worker)
                    if worker.current is None:
                        starting.append(Future())
                        worker.when_started.append(starting[-1])
        errors = [error for future in starting if (error := future.exception()) is not None]
        if self.closed:
            raise ClosedError(f"the workers {self.name!r} were shut down")
        if errors:
            raise errors[0]

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls for any function, run or cancel those in the queues, and end the threads."""
        if wait and _thread.get_ident() in self.idents:
            raise ClosedError(f"the workers {self.name!r} cannot wait for their shutdown from inside a batch")
        self.closed = True
        for reference in self._drivers.valuerefs():
            if (driver := reference()) is not None:
                driver.shutdown(wait=False, cancel_futures=cancel_futures)
        if self.members:
            release(self._wake)
        if wait:
            self.join()

    # -- the workers --------------------------------------------------------------------------------------

    def _run(self, worker: PoolWorker) -> None:
        with self.lock.later, self.lock:
            if worker.thread is not threading.current_thread():
                return  # Ctrl-C came while this thread was started
            note_worker(self.idents)
        try:
            while self._prepare(worker) and self._run_next(worker):
                pass
        finally:
            self._end(worker)

    def _prepare(self, worker: PoolWorker) -> bool:
        """Make the state of `worker` if it has none; return whether it has one."""
        if worker.current is not None:
            return True
        worker.starts_since = began = monotonic()
        try:
            state = None if self.initializer is None else self.initializer(worker.name)
            worker.loop_of_state = None
            if hasattr(type(state), "__await__"):
                worker.loop_of_state = runner = self.runners.here()
                state = runner.run(_awaited(state))
        except BaseException as error:  # noqa: BLE001  for the callers that wait
            worker.starts_since = None
            self._could_not_start(worker, error, began)
            return False
        worker.starts_since = worker.error = None
        self._failed.clear()
        worker.current = OF_THREAD[_thread.get_ident()] = Worker(worker.index, worker.name, state)
        with self.lock.later, self.lock:
            told, worker.when_started = worker.when_started, []
        for future in told:
            future.set_result(None)
        return True

    def _could_not_start(self, worker: PoolWorker, error: BaseException, began: float) -> None:
        """Note that there is no state for `worker`; answer the calls that wait, if no other worker will."""
        with contextlib.suppress(Exception):  # a class may refuse attributes, or have a broken `__repr__`
            what = getattr(self.initializer, "__qualname__", None) or repr(self.initializer)
            note = (
                f"raised by {what}({worker.name!r}), the initializer of the workers {self.name!r}; the next "
                f"call that finds no worker tries again"
            )
            if note not in getattr(error, "__notes__", ()):  # one error may be raised by each try
                error.add_note(note)
        forget_variables(error)  # such as half of a model, in memory that the next try may need
        now = monotonic()
        worker.error = error
        worker.not_before = now + max(_AGAIN * (now - began), _LEAST_PAUSE_S)
        with self.lock.later, self.lock:
            self.members.discard(threading.current_thread())
            self._failed.add(worker)
            is_last = not self.members and not self._start_next()
        if is_last:
            self._turn_away(error)
        else:
            log(logging.ERROR, "%s: could not start the worker %r", self.name, worker.name, error=error)

    def _turn_away(self, error: BaseException | None) -> None:
        """Answer all calls that wait with `error`: no worker will run them."""
        assert error is not None  # noqa: S101  for the type: a pool that has ended may start again
        if not self._turn.acquire(False):  # noqa: FBT003
            return  # a worker that has started since then looks for batches
        refused: list[SharedWorkers] = []
        try:
            for seat in self.agenda.take_all():
                self.agenda.turns.not_due(seat)
                seat.refuse(error)
                refused.append(seat)
        finally:
            self._turn.release()
        for seat in refused:  # without the turn: a callback may wait for a call that another worker runs
            seat.tell()

    def _run_next(self, worker: PoolWorker) -> bool:
        """Wait for the next batch and run it; return False if this worker is to end.

        What is known of the function is known in this frame only, so that an idle worker keeps none alive.
        """
        seat: SharedWorkers | None = None
        batch: Batch | None = None
        try:
            found = self._next()
            if found is None:
                return False
            seat, batch = found
            found = None
            self._run_batch(worker, seat, batch)
        except BaseException as error:  # noqa: BLE001  logged
            # A fault of this library, or an exception thrown into this thread: answer and go on.
            self._turn.free()
            log_error("%s: the worker failed", self.name)
            if seat is not None:
                seat.dispatcher.give_up(batch, error)
                self.agenda.asking[seat] = None
        return True

    def _run_batch(self, worker: PoolWorker, seat: SharedWorkers, batch: Batch) -> None:
        size, is_aside = batch.size, isinstance(batch, Aside)
        account = seat.account
        worker.runs = account
        me = _thread.get_ident()
        BROKEN.pop(me, None)  # perhaps of an earlier thread
        worker.counted_until = began = monotonic()
        worker.busy_since = began
        try:
            copy_context().run(seat.run, batch)  # no function sees the context variables of another
        finally:
            seconds = monotonic() - began
            worker.busy_since = worker.runs = None
            self.agenda.ended.append((account, None if is_aside else seconds))
            if not is_aside:
                worker.count(account.name, batch, size)
        why = BROKEN.pop(me, None)
        if why is not None:
            worker.restarts += 1
        elif worker.loop_of_state is not None and worker.loop_of_state is not self.runners.get(me):
            why = "an error that ended its event loop"
        if why is not None:
            log(logging.WARNING, _RESTARTS, account.name, worker.name, why)
            OF_THREAD.pop(me, None)
            worker.current = None
        self.agenda.asking[seat] = None
        if seat.dispatcher.driver.closed:
            self.wake()

    def _next(self) -> tuple[SharedWorkers, Batch] | None:
        """Wait for the turn and the next batch, and give the turn back; None if this worker is to end."""
        free_since = monotonic()
        if not self._turn.acquire(False):  # noqa: FBT003
            self._wait_for_turn()
        try:
            self.free_since = free_since
            while (found := self.agenda.next()) is None:
                if self.agenda.for_others and self.waiting_for_turn:
                    self._pass_turn()
                    continue
                if self.closed and not self.agenda.has_work():
                    return None
                left = self.agenda.seconds_left()
                if not self.agenda.asking:
                    self._wake.acquire(True, left)  # noqa: FBT003
            if len(self.members) < len(self.workers):
                self._start_another()
        finally:
            self._turn.release()
        return found

    def _end(self, worker: PoolWorker) -> None:
        self.runners.close_here(self.name)
        told: list[Future[None]] = []
        with self.lock.later, self.lock:
            forget_worker(self.idents)
            self.members.discard(threading.current_thread())
            if worker.thread is threading.current_thread():  # else another one has taken its place
                worker.thread = worker.current = None
                told, worker.when_started = worker.when_started, []
            error = worker.error
            is_last = not self.members
        for future in told:
            future.set_exception(error)
        release(self._wake)  # the next one may have to end too
        if is_last and self.agenda.asking:
            self._start()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
