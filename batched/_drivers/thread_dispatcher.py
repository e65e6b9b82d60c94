"""Runs the batches of one batcher in worker threads."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextvars import copy_context
from functools import partial
from typing import Any, Literal

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call
from batched._core.change import Change
from batched._core.mending import close
from batched._drivers.current_batch import DROP_DEPARTED, IN_THREAD, RUNNING
from batched._drivers.current_worker import OF_THREAD, Worker
from batched._drivers.driver import Driver
from batched._drivers.fork_and_exit import is_exiting
from batched._drivers.generators import run_steps
from batched._drivers.room_on_stack import check_stack
from batched._drivers.runners import Runners
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.shared_workers import SharedWorkers, WorkerTimes
from batched._drivers.step_lock import new_step_lock
from batched._drivers.wakeups import settle, wake
from batched._drivers.workers import Work, Workers
from batched._logs import log_error


class ThreadDispatcher(Work):
    """Asks the batcher for batches, and runs them, in the threads of `workers`."""

    def __init__(
        self,
        driver: Driver,
        when_ended: Callable[[], object],
        *,
        awaits: bool,
        times: WorkerTimes | None = None,
    ) -> None:
        """Run batches in threads of their own, or in those of a pool, of which `times` are known.

        `when_ended` is called when the last of them has ended.
        """
        super().__init__(driver)
        self.batcher.wake_after = 0  # there is no worker
        self._awaits = awaits  # whether a function may be `async def`: it would run on a loop of its thread
        self._pool = None if times is None else times.pool
        self.workers: Workers | SharedWorkers
        self.blocked: dict[Call, _thread.LockType] = {}
        """For each `submit` that waits for room, the lock that is released when there is some."""
        if times is None:
            self.workers = Workers(self, driver.options.max_concurrent_batches, when_ended)
            self.runners: Runners = Runners()
        else:
            self.workers = SharedWorkers(self, times, when_ended)
            self.runners = times.pool.runners

    # -- for the workers ----------------------------------------------------------------------------------

    def begin_thread(self, index: int) -> None:
        """Prepare this thread, the worker of this index, which begins, for batches."""
        DROP_DEPARTED.set(self.drop_departed)
        OF_THREAD[_thread.get_ident()] = Worker(index, str(index))

    def run(self, batch: Batch) -> Batch | float | None:
        """Run `batch` and answer its calls; return what the next look would find, 0.0 if there was none."""
        IN_THREAD[_thread.get_ident()] = batch
        parts: list[Any] = []
        failure: BaseException | None = None
        try:
            if self.streams:
                run_steps(batch.run(self.collator), partial(self.step, batch), self.name, self._await)
            else:
                outputs = batch.run(self.collator)
                if type(outputs) is not list and hasattr(type(outputs), "__await__"):
                    outputs = self._await(outputs)
                parts = batch.split(outputs, self.collator)
        except BaseException as error:  # noqa: BLE001  for the callers to handle, whatever it is
            failure, outputs = error, None
        found: Batch | float | None = 0.0
        workers = self.workers
        with self:
            batcher = self.batcher
            now = monotonic()
            if failure is None:
                batcher.finish(batch, parts, now)
            else:
                self.fail(batch, failure, now)
            is_alone = workers.most == 1 and len(workers.members) == 1  # else another may have the turn
            if is_alone:
                # A batch is taken only after callers that were answered, and callbacks of their futures, had
                # a chance to call again or to leave.
                found = batcher.next(now, answers_first=True)
        if not is_alone and (failure is not None or batcher.leaving):
            # Another worker may be asleep and have the turn: a half may run in it, and it lets go of calls
            # that were left while they ran.
            workers.wake()
        # An error that was raised or returned leads to this frame, by way of the function's: found here, it
        # would keep itself alive, and all that the function had at hand, until the collector comes.
        parts, outputs, failure = [], None, None
        batch.clear()
        return found

    def step(self, batch: Batch, pieces: Any, *, lets_join: bool = True) -> Change[Any] | None:
        """Do it as every driver; but no item joins while another function waits for this worker.

        At exit, no consumer is left.
        """
        pool = self._pool if self.driver.options.continuous else None
        if pool is not None:
            lets_join = self.batcher.has_calls and not pool.agenda.others_wait(self.workers)
        change = super().step(batch, pieces, lets_join=lets_join)
        if pool is not None:
            worker = pool.workers[OF_THREAD[_thread.get_ident()].index]
            worker.count(self.name, batch, batch.size)  # its batch may be refilled for hours
        if is_exiting():
            raise CancelledError(f"{self.name} was shut down")
        return change

    def _await(self, awaitable: Any) -> Any:
        """Run what an `async def` batch function returned, on a loop of this thread's own."""
        if not self._awaits:
            IN_THREAD[_thread.get_ident()].returned = None
            if hasattr(awaitable, "close"):
                awaitable.close()  # a coroutine would warn that it was never awaited
            raise TypeError(
                f"{self.name} returned an awaitable but is not `async def`, so it ran in a thread and not on "
                f"the event loop; write `async def f(items): return await ...`"
            )
        me = _thread.get_ident()
        runner = self.runners.here()
        # Not the outcome of the task: from Python 3.12 on, its frames lead to it, and an error that is raised
        # or returned would keep itself alive.
        found: list[Any] = []
        errors: list[Exception] = []

        async def outputs() -> None:
            try:
                found.append(await awaitable)
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)

        try:
            context = copy_context()
            context.run(RUNNING.set, IN_THREAD[me])
            runner.run(outputs(), context=context)
        except BaseException as error:
            if not isinstance(error, Exception):  # it has broken the loop in the middle
                runner.close()
                self.runners.pop(me, None)
            raise
        if errors:
            raise errors.pop()
        return found.pop()

    def give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""
        is_fault = isinstance(error, Exception)  # else it was thrown into this thread: calls go on waiting
        if not is_fault:
            self.recover(error)
        as_it_looked = batch is None or batch not in self.batcher.running
        self.answer_lost(batch, error, and_all=is_fault and as_it_looked)

    def _out_of_hand(self) -> list[Batch]:
        # Of several workers, some of the batches are the others'.
        return [*self.batcher.running] if len(self.workers.members) == 1 else []

    def turn_away(self, error: BaseException | None, left: Literal["cancelled"] | None = None) -> None:
        """Answer all calls that wait with `error`, or as after the end: no worker will run them."""
        given = error or self.driver.closed_error()
        self.take_step(lambda batcher: close(batcher, given, left))

    def refuse(self, error: BaseException) -> None:
        """Give `error` to all calls that wait, and to those that run again, as no worker will run them.

        In one step, as callers may call again as soon as they have the error. Whatever step comes next wakes
        them.
        """
        if self.lock.is_mine():
            self.lock.later.append(partial(self.refuse, error))
            return
        try:
            with self.lock:
                self.batcher.end_first(error, monotonic())
                close(self.batcher, error)
        except BaseException as fault:
            self.recover(fault)
            raise

    def end_thread(self) -> None:
        """Release what belongs to this thread, which ends."""
        self.runners.close_here(self.name)

    def renew_locks(self) -> None:
        """Make all locks anew: there is no worker, and a library has put locks of its own in Python's place.

        gevent and eventlet do so. A green thread that waits for a lock of Python's own stops all others.
        """
        self.use_lock(new_step_lock())
        self.driver.lock = self.lock
        self.workers.renew_locks()

    # -- for callers --------------------------------------------------------------------------------------

    def admit(self, call: Call, *, wait: bool, of_map: bool) -> _thread.LockType | None:
        """Have `call` arrive, or later if it can `wait`; then return the lock that will be released."""
        if self.lock.is_mine():
            self.lock.later.append(partial(self._admit_later, call, wait, of_map))
            return None
        check_stack()
        gate = None
        try:
            with self:
                batcher = self.batcher
                arrived = batcher.admit(call, wait=wait, of_map=of_map)
                if not arrived:
                    self.blocked[call] = gate = new_semaphore()
            if not arrived or batcher.wakes(call):
                self.workers.wake()
        except BaseException as error:
            self.recover(error, may_refuse=not call.missing)
            raise
        return gate

    def _admit_later(self, call: Call, wait: bool, of_map: bool) -> None:  # noqa: FBT001
        """Have `call` arrive, which came in the middle of a step; if it is refused, that is its answer."""
        if call.left is not None:
            return
        try:
            self.admit(call, wait=wait, of_map=of_map)
        except Exception as error:  # noqa: BLE001  for its caller
            call.fail(error)
            self._wake_callers([call])

    def drop_departed(self) -> None:
        """Drop the calls that their callers have left; in the middle of a step, the next step does."""
        if self.batcher.leaving and not self.lock.is_mine():
            self.take_step(Batcher.take_in)

    def _let_in(self, calls: list[Call]) -> None:
        for call in calls:
            if gate := self.blocked.get(call):
                release(gate)
                self.blocked.pop(call, None)

    def _moved(self) -> None:
        """Wake a worker that sleeps: it counts on the inbox to fill up."""
        if self.batcher.wake_after:
            self.workers.look_again()

    def _wake_callers(self, calls: list[Call]) -> None:
        try:
            if futures := wake(calls):
                settle(futures, self.name)
        except Exception:  # noqa: BLE001  a fault of this library: each caller is to be woken all the same
            log_error("%s: could not wake callers together", self.name)
            for call in calls:
                with contextlib.suppress(Exception):
                    settle(wake([call]), self.name)
