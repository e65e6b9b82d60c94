"""The batches that run, and what becomes of their calls."""

from __future__ import annotations

from typing import Any

from batched._core.batch import Batch
from batched._core.batch_fault import BatchFault
from batched._core.call import Call, Slice
from batched._core.calls import Calls
from batched._core.collator import Collator
from batched._core.keys import fault_of
from batched._core.next_batch import NextBatch
from batched._core.retries import Retries
from batched.errors import without_own_frames


class Running:
    """The batches that a driver has taken, and those that failed and run again in halves.

    Every item is counted as processed once: when its last run has ended.
    """

    def __init__(
        self, name: str, calls: Calls, next_batch: NextBatch, collator: Collator, *, streams: bool
    ) -> None:
        self._name = name
        self._calls = calls
        self._next_batch = next_batch
        self._collator = collator
        self._streams = streams
        self.since: dict[Batch, float] = {}
        """When each batch started."""
        self.retries: Retries = Retries()

    def prune_retries(self, now: float) -> bool:
        """Forget the halves of failed batches that have no caller; return whether others are left.

        The next one has no more items than `batch_size`, which may be smaller by now.
        """
        self._forget(self.retries.prune(self._next_batch.options.batch_size), now)
        return bool(self.retries.batches)

    def refuse_changed(self, batch: Batch, now: float) -> None:
        """Remove from `batch`, which has just been taken, the calls of which a key has changed; they fail."""
        faults = [(piece, fault) for piece in batch.slices if (fault := fault_of(piece[0])) is not None]
        for piece, fault in faults:
            refused = Batch([piece], piece[2] - piece[1], batch.reason)
            batch.slices.remove(piece)
            batch.size -= refused.size
            self._end_unrun(refused, fault, now, now)

    def _end_unrun(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Answer the calls of `batch`, which does not run, with `error`."""
        done = batch.fail(error, self._collator, streams=self._streams)
        self._calls.counters.left(batch.slices, batch.size, started, batch.failed)
        self._end(batch, done, now)

    def finish(self, batch: Batch, parts: list[Any], now: float) -> None:
        """Hand the calls of `batch`, which has run, their parts, as the collator has split them.

        If the function streams there are no parts, and the streams end.
        """
        done = batch.end() if self._streams else batch.answer(parts, self._collator)
        retries = self.retries
        if (retries.is_watching or batch.isolation is not None) and batch in self.since:
            most = self._next_batch.options.batch_size
            raised = retries.note_success(batch, now - self.since[batch], most)
            if raised is not None:
                self._calls.gone.append(BatchFault(self._name, raised, self._calls.counters))
            self._next_batch.resize(retries.memory.limit)
        self._end(batch, done, now)

    def step(self, batch: Batch, pieces: list[Any]) -> tuple[list[Call], bool]:
        """Hand the calls of `batch`, which streams, their next pieces.

        Returns the calls that have something new, and whether any of the batch wants more.
        """
        return batch.step(pieces, self._name, self._next_batch.options.max_pieces)

    def fail(self, batch: Batch, error: BaseException, now: float) -> None:
        """Answer the calls of `batch`, which raised `error`, unless it runs again in halves."""
        error = without_own_frames(error)
        started = self.since.get(batch)
        if started is not None and not batch.begun:
            isolates = self._next_batch.options.isolate_errors
            if self.retries.note_failure(batch, error, now - started, isolates=isolates):
                self._next_batch.resize(self.retries.memory.limit)
                if self._collator.can_repeat(batch):
                    self._run_again(batch, error, started, now)
                    return
            for half in self.retries.given_up(batch, error):
                self._end_unrun(half, half.error or error, started, now)
        self.retries.release(batch)
        self._end(batch, batch.fail(error, self._collator, streams=self._streams), now)

    def _run_again(self, batch: Batch, error: BaseException, started: float, now: float) -> None:
        """Have `batch`, which raised `error`, run in halves."""
        del self.since[batch]
        self._calls.counters.ran(batch, started, now, worked=False)
        self._calls.counters.divided += 1
        self._forget(self.retries.add(batch, error, now - started), started)
        if self._calls.backlog.is_used:
            self._calls.backlog.divided(batch, started, now)

    def give_up(self, batch: Batch, error: BaseException) -> None:
        """Answer the calls of `batch` with `error`, a fault of this library."""
        runs = self.since.pop(batch, None) is not None
        self.retries.release(batch)
        calls = list(dict.fromkeys(batch.calls))
        lost = [call for call in calls if call.missing]
        if runs:  # else it has ended before the fault, and is counted
            batch.failed = batch.failed + len(lost) if self._streams else batch.size
            self._calls.counters.processed += batch.size
            self._calls.counters.failed += batch.failed
        for call in calls:
            self._calls.lose(call, error)
        rest = [part for call in calls for part in call.siblings if part.waiting and not part.missing]
        try:
            self._calls.drop_all(rest)
            self._release(batch, lost)
        except Exception as fault:  # noqa: BLE001  the queue is broken: the next look raises it
            self._calls.fault = fault

    def end_streams(self, error: BaseException) -> list[Call]:
        """Fail the calls of batches that run and stream; return them."""
        calls = [call for call in self.calls() if call.missing and self._streams]
        for call in calls:
            call.left = "cancelled"
            call.fail(error)
        return calls

    def calls(self) -> list[Call]:
        """Return the calls of which a part runs."""
        return [*(call for batch in self.since for call in batch.calls), *self.retries.calls()]

    def _end(self, batch: Batch, done: list[Call], now: float) -> None:
        """Count `batch`, which has answered the calls `done`, and learn from it."""
        started = self.since.pop(batch, None)
        try:
            if batch.failed:
                done += self._calls.drop_rest(batch.calls)
            if started is not None:  # else it did not run, or a fault came in the way: it is counted
                counters = self._calls.counters
                counters.ran(batch, started, now, worked=not batch.failed)
                counters.left(batch.slices, batch.size, started, batch.failed)
                answered = len(done)
                if self._streams:  # of which some have ended before
                    answered = sum(not call.missing and call.left is None for call in batch.calls)
                self._next_batch.learn(batch, answered, started, now)
        finally:  # also after a fault of this library
            self._calls.answer(done)
            self._release(batch, done)

    def _release(self, batch: Batch, done: list[Call]) -> None:
        """Drop the items of calls that have failed, and release the inputs of calls that have ended."""
        calls = self._calls
        if len(done) == len(batch.slices) and not batch.failed:
            calls.released += done
            return
        if batch.failed:
            calls.drop_all([call for call in batch.calls if call.waiting and not call.missing])
        for piece in batch.slices:
            if not piece[0].missing and not self._may_run_elsewhere(piece):
                calls.released.append(piece[0])

    def _may_run_elsewhere(self, piece: Slice) -> bool:
        """Whether another part may run of a call that has ended; `piece` does not run any more."""
        call, start, stop = piece
        if stop - start == call.size or call.has_all_results:
            return False
        return any(call is other for batch in self.since for other, _, _ in batch.slices)

    def _forget(self, slices: list[Slice], started: float) -> None:
        """Count items that will not run again: their callers have left, or their lists have failed."""
        calls = self._calls
        calls.counters.left(slices, sum(stop - start for _, start, stop in slices), started)
        for call, start, stop in slices:
            calls.gone.append(call)
            if call.missing:
                call.missing -= stop - start
                if call.missing:
                    continue
                calls.answer([call])
            if not self._may_run_elsewhere((call, start, stop)):
                calls.released.append(call)
