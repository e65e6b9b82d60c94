"""The worker threads of one driver: they start when calls come, take turns to look for a batch, and end."""

from __future__ import annotations

import _thread
import contextlib
import threading
import traceback
from collections.abc import Callable
from typing import Protocol

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._core.batcher import Batcher
from batched._drivers.circles import WORKERS, forget_worker
from batched._drivers.driver import Driver
from batched._drivers.fork_and_exit import NO_THREAD, start_thread
from batched._drivers.private_python import HAS_DAEMONS, frames_of_threads
from batched._drivers.step_lock import StepLock, is_outdated
from batched._logs import log_error

_PAUSE_S = 0.0005


class Work(Protocol):
    """What workers do: they take batches in a step, `with work`, and run them."""

    batcher: Batcher
    lock: StepLock
    name: str
    driver: Driver

    @property
    def __enter__(self) -> Callable[[], bool]:
        """Take the lock."""
        ...

    def __exit__(self, *_: object) -> None:
        """Leave the lock, and do what follows from the step."""
        ...

    def begin_thread(self, index: int) -> None:
        """Prepare this thread, the worker of this index, which begins, for batches."""
        ...

    def run(self, batch: Batch) -> Batch | float | None:
        """Run `batch` and answer its calls; return what the next look would find, 0.0 if there was none."""
        ...

    def give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""
        ...

    def turn_away(self, error: BaseException | None) -> None:
        """Answer all calls that wait with `error`, or as after the end: no worker will run them."""
        ...

    def renew_locks(self) -> None:
        """Make all locks anew, as a library has put locks of its own in Python's place."""
        ...

    def end_thread(self) -> None:
        """Release what belongs to this thread, which ends."""
        ...


