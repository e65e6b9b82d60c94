"""One event loop of a driver: its queue, its timer, and a task for each batch that runs."""

from __future__ import annotations

import asyncio
import logging
import types
from asyncio import Task, current_task, get_running_loop
from contextvars import Context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from batched._core.batch import Batch
from batched._drivers.current_batch import RUNNING
from batched._drivers.generators import walk_steps
from batched._drivers.wakeups import resolve_on_loop
from batched._parts.cache import CachingCollator

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Generator

    from batched._core.batcher import Batcher
    from batched._core.call import Call
    from batched._drivers.event_loop import LoopDriver

__all__ = ["Dispatcher"]

_logger = logging.getLogger("batched")


class Dispatcher:
    """Asks the batcher of one loop for batches, and runs them in tasks. Only for the thread of the loop."""

    __slots__ = (
        "__weakref__",
        "_busy",
        "_driver",
        "_key",
        "_lock",
        "_timer",
        "_when_resting",
        "batcher",
        "loop",
        "running",
    )

    def __init__(
        self,
        driver: LoopDriver,
        batcher: Batcher,
        key: int,
        loop: weakref.ref[asyncio.AbstractEventLoop],
    ) -> None:
        self.batcher = batcher
        batcher.wake_after = 1
        self.running: set[Batch] = set()
        self.loop = loop
        self._driver = driver
        self._lock = driver.lock
        self._key = key
        self._busy = 0  # tasks
        self._timer: asyncio.TimerHandle | None = None
        self._when_resting: list[Callable[[], object]] = []

    # -- from any thread ----------------------------------------------------------------------------------

    def has_loop(self) -> bool:
        """Whether the loop is there, and can still run."""
        loop = self.loop()
        return loop is not None and not loop.is_closed()

    def is_running(self) -> bool:
        """Whether the loop runs; one that has stopped may run again."""
        loop = self.loop()
        return loop is not None and loop.is_running()

    def drain(self, then: Callable[[], object]) -> bool:
        """Have the loop run what is queued and call `then`; return False if the loop does not run."""
        return self.is_running() and self._ask(self._drain, then)

    def replan(self) -> None:
        """Have the loop plan anew: callers have left, or options changed."""
        self._ask(self._replan)

    def _ask(self, callback: Callable[..., object], *args: object) -> bool:
        """Have the loop call `callback` soon; return whether it can, as it is not closed."""
        loop = self.loop()
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed
            return False
        return True

    # -- on the loop --------------------------------------------------------------------------------------

    def _replan(self) -> None:
        self.plan(get_running_loop())

    def _drain(self, then: Callable[[], object]) -> None:
        with self._lock:
            self.batcher.drain()
        if not self._busy and self._timer is None:
            then()
            return
        self._when_resting.append(then)
        if self._timer is not None:
            self.start(get_running_loop())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task that chooses and runs the next batch."""
        self._stop_timer()
        self.batcher.wake_after = None
        self._busy += 1
        self._driver.resting.pop(self._key, None)
        context = Context()  # empty, so that nothing of one caller's reaches the function or other callers
        work = self._work(loop, context)
        work.send(None)  # so that a cancel before the task's first step is raised in it, not instead of it
        # Not by the loop's factory, which may run the task at once, before others have come.
        task = Task(work, loop=loop, name=self._driver.task_name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  its loop may be closed

    async def _work(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Run the next batch, and further ones as long as they are due at once."""
        goes_on = True
        while goes_on:
            batch: Batch | None = None
            parts: list[Any] | None = None
            error: BaseException | None = None
            try:
                await _turn()  # calls of the same turn of the loop share the batch
                batch = self._next()
                if batch is not None:
                    if self._busy < self._driver.options.max_concurrent_batches:
                        self.plan(loop)
                    self.running.add(batch)
                    RUNNING.set(batch)
                    parts = await self._run(batch)
            except BaseException as raised:  # noqa: BLE001  for the callers to handle, whatever it is
                if isinstance(raised, GeneratorExit) and (batch is None or RUNNING.get(None) is not batch):
                    return  # not raised by the function: loop and callers are gone, and the task with them
                error = raised
                goes_on = isinstance(raised, Exception)  # else this task has been ended
            self._busy -= 1
            if batch is not None:
                self._end(batch, parts, error)
            elif isinstance(error, Exception):
                self._give_up(error)
            error = None
            # Not if the function has not listened to a cancel, or what it has set in its context would stay.
            can_go_on = goes_on and len(context) <= 1 and not _is_cancelled(loop)
            goes_on = self.plan(loop, can_go_on=can_go_on)
            # An error whose calls are found by way of this frame would keep itself alive.
            if batch is not None:
                batch.clear()

    async def _run(self, batch: Batch) -> list[Any]:
        """Run the batch function; return the part of each call, nothing if the function streams."""
        driver = self._driver
        collator = driver.collator
        if not driver.streams:
            return collator.split(await batch.run(collator), batch)
        await walk_steps(batch.run(collator), partial(self._step, batch), driver.name, _turn)
        return []

    def _end(self, batch: Batch, parts: list[Any] | None, error: BaseException | None) -> None:
        """Answer the calls of `batch` with their parts, or its `error`."""
        self.running.discard(batch)
        batcher = self.batcher
        try:
            with self._lock:
                if error is not None:
                    batcher.fail(batch, error, monotonic())
                elif self._driver.streams:
                    batcher.finish_stream(batch, monotonic())
                else:
                    batcher.finish(batch, parts or [], monotonic())
        except Exception as fault:  # noqa: BLE001  of this library
            self._give_up(fault, batch)

    def _step(self, batch: Batch, pieces: Any) -> bool:
        """Hand each caller its next piece; return whether any wants more."""
        split = self._driver.collator.split(pieces, batch)
        with self._lock:
            told, wanted = self.batcher.step(batch, split)
        _tell(told)
        return wanted

    def _next(self) -> Batch | None:
        """Remove and return the next batch, None if none is due any more."""
        with self._lock:
            self.batcher.take_in()
            found = self.batcher.next(monotonic())
            self.batcher.wake_after = None  # this task plans when it has ended
        return found if type(found) is Batch else None

    def _give_up(self, error: BaseException, batch: Batch | None = None) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""
        _logger.error("%s: its event loop's task failed", self._driver.name, exc_info=error)
        with self._lock:
            if batch is not None:
                self.batcher.give_up(error, batch)
                return
            for lost in [known for known in self.batcher.running if known not in self.running]:
                self.batcher.give_up(error, lost)
            self.batcher.give_up(error, None)

    def plan(self, loop: asyncio.AbstractEventLoop, *, can_go_on: bool = False) -> bool:
        """Wake the callers of calls that have their answer, and plan what a free slot does.

        Returns whether the running task, which `can_go_on`, is to go on with another batch.
        """
        delay = self._decide(loop)
        self._stop_timer()
        try:
            if self._busy >= self._driver.options.max_concurrent_batches:
                self.batcher.wake_after = None
            elif delay is None:
                self._rest()
            elif delay > 0.0:
                self._timer = loop.call_later(delay, self.start, loop)
            elif can_go_on:
                self.batcher.wake_after = None
                self._busy += 1
                return True
            else:
                self.start(loop)
        except RuntimeError:  # the loop was closed
            pass
        return False

    def _decide(self, loop: asyncio.AbstractEventLoop) -> float | None:
        """Have callers woken; return the seconds until the next batch is due, None if no call waits."""
        batcher = self.batcher
        try:
            with self._lock:
                batcher.take_in()
                delay = batcher.plan(monotonic())
        except Exception as fault:  # noqa: BLE001  of this library
            self._give_up(fault)
            delay = None
        with self._lock:
            answered, batcher.answered = batcher.answered, []
            released = batcher.take_released()
            batcher.let_in.clear()  # their callers wait for answers, not at the door
        interrupt = None
        collator = self._driver.collator
        if isinstance(collator, CachingCollator):
            interrupt = collator.store(batcher.in_flight.take_landed())  # before callers can ask again
        for call in released:
            call.release_inputs()
        if answered:
            self._wake_callers(answered, loop)
        if interrupt is not None:
            raise interrupt
        return delay

    def _wake_callers(self, calls: list[Call], loop: asyncio.AbstractEventLoop) -> None:
        if self._driver.streams:
            _tell(calls)
        elif not loop.is_closed():
            loop.call_soon(resolve_on_loop, calls)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self) -> None:
        self.batcher.wake_after = 1
        if not self._busy:
            self._driver.resting[self._key] = self
            then, self._when_resting = self._when_resting, []
            for callback in then:
                callback()


def _tell(calls: list[Call]) -> None:
    """Wake the consumers of streams, which look for themselves what there is."""
    for call in calls:
        call.waiter.set()


@types.coroutine
def _turn() -> Generator[None, None, Any]:
    """Wait for the next turn of the loop."""
    yield


def _is_cancelled(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the running task is to end, even if the batch function has not listened."""
    task = current_task(loop)
    return task is not None and task.cancelling() > 0
