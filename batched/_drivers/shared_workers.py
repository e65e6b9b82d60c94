"""The functions that share the workers of a pool: which is next, and what each has in the place of `Workers`.

A caller that wakes workers notes its function in `Agenda.asking`. The worker that has the turn of the pool
plans for the functions that ask, and no others, and takes a batch of the one that is next by the rule of
`SharedTurns`. So idle functions cost nothing, and nothing here keeps them alive.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.shared_turns import Account, Seat, SharedTurns
from batched._drivers.current_batch import DROP_DEPARTED
from batched._drivers.runners import Runners
from batched._drivers.semaphores import new_semaphore
from batched._drivers.step_lock import is_outdated
from batched._drivers.workers import Work
from batched._logs import log

_WEIGHT = 1 / 8  # of one batch in what is learned of the wait for a worker


class Pool(Protocol):
    """The workers, as one function sees them."""

    agenda: Agenda
    workers: list[Any]
    members: set[threading.Thread]
    idents: set[int]
    runners: Runners
    free_since: float

    @property
    def idle(self) -> int:
        """How many workers are idle."""
        ...

    def wake(self) -> None:
        """Have a worker look again; start one if there is none."""
        ...


class Agenda:
    """The functions that have something to run, or may have, and which of them is next.

    Only for the worker that has the turn, but for what callers and other workers add.
    """

    def __init__(self) -> None:
        self.turns: SharedTurns = SharedTurns()
        self.asking: dict[SharedWorkers, None] = {}
        """The functions to plan for; callers add to it."""
        self.for_others: dict[SharedWorkers, None] = {}
        """Those with batches that not each worker may run."""
        self.ended: deque[tuple[Account, float | None]] = deque()
        """Batches of which the turns have yet to learn: workers add to it at their ends."""
        self._timed: list[tuple[float, int, SharedWorkers]] = []  # by when their next batch is due
        self._numbers = count()

    def clear(self) -> None:
        """Forget what there is to run, in a child process; and not which function had how much time."""
        for each in (self.asking, self.for_others, self.ended, self._timed):
            each.clear()
        self.turns.clear()

    def plan_at(self, seat: SharedWorkers, until: float) -> None:
        """Plan for `seat` again then."""
        seat.until = until
        heappush(self._timed, (until, next(self._numbers), seat))

    def seconds_left(self) -> float:
        """Return how long it is until a function is to be planned for, -1 if none waits for a time."""
        return max(self._timed[0][0] - monotonic(), 0.0) if self._timed else -1

    def has_work(self) -> bool:
        """Whether a function asks, or waits for a time that it has told."""
        return bool(self.asking) or any(until == seat.until for until, _, seat in self._timed)

    def next(self) -> tuple[SharedWorkers, Batch] | None:
        """Plan for the functions that ask, and take a batch of the one that is next, if any is due."""
        if self.for_others:
            self.asking |= self.for_others
            self.for_others = {}
        while self.ended:
            self.turns.ended(*self.ended.popleft())
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

    def take_all(self) -> list[SharedWorkers]:
        """Return all functions, of which none is to be planned for any more."""
        found: list[Any] = [seat for _, _, seat in self._timed]
        found += [*self.turns.seats(), *self.for_others]
        self._timed.clear()
        self.for_others = {}
        while (asks := self._pop_asking()) is not None:  # one by one: callers add to it meanwhile
            found.append(asks)
        return [*dict.fromkeys(found)]

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


class WorkerTimes:
    """When the workers of a pool are free, as one function has found."""

    def __init__(self, pool: Pool) -> None:
        self.pool: Pool = pool
        self.lag_s: float = 0.0
        """How long a batch that could start has waited for a worker, on average of late."""

    def free_at(self, now: float) -> float:
        """Return when a worker will be free, as far as is known; `now` if one is. It needs no lock."""
        first = inf
        for worker in self.pool.workers:
            since, runs = worker.busy_since, worker.runs
            if since is not None and runs is not None:
                first = min(first, since + runs.batch_s)
            elif worker.can_run:
                return now
        return now if first == inf else max(first, now)

    def started(self, after: float) -> None:
        """Note that a batch has started so long `after` it could have."""
        self.lag_s += _WEIGHT * (after - self.lag_s)


class SharedWorkers(Seat):
    """The workers of a pool, as one function has them."""

    most = 0
    """No worker is this function's alone, so none takes its next batch as it ends one."""
    members: frozenset[threading.Thread] = frozenset()

    def __init__(self, dispatcher: Work, times: WorkerTimes, when_ended: Callable[[], object]) -> None:
        pool = times.pool
        super().__init__(pool.agenda.turns.account(dispatcher.name, dispatcher.driver.options.weight))
        self._times = times
        self._pool = pool
        self._agenda = pool.agenda
        self.dispatcher = dispatcher
        self.idents: set[int] = pool.idents
        self.until: float = 0.0
        self.ended: bool = False
        self._made_with = _thread.allocate_lock()  # tells of which kind the locks are
        self._then: list[Callable[[], object]] = [when_ended]

    # -- for callers, without the lock --------------------------------------------------------------------

    def wake(self) -> None:
        """Have a worker look again; start one if there is none."""
        if not self._pool.members:
            if not self._has_work():
                return  # as no worker could start, the call that wakes one has been answered since it came
            if is_outdated(self._made_with):
                self._made_with = _thread.allocate_lock()
                self.dispatcher.renew_locks()
        self._agenda.asking[self] = None
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

    def renew_locks(self) -> None:
        """Do nothing: those of the pool are renewed by itself."""

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
        gate = new_semaphore()
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
            with self.dispatcher:
                batcher = self.dispatcher.batcher
                batcher.wake_after = None
                if self.dispatcher.driver.closed:
                    batcher.drain()
                batcher.worker_freed(self._pool.free_since, self._pool.idle)
                delay = batcher.plan(monotonic())
                if delay == 0.0:
                    self._agenda.turns.due(self, *batcher.standing(monotonic()))
                    if self.is_large:
                        batcher.wake_after = 1  # a small call changes that
                if batcher.has_asides:
                    self._agenda.for_others[self] = None
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
            return
        self._note(delay)

    def take(self) -> Batch | None:
        """Remove and return the next batch, if it is due all the same."""
        found: Batch | float | None
        try:
            with self.dispatcher:
                batcher = self.dispatcher.batcher
                batcher.wake_after = None
                found = batcher.next(monotonic())
                if batcher.has_asides:
                    self._agenda.for_others[self] = None
        except BaseException as error:  # noqa: BLE001
            self._failed(error)
            return None
        if isinstance(found, Batch):
            now = monotonic()
            free = self.turn + self.account.batch_s if self.turn > 0.0 else 0.0
            self._times.started(max(now - max(self.oldest, free), 0.0))
            self._agenda.turns.taken(self, now)
            self._agenda.asking[self] = None
            return found
        self._note(found)
        return None

    def _note(self, delay: float | None) -> None:
        """Note what a look has found: when the next batch is due."""
        # Callers read `wake_after` after they have filled `arriving`: one of the two sees the other.
        if self.dispatcher.batcher.arriving:
            self._agenda.asking[self] = None
        if delay == 0.0:
            return
        self._agenda.turns.not_due(self)
        if delay is not None:
            self._agenda.plan_at(self, self.dispatcher.batcher.until)
        elif self.dispatcher.driver.closed and not self.dispatcher.batcher.running:
            self._finish()

    def _failed(self, error: BaseException) -> None:
        """Answer all calls of this function with `error`, a fault of this library."""
        log(logging.ERROR, "%s: the worker failed", self.dispatcher.name, error=error)
        self._agenda.turns.not_due(self)
        self.dispatcher.give_up(None, error)
        self._agenda.asking[self] = None

    def refuse(self, error: BaseException) -> None:
        """Give `error` to all calls that wait: no worker will run them. `tell` is to follow."""
        self.dispatcher.batcher.wake_after = 1
        self.dispatcher.refuse(error)

    def tell(self) -> None:
        """Wake the callers that have been refused."""
        self.dispatcher.take_step(lambda _: None)
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
        self._agenda.asking.pop(self, None)
        for callback in then:
            callback()
