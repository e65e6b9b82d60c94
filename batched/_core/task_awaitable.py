"""What one task waits for: as much of a future as tasks ask of those that are not asyncio's own."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any


class TaskAwaitable:
    """What a task of an event loop can await, once. Only for the thread of that loop.

    (`asyncio.isfuture` tells what makes such an object.) For asyncio's own, the loop makes a handle each; of
    these it needs one for all that are woken together. Where tasks do not take it, they get one of asyncio's.
    """

    __slots__ = ("__weakref__", "_asyncio_future_blocking", "_go_on", "_go_on_in", "_loop", "is_woken")

    is_woken: bool
    """Whether the task need not wait, or no more; False to begin with."""
    _loop: Any
    """The loop of the task; to be set before the task awaits this."""
    _go_on: Callable[[Any], object] | None
    """What wakes the task, once it waits; None to begin with."""
    _go_on_in: Context | None
    """Where to call that: in the context of the task; None to begin with."""

    @types.coroutine
    def wait(self) -> Generator[Any, None, None]:
        """Wait until woken, by being taken for a future."""
        if not self.is_woken:
            self._asyncio_future_blocking = True  # the task makes it False, and so knows a `yield from`
            yield self

    @types.coroutine
    def wait_by_future(self) -> Generator[Any, None, None]:
        """Wait until woken, where tasks do not take this for a future: the drivers find out."""
        if self.is_woken:
            return
        future = self._loop.create_future()
        self.add_done_callback(partial(_settle, future), context=copy_context())
        try:
            yield from future
        except BaseException:  # the task is cancelled
            self.is_woken = True
            self._go_on = self._go_on_in = None
            raise

    def add_done_callback(self, go_on: Callable[[Any], object], *, context: Context) -> None:
        """Note how to wake the task, and in which context."""
        self._go_on_in = context
        self._go_on = go_on  # last: what is seen to wait can be woken

    def cancel(self, msg: object = None) -> bool:
        """Have the task, which is being cancelled, raise `CancelledError`, unless it has been woken."""
        if self.is_woken:
            return False
        self.is_woken = True
        if self._go_on is not None:
            cancelled = self._loop.create_future()
            cancelled.cancel(msg)
            self._loop.call_soon(self._go_on, cancelled, context=self._go_on_in)
            self._go_on = self._go_on_in = None
        return True


def _settle(future: Any, _: object) -> None:
    if not future.done():
        future.set_result(None)


def still_asleep(waiters: Iterable[TaskAwaitable]) -> list[TaskAwaitable]:
    """Return those of `waiters` that are still to be woken, after an error has broken off `wake_all`.

    Of the one at which that was, the task has ended if the task has raised the error; else it still waits.
    """
    asleep = []
    for waiter in waiters:
        if waiter.is_woken and waiter._go_on is not None:  # noqa: SLF001  that one
            task = getattr(waiter._go_on, "__self__", None)  # noqa: SLF001
            waiter.is_woken = task is None or task.done()
            if waiter.is_woken:
                waiter._go_on = waiter._go_on_in = None  # noqa: SLF001
        if not waiter.is_woken:
            asleep.append(waiter)
    return asleep


def wake_all(waiters: Iterable[TaskAwaitable], done: Any) -> None:
    """Show the tasks that wait a future that is `done`: they go on, here and now.

    Only for callbacks of their loop: of tasks, one runs at a time. Raises what tasks do not keep to
    themselves, `KeyboardInterrupt` and `SystemExit`; the rest has not been woken then.
    """
    # Not a method for each: that would take a fifth of the time.
    for waiter in waiters:
        if waiter.is_woken:
            continue
        waiter.is_woken = True
        go_on = waiter._go_on  # noqa: SLF001
        if go_on is not None:  # else it has yet to wait, and will not
            context: Any = waiter._go_on_in  # noqa: SLF001
            context.run(go_on, done)
            waiter._go_on = waiter._go_on_in = None  # noqa: SLF001  they may be kept, and the task is not to be
