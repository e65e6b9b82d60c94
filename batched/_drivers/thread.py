"""The driver that runs batches in worker threads, for callers in threads and on event loops.

Callers append to the inbox and wake a worker only if it sleeps and has reason to look; they never take the
lock, unless calls are admitted one by one. The lock guards the batcher, and what calls still miss.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, NoReturn

from batched._clock import monotonic
from batched._core.batcher import Batcher, NewQueue
from batched._core.call import Call, Slice
from batched._core.collator import Collator
from batched._core.options import Options, has_stages
from batched._core.stats import Stats
from batched._drivers.alarms import watch
from batched._drivers.blocking import LoopWarning, no_loop
from batched._drivers.circles import WORKERS, note_wait
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.driver import Driver
from batched._drivers.fork_and_exit import park_at_exit
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.room_on_stack import check_stack
from batched._drivers.semaphores import new_semaphore
from batched._drivers.shared_workers import SharedWorkers, WorkerTimes
from batched._drivers.stages import StagedThreadDispatcher
from batched._drivers.stages_in_turn import StagesInTurn
from batched._drivers.thread_dispatcher import ThreadDispatcher
from batched._drivers.wakeups import ask, set_unless_done
from batched._drivers.warm_up import Round, WarmUp
from batched._drivers.worker_pool import WorkerPool
from batched._drivers.workers import Workers
from batched.errors import ClosedError

_LOOK_S = 0.005  # how often `rest` looks whether batches run
_AMID_STEP = "a finalizer or a signal handler that interrupted its own work"


def wait_for(driver: Driver, call: Call) -> None:
    """Block until `call` of `driver` has its results, or raise its error."""
    try:
        if call.deadline is None:
            call.waiter.acquire()
        else:
            while not call.waiter.acquire(True, left := max(call.deadline - monotonic(), 0.0)) and left:  # noqa: FBT003
                pass  # the wait has ended early
    except BaseException:  # Ctrl-C
        driver.cancel(call)
        raise
    if call.missing or call.error is not None:
        driver.raise_error(call)


class ThreadDriver(Driver):
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
        awaits: bool = True,
    ) -> None:
        self.pool: WorkerPool | None = None if options.workers is None else options.workers.pool
        """The workers that this function shares with others, if it does."""
        self.worker_times: WorkerTimes | None = (  # pyright: ignore[reportIncompatibleVariableOverride]
            None if self.pool is None else WorkerTimes(self.pool)
        )
        self._awaits = awaits
        super().__init__(options, queue, collator, name)
        self.warn_on_loop: LoopWarning = LoopWarning(name)
        self._owner = weakref.ref(owner, self._retire)
        if self.pool is not None:
            self.pool.add(self)
            self.closed: bool = self.pool.closed

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.deadline_watch: DeadlineWatch = DeadlineWatch(self.name, partial(_drop_late, weakref.ref(self)))
        kind: type[ThreadDispatcher] = ThreadDispatcher
        if has_stages(self.options):
            kind = StagedThreadDispatcher if self.pool is None else StagesInTurn
        self.dispatcher: ThreadDispatcher = kind(
            self, self.deadline_watch.stop, awaits=self._awaits, times=self.worker_times
        )
        self.batcher: Batcher = self.dispatcher.batcher
        self.workers: Workers | SharedWorkers = self.dispatcher.workers
        self.idents: set[int] = self.workers.idents

    def after_fork(self) -> None:
        """Start afresh in the child: it has no worker, and the calls in the queue are the parent's.

        They fail here, so that no consumer of a stream waits for ever.
        """
        # Without the lock: a thread of the parent may hold it, and no other thread is here.
        batcher = self.batcher
        for call in batcher.unanswered_calls():
            if call.missing:
                call.waiting = 0
                call.fail(ClosedError(f"{self.name}: this call belongs to the parent process"))
        self.dispatcher.runners.after_fork()
        super().after_fork()

    @property
    def members(self) -> Collection[threading.Thread]:
        """The workers that may run its batches."""
        return self.workers.members if self.pool is None else self.pool.members

    def count_anew(self) -> None:
        """Put the counters right after a step was broken off. Needs the lock."""
        self.counters.balance(self.batcher.unfinished)

    # -- options and stats --------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        if self.lock.is_mine():
            return self._snapshot([self.batcher], amid_step=True)
        check_stack()
        try:
            with self.dispatcher:
                self.batcher.take_in()
                return self._snapshot([self.batcher], amid_step=False)
        except BaseException as error:
            self.dispatcher.recover(error)
            raise

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Follow changed options from the next batch on."""
        if self.lock.is_mine():
            self._follow(changes)
            self.lock.later.append(partial(self.configure, {}))  # the batcher follows them after this step
            return
        check_stack()
        before = self.options
        try:
            with self.dispatcher:
                self._follow(changes)
                self.batcher.configure(self.options)
                self.workers.set_most(self.options.max_concurrent_batches)
        except BaseException as error:
            self.dispatcher.recover(error, may_refuse=self.options is before)
            raise
        self.workers.look_again()

    def take_turns(self) -> None:
        """Have tenants take turns from now on; calls that have none are of one together."""
        super().take_turns()
        self.dispatcher.take_step(Batcher.take_turns)

    def expected_wait_s(self, items: int) -> float | None:
        """Return how long a call of `items` would wait for its answer; None if that is not known."""
        return self._wait_s(self.batcher, items)

    # -- a call comes -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if a call from this thread cannot be answered."""
        if self.closed:
            park_at_exit()
            raise self.closed_error()
        if _thread.get_ident() in self.idents:
            if self.pool is not None:
                raise self.inside_error(self.pool)
            raise self.own_error("its own batch function, or from a callback of one of its futures")

    def _check_call(self, call: Call, *, of_map: bool) -> None:
        """Raise if `call`, which may be that of a worker, cannot be answered from this thread."""
        self.check()
        blocks = call.waits_at is None and call.deadline is None and not of_map and not call.takes_pieces
        if blocks and _thread.get_ident() in WORKERS and (circle := note_wait(self, call)):
            steps = zip(circle, [*circle[1:], self.name], strict=True)
            told = ", ".join(dict.fromkeys(f"{one} waits for {other}" for one, other in steps))
            raise self.own_error(f"a batch function that its own worker waits for ({told})")

    def inside_error(self, pool: WorkerPool) -> RuntimeError:
        """Return what a call raises in a worker of `pool`, its own."""
        return RuntimeError(
            f"{self.name} was called from a worker of {pool.name!r}, on which it runs itself, "
            f"so it might wait for that worker forever: give it other workers, or call its plain "
            f"function, {self.name}.__wrapped__"
        )

    def closed_error(self) -> ClosedError:
        """Return what calls raise after the end: the function's own, or that of its workers."""
        if self.pool is not None and self.pool.closed:
            return ClosedError(
                f"{self.name} takes no more calls: its workers {self.pool.name!r} were shut down"
            )
        return super().closed_error()

    def check_outside(self) -> None:
        """Raise if this is a worker's own thread, which cannot wait for its own end."""
        if _thread.get_ident() in self.idents:
            where = "its own batch function" if self.pool is None else f"a worker of {self.pool.name!r}"
            raise ClosedError(f"{self.name} cannot wait for its shutdown from inside {where}")
        if self.lock.is_mine():
            raise ClosedError(
                f"{self.name} cannot wait for its shutdown in {_AMID_STEP}; use shutdown(wait=False)"
            )

    def push(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002  keywords only would cost
        """Have `call`, which has its waiter, arrive; when there is room, if it `waits`.

        Raises if a call from this thread cannot be answered.
        """
        if self.closed or _thread.get_ident() in WORKERS:
            self._check_call(call, of_map=waits)
        try:
            if call.deadline is not None:
                self.batcher.door(call, monotonic())
            if self.admits_with_lock or call.is_divided:
                self.dispatcher.admit(call, wait=waits or self.may_wait, of_map=waits)
                return
            batcher = self.batcher
            arrive = batcher.arrive  # by a variable: Python 3.11 is slow to call what is no method
            arrive(call)
            if batcher.wake_after is not None and batcher.wakes(call):
                self.workers.wake()
        except BaseException:  # Ctrl-C, or a refusal: no caller waits for this call
            self.cancel(call)
            raise

    def push_all(self, calls: list[Call]) -> bool:
        """Have calls of single items, without deadlines, arrive together; False if only one by one."""
        if self.closed or self.admits_with_lock or _thread.get_ident() in WORKERS:
            return False
        batcher = self.batcher
        batcher.arrive_all(calls)
        if batcher.wake_after is not None and any(map(batcher.wakes, calls)):
            self.workers.wake()
        return True

    def post(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Have `call` arrive, for a thread that will `collect` it."""
        if self.lock.is_mine():
            raise RuntimeError(
                f"{self.name} was called by {_AMID_STEP}, where it would wait for itself; use submit"
            )
        call.waits_at = None
        call.waiter = waiter = _thread.allocate_lock()  # not by `new_semaphore`: one frame of each call
        waiter.acquire()
        self.push(call, waits)

    def post_async(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Have `call` arrive, for the running task, which then waits until it is answered or late."""
        call.note_context()  # a worker may be faster than the task, which has yet to wait
        call.waits_at = loop = running_loop_or_none() or no_loop(self.name)
        call._loop = loop  # noqa: SLF001  tasks look for it by this name
        self.push(call, waits)
        if call.deadline is not None:  # after the push, which may be refused
            watch(call, loop)

    def push_future(self, call: Call) -> None:
        """Have `call` arrive, for a thread that takes its future; block while there is no room."""
        if not self.admits_with_lock:
            self.push(call)
            return
        if call.deadline is not None:
            self.batcher.door(call, monotonic())
        if (gate := self.dispatcher.admit(call, wait=self.may_wait, of_map=False)) is not None:
            self.warn_on_loop("fn.submit(x)", "await fn.acall(x)")
            while not gate.acquire(timeout=seconds_left(call)):
                if not seconds_left(call):  # else the wait has ended early
                    self.raise_error(call)

    def warm_up(self, new_slices: Callable[[], list[Slice]], *, in_task: bool) -> list[Call]:
        """Have each worker run a batch of new slices; return their calls, for this thread or task."""
        self.check()
        if self.lock.is_mine():
            raise RuntimeError(f"{self.name} cannot be warmed up by {_AMID_STEP}")
        workers = self.options.max_concurrent_batches
        its_round = Round(lambda most: len(self.members) > most) if workers > 1 else None
        batches = [WarmUp(new_slices(), its_round) for _ in range(workers)]
        calls = [call for batch in batches for call in batch.calls]
        loop = asyncio.get_running_loop() if in_task else None
        for call in calls:
            call.note_context()
            call.waits_at = call._loop = loop  # noqa: SLF001  tasks look for it by this name
            call.waiter = new_semaphore()
        self.dispatcher.take_step(lambda batcher: batcher.run_aside(batches))
        self.workers.wake()
        return calls

    # -- a caller waits, and leaves -------------------------------------------------------------------------

    collect = wait_for

    def raise_error(self, call: Call) -> NoReturn:
        """Raise, in its caller, the error of `call`, or that it is late."""
        if call.missing:
            self._leave(call, "expired")
            if self.dispatcher.blocked:
                self.dispatcher.drop_departed()  # others wait for the room that it has taken
        super().raise_error(call)

    def _drop(self, call: Call) -> None:
        self.batcher.leave(call)

    def withdraw(self, calls: list[Call], error: BaseException | None) -> None:
        """Answer those of `calls` that have not begun with `error`, as they are not wanted any more.

        Without an error they are late.
        """

        def drop(batcher: Batcher) -> None:
            batcher.take_in()
            for call in calls:
                if error is None:
                    batcher.expire(call)
                else:
                    batcher.withdraw(call, error, "cancelled")

        self.dispatcher.take_step(drop)

    # -- the end ------------------------------------------------------------------------------------------

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Take no more calls, run or cancel those in the queue, and end the threads."""
        if wait:
            self.check_outside()
        self._close()
        if cancel_futures:
            self.dispatcher.turn_away(CancelledError(f"{self.name} was shut down"), "cancelled")
        self.workers.end()
        if wait:
            self.workers.join()
            self.teller.flush()

    async def aclose(self) -> None:
        """As `shutdown()`, without blocking the event loop."""
        self.check_outside()
        self.shutdown(wait=False, cancel_futures=False)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        if self.workers.call_when_ended(partial(ask, loop, set_unless_done, ended)):
            await ended
        await self.teller.aflush()

    async def rest(self) -> None:
        """Return once the batches that run now have ended, or stream, and what is told of them has been told.

        A batch that streams may go on for as long as calls come, which join it.
        """
        running = [*self.batcher.running]
        while any(batch in self.batcher.running and not batch.begun for batch in running):  # noqa: ASYNC110  they tell no loop
            await asyncio.sleep(_LOOK_S)
        await super().rest()

    def _retire(self, _: object) -> None:
        # Runs wherever the owner is collected, perhaps in a thread that holds the lock.
        self._close()
        self.workers.look_again()  # where there is no worker, to start one would need the lock


def seconds_left(call: Call) -> float:
    """Return how long the caller of `call` may block, -1 if there is no limit."""
    return -1 if call.deadline is None else max(call.deadline - monotonic(), 0.0)


def _drop_late(driver: weakref.ref[ThreadDriver], calls: list[Call]) -> None:
    """Drop late calls of a driver that is still there."""
    if (known := driver()) is not None:
        known.withdraw(calls, None)
