"""The worker threads that several functions share.

Each function has its batcher, and its place in the pool, `SharedWorkers`: what `Workers` is to a function
with workers of its own. A caller that wakes the workers notes its function in `asking`. One worker at a time
has the turn: it plans for the functions that ask, and no others, takes a batch of the one that is next by the
rule of `SharedTurns`, and leaves with it. So idle functions cost nothing, and nothing here keeps them alive.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.halves import Aside
from batched._core.shared_turns import Account, Seat, SharedTurns
from batched._drivers.circles import WORKERS, forget_worker
from batched._drivers.current_batch import DROP_DEPARTED, IN_THREAD
from batched._drivers.current_worker import BROKEN, OF_THREAD, Worker
from batched._drivers.fork_and_exit import register, start_thread
from batched._drivers.private_python import HAS_DAEMONS, frames_of_threads
from batched._drivers.runners import new_runner
from batched._drivers.step_lock import StepLock, is_outdated, new_step_lock
from batched._drivers.workers import Work, pause
from batched._logs import log, log_error
from batched._policy.chains import forget_variables
from batched.errors import ClosedError

_inherited: list[object] = []

_AGAIN = 10.0  # times as long as a failed start took, a worker waits for its next try while others work
_LEAST_PAUSE_S = 1.0
_WEIGHT = 1 / 8  # of one batch in what is learned of the wait for a worker
_RESTARTS = "%s: restarting the worker %r after %s"


class CanShutDown(Protocol):
    """The driver of a function."""

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel those in the queue."""
        ...


class SharedWork(Work, Protocol):
    """What workers do of one function."""

    def drop_departed(self) -> None:
        """Drop the calls that their callers have left."""
        ...

    def refuse(self, error: BaseException) -> None:
        """Give `error` to all calls that wait, and to those that run again, as no worker will run them."""
        ...

    def tell(self) -> None:
        """Wake the callers that have been refused."""
        ...


class Served:
    """What one worker has run of one function."""

    __slots__ = ("batches", "items", "seconds")

    def __init__(self) -> None:
        self.batches: int = 0
        self.items: int = 0
        self.seconds: float = 0.0


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
        self.served: dict[str, Served] = {}
        self.restarts: int = 0
        self.error: BaseException | None = None
        """Why its last start failed."""
        self.not_before = -inf
        self.when_started: list[Callable[[BaseException | None], object]] = []

    def count(self, name: str, batches: int, items: int) -> None:
        """Count what it has run of the function of this name since it last did, and the time of that."""
        now = monotonic()
        served = self.served.setdefault(name, Served())
        served.batches += batches
        served.items += items
        served.seconds += now - self.counted_until
        self.counted_until = now

    @property
    def can_run(self) -> bool:
        """Whether it has its state, or would start with the next batch; else its state is being made."""
        return self.current is not None or (self.thread is None and self.error is None)


