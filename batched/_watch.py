"""Deadlines of futures: no thread and no task waits for a future that could look at the clock."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from weakref import ref

from batched._deadlines import WatchedCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._call import Call

__all__ = ["DeadlineWatch"]

_logger = logging.getLogger("batched")


class DeadlineWatch:
    """One thread that reports calls when their deadline passes; it runs while a call is watched.

    Each batcher has its own, so that a slow callback of a future delays no deadline of another batcher.
    """

    def __init__(self, name: str, report: Callable[[list[Call]], object]) -> None:
        self._name = name
        self._report = report  # is to keep no batcher alive
        self._calls = WatchedCalls(_is_open)
        self._lock = _thread.allocate_lock()
        self._wake = _thread.allocate_lock()  # a binary semaphore: released means "look again"
        self._wake.acquire()
        self._until = inf  # when the thread looks again in any case
        self._is_running = False

    def add(self, call: Call, deadline: float) -> None:
        """Report `call` when `deadline`, a time of `monotonic`, has passed, unless it is answered by then."""
        with self._lock:
            self._calls.add(ref(call), deadline)
            if not self._is_running:
                thread = threading.Thread(
                    target=self._work, name=f"batched deadlines: {self._name}", daemon=True
                )
                with contextlib.suppress(RuntimeError):  # too many threads: then the worker finds late calls
                    thread.start()
                    self._is_running = True
            elif deadline < self._until:
                self._look()

    def stop(self) -> None:
        """End the thread: no call waits any more."""
        with self._lock:
            self._calls = WatchedCalls(_is_open)
            self._look()

    def _look(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def _work(self) -> None:
        while True:
            with self._lock:
                now = monotonic()
                late = list(self._calls.passed(now))
                until = self._calls.next()
                if not late and until is None:
                    self._is_running = False
                    return
                self._until = inf if until is None else until
            if late:
                try:
                    self._report(late)
                except Exception:  # a fault of this library: the next deadline is to be met all the same
                    _logger.exception("%s: late calls could not be answered", self._name)
                late.clear()
            elif until is not None:
                self._wake.acquire(True, min(until - now, _thread.TIMEOUT_MAX))  # noqa: FBT003


def _is_open(call: Call) -> int:
    return call.missing
