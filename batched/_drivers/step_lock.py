"""The lock of a driver, for which the thread that holds it never waits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from batched._drivers.private_python import owns
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


class StepLock(RLock):
    """Guards a batcher: threads take their steps one after the other.

    A finalizer or a signal handler may call the batcher in the middle of a step, in the thread that takes the
    step and holds the lock. So methods that such code may call ask `is_mine` first. If this thread holds the
    lock they leave their step to `later`, or only read.
    """

    is_mine = owns

    def __init__(self) -> None:
        self.later: LaterSteps = LaterSteps()
