"""A lock that neither an interrupt nor a fork leaves held."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:

    class RLock:  # type checkers take the true one for final
        def acquire(self, blocking: bool = ..., /) -> bool: ...  # noqa: FBT001  as it is
        def __enter__(self) -> bool: ...
        def release(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

else:
    RLock = type(threading.RLock())


class InterruptedLock(RLock):
    """A reentrant lock for `with`: free again after a Ctrl-C, wherever that comes.

    From Python 3.14 on, a Ctrl-C may come between the end of `__enter__` and the block of the `with`, where
    `__enter__` is no Python code: then nothing calls `__exit__`. A method in Python has no such gap.
    """

    def __enter__(self) -> bool:
        try:
            return self.acquire()
        except BaseException:
            try:  # noqa: SIM105  a call would be one more place for a Ctrl-C
                self.release()
            except RuntimeError:  # the Ctrl-C came before it was acquired
                pass
            raise


def in_child(callback: Callable[[], object]) -> None:
    """Have `callback` called in each child process, where there are forks: only this thread goes on there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)


class Guard:
    """Has a `lock`, which is another one in a child process: the thread that holds it may be the parent's."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock: InterruptedLock = InterruptedLock()
        _guards.add(self)


_guards: WeakSet[Guard] = WeakSet()


def _renew_locks() -> None:
    for guard in _guards:
        guard.lock = InterruptedLock()


in_child(_renew_locks)


class Freed:
    """For `with Freed(lock), lock:`, as a Ctrl-C may come between the block and the call of `__exit__`.

    After an error it sees to it that the thread holds the lock no more, unless it did before.
    """

    __slots__ = ("_lock", "_owns", "_was_mine")

    def __init__(self, lock: RLock) -> None:
        self._lock = lock
        self._owns = owner_test(type(lock))  # eventlet puts locks of its own in the place of Python's
        self._was_mine = self._owns(lock)

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, error: object, *_: object) -> None:
        while error is not None and not self._was_mine and self._owns(self._lock):
            self._lock.release()


def owns_publicly(lock: RLock) -> bool:
    """Return whether this thread holds `lock`, as Python promises to tell."""
    try:
        threading.Condition(lock).notify(0)  # type: ignore[arg-type]  # it is one
    except RuntimeError:
        return False
    return True


def owner_test(kind: type) -> Callable[[RLock], bool]:
    """Return what tells whether this thread holds a lock of `kind`, a class of reentrant locks.

    The public way takes fifty times as long.
    """
    test: Callable[[RLock], bool] = getattr(kind, "_is_owned", owns_publicly)
    return test


owns: Callable[[RLock], bool] = owner_test(RLock)
"""Return whether this thread holds a reentrant lock of Python's own."""
