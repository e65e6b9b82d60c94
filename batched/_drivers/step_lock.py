"""The lock of a driver, for which the thread that holds it never waits."""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from batched._drivers.private_python import owner_test, owns
from batched._locks import RLock

_logger = logging.getLogger("batched")


class LaterSteps(deque[Callable[[], object]]):
    """Steps that are taken once the lock is free. Only the thread that holds the lock adds to them.

    `with lock.later, lock:` takes them at its end. The lock has no `__exit__` of its own for that: a Ctrl-C
    could come at the beginning of a method in Python, and leave the lock held.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
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
            except Exception:  # no caller waits for it
                _logger.exception("a step that a finalizer or a signal handler has asked for failed")


class _WithLaterSteps:
    """What is added to a reentrant lock, of whichever kind."""

    def __init__(self) -> None:
        super().__init__()
        self.later: LaterSteps = LaterSteps()


class StepLock(_WithLaterSteps, RLock):
    """Guards a batcher: threads take their steps one after the other.

    A finalizer or a signal handler may call the batcher in the middle of a step, in the thread that takes the
    step and holds the lock. So methods that such code may call ask `is_mine` first. If this thread holds the
    lock they leave their step to `later`, or only read.
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
