"""One event loop of a driver: its batcher, its timer, and the tasks that run its batches."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from asyncio import Task, get_running_loop
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.current_batch import RUNNING, held_up_by
from batched._drivers.dispatcher import Dispatcher
from batched._drivers.driver import Driver
from batched._drivers.generators import walk_steps
from batched._drivers.private_python import end_silently, running_loop_or_none
from batched._drivers.timers import Timer, call_later
from batched._drivers.wakeups import ask, resolve_on_loop
from batched._logs import log

LoopRef: TypeAlias = weakref.ref[asyncio.AbstractEventLoop]


class _Turn(tuple[None]):
    """What a task awaits to leave the loop a turn: it yields None once, as `asyncio.sleep(0)` does."""

    __slots__ = ()
    __await__: Callable[..., Generator[None]] = tuple.__iter__  # type: ignore[assignment]


_TURN = _Turn([None])
"""Leaves the loop a turn."""


class LoopDispatcher(Dispatcher):
    """Asks the batcher of one loop for batches, and runs them in tasks. Only for the thread of the loop."""

    raises_interrupts = True
    is_plain: bool = True
    """Whether a batch is one call of the function: it does not stream, and passes no stages."""

    def __init__(
        self,
        driver: Driver,
        loop: asyncio.AbstractEventLoop,
        *,
        resting: dict[LoopRef, LoopDispatcher],
        keep: Callable[[Batcher], object],
    ) -> None:
        """Make one for `loop`, which is in `resting`, by the reference to the loop, while it rests.

        It has its lessons kept as it is collected.
        """
        super().__init__(driver)
        self.is_plain = self.is_plain and not self.streams
        self.batcher.wake_after = 1
        self.batches: set[Batch] = set()
        """The batches that tasks run."""
        self.loop: LoopRef = weakref.ref(loop)
        self._most = driver.options.max_concurrent_batches
        self._task_name = f"batched: {driver.name}"
        self._resting = resting
        self._loop_gone = weakref.ref(loop, partial(resting.pop, self.loop))
        # Tasks, by a number of each: unlike a count, these can be noted twice, as after Ctrl-C.
        self._busy: set[int] = set()
        self._is_to_replan = False  # whether the loop has been asked to, and has not begun
        self._timer: Timer | None = None
        self._when_resting: list[Callable[[], object]] = []
        self._keep = keep

    def __del__(self, _is_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_keep") and not _is_exit():  # a Ctrl-C in `__init__`; modules that are half gone
            self._keep(self.batcher)

    # -- from any thread ----------------------------------------------------------------------------------

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on. Needs the lock; `replan` is to follow."""
        self._most = options.max_concurrent_batches
        self.batcher.configure(options)

    def has_loop(self) -> bool:
        """Whether the loop is there, and can still run."""
        loop = self.loop()
        return loop is not None and not loop.is_closed()

    def is_running(self) -> bool:
        """Whether the loop runs; one that has stopped may run again."""
        loop = self.loop()
        return loop is not None and loop.is_running()

    def awaits(self, batch: Batch) -> bool:
        """Whether no batch can start here before `batch`, perhaps of another function, has ended.

        So it is if each batch that runs here awaits an answer of `batch`, or of one that awaits it.
        """
        if len(self._busy) < self._most or not self.batches:
            return False
        return self.batches <= held_up_by(batch)

    def drain(self, then: Callable[[], object]) -> bool:
        """Have the loop run what is queued and call `then`; return False if the loop does not run."""
        return self.is_running() and self._ask(self._drain, then)

    def replan(self) -> None:
        """Have the loop plan anew: callers have left, or options changed.

        Once, however often that happens meanwhile: callbacks that come faster than the loop takes them would
        keep it from all else.
        """
        if self._is_to_replan:
            return
        self._is_to_replan = True
        try:
            if not self._ask(self._replan):
                self._is_to_replan = False
        except BaseException:  # Ctrl-C
            self._is_to_replan = False
            raise

    def _ask(self, callback: Callable[..., object], *args: object) -> bool:
        """Have the loop call `callback` soon; return whether it can, as it is not closed."""
        loop = self.loop()
        return loop is not None and ask(loop, callback, *args)

    # -- on the loop --------------------------------------------------------------------------------------

    def _replan(self) -> None:
        self._is_to_replan = False  # first, so that what changes during this is planned for again
        self.plan(get_running_loop())

    def _drain(self, then: Callable[[], object]) -> None:
        with self.lock.later, self.lock:
            self.batcher.drain()
        if not self._busy and self._timer is None:
            then()
            return
        self._when_resting.append(then)
        if self._timer is not None:
            self.start(get_running_loop())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task that chooses and runs the next batch."""
        task = None
        try:
            task = BatchTask()
            self._busy.add(id(task))
            if self._timer is not None:
                self._stop_timer(self._timer)
            self.batcher.wake_after = None
            self._resting.pop(self.loop, None)
            task.start(self, loop, self._task_name)
        except BaseException:  # Ctrl-C
            self._busy.discard(id(task))
            self.batcher.wake_after = 1
            self._ask(self._replan)  # the timer is gone
            raise

    # -- for the tasks ------------------------------------------------------------------------------------

    def next(self, loop: asyncio.AbstractEventLoop, task: object) -> Batch | None:
        """Remove and return the next batch of `task`; None if none is due: the task is to end."""
        found: Batch | float | None = None
        try:
            with self:
                found = self.batcher.next(monotonic())
        except BaseException as error:
            if not self._gives_up(error):
                raise
            found = None
        if isinstance(found, Batch):
            if len(self._busy) < self._most:
                self.plan(loop)
            return found
        self._busy.discard(id(task))
        self._wait(found, loop)
        return None

    async def parts(self, batch: Batch, task: object) -> list[Any]:  # noqa: ARG002  of batches with stages
        """Run `batch`, which streams; return no parts: its callers have their pieces."""
        await walk_steps(batch.run(self.collator), partial(self.step, batch), self.name, _TURN)
        return []

    def end(  # noqa: PLR0913
        self,
        batch: Batch | None,
        parts: list[Any],
        error: BaseException | None,
        loop: asyncio.AbstractEventLoop,
        task: BatchTask,
        *,
        can_go_on: bool,
    ) -> Batch | bool:
        """Report `batch`, which has ended; return whether its `task`, which `can_go_on`, is to go on.

        Then it looks for a batch in the next turn of the loop, in which callers that have just been answered
        often call again. In the midst of a list there are none: unless it `owes_turn`, it has the next full
        batch at once.
        """
        found: Batch | float | None = None
        may_go_on = can_go_on and len(self._busy) <= self._most
        goes_on = False
        try:
            if batch is not None:
                self.batches.discard(batch)
                try:
                    with self:
                        batcher = self.batcher
                        now = monotonic()
                        if error is None:
                            batcher.finish(batch, parts, now)
                        else:
                            self.fail(batch, error, now)
                        effects = batcher.effects
                        if may_go_on and not task.owes_turn and not effects.answered:
                            found = batcher.next(now, full_only=True)
                except BaseException as raised:
                    if not self._gives_up(raised, batch):
                        raise
                batch.clear()  # an error would keep itself alive if its calls were found by its frames
            elif error is not None:  # perhaps a Ctrl-C while the batch was taken
                self.answer_lost(None, error, and_all=False)
            goes_on = may_go_on
        finally:  # also after a Ctrl-C
            if goes_on:
                self.batcher.wake_after = None
            else:
                self._busy.discard(id(task))
                self.plan(loop)
        if not isinstance(found, Batch):
            return goes_on
        if len(self._busy) < self._most:
            self.plan(loop)
        return found

    def lost(self, batch: Batch | None, error: BaseException, task: object) -> None:
        """Note that `task`, perhaps with a `batch`, ends by `error`, a Ctrl-C outside of its function."""
        if batch is not None:
            self.batches.discard(batch)
        self._busy.discard(id(task))
        self.answer_lost(batch, error, and_all=False)
        self._ask(self._replan)

    def _gives_up(self, error: BaseException, batch: Batch | None = None) -> bool:
        """Free the lock after `error` in a step; return whether calls have it as their answer.

        That is a fault of this library: of `batch`, or else of all calls. Not in the step, as its `try` would
        be one more place for a Ctrl-C.
        """
        self.recover(error, may_refuse=True)
        if not isinstance(error, Exception):
            return False
        log(logging.ERROR, "%s: its event loop's task failed", self.name, error=error)
        self.answer_lost(batch, error, and_all=batch is None)
        return True

    def _out_of_hand(self) -> list[Batch]:
        return [batch for batch in self.batcher.running if batch not in self.batches]

    # -- what is next -------------------------------------------------------------------------------------

    def plan(self, loop: asyncio.AbstractEventLoop) -> None:
        """Plan what a free slot does."""
        try:
            with self:
                delay = self.batcher.plan(monotonic())
            self._wait(delay, loop)
        except BaseException as error:  # Ctrl-C: the timer may be gone
            is_fault = self._gives_up(error)
            self._ask(self._replan)
            if not is_fault:
                raise

    def _wait(self, delay: float | None, loop: asyncio.AbstractEventLoop) -> None:
        """Have a task start after `delay` seconds, at the next call if that is None, if there may be one."""
        if self._timer is not None:
            self._stop_timer(self._timer)
        try:
            if len(self._busy) >= self._most:
                self.batcher.wake_after = None
            elif delay is None:
                self.batcher.wake_after = 1
                if not self._busy:
                    self._resting[self.loop] = self
                    then, self._when_resting = self._when_resting, []
                    for callback in then:
                        callback()
            elif delay > 0.0:
                self._resting.pop(self.loop, None)  # it may rest: calls with keys are queued as they come
                self._timer = call_later(loop, delay, self.start, loop)
            else:
                self.start(loop)
        except RuntimeError:  # the loop was closed
            pass

    def _wake_callers(self, calls: list[Call]) -> None:
        loop = self.loop()
        if loop is not None and not loop.is_closed():
            loop.call_soon(resolve_on_loop, calls)

    def _moved(self) -> None:
        (self._replan if running_loop_or_none() is self.loop() else self.replan)()  # an error in `configure`

    def _stop_timer(self, timer: Timer) -> None:
        timer.cancel()
        self._timer = None


class BatchTask:
    """Runs the next batch of a dispatcher, and further ones as long as they are due at once."""

    __slots__ = ("_context", "_task", "owes_turn")

    def start(self, dispatcher: LoopDispatcher, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """Start the task; it chooses its first batch in the next turn of the loop."""
        self.owes_turn: bool = True
        """Whether the loop is to have a turn before this chooses a batch."""
        self._context = Context()  # empty: nothing of one caller's reaches the function or other callers
        self._task: Callable[[], Task[None] | None] = _no_task  # a Ctrl-C may come as it is created
        work = self._work(dispatcher, loop)
        work.send(None)  # so that a cancel before the task's first step is raised in it, not instead of it
        # Not by the loop's factory, which may run the task at once, before others have come.
        task = Task(work, loop=loop, name=name, context=self._context)
        end_silently(task)  # its loop may be closed
        self._task = weakref.ref(task)  # to ask asyncio for the running task takes three times as long

    async def _work(self, dispatcher: LoopDispatcher, loop: asyncio.AbstractEventLoop) -> None:
        found: Batch | bool = True
        batch: Batch | None = None
        try:
            while found is not False:
                batch = None
                parts: list[Any] = []
                error: BaseException | None = None
                try:
                    if isinstance(found, Batch):
                        batch = found
                        self.owes_turn = True
                        loop.call_soon(self._had_turn, context=self._context)
                    else:
                        await _TURN  # calls of the same turn of the loop share the batch
                        self.owes_turn = False
                        batch = dispatcher.next(loop, self)
                        if batch is None:
                            return
                    dispatcher.batches.add(batch)  # here: one that no task knows is lost, and given up
                    RUNNING.set(batch)
                    if dispatcher.is_plain:
                        parts = batch.split(await batch.run(dispatcher.collator), dispatcher.collator)
                    else:
                        parts = await dispatcher.parts(batch, self)
                except BaseException as raised:  # noqa: BLE001  for the callers to handle, whatever it is
                    if isinstance(raised, GeneratorExit) and (
                        batch is None or RUNNING.get(None) is not batch
                    ):
                        return  # not raised by the function: loop and callers are gone, and the task too
                    error = raised
                # Not if this task has been ended, even if the function has not listened to a cancel; nor if
                # what the function has set in its context would stay.
                task = self._task()
                is_ended = task is not None and task.cancelling() > 0
                task = None  # found by way of this frame, it would keep itself alive, as would an error
                is_ended = is_ended or (error is not None and not isinstance(error, Exception))
                can_go_on = not is_ended and len(self._context) <= 1
                # A function that never waits still leaves the loop a turn after every other batch.
                found = dispatcher.end(batch, parts, error, loop, self, can_go_on=can_go_on)
                error = None
        except GeneratorExit:
            raise
        except BaseException as interrupt:  # Ctrl-C in the lines above
            dispatcher.lost(batch, interrupt, self)
            raise

    def _had_turn(self) -> None:
        self.owes_turn = False


def _no_task() -> None:
    """Stand for the reference to a task that is not known."""
