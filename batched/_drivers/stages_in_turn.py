"""Runs the batches of one batcher in stages, all of them in the thread that has the batch.

So each of several workers prepares its batches, runs the function and finishes them. What overlaps are the
batches of different workers. `StagedThreadDispatcher` has the stages of one worker overlap.
"""

from __future__ import annotations

import _thread
from typing import Any

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._drivers.current_batch import IN_THREAD, are_left
from batched._drivers.thread_dispatcher import ThreadDispatcher
from batched._parts.stages import note_stage


class Passage:
    """A batch on its way through the stages, and what it has come to."""

    __slots__ = ("batch", "failure", "is_prepared", "is_ready", "outputs", "seconds", "steps")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.steps: Any = None
        self.outputs: Any = None
        self.failure: BaseException | None = None
        self.seconds: list[float] = []  # of the stages that it has been in
        self.is_prepared = False
        self.is_ready: _thread.LockType | None = None  # held while another thread prepares it

    def clear(self) -> None:
        """Drop what would keep items, outputs and errors alive."""
        self.steps = self.outputs = self.failure = None


class StagesInTurn(ThreadDispatcher):
    """Asks the batcher for batches, and has each of them pass its stages in the thread that has it."""

    def run(self, batch: Batch) -> Batch | float | None:
        """Have `batch` pass its stages, and answer its calls."""
        passage = Passage(batch)
        IN_THREAD[_thread.get_ident()] = batch
        self._prepare(passage)
        if passage.failure is None:
            if are_left(batch.slices):
                self._end_unwanted(passage)
                return 0.0
            self._call(passage, monotonic())
        if passage.failure is None:
            self._finish(passage)
        with self:
            batcher = self.batcher
            self._answer(batcher, passage, monotonic())
        if passage.failure is not None or batcher.leaving:
            self.workers.wake()  # a half may run in another worker, or calls were left while they ran
        passage.clear()
        batch.clear()
        return 0.0

    def _prepare(self, passage: Passage) -> None:
        """Put the inputs of a batch together, and prepare them."""
        batch = passage.batch
        began = monotonic()
        try:
            steps = batch.run(self.collator)
            if steps.prepares is not None:
                steps.prepared(self._value(steps.prepare(), "prepare", batch))
            passage.steps = steps
        except BaseException as error:  # noqa: BLE001  for the callers to handle, whatever it is
            note_stage(error, "prepare", batch)
            passage.failure = error
        passage.is_prepared = True
        passage.seconds.append(monotonic() - began)

    def _call(self, passage: Passage, began: float) -> None:
        """Run the batch function, which has begun then."""
        batch, steps = passage.batch, passage.steps
        try:
            outputs = steps.run()
            if type(outputs) is not list and hasattr(type(outputs), "__await__"):
                outputs = self._await(outputs)
            passage.outputs = outputs
        except BaseException as error:  # noqa: BLE001
            note_stage(error, "function", batch)
            passage.failure = error
        passage.seconds.append(monotonic() - began)

    def _finish(self, passage: Passage) -> None:
        """Make of the outputs of a batch one result per item."""
        steps, batch = passage.steps, passage.batch
        began = monotonic()
        try:
            outputs, passage.outputs = passage.outputs, None
            if steps.finishes is not None:
                outputs = self._value(steps.finish(outputs), "finish", batch)
            passage.outputs = batch.split(outputs, self.collator)
        except BaseException as error:  # noqa: BLE001
            note_stage(error, "finish" if steps.finishes is not None else "function", batch)
            passage.failure = error
        passage.seconds.append(monotonic() - began)

    def _answer(self, batcher: Batcher, passage: Passage, now: float) -> None:
        """Tell the batcher what has become of a batch. Needs the lock."""
        batch = passage.batch
        batcher.spent(batch, tuple(passage.seconds), now)
        if passage.failure is None:
            batcher.finish(batch, passage.outputs, now)
        else:
            self.fail(batch, passage.failure, now)

    def _end_unwanted(self, passage: Passage) -> None:
        """Forget a batch of which all callers have left."""
        with self:
            batcher = self.batcher
            batcher.end_unwanted(passage.batch, monotonic())
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
