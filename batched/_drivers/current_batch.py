"""What a batch function may know of its batch besides the items."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextvars import Context, ContextVar

from batched._clock import monotonic
from batched._core.batch import Batch, copies_of
from batched._core.call import Slice

RUNNING: ContextVar[Batch] = ContextVar("batched.running")
"""Set by drivers in the context of an `async def` batch function."""

IN_THREAD: dict[int, Batch] = {}
"""The last batch of each worker by the thread's id; after it has run its slices are gone. A context variable
would cost several times that."""

DROP_DEPARTED: ContextVar[Callable[[], object]] = ContextVar("batched.drop_departed")
"""Set by drivers that do not drop a call at once when its caller leaves: drops those calls."""


class CurrentBatch:
    """The batch that the calling batch function is running."""

    __slots__ = ("_batch", "_slices")

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._slices = batch.slices

    @property
    def size(self) -> int:
        """The number of items; of a batch that is refilled, at present."""
        return self._batch.size

    @property
    def contexts(self) -> list[Context]:
        """A copy of the context variables of each item's caller, as they were when it made the call.

        For a task that waits on the function's own loop, as they are now. A copy may be empty if the caller
        has left. Each item has its own copy, even if one call passed several, so the function can enter
        several at once, for example in threads. A copy of an item, as there are with `batch_sizes`, has the
        context of that item.
        """
        found = [call.caller_context() for call, start, stop in self._slices for _ in range(start, stop)]
        if (copies := copies_of(self._batch)) and (place := self._batch.copies[1]) is not None:
            copied = self._slices[place[0]][0]
            found += [copied.caller_context() for _ in range(copies)]
        return found

    @property
    def left(self) -> list[bool]:
        """For each item, whether nothing more of it is wanted.

        It has ended or failed, its caller has left, or its deadline has passed; or it is a copy, as there are
        with `batch_sizes`. The cost is that of a loop over the items.
        """
        if (drop := DROP_DEPARTED.get(None)) is not None:
            drop()
        now = monotonic()
        gone = [call.is_over(now) for call, start, stop in self._slices for _ in range(start, stop)]
        return gone + [True] * copies_of(self._batch)

    def cancelled(self) -> bool:
        """Whether every caller has left, so that the results are no longer wanted."""
        if (drop := DROP_DEPARTED.get(None)) is not None:
            drop()
        return are_left(self._slices)

    def __repr__(self) -> str:
        items = "1 item" if self.size == 1 else f"{self.size} items"
        return f"<batch of {items}{', cancelled' if self.cancelled() else ''}>"


def are_left(slices: list[Slice]) -> bool:
    """Whether every caller of the calls in a batch has left."""
    return all(call.left is not None or not call.missing for call, _, _ in slices)


def outer_batches(batch: Batch) -> set[Batch]:
    """Return the batches that await calls of `batch`: the contexts of tasks tell of which batch these are.

    Not by way of calls with a deadline, which end by themselves. It is asked for each call from inside of
    `batch` to a busy function, and looks once, unless calls may join the batch.
    """
    found: set[Batch] | None = None if batch.begun else getattr(batch, "outer", None)
    if found is None:
        callers = [call.caller_variable(RUNNING) for call in batch.calls if call.deadline is None]
        found = {outer for outer in callers if outer is not None}
        batch.outer = found
    return found


def held_up_by(batch: Batch) -> set[Batch]:
    """Return `batch`, the batches that await calls of it, those that await calls of these, and so on."""
    held = {batch}
    todo = [batch]
    while todo:
        more = outer_batches(todo.pop()) - held
        held |= more
        todo += more
    return held


def known_batch() -> Batch | None:
    """Return the batch of this task or thread, which may have no items, or have ended."""
    batch = RUNNING.get(None)
    return IN_THREAD.get(_thread.get_ident()) if batch is None else batch


def current_batch() -> CurrentBatch:
    """Return the batch that the calling batch function is running.

    Raises `RuntimeError` outside a batch function, and in threads that the function starts.
    """
    batch = known_batch()
    if batch is None or not (batch.slices or batch.begun):
        raise RuntimeError("current_batch() was called outside a batch function")
    return CurrentBatch(batch)