class WorkerPool:
    """Threads, one for each name, that run the batches of several functions.

    The threads and the functions that use it keep the pool alive. When its handle is collected, which users
    and functions keep, the threads end.
    """

    def __init__(self, names: Sequence[str], initializer: Callable[[str], Any] | None, name: str) -> None:
        self.name = name
        self.initializer = initializer
        self.workers: list[PoolWorker] = [PoolWorker(index, each) for index, each in enumerate(names)]
        self.turns: SharedTurns = SharedTurns()
        self._drivers: weakref.WeakValueDictionary[int, CanShutDown] = weakref.WeakValueDictionary()
        self.idents: set[int] = set()
        self.runners: dict[int, asyncio.Runner] = {}
        """The event loop of each worker, for `async def` functions."""
        self._handle: weakref.ref[Any] | None = None
        self.closed: bool = False
        self._begin()
        register(self)

    def _begin(self) -> None:
        self.renew_locks()
        self.members: set[threading.Thread] = set()
        """The threads that may take a batch."""
        self._failed: set[PoolWorker] = set()  # to start, since a worker was ready
        self._ended: deque[tuple[Account, float | None]] = deque()  # of which the turns have yet to learn
        self.asking: dict[SharedWorkers, None] = {}
        self._for_others: dict[SharedWorkers, None] = {}  # with batches that not each worker may run
        self._timed: list[tuple[float, int, SharedWorkers]] = []  # by when their next batch is due
        self._numbers = count()
        self._waiting_for_turn = 0
        self.free_since: float = inf  # since when a worker has been free
        self.began: float | None = None
        """When the first thread started."""

    def after_fork(self) -> None:
        """Start afresh in the child, which has none of the threads: states are made anew."""
        # To close an inherited loop would take its descriptors out of the parent's epoll.
        _inherited.append(dict(self.runners))
        self.runners.clear()
        self.idents.clear()
        self._begin()
        self.turns.clear()
        for worker in self.workers:
            worker.begin()

    def renew_locks(self) -> None:
        """Make the locks anew. Only while there is no worker."""
        self.lock: StepLock = new_step_lock()
        self._wake = _thread.allocate_lock()  # a binary semaphore: released means "look again"
        self._wake.acquire()
        self._turn = _thread.allocate_lock()  # held by the worker that looks for the next batch

    def end_with(self, handle: object) -> None:
        """Have the threads end when `handle` is collected."""
        self._handle = weakref.ref(handle, self._let_go)

    def _let_go(self, _: object) -> None:
        self.closed = True
        if self.members:
            self._look_again()

    # -- functions ----------------------------------------------------------------------------------------

    def join(self, driver: CanShutDown) -> None:
        """Have `driver` be shut down with these workers."""
        self._drivers[id(driver)] = driver

    def wake(self) -> None:
        """Have a worker look at the functions that ask; start one if there is none."""
        if not self.members:
            self._start()
        elif self._wake.locked():
            self._look_again()

    def _look_again(self) -> None:
        with contextlib.suppress(RuntimeError):  # another caller was faster
            self._wake.release()

    @property
    def idle(self) -> int:
        """How many workers run no batch, and could."""
        return sum([each.busy_since is None and each.can_run for each in self.workers])

    def free_at(self, now: float) -> float:
        """Return when a worker will be free, as far as is known. Needs no lock: it is an estimate."""
        first = inf
        for worker in self.workers:
            since, runs = worker.busy_since, worker.runs
            if since is not None and runs is not None:
                first = min(first, since + runs.batch_s)
            elif worker.can_run:
                return now
        return now if first == inf else max(first, now)

    # -- threads begin and end ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a worker for the first call."""
        if self.lock.is_mine():
            self.lock.later.append(self._start)
            return
        if is_outdated(self._wake):
            self.renew_locks()
        error: BaseException | None = None
        with self.lock.later, self.lock:
            if any(thread.is_alive() for thread in self.members):
                return
            self.members.clear()
            try:
                self._start_thread(min(self.workers, key=_not_before))
            except RuntimeError as no_thread:  # the process has too many
                error = no_thread
        if error is not None:
            self._turn_all_away(error)

    def _start_another(self) -> None:
        """Start one more worker, if all workers are busy and there may be more."""
        with self.lock.later, self.lock:
            if not self.members or (self._waiting_for_turn and not self._for_others):
                return
            now = monotonic()
            for worker in self.workers:
                if worker.thread is None and worker.not_before <= now:
                    # Too many threads, or no memory for one: the others run all batches.
                    with contextlib.suppress(RuntimeError, MemoryError):
                        self._start_thread(worker)
                    return

    def _start_next(self) -> bool:
        """Start a worker that has not failed since one was ready; return whether one starts. Needs the lock.

        Once all have, the calls that wait get the error, and all may be tried for the next call.
        """
        for worker in self.workers:
            if worker not in self._failed:
                with contextlib.suppress(RuntimeError):  # the process has too many threads
                    self._start_thread(worker)
                    return True
        self._failed.clear()
        return False

    def _start_thread(self, worker: PoolWorker) -> None:
        """Start the thread of `worker`. Needs the lock."""
        name = f"batched: {self.name} {worker.name}"
        thread = threading.Thread(target=self._run, args=(worker,), name=name, daemon=HAS_DAEMONS)
        try:
            self.members.add(thread)
            worker.thread = thread
            if self.began is None:
                self.began = monotonic()
            start_thread(thread)
        except BaseException:  # Ctrl-C, or too many threads. A thread that runs all the same ends at once
            self.members.discard(thread)
            worker.thread = None
            raise

    def start(self) -> None:
        """Start all workers, and return when their states are made; raise the first error."""
        if _thread.get_ident() in self.idents:
            raise RuntimeError(
                f"start() was called in a worker of {self.name!r}, which would wait for itself"
            )
        gates: list[_thread.LockType] = []
        errors: list[BaseException] = []
        if not self.closed:
            with self.lock.later, self.lock:
                for worker in self.workers:
                    if worker.thread not in self.members:  # one that has failed may still be ending
                        self._start_thread(worker)
                    if worker.current is None:
                        gate = _thread.allocate_lock()
                        gate.acquire()
                        worker.when_started.append(partial(_has_started, gate, errors))
                        gates.append(gate)
        for gate in gates:
            gate.acquire()
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
            self._look_again()
        if wait:
            self._join_threads()

    def _join_threads(self) -> None:
        me = threading.current_thread()
        while True:
            with self.lock.later, self.lock:
                threads = [worker.thread for worker in self.workers]
            alive = [each for each in threads if each is not None and each.is_alive() and each is not me]
            if not alive:
                return
            for thread in alive:
                thread.join()

    def stack(self) -> str:
        """Return the stacks of the threads as tracebacks show them, "" if there is none."""
        frames = frames_of_threads()
        stacks = [traceback.format_stack(frames[ident]) for ident in list(self.idents) if ident in frames]
        return "\n".join("".join(stack) for stack in stacks)

    # -- the workers --------------------------------------------------------------------------------------

    def _run(self, worker: PoolWorker) -> None:
        with self.lock.later, self.lock:
            if worker.thread is not threading.current_thread():
                return  # Ctrl-C came while this thread was started
            self.idents.add(_thread.get_ident())
            WORKERS.add(_thread.get_ident())
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
                worker.loop_of_state = runner = self._runner()
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
        for tell in told:
            tell(None)
        return True

    def _runner(self) -> asyncio.Runner:
        """Return the event loop of this thread."""
        me = _thread.get_ident()
        runner = self.runners.get(me)
        if runner is None:
            runner = self.runners[me] = new_runner()
        return runner

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
            self._turn_all_away(error)
        else:
            log(logging.ERROR, "%s: could not start the worker %r", self.name, worker.name, error=error)

    def _turn_all_away(self, error: BaseException) -> None:
        """Answer all calls that wait with `error`: no worker will run them."""
        if not self._turn.acquire(False):  # noqa: FBT003
            return  # a worker that has started since then looks for batches
        refused: list[SharedWorkers] = []
        try:
            found: list[Seat] = [seat for _, _, seat in self._timed]
            found += [*self.turns.seats(), *self._for_others]
            self._timed.clear()
            self._for_others = {}
            while (asks := self._pop_asking()) is not None:  # one by one: callers add to it meanwhile
                found.append(asks)
            for seat in dict.fromkeys(found):
                assert isinstance(seat, SharedWorkers)  # noqa: S101  for the type
                self.turns.not_due(seat)
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
            log_error("%s: the worker failed", self.name)
            if seat is not None:
                seat.dispatcher.give_up(batch, error)
                self.asking[seat] = None
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
            self._ended.append((account, None if is_aside else seconds))
            has_steps = worker.counted_until != began
            if has_steps:
                worker.count(account.name, *_last_step(batch))
            elif not is_aside:
                worker.count(account.name, 1, size)
        why = BROKEN.pop(me, None)
        if why is not None:
            worker.restarts += 1
        elif worker.loop_of_state is not None and worker.loop_of_state is not self.runners.get(me):
            why = "an error that ended its event loop"
        if why is not None:
            log(logging.WARNING, _RESTARTS, account.name, worker.name, why)
            OF_THREAD.pop(me, None)
            worker.current = None
        self.asking[seat] = None
        if seat.dispatcher.driver.closed:
            self.wake()

    def _next(self) -> tuple[SharedWorkers, Batch] | None:
        """Wait for the turn and the next batch, and give the turn back; None if this worker is to end."""
        free_since = monotonic()
        if not self._turn.acquire(False):  # noqa: FBT003
            self._wait_for_turn()
        try:
            self.free_since = free_since
            while (found := self._look()) is None:
                if self._for_others and self._waiting_for_turn:
                    self._pass_turn()
                    continue
                if self.closed and not self._has_work():
                    return None
                left = max(self._timed[0][0] - monotonic(), 0.0) if self._timed else -1
                if not self.asking:
                    self._wake.acquire(True, left)  # noqa: FBT003
            if len(self.members) < len(self.workers):
                self._start_another()
        finally:
            self._turn.release()
        return found

    def _wait_for_turn(self) -> None:
        """Wait until no other worker looks for its next batch."""
        with self.lock.later, self.lock:
            self._waiting_for_turn += 1
        if self._for_others:
            self._look_again()  # the worker that has the turn sleeps with it
        self._turn.acquire()
        with self.lock.later, self.lock:
            self._waiting_for_turn -= 1

    def _pass_turn(self) -> None:
        """Have another worker look: there are batches for it alone."""
        self._turn.release()
        try:
            pause()
        finally:
            self._wait_for_turn()

    def _has_work(self) -> bool:
        """Whether a function asks, or waits for a time that it has told."""
        return bool(self.asking) or any(until == seat.until for until, _, seat in self._timed)

    def _look(self) -> tuple[SharedWorkers, Batch] | None:
        """Plan for the functions that ask, and take a batch of the one that is next, if any is due."""
        if self._for_others:
            self.asking |= self._for_others
            self._for_others = {}
        while self._ended:
            self.turns.ended(*self._ended.popleft())
        while (one := self._pop_asking()) is not None:
            one.plan()
        timed = self._timed
        while timed and (timed[0][2].until != timed[0][0] or timed[0][0] <= monotonic()):
            until, _, seat = heappop(timed)
            if seat.until == until:  # else it has been planned for since then
                seat.plan()
        while (due := self.turns.next(monotonic())) is not None:
            assert isinstance(due, SharedWorkers)  # noqa: S101  for the type
            if (batch := due.take()) is not None:
                return due, batch
        return None

    def others_wait(self, but: object) -> bool:
        """Whether calls of a function, `but` one, are due or have yet to be looked at."""
        now = monotonic()
        try:
            timed = [seat for until, _, seat in [*self._timed] if until <= now]
            known: list[Any] = [*self.asking, *self.turns.seats(), *timed]
            for seat in known:
                seat.dispatcher.drop_departed()  # else it may seem to wait for their sake
        except Exception:  # noqa: BLE001  callers add to these meanwhile; or a fault, which its next look meets
            return True
        return any(seat is not but and seat.dispatcher.batcher.has_calls for seat in known)

    def _pop_asking(self) -> SharedWorkers | None:
        """Remove and return a function that asks, None if none does."""
        try:
            return self.asking.popitem()[0]
        except KeyError:
            return None

    def for_others(self, seat: SharedWorkers) -> None:
        """Have the other workers plan for `seat` too."""
        self._for_others[seat] = None

    def look_at(self, seat: SharedWorkers, until: float) -> None:
        """Plan for `seat` again then."""
        seat.until = until
        heappush(self._timed, (until, next(self._numbers), seat))

    def _end(self, worker: PoolWorker) -> None:
        me = _thread.get_ident()
        runner = self.runners.pop(me, None)
        if runner is not None:
            try:
                runner.close()
            except BaseException:  # noqa: BLE001  of a task that a function has left behind
                log_error("%s: could not close a worker's event loop", self.name)
        for known in (OF_THREAD, IN_THREAD):
            known.pop(me, None)
        forget_worker()
        told: list[Callable[[BaseException | None], object]] = []
        with self.lock.later, self.lock:
            self.idents.discard(me)
            self.members.discard(threading.current_thread())
            if worker.thread is threading.current_thread():  # else another one has taken its place
                worker.thread = worker.current = None
                told, worker.when_started = worker.when_started, []
            error = worker.error
            is_last = not self.members
        for tell in told:
            tell(error)
        if self._wake.locked():
            self._look_again()  # the next one may have to end too
        if is_last and self.asking:
            self._start()


