"""The lock of a driver, for which the thread that holds it never waits."""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from batched._locks import RLock, owner_test, owns
from batched._logs import log_error


class LaterSteps(deque[Callable[[], object]]):
    """Steps that are taken once the lock is free. Only the thread that holds the lock adds to them.

    `with lock.later, lock:` takes them at its end, and after an error sees to it that the lock is free.
    """

    def __init__(self, lock: StepLock) -> None:
        super().__init__()
        self._lock = lock

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self._lock.free()
        if self:
            self.take()

    def take(self) -> None:
        """Take the steps; where the thread still holds the lock, they add themselves again."""
        for _ in range(len(self)):
            try:
                step = self.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                step()
            except Exception:  # noqa: BLE001  no caller waits for it
                log_error("a step requested by a finalizer or a signal handler failed")


class _WithLaterSteps:
    """What is added to a reentrant lock, of whichever kind."""

    def __init__(self) -> None:
        super().__init__()
        self.later: LaterSteps = LaterSteps(self)  # type: ignore[arg-type]  # of which it is a part

    def free(self) -> None:
        """Leave the lock, if this thread holds it: an error has come in the way.

        Only for code that did not hold it when it began.
        """
        while self.is_mine():  # type: ignore[attr-defined]
            self.release()  # type: ignore[attr-defined]


class StepLock(_WithLaterSteps, RLock):
    """Guards a batcher: threads take their steps one after the other.

    A finalizer or a signal handler may call the batcher in the middle of a step, in the thread that takes the
    step and holds the lock. So methods that such code may call ask `is_mine` first. If this thread holds the
    lock they leave their step to `later`, or only read.

    A Ctrl-C may come at any bytecode: also between the end of a block and the call of `__exit__`, at the
    beginning of an `__exit__` in Python, and on some Pythons between `__enter__` and the block. What has to
    follow at one of these places is undone by it. So each step is inside of something else that catches
    errors, `with lock.later` or an `except BaseException`, and there the lock is made `free`: where that is
    reached, the Ctrl-C has come. Where none comes it costs nothing.
    """

    later: LaterSteps
    is_mine = owns


def new_step_lock() -> StepLock:
    """Return a lock of the kind that threads have now.

    Libraries of green threads, such as gevent, put a kind of their own in the place of Python's, perhaps
    after this module was imported: Python's takes all green threads of one thread for the same owner.
    """
    kind: Any = type(threading.RLock())
    lock: StepLock = _class_on(kind)()
    return lock


def is_outdated(lock: _thread.LockType) -> bool:
    """Whether `_thread` makes locks of another kind by now: a library has put green threads there."""
    return type(lock) is not type(_thread.allocate_lock())


@cache
def _class_on(kind: type) -> Any:
    """Return `StepLock`, with `kind` in the place of Python's reentrant lock."""
    if kind is RLock:
        return StepLock
    return type(StepLock.__name__, (_WithLaterSteps, kind), {"is_mine": owner_test(kind)})
