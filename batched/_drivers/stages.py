"""Runs the batches of one batcher in stages: one thread prepares, one runs the function, one finishes.

The batch function runs in the worker, and only there. A worker that is idle prepares its batch itself, and
finishes it itself if no other is there to run: a lone caller pays for no other thread. Only while the worker
is busy does a second thread take the next batch, one at most, and prepare it; and outputs are handed to a
third thread if the next batch is there to run. `Overlap` says when.

Each batch that runs is in the hands of the worker or of another thread, or is `_ahead`. It changes hands with
the lock held, so that after a fault each batch is answered, and once.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from batched._clock import monotonic
from batched._core.batch import Batch
from batched._drivers.circles import LINES, Line, forget_worker, note_worker
from batched._drivers.current_batch import are_left
from batched._drivers.driver import Driver
from batched._drivers.fork_and_exit import NO_THREAD, new_thread, start_thread
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.stages_in_turn import StagesInTurn, ThreadPassage
from batched._drivers.workers import Workers
from batched._features.overlap import Overlap
from batched._logs import log_error


class _StageThread:
    """A thread of a stage: it starts when it is first needed, and takes a step each time that it is woken."""

    def __init__(
        self, dispatcher: StagedThreadDispatcher, stage: str, step: Callable[[], float | None]
    ) -> None:
        self._dispatcher = dispatcher
        self._stage = stage
        self._step = step
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self.renew_locks()

    @property
    def idents(self) -> Line:
        """The id of the thread, if there is one."""
        ident = None if (thread := self._thread) is None else thread.ident
        return () if ident is None else (ident,)

    def renew_locks(self) -> None:
        """Make its lock anew; only while there is no thread."""
        self._wake = new_semaphore()

    def start(self) -> bool:
        """Start the thread if there is none; return whether there is one: there may be no more."""
        if self._thread is not None:
            return True
        lock = self._dispatcher.lock
        if lock.is_mine():
            lock.later.append(self.start)
            return False
        with lock.later, lock:  # held until the thread has started: it begins by taking it
            if self._thread is not None:
                return True
            name = f"batched: {self._dispatcher.name}, {self._stage}"
            self._thread = new_thread(name, self._run)
            self._has_ended = False
            try:
                start_thread(self._thread)
            except NO_THREAD:
                self._thread = None
                return False
            except BaseException:  # Ctrl-C. A thread that runs all the same ends at once
                self._thread = None
                raise
        return True

    def wake(self) -> None:
        """Have it take a step, if there is a thread."""
        if self.start():
            release(self._wake)

    def end(self) -> None:
        """End the thread, and wait for it."""
        thread = self._thread
        if thread is not None:
            self._has_ended = True
            self.wake()
            thread.join()
            self._thread = None  # not before: a thread that has just been started may have yet to look at it

    def _run(self) -> None:
        dispatcher = self._dispatcher
        with dispatcher.lock.later, dispatcher.lock:
            if threading.current_thread() is not self._thread:
                return  # Ctrl-C came while this thread was started
            note_worker(dispatcher.workers.idents)
        dispatcher.begin_thread(0)  # as in the worker, which may take the same step
        left: float | None = None
        while True:
            if left is None:
                self._wake.acquire()
            elif left > 0.0:
                self._wake.acquire(True, left)  # noqa: FBT003
            try:
                left = self._step()
            except BaseException as error:  # noqa: BLE001  logged
                # A fault of this library, or an exception thrown into this thread: answer and go on.
                log_error("%s: the thread of a stage failed", dispatcher.name)
                dispatcher.give_up_stage(self, error)
                left = None
            if self._has_ended:  # after a last step: it may have been woken for both at once
                break
        forget_worker(dispatcher.workers.idents)


class StagedWorkers(Workers):
    """A worker that has its batches prepared ahead: while it is busy, calls wake another thread."""

    def wake(self) -> None:
        """Have the thread look that takes the next batch."""
        dispatcher: Any = self._work
        if self._batcher.wake_after != 0 and dispatcher.wakes_ahead():
            return
        super().wake()

    def _next(self, found: float | None) -> Batch | None:
        batch = super()._next(found)
        if batch is None:  # the end has come, but the other threads may leave something to be run again
            dispatcher: Any = self._work
            dispatcher.end_stages()
            batch = super()._next(0.0)
        return batch


class StagedThreadDispatcher(StagesInTurn):
    """Asks the batcher for batches, and has them pass their stages."""

    def __init__(self, driver: Driver, when_ended: Callable[[], object], **named: Any) -> None:
        super().__init__(driver, when_ended, **named)
        self.workers = StagedWorkers(self, 1, when_ended)
        self._overlap = self.batcher.feature(Overlap)
        self._begin_stages()

    def _begin_stages(self) -> None:
        # All is written with the lock held.
        self._current: ThreadPassage | None = None  # in the worker
        self._ahead: ThreadPassage | None = None  # prepared, or being prepared, for the worker to take
        self._taken: ThreadPassage | None = None  # by the worker, from `_ahead`: its next
        self._finishing: ThreadPassage | None = None  # in the third thread
        self._is_busy = False  # whether the worker is in the function, or finishes: then another thread looks
        self._preparer = _StageThread(self, "prepare", self._look_ahead)
        self._finisher = _StageThread(self, "finish", self._finish_other)
        self._is_free = _thread.allocate_lock()  # held while the third thread has a batch

    def renew_locks(self) -> None:
        """Make all locks anew; there is no thread."""
        super().renew_locks()
        self._begin_stages()

    # -- the worker ---------------------------------------------------------------------------------------

    def run(self, batch: Batch) -> Batch | float | None:
        """Have `batch` pass its stages, up to where another thread goes on with it."""
        passage = self._taken
        if passage is None or passage.batch is not batch:
            passage = ThreadPassage(batch)
        with self.lock.later, self.lock:
            self._taken, self._current = None, passage
        if passage.is_ready is not None:
            passage.is_ready.acquire()  # until it is prepared
        else:
            self._prepare(passage)
        if passage.failure is None:
            if are_left(batch.slices):
                self._end_unwanted(passage)
                with self.lock.later, self.lock:
                    self._current = None
                return 0.0
            self._run_function(passage)
        following = self._following(passage)
        # Without `finish` the outputs are read here, as the function may use them again for its next batch.
        hands_over = following is not None and passage.failure is None and passage.steps.finishes is not None
        if hands_over and self._hand_over(passage):
            return following
        if passage.failure is None:
            with self._is_free:  # until the batch before is finished
                self._finish(passage)
        found = self._report(passage, looks=following is None)
        return following or found

    def _run_function(self, passage: ThreadPassage) -> None:
        """Run the batch function, while another thread may prepare the next batch."""
        batch = passage.batch
        with self:
            batcher = self.batcher
            self._overlap.begins(batch, monotonic())
            self._is_busy = True
            batcher.wake_after = 1
        if batcher.has_calls:
            self._preparer.wake()
        self._call(passage)

    def _following(self, passage: ThreadPassage) -> Batch | None:
        """Return the batch that is to be in the function next, without a wait for the end of this one."""
        with self:
            batcher = self.batcher
            self._overlap.ends()
            self._is_busy = False
            batcher.wake_after = None
            if self._ahead is not None:
                self._taken, self._ahead = self._ahead, None
                return self._taken.batch
            if passage.failure is not None:
                return None
            if batcher.has_calls:
                found = self._take_ahead(monotonic())
                if isinstance(found, Batch):
                    return found
            self._is_busy = True  # it finishes the batch: calls that come meanwhile can be prepared
            batcher.wake_after = self._overlap.lacks()
        return None

    def _take_ahead(self, now: float) -> Batch | float | None:
        """Return the next batch if it is to run beside those before it, or the seconds until then.

        That may be the batch ahead, to be prepared anew.
        """
        if self._ahead is not None:
            return self._give_up_ahead(self._ahead, now)
        batcher = self.batcher
        batcher.plan(now)  # so that what has arrived is in the queue
        at = self._overlap.look_at(now)
        found: Batch | float | None = None
        if at is not None:
            found = batcher.next(now) if at <= now else at - now
        batcher.wake_after = None
        if found is None:
            batcher.wake_after, batcher.until = self._overlap.lacks(), now
        return found

    def _hand_over(self, passage: ThreadPassage) -> bool:
        """Have another thread finish a batch, once it has finished the one before; return whether it does."""
        if not self._finisher.start():
            return False
        self._is_free.acquire()
        with self.lock.later, self.lock:
            self._finishing, self._current = passage, None
        self._finisher.wake()
        return True

    def _report(self, passage: ThreadPassage, *, looks: bool) -> Batch | float | None:
        """Answer the calls of a batch; if the worker `looks`, return what its next look would find."""
        batch = passage.batch
        found: Batch | float | None = 0.0
        with self:
            batcher = self.batcher
            now = monotonic()
            self._answer(passage, now)
            if self._current is passage:
                self._current = None
                self._is_busy = False
                batcher.wake_after = None
            if looks and self._ahead is not None:
                self._taken, self._ahead = self._ahead, None
                found = self._taken.batch
            elif looks:
                # A batch is taken only after callers that were answered, and callbacks of their futures, had
                # a chance to call again or to leave.
                found = batcher.next(now, answers_first=True)
            waits = batcher.has_calls
        if waits and not looks:
            self.workers.wake()  # the worker may have gone to sleep, or a part may be prepared ahead
        passage.clear()
        batch.clear()
        return found

    def begin_thread(self, index: int) -> None:
        """Do it as every worker; and note that other threads prepare and finish."""
        super().begin_thread(index)
        LINES[_thread.get_ident()] = self._line

    def _line(self, worker: int) -> Line:
        """Return the threads that a batch passes, by their ids, the last one first."""
        return (*self._finisher.idents, worker, *self._preparer.idents)

    def end_stages(self) -> None:
        """End the other threads; what comes after starts them again."""
        self._preparer.end()
        self._finisher.end()

    # -- the thread that prepares -------------------------------------------------------------------------

    def wakes_ahead(self) -> bool:
        """Wake the thread that takes the next batch, if the worker is busy; return whether it is."""
        if not self._is_busy:
            return False
        self._preparer.wake()
        return True

    def _look_ahead(self) -> float | None:
        """Take and prepare the next batch, if it is time; return the seconds until it may be."""
        passage: ThreadPassage | None = None
        try:
            with self:
                batcher = self.batcher
                if not self._is_busy:
                    return None
                found = self._take_ahead(monotonic())
                lacks = batcher.wake_after
                if isinstance(found, Batch):
                    passage = ThreadPassage(found)
                    passage.is_ready = new_semaphore()
                    self._ahead = passage
            if passage is None:
                has_come = lacks is not None and len(batcher.arriving) >= lacks
                return 0.0 if has_come or isinstance(found, Batch) else found
            self._prepare(passage)
        except BaseException as error:
            if passage is not None:
                passage.failure = error
            raise
        finally:
            if passage is not None and passage.is_ready is not None:
                passage.is_ready.release()
        return 0.0  # calls may have come that it is to be prepared anew for

    def _give_up_ahead(self, ahead: ThreadPassage, now: float) -> Batch | None:
        """Return the batch ahead, to be prepared anew with calls that have come, if that costs less."""
        batcher = self.batcher
        more = batcher.may_join(ahead.batch)
        if ahead.failure is None and more and self._overlap.gives_up(ahead.batch, more, now):
            batcher.join(ahead.batch, more, batcher.queue, now)
            batcher.wake_after = None
            return ahead.batch
        batcher.wake_after = 1 if self._overlap.gives_up(ahead.batch, 1, now) else None
        batcher.until = now
        return None

    # -- the thread that finishes -------------------------------------------------------------------------

    def _finish_other(self) -> None:
        """Finish the batch that was handed over."""
        passage = self._finishing
        if passage is None:
            return
        self._finish(passage)
        self._report(passage, looks=False)
        self._end_finishing()

    def _end_finishing(self) -> None:
        with self.lock.later, self.lock:
            if self._finishing is not None:
                self._finishing = None
                self._is_free.release()

    # -- faults -------------------------------------------------------------------------------------------

    def give_up_stage(self, thread: _StageThread, error: BaseException) -> None:
        """Answer the batch of a stage's thread with `error`, a fault of this library."""
        passage = self._finishing if thread is self._finisher else None
        self.answer_lost(None if passage is None else passage.batch, error, and_all=False)
        if passage is not None:
            self._end_finishing()

    def give_up(self, batch: Batch | None, error: BaseException) -> None:
        """Answer `batch`, or all calls if there is none, with `error`, a fault of this library."""
        self.lock.free()
        with self.lock.later, self.lock:
            self._current = self._taken = self._ahead = None  # no worker would come for those
            self._is_busy = False
            self._overlap.ends()
        super().give_up(batch, error)

    def _out_of_hand(self) -> list[Batch]:
        passages = (self._current, self._ahead, self._taken, self._finishing)
        in_hand = [passage.batch for passage in passages if passage is not None]
        return [each for each in self.batcher.running if each not in in_hand]
