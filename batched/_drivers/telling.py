"""Has `on_batch` called, in a thread of its own: neither workers nor callers wait for it."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

from batched._core.batch_record import BatchRecord
from batched._drivers.fork_and_exit import NO_THREAD, new_thread, start_thread
from batched._logs import log, log_error

_IDLE_S = 1.0
_LONGEST_S = 5.0
_MOST = 10_000

OnBatch: TypeAlias = Callable[[BatchRecord], object]

of_all: list[OnBatch] = []
"""What is told of the batches of all functions, besides the `on_batch` of each: `listeners` changes it."""


class Teller:
    """Tells `on_batch` of batches, one after another, in a thread that runs while there are some."""

    def __init__(self, name: str, on_batch: OnBatch | None) -> None:
        self._name = name
        self._own = [] if on_batch is None else [on_batch]
        self._queue: SimpleQueue[BatchRecord | threading.Event] = SimpleQueue()
        self._has_thread = _thread.allocate_lock()  # held from its start to its end
        self._failed: set[int] = set()
        self._has_dropped = False
        self._ident: int | None = None

    @property
    def listens(self) -> bool:
        """Whether anything is told."""
        return bool(self._own or of_all)

    def tell(self, record: BatchRecord) -> None:
        """Have `on_batch` told soon. It may be called with a lock held, and in the middle of anything."""
        if self._queue.qsize() >= _MOST:
            if not self._has_dropped:
                self._has_dropped = True
                log(logging.WARNING, "%s: on_batch is slower than batches: some are not told", self._name)
            return
        self._queue.put(record)
        self._start()

    def flush(self) -> None:
        """Wait until all batches so far have been told; for some seconds at most."""
        is_idle = self._queue.empty() and not self._has_thread.locked()
        if is_idle or threading.get_ident() == self._ident:
            return
        told = threading.Event()
        self._queue.put(told)
        self._start()
        told.wait(_LONGEST_S)

    async def aflush(self) -> None:
        """Do the same without blocking the event loop."""
        if self.listens and threading.get_ident() != self._ident:
            await asyncio.to_thread(self.flush)

    def _start(self) -> None:
        if not self._has_thread.acquire(False):  # noqa: FBT003
            return
        try:
            start_thread(new_thread(f"batched on_batch: {self._name}", self._run))
        except BaseException as error:  # Ctrl-C, or one of `NO_THREAD`
            self._end()
            if not isinstance(error, NO_THREAD):
                raise

    def _end(self) -> None:
        """Let another thread start: there is none, or it ends."""
        with contextlib.suppress(RuntimeError):  # it runs, although Ctrl-C came while it was started
            self._has_thread.release()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        while True:
            try:
                record = self._queue.get(timeout=_IDLE_S)
            except Empty:
                self._ident = None  # another thread may have it soon
                self._end()
                if not self._queue.empty():  # a batch has ended just now, and counts on this thread
                    self._start()
                return
            if isinstance(record, threading.Event):
                record.set()
            else:
                self._call(record)
            del record

    def _call(self, record: BatchRecord) -> None:
        for on_batch in (*self._own, *of_all):
            try:
                on_batch(record)
            except BaseException:  # noqa: BLE001  logged
                if id(on_batch) not in self._failed:
                    self._failed.add(id(on_batch))
                    log_error("%s: on_batch failed; further failures are not logged", self._name)
