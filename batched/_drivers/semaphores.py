"""Binary semaphores: a thread waits until another one tells it to look again.

A finalizer or a signal handler may release one, in the middle of any step.
"""

from __future__ import annotations

import _thread
from contextlib import suppress


def new_semaphore() -> _thread.LockType:
    """Return a lock that is held: to acquire it once more is to wait until it is released."""
    semaphore = _thread.allocate_lock()
    semaphore.acquire()
    return semaphore


def release(semaphore: _thread.LockType) -> None:
    """Have the thread that waits go on, or the next one that would wait; twice is as once."""
    if semaphore.locked():
        with suppress(RuntimeError):  # another thread was faster
            semaphore.release()