class Workers:
    """Up to `most` threads. Of those one at a time looks for the next batch, and leaves with it.

    So a burst that fits into one batch is not divided among idle workers. The lock is that of their work.
    """

    def __init__(self, work: Work, most: int, when_ended: Callable[[], object]) -> None:
        self._work = work
        self._batcher = work.batcher
        self._when_last_ended = when_ended
        self.most: int = most
        self.threads: list[threading.Thread] = []  # all that may be alive; `join` waits for them
        self.members: set[threading.Thread] = set()
        """Those of them that may take a batch."""
        self._indices: dict[threading.Thread, int] = {}
        self.idents: set[int] = set()
        self.waiting_for_turn: int = 0
        self._last_look = 0  # the worker that has looked last: what it has found still holds
        self._may_start = False  # `set_most` has left it to the worker with the turn to start another
        self.ended: bool = False
        self.then: list[Callable[[], object]] = []
        """What to call when the last worker has ended."""
        self.renew_locks()

    def renew_locks(self) -> None:
        """Make the locks anew; that of the work is new already. Only while there is no worker."""
        self._lock = self._work.lock
        self._wake = _thread.allocate_lock()  # a binary semaphore: released means "look again"
        self._wake.acquire()
        self._turn = _thread.allocate_lock()  # held by the worker that looks for the next batch

    # -- for callers, without the lock --------------------------------------------------------------------

    def wake(self) -> None:
        """Have a worker look again; start one if there is none."""
        if self._batcher.wake_after == 0:
            self._start()
        elif self._wake.locked():
            try:  # noqa: SIM105  it would take longer than the rest of this
                self._wake.release()
            except RuntimeError:  # another caller was faster
                pass

    def set_most(self, most: int) -> None:
        """Allow so many workers. Needs the lock; `wake` is to follow."""
        self.most = most
        # A worker that has the turn starts another when it has a batch. It gives the turn back before it
        # looks at `_may_start`, so either side sees the other.
        self._may_start = True
        if not self._turn.locked():
            self._start_another()

    def look_again(self) -> None:
        """Have a worker look again, if there is one."""
        if self._batcher.wake_after != 0:  # else there is none, and no call that waits for one
            self.wake()

    def call_when_ended(self, callback: Callable[[], object]) -> bool:
        """Have `callback` called when the last worker has ended; return False if there is none."""
        with self._lock.later, self._lock:
            if not self.members and not self.idents:
                return False
            self.then.append(callback)
        return True

    def join(self) -> None:
        """Wait until all threads have ended."""
        me = threading.current_thread()  # a worker that ends may run a callback of a future
        while True:
            with self._lock.later, self._lock:
                threads = [thread for thread in self.threads if thread.is_alive() and thread is not me]
            if not threads:
                return
            for thread in threads:  # meanwhile others may start, for calls in the queue
                thread.join()

    def end(self) -> None:
        """Have all workers end when no call waits any more; the driver is closed."""
        if self._lock.is_mine():
            self._lock.later.append(self.end)
            return
        with self._lock.later, self._lock:  # `_start` holds it until the thread has started
            is_idle = not self.members
            self.ended = self.ended or is_idle  # a call at the door starts no worker then
        if not is_idle:
            self.wake()

    def _start(self) -> None:
        """Start a worker for the first call, or turn away calls that came after the end of all workers."""
        if self._lock.is_mine():
            self._lock.later.append(self._start)
            return
        if is_outdated(self._wake):
            self._work.renew_locks()
        error: BaseException | None = None
        with self._lock.later, self._lock:
            if not self.ended:
                if any(thread.is_alive() for thread in self.members):
                    return
                self.members.clear()
                try:
                    self._start_thread()
                except NO_THREAD as no_thread:
                    error = no_thread
                else:
                    return
        self._work.turn_away(error)

    def _start_another(self) -> None:
        """Start one more worker, if all workers are busy and there may be more. Needs the lock."""
        self._may_start = False
        is_wanted = not self.waiting_for_turn or self._batcher.has_asides  # those that wait may not run that
        if is_wanted and 0 < len(self.members) < self.most:
            with contextlib.suppress(*NO_THREAD):  # the present workers run all batches
                self._start_thread()

    def _start_thread(self) -> None:
        """Start one more worker. Needs the lock."""
        # A daemon thread outlives the main thread only as long as `at_exit` waits for it.
        used = [self._indices.get(member) for member in self.members]
        index = next(each for each in range(len(used) + 1) if each not in used)
        thread = threading.Thread(
            target=self._run, args=(index,), name=f"batched: {self._work.name}", daemon=HAS_DAEMONS
        )
        self._indices = {member: at for member, at in self._indices.items() if member in self.members}
        try:
            self._indices[thread] = index
            self.members.add(thread)
            start_thread(thread)
            self.threads = [*(other for other in self.threads if other.is_alive()), thread]
        except BaseException:  # Ctrl-C, or one of `NO_THREAD`. A thread that runs all the same ends at once
            self.members.discard(thread)
            raise

    # -- the workers --------------------------------------------------------------------------------------

    def _run(self, index: int) -> None:
        with self._lock.later, self._lock:
            if threading.current_thread() not in self.members:
                return  # Ctrl-C came while this thread was started
            self.idents.add(_thread.get_ident())
            WORKERS.add(_thread.get_ident())
            if self._batcher.wake_after == 0:  # else another worker, asleep by now, has set it
                self._batcher.wake_after = None
        self._work.begin_thread(index)
        found: Batch | float | None = 0.0
        while True:
            batch = None
            try:
                batch = found if isinstance(found, Batch) else self._next(found)
                if self._may_start:
                    with self._lock.later, self._lock:
                        self._start_another()
                if batch is None:
                    break
                found = self._work.run(batch)
            except BaseException as error:  # noqa: BLE001  logged
                # A fault of this library, or an exception thrown into this thread: answer and go on.
                log_error("%s: the worker failed", self._work.name)
                self._work.give_up(batch, error)
                found = 0.0
        self._end()

    def _next(self, found: float | None) -> Batch | None:
        """Wait for the turn and the next batch, and give the turn back; None if this worker is to end.

        `found` is what the last look has found, 0.0 if there was none.
        """
        work, batcher = self._work, self._batcher
        me = _thread.get_ident()
        if not self._turn.acquire(False):  # noqa: FBT003
            self._wait_for_turn()
        try:
            look: Batch | float | None = found if self._last_look == me else 0.0
            while not isinstance(look, Batch):
                if len(self.members) > self.most:  # `set_most` has lowered the number
                    with self._lock.later, self._lock:
                        self.members.discard(threading.current_thread())
                    return None
                # Callers read `wake_after` after they have filled `arriving`: one of the two sees the other.
                if self.waiting_for_turn and look != 0.0 and self._has_asides():
                    self._pass_turn()
                elif look != 0.0 and not batcher.arriving:
                    if not work.driver.closed:
                        # Callbacks of futures may have taken some time since that look.
                        left = -1 if look is None else max(batcher.until - monotonic(), 0.0)
                        self._wake.acquire(True, left)  # noqa: FBT003
                    elif look is None:
                        return None
                batcher.wake_after = None
                self._last_look = me
                with work:
                    if work.driver.closed:
                        batcher.drain()
                    look = batcher.next(monotonic())
            if self.most > 1:
                with self._lock.later, self._lock:
                    self._start_another()
        finally:
            self._turn.release()
        return look

    def _wait_for_turn(self) -> None:
        """Wait until no other worker looks for its next batch."""
        with self._lock.later, self._lock:
            self.waiting_for_turn += 1
            has_asides = self._batcher.has_asides
        if has_asides and self._wake.locked():
            with contextlib.suppress(RuntimeError):  # the worker that has the turn sleeps with it
                self._wake.release()
        self._turn.acquire()
        with self._lock.later, self._lock:
            self.waiting_for_turn -= 1

    def _has_asides(self) -> bool:
        with self._lock.later, self._lock:
            return self._batcher.has_asides

    def _pass_turn(self) -> None:
        """Have another worker look: there are batches for it alone."""
        self._turn.release()
        try:
            pause()
        finally:
            self._wait_for_turn()

    def _end(self) -> None:
        self._work.end_thread()
        forget_worker()
        with self._lock.later, self._lock:
            self.idents.discard(_thread.get_ident())
            self.members.discard(threading.current_thread())
            if self.members:
                return
            self.ended = True
            self._batcher.wake_after = 0
            # A worker that was one too many may end after the last one.
            then: list[Callable[[], object]] = []
            if not self.idents:
                then, self.then = self.then, then
        self._start()  # answers calls that came after the last look at `arriving`
        self._when_last_ended()
        for callback in then:
            callback()


def pause() -> None:
    """Leave other threads a moment."""
    gate = _thread.allocate_lock()
    gate.acquire()
    gate.acquire(True, _PAUSE_S)  # noqa: FBT003


def stacks_of(idents: set[int]) -> str:
    """Return the stacks of threads, by their ids, as tracebacks show them; "" if there is none."""
    frames = frames_of_threads()
    stacks = [traceback.format_stack(frames[ident]) for ident in list(idents) if ident in frames]
    return "\n".join("".join(stack) for stack in stacks)
