"""The worker threads of one driver: they start when calls come, take turns to look for a batch, and end."""

from __future__ import annotations

import _thread
import contextlib
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._drivers.circles import forget_worker, note_worker
from batched._drivers.dispatcher import Dispatcher
from batched._drivers.fork_and_exit import NO_THREAD, new_thread, start_thread
from batched._drivers.private_python import frames_of_threads
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.step_lock import StepLock, is_outdated, new_step_lock
from batched._logs import log_error

_PAUSE_S = 0.0005


class Work(Dispatcher):
    """What workers do: they take batches in a step, `with work`, and run them."""

    @abstractmethod
    def begin_thread(self, index: int) -> None:
        """Prepare this thread, the worker of this index, which begins, for batches."""

    @abstractmethod
    def end_thread(self) -> None:
        """Release what belongs to this thread, which ends."""

    @abstractmethod
    def run(self, batch: Batch) -> Batch | float | None:
        """Run `batch` and answer its calls; return what the next look would find, 0.0 if there was none."""

    @abstractmethod
    def give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""

    @abstractmethod
    def turn_away(self, error: BaseException | None) -> None:
        """Answer all calls that wait with `error`, or as after the end: no worker will run them."""

    @abstractmethod
    def renew_locks(self) -> None:
        """Make all locks anew, as a library has put locks of its own in Python's place."""

    @abstractmethod
    def drop_departed(self) -> None:
        """Drop the calls that their callers have left."""

    @abstractmethod
    def refuse(self, error: BaseException) -> None:
        """Give `error` to all calls that wait, and to those that run again, as no worker will run them."""


class TurnTakers(ABC):
    """Threads of which one at a time has the turn: it looks for the next batch, and leaves with it.

    So a burst that fits into one batch is not divided among idle workers.
    """

    lock: StepLock
    ended: bool = False
    """Whether no thread starts any more."""

    def begin(self) -> None:
        """Begin without a thread."""
        self.members: set[threading.Thread] = set()
        """The threads that may take a batch."""
        self.threads: list[threading.Thread] = []
        """All that may be alive."""
        self.waiting_for_turn: int = 0
        self.renew_locks()

    def renew_locks(self) -> None:
        """Make the locks anew. Only while there is no thread."""
        self._wake = new_semaphore()  # of the worker that has the turn
        # Held by the thread that looks for the next batch. It knows its owner: an exception that is thrown
        # into that worker as it gets the turn must not leave it held.
        self._turn = new_step_lock()

    def join(self) -> None:
        """Wait until all threads have ended."""
        me = threading.current_thread()  # a worker that ends may run a callback of a future
        while True:
            with self.lock.later, self.lock:
                alive = [each for each in self.threads if each.is_alive() and each is not me]
            if not alive:
                return
            for thread in alive:  # meanwhile others may start, for calls in the queue
                thread.join()

    def _start(self) -> None:
        """Start a worker for the first call; if none can start, turn away the calls that wait."""
        if self.lock.is_mine():
            self.lock.later.append(self._start)
            return
        if is_outdated(self._wake):
            self._renew_all()
        error: BaseException | None = None
        with self.lock.later, self.lock:
            if not self.ended:
                if any(thread.is_alive() for thread in self.members):
                    return
                self.members.clear()
                try:
                    self._start_one()
                except NO_THREAD as no_thread:
                    error = no_thread
                else:
                    return
        self._turn_away(error)

    def _renew_all(self) -> None:
        """Make the locks anew, also those that are used together with these."""
        self.renew_locks()

    def _start_member(self, thread: threading.Thread) -> None:
        """Start a thread, which may take a batch. Needs the lock."""
        try:
            self.members.add(thread)
            start_thread(thread)
            self.threads = [*(other for other in self.threads if other.is_alive()), thread]
        except BaseException:  # Ctrl-C, or one of `NO_THREAD`. A thread that runs all the same ends at once
            self.members.discard(thread)
            raise

    def _wait_for_turn(self) -> None:
        """Wait until no other worker looks for its next batch."""
        with self.lock.later, self.lock:
            self.waiting_for_turn += 1
        try:
            if self._has_asides():
                release(self._wake)
            self._turn.acquire()
        finally:
            with self.lock.later, self.lock:
                self.waiting_for_turn -= 1

    def _pass_turn(self) -> None:
        """Have another worker look: there are batches for it alone."""
        self._turn.release()
        try:
            new_semaphore().acquire(True, _PAUSE_S)  # noqa: FBT003
        finally:
            self._wait_for_turn()

    @abstractmethod
    def _has_asides(self) -> bool:
        """Return whether there are batches that not each worker may run."""

    @abstractmethod
    def _start_one(self) -> None:
        """Start a thread. Needs the lock."""

    @abstractmethod
    def _turn_away(self, error: BaseException | None) -> None:
        """Answer all calls that wait with `error`, or as after the end."""