def _has_started(gate: _thread.LockType, errors: list[BaseException], error: BaseException | None) -> None:
    if error is not None:
        errors.append(error)
    gate.release()


def _last_step(batch: Batch) -> tuple[int, int]:
    """Return how many batches a step counts as, one or none if it is counted, and how many items began."""
    if not hasattr(batch, "fresh"):
        return 0, 0
    items = batch.fresh
    del batch.fresh
    return 1, items


def _not_before(worker: PoolWorker) -> float:
    return worker.not_before


class WorkerTimes:
    """When the workers of a pool are free, as one function has found."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.lag_s: float = 0.0
        """How long a batch that could start has waited for a worker, on average of late."""

    def free_at(self, now: float) -> float:
        """Return when a worker will be free, as far as is known; `now` if one is."""
        return self._pool.free_at(now)

    def started(self, after: float) -> None:
        """Note that a batch has started so long `after` it could have."""
        self.lag_s += _WEIGHT * (after - self.lag_s)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class SharedWorkers(Seat):
    """The workers of a pool, as one function has them."""

    most = 0
    """No worker is this function's alone, so none takes its next batch as it ends one."""
    members: frozenset[threading.Thread] = frozenset()

    def __init__(
        self,
        pool: WorkerPool,
        dispatcher: SharedWork,
        when_ended: Callable[[], object],
        times: WorkerTimes | None = None,
        weight: float | None = None,
    ) -> None:
        super().__init__(pool.turns.account(dispatcher.name, weight))
        self._times = times
        self._pool = pool
        self.dispatcher = dispatcher
        self.idents: set[int] = pool.idents
        self.until: float = 0.0
        self.ended: bool = False
        self._made_with = _thread.allocate_lock()  # tells of which kind the locks are
        self._when_ended = when_ended
        self._then: list[Callable[[], object]] = []

    # -- for callers, without the lock --------------------------------------------------------------------

    def wake(self) -> None:
        """Have a worker look again; start one if there is none."""
        if not self._pool.members:
            if not self._has_work():
                return  # as no worker could start, the call that wakes one has been answered since it came
            if is_outdated(self._made_with):
                self._made_with = _thread.allocate_lock()
                self.dispatcher.renew_locks()
        self._pool.asking[self] = None
        self._pool.wake()

    def _has_work(self) -> bool:
        """Whether there is something that a worker has to do for this function."""
        batcher = self.dispatcher.batcher
        return bool(batcher.has_calls or batcher.leaving or batcher.later or self.dispatcher.driver.closed)

    def look_again(self) -> None:
        """Have a worker look again, if there is one, or if calls wait for one.

        A call that was taken from the inbox before its caller looked there has not started a worker itself.
        """
        if self._pool.members or self.dispatcher.batcher.has_calls:
            self.wake()

    def set_most(self, most: int) -> None:
        """Do nothing: the pool has as many workers as it was made with."""

    def has_more(self, workers: int) -> bool:
        """Whether more than so many workers live."""
        return len(self._pool.members) > workers

    def renew_locks(self) -> None:
        """Do nothing: those of the pool are renewed by itself."""

    def stack(self) -> str:
        """Return the stacks of all threads of the pool, "" if there is none."""
        return self._pool.stack()

    def end(self) -> None:
        """Have the function end when none of its calls waits any more; its driver is closed."""
        lock, batcher = self.dispatcher.lock, self.dispatcher.batcher
        is_idle = False
        if not lock.is_mine():
            with lock.later, lock:
                is_idle = not (batcher.unfinished or batcher.first or batcher.arriving or batcher.leaving)
                is_idle = is_idle and not (batcher.later or batcher.waiting())
        if is_idle:
            self._finish()
        else:
            self.wake()

    def join(self) -> None:
        """Wait until all calls of this function have ended; the workers go on."""
        gate = _thread.allocate_lock()
        gate.acquire()
        if self.call_when_ended(gate.release):
            gate.acquire()

    def call_when_ended(self, callback: Callable[[], object]) -> bool:
        """Have `callback` called when all calls of this function have ended; return False if they have."""
        lock = self.dispatcher.lock
        with lock.later, lock:
            if self.ended:
                return False
            self._then.append(callback)
        return True

    # -- for the worker that runs a batch --------------------------------------------------------------------

    def stepped(self, batch: Batch) -> None:
        """Count a step of `batch`, which the calling worker runs, if it is refilled: it may be for hours."""
        if hasattr(batch, "fresh"):
            worker = self._pool.workers[OF_THREAD[_thread.get_ident()].index]
            worker.count(self.account.name, *_last_step(batch))

    def run(self, batch: Batch) -> None:
        """Run `batch` and answer its calls."""
        DROP_DEPARTED.set(self.dispatcher.drop_departed)
        self.dispatcher.run(batch)

    # -- for the worker that has the turn -----------------------------------------------------------------

    def plan(self) -> None:
        """Look what this function has to run, and when."""
        self.until = 0.0  # what was planned is planned anew
        if self.ended:  # a call that was at the door then
            self.dispatcher.turn_away(None)
            return
        try:
            with self.dispatcher as batcher:
                batcher.wake_after = None
                if self.dispatcher.driver.closed:
                    batcher.drain()
                batcher.worker_freed(self._pool.free_since, self._pool.idle)
                delay = batcher.plan(monotonic())
                if delay == 0.0:
                    self._pool.turns.due(self, *batcher.standing(monotonic()))
                    if self.is_large:
                        batcher.wake_after = 1  # a small call changes that
                if batcher.has_asides:
                    self._pool.for_others(self)
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
            return
        self._note(delay)

    def take(self) -> Batch | None:
        """Remove and return the next batch, if it is due all the same."""
        found: Batch | float | None
        try:
            with self.dispatcher as batcher:
                batcher.wake_after = None
                found = batcher.next(monotonic())
                if batcher.has_asides:
                    self._pool.for_others(self)
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
            return None
        if isinstance(found, Batch):
            now = monotonic()
            free = self.turn + self.account.batch_s if self.turn > 0.0 else 0.0
            if self._times is not None:
                self._times.started(max(now - max(self.oldest, free), 0.0))
            self._pool.turns.taken(self, now)
            self._pool.asking[self] = None
            return found
        self._note(found)
        return None

    def _note(self, delay: float | None) -> None:
        """Note what a look has found: when the next batch is due."""
        # Callers read `wake_after` after they have filled `arriving`: one of the two sees the other.
        if self.dispatcher.batcher.arriving:
            self._pool.asking[self] = None
        if delay == 0.0:
            return
        self._pool.turns.not_due(self)
        if delay is not None:
            self._pool.look_at(self, self.dispatcher.batcher.until)
        elif self.dispatcher.driver.closed and not self.dispatcher.batcher.running:
            self._finish()

    def _failed(self, error: BaseException) -> None:
        """Answer all calls of this function with `error`, a fault of this library."""
        log(logging.ERROR, "%s: the worker failed", self.dispatcher.name, error=error)
        self._pool.turns.not_due(self)
        self.dispatcher.give_up(None, error)
        self._pool.asking[self] = None

    def refuse(self, error: BaseException) -> None:
        """Give `error` to all calls that wait: no worker will run them. `tell` is to follow."""
        self.dispatcher.batcher.wake_after = 1
        self.dispatcher.refuse(error)

    def tell(self) -> None:
        """Wake the callers that have been refused."""
        self.dispatcher.tell()
        if self.dispatcher.driver.closed:
            self._finish()

    def _finish(self) -> None:
        lock = self.dispatcher.lock
        if lock.is_mine():
            lock.later.append(self._finish)
            return
        with lock.later, lock:
            if self.ended:
                return
            self.ended = True
            then, self._then = self._then, []
        # A worker may have noted it at the end of its last batch, with no reason to wake the one that looks.
        self._pool.asking.pop(self, None)
        self._when_ended()
        for callback in then:
            callback()
