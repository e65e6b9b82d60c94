"""Deadlines of futures: one thread for each batcher watches them, as no caller waits for a future.

A caller takes no blocking lock here: a garbage collection may run a finalizer in the middle of any call, and
the finalizer may submit to the same batcher.
"""

from __future__ import annotations

import _thread
import contextlib
from collections import deque
from collections.abc import Callable
from math import inf
from operator import attrgetter
from weakref import ref

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.lazy_heap import DeadlineHeap
from batched._drivers.fork_and_exit import NO_THREAD, new_thread, start_thread
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.step_lock import is_outdated
from batched._logs import log_error

_MOST_ADDED = 1024


class DeadlineWatch:
    """One thread that reports calls when their deadline passes; it runs while a call is watched.

    Each batcher has its own, so that a slow callback of a future delays no deadline of another batcher.
    """

    def __init__(self, name: str, report: Callable[[list[Call]], object]) -> None:
        self._name = name
        self._report = report  # refers weakly to the batcher
        self._added: deque[tuple[ref[Call], float]] = deque()  # filled by callers, emptied by the thread
        self._until = inf  # when the thread looks again in any case; inf while it is awake
        self._has_thread = False  # a thread runs, or a caller is starting one
        self._is_stopped = False
        self._renew_locks()

    def _renew_locks(self) -> None:
        self._wake = new_semaphore()
        self._is_watched = _thread.allocate_lock()  # held by the thread that watches

    def add(self, call: Call, deadline: float) -> None:
        """Report `call` when `deadline`, a time of `monotonic`, has passed, unless it is answered by then."""
        self._added.append((ref(call), deadline))
        # The thread writes `_until` before and after it empties `_added`, so either side sees the other.
        if deadline < self._until or len(self._added) > _MOST_ADDED:
            release(self._wake)
        if not self._has_thread:
            self._start()

    def stop(self) -> None:
        """End the thread, for good: all calls are answered."""
        self._is_stopped = True
        release(self._wake)

    def _start(self) -> None:
        try:
            self._has_thread = True  # first: a finalizer that submits meanwhile starts no other
            if is_outdated(self._wake):
                self._renew_locks()
            start_thread(new_thread(f"batched deadlines: {self._name}", self._work))
        except NO_THREAD:  # the worker finds late calls when it looks for its next batch
            self._has_thread = False
            self._added.clear()
        except BaseException:  # Ctrl-C; if the thread runs all the same, it says so itself
            self._has_thread = False
            raise

    def _work(self) -> None:
        # After a start that was interrupted there may be two threads: one watches, the other ends.
        while self._is_watched.acquire(False):  # noqa: FBT003
            self._has_thread = True
            try:
                self._watch()
            finally:
                self._is_watched.release()
                self._has_thread = False
            # A caller that saw `_has_thread` before this has counted on this thread.
            if self._is_stopped or not self._added:
                return

    def _take_in(self, heap: DeadlineHeap) -> None:
        """Move the calls that were added to the `heap`."""
        with contextlib.suppress(IndexError):  # empty
            while True:
                watched, deadline = self._added.popleft()
                call = watched()
                if call is not None:  # else the reference has no hash
                    heap.add(watched, deadline)

    def _watch(self) -> None:
        """Report late calls until no call is watched."""
        heap = DeadlineHeap(attrgetter("missing"))
        while not self._is_stopped:
            self._take_in(heap)
            now = monotonic()
            late = [*heap.passed(now)]
            until = heap.next()
            if late:
                try:
                    self._report(late)
                except BaseException:  # noqa: BLE001  a fault of this library: later deadlines are met all the same
                    log_error("%s: could not answer late calls", self._name)
                late.clear()
            elif until == inf:
                return
            else:
                self._until = until
                self._wake.acquire(True, min(until - now, _thread.TIMEOUT_MAX))  # noqa: FBT003
                self._until = inf