class Workers(TurnTakers):
    """Up to `most` threads that run the batches of one dispatcher. The lock is that of their work."""

    def __init__(self, work: Work, most: int, when_ended: Callable[[], object]) -> None:
        self._work = work
        self._batcher = work.batcher
        self.most: int = most
        self._indices: dict[threading.Thread, int] = {}
        self.idents: set[int] = set()
        self._last_look = 0  # the worker that has looked last: what it has found still holds
        self._may_start = False  # `set_most` has left it to the worker with the turn to start another
        self._then: list[Callable[[], object]] = [when_ended]
        """What to call when the last worker has ended."""
        self.begin()

    def renew_locks(self) -> None:
        """Make the locks anew; that of the work is new already. Only while there is no worker."""
        self.lock: StepLock = self._work.lock
        super().renew_locks()

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
        try:
            if self._turn.acquire(False):  # noqa: FBT003
                self._start_another()
                self._turn.release()
        except BaseException:  # Ctrl-C
            self._turn.free()
            raise

    def look_again(self) -> None:
        """Have a worker look again, if there is one."""
        if self._batcher.wake_after != 0:  # else there is none, and no call that waits for one
            self.wake()

    def call_when_ended(self, callback: Callable[[], object]) -> bool:
        """Have `callback` called when the last worker has ended; return False if there is none."""
        with self.lock.later, self.lock:
            if not self.members and not self.idents:
                return False
            self._then.append(callback)
        return True

    def end(self) -> None:
        """Have all workers end when no call waits any more; the driver is closed."""
        if self.lock.is_mine():
            self.lock.later.append(self.end)
            return
        with self.lock.later, self.lock:  # `_start` holds it until the thread has started
            is_idle = not self.members
            self.ended = self.ended or is_idle  # a call at the door starts no worker then
        if not is_idle:
            self.wake()

    def _renew_all(self) -> None:
        self._work.renew_locks()

    def _turn_away(self, error: BaseException | None) -> None:
        self._work.turn_away(error)

    def _start_another(self) -> None:
        """Start one more worker, if all workers are busy and there may be more. Needs the lock."""
        self._may_start = False
        is_wanted = not self.waiting_for_turn or self._batcher.has_asides  # those that wait may not run that
        if is_wanted and 0 < len(self.members) < self.most:
            with contextlib.suppress(*NO_THREAD):  # the present workers run all batches
                self._start_one()

    def _start_one(self) -> None:
        used = [self._indices.get(member) for member in self.members]
        index = next(each for each in range(len(used) + 1) if each not in used)
        thread = new_thread(f"batched: {self._work.name}", self._run, index)
        self._indices = {member: at for member, at in self._indices.items() if member in self.members}
        self._indices[thread] = index
        self._start_member(thread)

    # -- the workers --------------------------------------------------------------------------------------

    def _run(self, index: int) -> None:
        with self.lock.later, self.lock:
            if threading.current_thread() not in self.members:
                return  # Ctrl-C came while this thread was started
            note_worker(self.idents)
            if self._batcher.wake_after == 0:  # else another worker, asleep by now, has set it
                self._batcher.wake_after = None
        self._work.begin_thread(index)
        found: Batch | float | None = 0.0
        while True:
            batch = None
            try:
                batch = found if isinstance(found, Batch) else self._next(found)
                if self._may_start:
                    with self.lock.later, self.lock:
                        self._start_another()
                if batch is None:
                    break
                found = self._work.run(batch)
            except BaseException as error:  # noqa: BLE001  logged
                # A fault of this library, or an exception thrown into this thread: answer and go on.
                self._turn.free()
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
                    with self.lock.later, self.lock:
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
                with self.lock.later, self.lock:
                    self._start_another()
        finally:
            self._turn.release()
        return look

    def _has_asides(self) -> bool:
        with self.lock.later, self.lock:
            return self._batcher.has_asides

    def _end(self) -> None:
        self._work.end_thread()
        with self.lock.later, self.lock:
            forget_worker(self.idents)
            self.members.discard(threading.current_thread())
            if self.members:
                return
            self.ended: bool = True
            self._batcher.wake_after = 0
            # A worker that was one too many may end after the last one.
            then: list[Callable[[], object]] = []
            if not self.idents:
                then, self._then = self._then, then
        self._start()  # answers calls that came after the last look at `arriving`
        for callback in then:
            callback()


def stacks_of(idents: set[int]) -> str:
    """Return the stacks of threads, by their ids, as tracebacks show them; "" if there is none."""
    frames = frames_of_threads()
    stacks = [traceback.format_stack(frames[ident]) for ident in list(idents) if ident in frames]
    return "\n".join("".join(stack) for stack in stacks)
