"""Runs the batches of one batcher in stages, all of them in the thread that has the batch.

So each of several workers prepares its batches, runs the function and finishes them. What overlaps are the
batches of different workers. `StagedThreadDispatcher` has the stages of one worker overlap.
"""

from __future__ import annotations

import _thread
from typing import Any

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._drivers.current_batch import IN_THREAD, are_left
from batched._drivers.thread_dispatcher import ThreadDispatcher
from batched._parts.stages import Passage


class ThreadPassage(Passage):
    """A batch on its way through the stages, and what it has come to. Threads may hand it to each other."""

    __slots__ = ("failure", "is_ready", "outputs")

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.outputs: Any = None
        self.failure: BaseException | None = None
        """The error of the stage that has failed, for the callers to handle, whatever it is."""
        self.is_ready: _thread.LockType | None = None  # held while another thread prepares it

    def __enter__(self) -> None:
        IN_THREAD[_thread.get_ident()] = self.batch

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool | None:
        super().__exit__(kind, error, trace)
        self.failure = error
        return True

    def clear(self) -> None:
        """Drop what would keep items, outputs and errors alive: an error may lead to frames that have it."""
        self.steps = self.outputs = self.failure = None


class StagesInTurn(ThreadDispatcher):
    """Asks the batcher for batches, and has each of them pass its stages in the thread that has it."""

    def run(self, batch: Batch) -> Batch | float | None:
        """Have `batch` pass its stages, and answer its calls."""
        passage = ThreadPassage(batch)
        self._prepare(passage)
        if passage.failure is None:
            if are_left(batch.slices):
                self._end_unwanted(passage)
                return 0.0
            self._call(passage)
        if passage.failure is None:
            self._finish(passage)
        with self:
            self._answer(passage, monotonic())
        if passage.failure is not None or self.batcher.leaving:
            self.workers.wake()  # a half may run in another worker, or calls were left while they ran
        passage.clear()
        batch.clear()
        return 0.0

    def _prepare(self, passage: ThreadPassage) -> None:
        """Put the inputs of a batch together, and prepare them."""
        batch = passage.batch
        with passage.stage("prepare"):
            passage.steps = steps = batch.run(self.collator)
            if steps.prepares is not None:
                steps.prepared(self._value(steps.prepare(), "prepare", batch))

    def _call(self, passage: ThreadPassage) -> None:
        """Run the batch function."""
        with passage.stage("function"):
            passage.outputs = passage.steps.run()
            if type(passage.outputs) is not list and hasattr(type(passage.outputs), "__await__"):
                passage.outputs = self._await(passage.outputs)

    def _finish(self, passage: ThreadPassage) -> None:
        """Make of the outputs of a batch one result per item."""
        steps, batch = passage.steps, passage.batch
        with passage.stage(steps.last):
            if steps.finishes is not None:
                passage.outputs = self._value(steps.finish(passage.outputs), "finish", batch)
            passage.outputs = batch.split(passage.outputs, self.collator)

    def _answer(self, passage: ThreadPassage, now: float) -> None:
        """Tell the batcher what has become of a batch. Needs the lock."""
        batch = passage.batch
        self.batcher.spent(batch, tuple(passage.seconds), now)
        if passage.failure is None:
            self.batcher.finish(batch, passage.outputs, now)
        else:
            self.fail(batch, passage.failure, now)

    def _end_unwanted(self, passage: ThreadPassage) -> None:
        """Forget a batch of which all callers have left."""
        with self:
            self.batcher.end_unwanted(passage.batch, monotonic())
        passage.clear()
        passage.batch.clear()

    def _value(self, value: Any, stage: str, batch: Batch) -> Any:
        """Return what a stage has returned; raise if that is to be awaited, which only an event loop can."""
        if hasattr(type(value), "__await__"):
            batch.returned = None
            if hasattr(value, "close"):
                value.close()
            raise TypeError(
                f"{stage} of {self.name} runs in a thread, so it cannot be `async def`: use "
                f"batched.aio.dynamically with a batch function that is `async def` too"
            )
        return value
