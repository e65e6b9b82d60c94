"""A task that runs batches on the event loop of their callers."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Protocol
from weakref import ref

from batched._core.batch import Batch
from batched._drivers.current_batch import RUNNING
from batched._drivers.private_python import end_silently


class Batches(Protocol):
    """Where a task gets its batches, and reports them."""

    batches: set[Batch]
    """The batches that tasks run."""
    collator: Any
    name: str
    is_plain: bool
    """Whether a batch is one call of the function: it does not stream, and passes no stages."""

    async def parts(self, batch: Batch, task: object) -> list[Any]:
        """Run `batch`, which is not plain; return its parts."""
        ...

    def next(self, loop: asyncio.AbstractEventLoop, task: object) -> Batch | None:
        """Remove and return the next batch; None if the task is to end."""
        ...

    def end(  # noqa: PLR0913
        self,
        batch: Batch | None,
        parts: list[Any],
        error: BaseException | None,
        loop: asyncio.AbstractEventLoop,
        task: object,
        *,
        can_go_on: bool,
        takes_next: bool,
    ) -> Batch | bool:
        """Report `batch`, which has ended; return whether its `task`, which `can_go_on`, is to go on.

        If it `takes_next`, the next batch instead, where that is to run in the same turn of the loop.
        """
        ...

    def lost(self, batch: Batch | None, error: BaseException, task: object) -> None:
        """Note that `task`, perhaps with a `batch`, ends by `error`, a Ctrl-C outside of its function."""
        ...


class _Turn(tuple[None]):
    """What a task awaits to leave the loop a turn: it yields None once, as `asyncio.sleep(0)` does."""

    __slots__ = ()
    __await__: Callable[..., Generator[None]] = tuple.__iter__  # type: ignore[assignment]


TURN = _Turn([None])
"""Leaves the loop a turn."""


class BatchTask:
    """Runs the next batch of a dispatcher, and further ones as long as they are due at once."""

    __slots__ = ("_context", "_owes_turn", "_task")

    def start(self, dispatcher: Batches, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """Start the task; it chooses its first batch in the next turn of the loop."""
        self._owes_turn = True  # whether the loop is to have a turn before this chooses a batch
        self._context = Context()  # empty: nothing of one caller's reaches the function or other callers
        self._task: Callable[[], Task[None] | None] = _no_task  # a Ctrl-C may come as it is created
        work = self._work(dispatcher, loop)
        work.send(None)  # so that a cancel before the task's first step is raised in it, not instead of it
        # Not by the loop's factory, which may run the task at once, before others have come.
        task = Task(work, loop=loop, name=name, context=self._context)
        end_silently(task)  # its loop may be closed
        self._task = ref(task)  # to ask asyncio for the running task takes three times as long

    async def _work(self, dispatcher: Batches, loop: asyncio.AbstractEventLoop) -> None:
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
                        self._owes_turn = True
                        loop.call_soon(self._had_turn, context=self._context)
                    else:
                        await TURN  # calls of the same turn of the loop share the batch
                        self._owes_turn = False
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
                takes_next = not self._owes_turn
                found = dispatcher.end(
                    batch, parts, error, loop, self, can_go_on=can_go_on, takes_next=takes_next
                )
                error = None
        except GeneratorExit:
            raise
        except BaseException as interrupt:  # Ctrl-C in the lines above
            dispatcher.lost(batch, interrupt, self)
            raise

    def _had_turn(self) -> None:
        self._owes_turn = False


def _no_task() -> None:
    """Stand for the reference to a task that is not known."""
