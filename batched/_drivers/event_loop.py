"""The driver that runs batches on the event loops of their callers: each loop has a queue of its own.

Callers append to the inbox, and start a task if one is wanted; the task chooses its batch when it runs, so
that all calls of the same turn of the loop share it. The lock guards the batchers, and what calls still miss:
other threads take snapshots and change options.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from batched._clock import monotonic
from batched._core.batcher import Batcher
from batched._core.call import Call, Slice
from batched._core.lessons import NOTHING, Lessons
from batched._core.options import has_stages
from batched._core.stats import Stats
from batched._drivers.alarms import watch
from batched._drivers.blocking import no_loop
from batched._drivers.current_batch import RUNNING
from batched._drivers.driver import Driver
from batched._drivers.loop_dispatcher import LoopDispatcher, LoopRef
from batched._drivers.loop_stages import StagedLoopDispatcher
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.room_on_stack import check_stack
from batched._drivers.wakeups import ask, set_unless_done
from batched._drivers.warm_up import WarmUp
from batched.errors import ClosedError

_LOOK_S = 0.1  # how often `aclose`, while it waits for other loops, looks whether they still run


class LoopDriver(Driver):
    """The dispatchers of one decorated function, one for each event loop that calls; their stats are one.

    Each loop runs up to `max_concurrent_batches` at once, and has a queue of up to `max_queue_size` items.

    A dispatcher at rest refers to nothing of its loop and is kept here, until the loop is gone. A busy one is
    kept by its loop alone, by way of the timer or the task that will go on with it: a loop that is closed
    with calls pending takes them along.
    """

    def _begin_anew(self) -> None:
        super()._begin_anew()
        # By references to their loops: unlike an id, such a reference is never that of a later loop.
        self.resting: dict[LoopRef, LoopDispatcher] = {}
        self._dispatchers: dict[LoopRef, ref[LoopDispatcher]] = {}
        self._gone: Lessons = NOTHING  # of the loop, of those that are gone, that has learned most

    # -- options and stats --------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters, of all loops together."""
        if self.lock.is_mine():
            return self._stats_now(amid_step=True)
        with self.lock.later, self.lock:
            return self._stats_now(amid_step=False)

    def _stats_now(self, *, amid_step: bool) -> Stats:
        batchers = []
        for dispatcher in self.dispatchers():
            if dispatcher.has_loop():
                batchers.append(dispatcher.batcher)
            else:
                self.keep(dispatcher.batcher)
        if not amid_step:
            for batcher in batchers:
                batcher.do_later()  # calls that were refused are to be counted
        arriving = sum(call.size for batcher in batchers for call in list(batcher.arriving))
        stats = self._snapshot(batchers, self._gone, amid_step=amid_step)
        accepted = stats.total_accepted + arriving
        queued = stats.queue_size + arriving
        ended = stats.total_processed + stats.total_cancelled + stats.total_expired
        lost = accepted - ended - queued - stats.running_items  # with the loop that they waited on
        return replace(
            stats,
            total_accepted=accepted,
            queue_size=queued,
            total_cancelled=stats.total_cancelled + lost,
        )

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Follow changed options from the next batch on."""
        if self.lock.is_mine():
            self._follow(changes)
            self.lock.later.append(partial(self.configure, {}))  # the batcher follows them after this step
            return
        check_stack()
        before, dispatchers = self.options, self.dispatchers()
        try:
            with self.lock.later, self.lock:
                self._follow(changes)
                dispatchers = self.dispatchers()
                for dispatcher in dispatchers:
                    dispatcher.configure(self.options)
        except BaseException as error:
            for dispatcher in dispatchers:
                dispatcher.recover(error, may_refuse=self.options is before)
                dispatcher.replan()
            raise
        for dispatcher in dispatchers:
            dispatcher.replan()

    def expected_wait_s(self, items: int) -> float | None:
        """Return how long a call of `items` on the running loop would wait for its answer.

        Where no loop runs, on the loop where it would wait longest. None if that is not known.
        """
        loop = running_loop_or_none()
        found = [
            each.batcher for each in self.dispatchers() if each.has_loop() and loop in {None, each.loop()}
        ]
        # Another loop has learned what batches take, or one that has ended: nothing waits here.
        waits = [self._wait_s(batcher, items) for batcher in found or [self.new_batcher()]]
        return max((wait for wait in waits if wait is not None), default=None)

    def dispatchers(self) -> list[LoopDispatcher]:
        """Return the dispatchers of all loops that are still there."""
        found = (reference() for reference in list(self._dispatchers.values()))
        return [dispatcher for dispatcher in found if dispatcher is not None]

    # -- a call comes -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if a call from here cannot be answered."""
        if self.closed:
            raise self.closed_error()
        if self._is_inside():
            raise self.own_error("its own batch function")
        batch = RUNNING.get(None)
        dispatcher = None if batch is None else self._here()
        if batch is not None and dispatcher is not None and dispatcher.awaits(batch):
            raise self.own_error("a batch function that its own batch waits for")

    def check_outside(self) -> None:
        """Raise if this is inside the batch function, which cannot wait for its own end."""
        if self._is_inside():
            raise ClosedError(f"{self.name} cannot wait for its shutdown from inside its own batch function")

    def _is_inside(self) -> bool:
        """Whether this runs inside a batch of the running loop, or in a task that the batch has started."""
        batch = RUNNING.get(None)
        if batch is None:
            return False
        dispatcher = self._here()
        return dispatcher is not None and batch in dispatcher.batches

    def _here(self) -> LoopDispatcher | None:
        """Return the dispatcher of the running loop, if there is one."""
        return self._dispatchers.get(ref(asyncio.get_running_loop()), _no_dispatcher)()

    def post_async(self, call: Call, waits: bool = False) -> None:  # noqa: FBT001, FBT002
        """Have `call` arrive, for the running task, which then waits until it is answered or late."""
        loop = running_loop_or_none() or no_loop(self.name)
        dispatcher = self._dispatchers.get(ref(loop), _no_dispatcher)()
        if dispatcher is None:
            dispatcher = self._new_dispatcher(loop)
        if self.closed or dispatcher.batches:
            self.check()
        call.waits_at = dispatcher
        call._loop = loop  # noqa: SLF001  tasks look for it by this name
        batcher = dispatcher.batcher
        if call.deadline is not None:
            batcher.door(call, monotonic())
        if not self.admits_with_lock and not call.is_divided:
            arrive = batcher.arrive
            arrive(call)
        elif not self._admit(dispatcher, call, waits):
            dispatcher.plan(loop)
        if call.deadline is not None:  # after it has been admitted
            watch(call, loop)
        if batcher.wake_after is not None and batcher.wakes(call):
            dispatcher.start(loop)

    def _admit(self, dispatcher: LoopDispatcher, call: Call, waits: bool) -> bool:  # noqa: FBT001
        """Have `call` arrive by way of the lock; return False if it waits for room."""
        if self.lock.is_mine():  # a task that has begun at once, as some begin: eager ones
            raise RuntimeError(f"{self.name} was called by a finalizer that interrupted its own work")
        check_stack()
        call.note_context()
        try:
            with dispatcher:
                return dispatcher.batcher.admit(call, wait=waits or self.may_wait, of_map=waits)
        except BaseException as error:
            dispatcher.recover(error, may_refuse=not call.missing)
            raise

    def warm_up(self, new_slices: Callable[[], list[Slice]], *, in_task: bool) -> list[Call]:  # noqa: ARG002  all are tasks
        """Have the running loop run a batch of new slices; return their calls, for the running task."""
        loop = asyncio.get_running_loop()
        dispatcher = self._here() or self._new_dispatcher(loop)
        self.check()
        batch = WarmUp(new_slices())
        for call in batch.calls:
            call.note_context()
            call.waits_at = dispatcher
            call._loop = loop  # noqa: SLF001  tasks look for it by this name
        calls = batch.calls
        dispatcher.take_step(lambda batcher: batcher.run_aside([batch]))
        if dispatcher.batcher.wake_after is not None:
            dispatcher.start(loop)
        return calls

    # -- a caller leaves ----------------------------------------------------------------------------------

    def _drop(self, call: Call) -> None:
        dispatcher: LoopDispatcher = call.waits_at
        dispatcher.batcher.leave(call)
        if call.is_divided and dispatcher.batches:
            dispatcher.replan()  # `current_batch().cancelled()` looks at the parts

    # -- the end ------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Take no more calls, run those in the queues, and return when no loop runs a batch any more.

        A loop that stops meanwhile is not waited for.
        """
        self.check_outside()
        self._close()
        await self._drain(self.dispatchers())

    async def rest(self) -> None:
        """Run what is queued on the running loop; return once it runs no batch, and all is told."""
        here = self._here()
        await self._drain([] if here is None else [here])

    async def _drain(self, dispatchers: list[LoopDispatcher]) -> None:
        loop = asyncio.get_running_loop()
        draining = []
        for dispatcher in dispatchers:
            rested = loop.create_future()
            if dispatcher.drain(partial(ask, loop, set_unless_done, rested)):
                draining.append((dispatcher, rested))
        for dispatcher, rested in draining:
            while not rested.done() and dispatcher.is_running():
                await asyncio.wait([rested], timeout=_LOOK_S)  # a loop says nothing when it stops
        await self.teller.aflush()

    # -- loops --------------------------------------------------------------------------------------------

    def keep(self, batcher: Batcher) -> None:
        """Keep what was learned by the `batcher` of a loop that is gone, in the place of less of another.

        Without the lock: it may be the garbage collector that ends a dispatcher.
        """
        lessons = batcher.lessons
        is_own = batcher.counters is self.counters  # else it is a parent's, from before a fork
        if is_own and lessons != NOTHING and lessons.cohorts >= self._gone.cohorts:
            self._gone = lessons

    def count_anew(self) -> None:
        """Put the counters right after a step of one loop was broken off. Needs the lock."""
        self.counters.balance(sum(dispatcher.batcher.unfinished for dispatcher in self.dispatchers()))

    def _new_dispatcher(self, loop: asyncio.AbstractEventLoop) -> LoopDispatcher:
        """Return a dispatcher for `loop`, which has none."""
        kind = StagedLoopDispatcher if has_stages(self.options) else LoopDispatcher
        dispatcher: LoopDispatcher = kind(self, loop, resting=self.resting, keep=self.keep)
        key = dispatcher.loop
        reference = ref(dispatcher, partial(_forget, self._dispatchers, key))
        with self.lock.later, self.lock:
            self._dispatchers[key] = reference
            self.resting[key] = dispatcher
        return dispatcher


def _no_dispatcher() -> LoopDispatcher | None:
    """Stand for the reference to a dispatcher of a loop that has none."""
    return None


def _forget(
    dispatchers: dict[LoopRef, ref[LoopDispatcher]], key: LoopRef, reference: ref[LoopDispatcher]
) -> None:
    if dispatchers.get(key) is reference:  # else the loop has another by now
        del dispatchers[key]
