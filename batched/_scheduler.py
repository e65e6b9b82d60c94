"""Which calls run together, and when: told the time, never asking for it.

A driver pushes calls, asks `delay` how long to wait, takes a batch with `pop` once it is due and a slot is
free, and reports it `done`. Nothing is assigned to a batch before that (late binding), so the queue keeps
growing behind a running batch. Knows nothing of threads, event loops or what the items are.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from batched._call import Batch
from batched._queue import Queue
from batched._stats import Counters

if TYPE_CHECKING:
    from batched._call import Call
    from batched._patience import Window
    from batched._stats import Stats

__all__ = ["Scheduler"]


class Scheduler:
    """The queue of one batcher. `now` and all times are seconds on one monotonic clock.

    A batch starts when it is full; otherwise when `patience` says so; and earlier for a call with a
    deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(self, *, batch_size: int, small_batch_threshold: int, patience: Window, name: str) -> None:
        self.batch_size = batch_size
        self.name = name
        self._patience = patience
        self.queue = Queue(batch_size, small_batch_threshold)
        self._counters = Counters()
        self._running: dict[Batch, float] = {}  # since when
        self._draining = False
        self._hurried = False  # by a deadline
        self._deadlines: list[tuple[float, int, Call]] = []  # a heap; calls no longer waiting stay in it
        self._deadlines_limit = 1024
        self._order = count()
        self.expired: list[Call] = []
        """Calls whose deadline passed before they had run: for the driver to answer and clear."""

    def push(self, call: Call) -> None:
        """Queue `call`."""
        self.push_all(deque([call]))

    def push_all(self, calls: deque[Call]) -> None:
        """Queue and remove all of `calls`, to which others may be adding."""
        if self._patience.learns:
            calls = deque([calls.popleft() for _ in range(len(calls))])  # what comes meanwhile comes later
            self._patience.arrived(calls)
        for call in self.queue.push_all(calls):
            heappush(self._deadlines, (call.deadline or 0.0, next(self._order), call))
            if len(self._deadlines) > self._deadlines_limit:
                self._forget_deadlines()

    def drop(self, call: Call) -> None:
        """Forget what of `call` still waits: its caller has left, its deadline has passed or it has failed.

        Saying so again changes nothing.
        """
        if call.waiting == call.size:  # else a part of it may be running
            call.function = call.inputs = None
        dropped = self.queue.drop(call)
        call.missing = 0  # what of it runs already has nobody to go to
        if call.left == "expired":
            self._counters.expired += dropped
        else:
            self._counters.cancelled += dropped

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due: 0.0 if it is, None if nothing waits."""
        if self._deadlines:
            self._expire(now)
        queue = self.queue
        waiting = queue.items
        if waiting >= self.batch_size:
            return 0.0
        if not waiting:
            return None
        if self._draining:
            return 0.0
        start = self._patience.start(queue.oldest(), waiting, now)
        if self._deadlines:
            urgent = self._deadlines[0][2]
            patience = start
            start = min(start, (urgent.arrived + self._deadlines[0][0]) / 2)
            self._hurried = start < patience
        return start - now if start > now else 0.0

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, due or not. At least one item must wait."""
        if self._deadlines:
            self._expire(now)
        waiting = self.queue.items
        if waiting >= self.batch_size:
            size, reason = self.batch_size, "full"
        else:
            size = waiting
            reason = "drain" if self._draining else "deadline" if self._hurried else self._patience.reason
        self._hurried = False
        batch = Batch(self.queue.take(size), size, reason)
        self._running[batch] = now
        if self._patience.learns:
            self._patience.popped(now)
        return batch

    def awaited(self) -> int:
        """Return how many more calls, of one item each, make the next batch due before its time."""
        return min(self.batch_size - self.queue.items, self._patience.awaited)

    def done(self, batch: Batch, now: float) -> None:
        """Count `batch`, which has run and answered its calls; drop the rest of those that failed."""
        started = self._running.pop(batch, None)
        if started is None:  # said before
            return
        counters = self._counters
        size = batch.size
        counters.failed += batch.failed
        counters.closed[batch.reason] += 1
        counters.batch_size.sum += size
        counters.batch_size.counts[(size - 1).bit_length()] += 1  # so that 8 is in the bucket up to 8
        duration = now - started
        counters.processing_time.sum += duration
        counters.processing_time.counts[int(duration * 1e6).bit_length()] += 1
        waits = counters.wait.counts
        waited_s = 0.0
        for call, start, stop in batch.slices:
            waited = started - call.arrived
            items = stop - start
            waited_s += waited * items
            waits[int(waited * 1e6).bit_length()] += items
            if not call.missing:
                if call.waiting:
                    self.drop(call)
                call.function = call.inputs = None
        counters.wait.sum += waited_s
        if self._patience.learns:
            answered = sum([not call.missing and call.left is None for call, _, _ in batch.slices])
            measured = started if batch.failed < size else None
            self._patience.done(size, len(batch.slices), answered, now, measured)
        if self._deadlines and not self.queue.items:
            self._deadlines.clear()  # an idle batcher holds on to nobody's call

    def drain(self) -> None:
        """Wait for company no more: whatever is queued is due."""
        self._draining = True

    def clear(self) -> list[Call]:
        """Cancel all that waits and return the calls it belongs to."""
        calls = self.queue.waiting_calls()
        for call in calls:
            self.drop(call)
        return calls

    def stats(self, now: float) -> Stats:
        """Return a snapshot of the counters."""
        running = [(batch.size, now - started) for batch, started in self._running.items()]
        queue = self.queue
        return self._counters.snapshot(
            accepted=queue.accepted,
            waiting=queue.items,
            running=running,
            learned=self._patience.learned(),
        )

    def _forget_deadlines(self) -> None:
        # Calls that ended before their deadline would pile up here until it passes.
        heap = self._deadlines
        heap[:] = [entry for entry in heap if entry[2].waiting]
        heapify(heap)
        self._deadlines_limit = max(1024, 2 * len(heap))

    def _expire(self, now: float) -> None:
        """Drop calls whose deadline has passed, and forget those that no longer wait."""
        heap = self._deadlines
        while heap and (heap[0][0] <= now or not heap[0][2].waiting):
            call = heappop(heap)[2]
            if call.waiting:
                call.left = "expired"
                call.fail(TimeoutError(call.overdue(self.name)))
                self.drop(call)
                self.expired.append(call)
