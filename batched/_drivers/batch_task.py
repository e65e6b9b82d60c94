"""A task that runs batches on the event loop of their callers."""

from __future__ import annotations

import asyncio
import types
from asyncio import Task
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from batched._core.batch import Batch
from batched._drivers.current_batch import RUNNING
from batched._drivers.generators import walk_steps
from batched._drivers.private_python import end_silently

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from batched._drivers.loop_dispatcher import LoopDispatcher


class BatchTask:
    """Runs the next batch of a dispatcher, and further ones as long as they are due at once."""

    __slots__ = ("_context", "_dispatcher", "_loop", "_owes_turn", "_task")

    def __init__(self, dispatcher: LoopDispatcher) -> None:
        self._dispatcher = dispatcher

    def start(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """Start the task; it chooses its first batch in the next turn of the loop."""
        self._loop = loop
        self._owes_turn = True  # whether the loop is to have a turn before this chooses a batch
        self._context = Context()  # empty: nothing of one caller's reaches the function or other callers
        self._task: Callable[[], Task[None] | None] = _no_task  # a Ctrl-C may come as it is created
        work = self._work()
        work.send(None)  # so that a cancel before the task's first step is raised in it, not instead of it
        # Not by the loop's factory, which may run the task at once, before others have come.
        task = Task(work, loop=loop, name=name, context=self._context)
        end_silently(task)  # its loop may be closed
        self._task = ref(task)  # to ask asyncio for the running task takes three times as long

    async def _work(self) -> None:
        dispatcher = self._dispatcher
        goes_on = True
        batch: Batch | None = None
        try:
            while goes_on:
                batch = None
                parts: list[Any] = []
                error: BaseException | None = None
                try:
                    if not self._hurries():
                        await _turn()  # calls of the same turn of the loop share the batch
                        self._owes_turn = False
                    batch = dispatcher.next(self._loop, self)
                    if batch is None:
                        return
                    dispatcher.batches.add(batch)  # here: one that no task knows is lost, and given up
                    RUNNING.set(batch)
                    if dispatcher.streams:
                        step = partial(dispatcher.step, batch)
                        await walk_steps(batch.run(dispatcher.collator), step, dispatcher.name, _turn)
                    else:
                        parts = batch.split(await batch.run(dispatcher.collator), dispatcher.collator)
                except BaseException as raised:  # noqa: BLE001  for the callers to handle, whatever it is
                    if isinstance(raised, GeneratorExit) and (
                        batch is None or RUNNING.get(None) is not batch
                    ):
                        return  # not raised by the function: loop and callers are gone, and the task too
                    error = raised
                # Not if this task has been ended, even if the function has not listened to a cancel; nor if
                # what the function has set in its context would stay.
                is_ended = self._is_cancelled() or (error is not None and not isinstance(error, Exception))
                can_go_on = not is_ended and len(self._context) <= 1
                goes_on = dispatcher.end(batch, parts, error, self._loop, self, can_go_on=can_go_on)
                # An error would keep itself alive if its calls were found by way of this frame.
                error = None
                if batch is not None:
                    batch.clear()
        except GeneratorExit:
            raise
        except BaseException as interrupt:  # Ctrl-C in the lines above
            dispatcher.lost(batch, interrupt, self)
            raise

    def _hurries(self) -> bool:
        """Whether to take the next batch in this turn: a full one, in the midst of a list.

        A function that never waits still leaves the loop a turn after every other batch.
        """
        if self._owes_turn or not self._dispatcher.is_amid_list() or self._is_cancelled():
            return False
        self._owes_turn = True
        self._loop.call_soon(self._had_turn, context=self._context)
        return True

    def _had_turn(self) -> None:
        self._owes_turn = False

    def _is_cancelled(self) -> bool:
        """Whether this task is to end, even if the batch function has not listened."""
        task = self._task()
        return task is not None and task.cancelling() > 0


def _no_task() -> None:
    """Stand for the reference to a task that is not known."""


@types.coroutine
def _turn() -> Generator[None, None, Any]:
    """Wait for the next turn of the loop."""
    yield
