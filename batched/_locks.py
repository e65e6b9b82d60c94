"""A lock that an interrupt never leaves held."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class RLock:  # type checkers take the true one for final
        def acquire(self) -> bool: ...
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
