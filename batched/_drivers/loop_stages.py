"""Runs the batches of one event loop in stages: each batch in a task of its own, one batch in each stage.

While a batch is in the function, a second task takes the next one and prepares it, as soon as `Overlap` says;
and while that is in the function, the first task finishes its batch. A stage that is no `async def` runs in a
thread of the loop's executor.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._drivers.current_batch import are_left, held_up_by
from batched._drivers.loop_dispatcher import BatchTask, LoopDispatcher
from batched._drivers.timers import call_later
from batched._features.overlap import Overlap
from batched._parts.stages import Passage, Steps, is_async_stage


class _Left(Exception):  # noqa: N818
    """All callers of a batch have left between two stages."""


class _Place:
    """A stage: one batch is in it at a time, the others wait in order."""

    def __init__(self) -> None:
        self._batch: Batch | None = None  # that is in it
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, batch: Batch) -> None:
        """Wait until no other batch is in it. `leave` is to follow, also after an error in this."""
        while self._batch is not None:
            turn = get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                with suppress(ValueError):
                    self._waiting.remove(turn)
        self._batch = batch

    def leave(self, batch: Batch) -> None:
        """Let the next batch in, if none is in it but `batch`."""
        if self._batch is batch:
            self._batch = None
        if self._batch is not None:
            return
        for turn in self._waiting:
            if not turn.done():
                with suppress(RuntimeError):  # the loop was closed
                    turn.set_result(None)
                return


class StagedLoopDispatcher(LoopDispatcher):
    """Asks the batcher of one loop for batches, and has them pass their stages."""

    is_plain = False

    def __init__(self, *args: Any, **named: Any) -> None:
        self._past: set[int] = set()  # the tasks of which the batch is in the function, or beyond
        super().__init__(*args, **named)
        self._overlap = self.batcher.feature(Overlap)
        self._passages: dict[Batch, Passage] = {}
        self._function = _Place()
        self._last = _Place()

    @property
    def _most(self) -> int:
        """How many tasks there may be: one that chooses or prepares a batch, besides those `_past` that."""
        return len(self._past) + 1

    @_most.setter
    def _most(self, most: int) -> None:
        """Do nothing: with stages it is always one."""

    def awaits(self, batch: Batch) -> bool:
        """Return whether no new batch can end here before `batch`, perhaps of another function, has ended.

        So it is if one batch in any stage awaits it: in each stage, that one goes first.
        """
        return not self.batches.isdisjoint(held_up_by(batch))

    # -- the tasks ----------------------------------------------------------------------------------------

    async def parts(self, batch: Batch, task: object) -> list[Any]:
        """Have `batch` pass its stages; return its parts."""
        loop = get_running_loop()
        passage = self._passages[batch] = Passage(batch)
        with passage.stage("prepare"):
            steps: Steps = batch.run(self.collator)
            passage.steps = steps
            if steps.prepares is not None:
                steps.prepared(await _value(steps.prepares, steps.prepare))
        await self._function.enter(batch)
        if are_left(batch.slices):
            raise _Left
        with self.lock.later, self.lock:
            self._overlap.begins(batch, monotonic())
        self._past.add(id(task))
        self.plan(loop)
        try:
            with passage.stage("function"):
                outputs = [await steps.run()]  # taken out again: an error among them leads to this frame
        finally:
            with self.lock.later, self.lock:
                self._overlap.ends()
        self._function.leave(batch)
        self.plan(loop)
        await self._last.enter(batch)
        with passage.stage(steps.last):
            if steps.finishes is not None:
                outputs.append(await _value(steps.finishes, partial(steps.finish, outputs.pop())))
            return batch.split(outputs.pop(), self.collator)

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
        """Report `batch`, which has ended; return whether its `task`, which `can_go_on`, is to go on."""
        spent = self._leave(batch, task)
        if batch is not None:
            with self:
                batcher = self.batcher
                if isinstance(error, _Left):
                    batcher.end_unwanted(batch, monotonic())
                else:
                    batcher.spent(batch, tuple(spent), monotonic())
            if isinstance(error, _Left):
                self.batches.discard(batch)
                batch.clear()
                batch = error = None
        # Beside others it is no worker that is idle: when it takes its next batch is to be planned.
        can_go_on = can_go_on and not self._past
        return super().end(batch, parts, error, loop, task, can_go_on=can_go_on)

    def lost(self, batch: Batch | None, error: BaseException, task: object) -> None:
        """Note that `task`, perhaps with a `batch`, ends by `error`, a Ctrl-C outside of its function."""
        self._leave(batch, task)
        super().lost(batch, error, task)

    def _leave(self, batch: Batch | None, task: object) -> list[float]:
        """Have `batch` of this `task` leave the stage that it is in; return how long it was in each."""
        self._past.discard(id(task))
        if batch is None:
            return []
        self._function.leave(batch)
        self._last.leave(batch)
        passage = self._passages.pop(batch, None)
        return [] if passage is None else passage.seconds

    # -- what is next -------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a task that chooses the next batch; beside others, when it is time."""
        if self._past:
            self.plan(loop)
        else:
            super().start(loop)

    def _wait(self, delay: float | None, loop: asyncio.AbstractEventLoop) -> None:
        if not self._past:
            super()._wait(delay, loop)
            return
        if self._timer is not None:
            self._stop_timer(self._timer)
        self.batcher.wake_after = None
        if len(self._busy) > len(self._past):
            return  # a task has the next batch
        with self.lock.later, self.lock:
            now = monotonic()
            at = self._overlap.look_at(now)
            if at is None:
                self.batcher.wake_after, self.batcher.until = self._overlap.lacks(), now
        with suppress(RuntimeError):  # the loop was closed
            if at is None:
                pass
            elif at > now:
                self._timer = call_later(loop, at - now, self.plan, loop)
            else:
                super().start(loop)


async def _value(stage: Callable[..., Any], step: Callable[[], Any]) -> Any:
    """Return what a stage returns: on the loop, if it is `async def`, else from a thread."""
    if is_async_stage(stage):
        return await step()
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(step())
        except BaseException as error:  # noqa: BLE001
            outcome.extend((None, error))

    await asyncio.to_thread(work)
    if len(outcome) > 1:
        try:
            raise outcome.pop()
        finally:
            del outcome  # the error's traceback leads here
    value = outcome.pop()
    return await value if hasattr(type(value), "__await__") else value
