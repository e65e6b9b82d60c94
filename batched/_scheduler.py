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
    from typing import TypeAlias

    from batched._call import Call
    from batched._groups import Groups
    from batched._patience import Window
    from batched._stats import Stats

    AnyQueue: TypeAlias = Queue | Groups

__all__ = ["Scheduler"]


class Scheduler:
    """The queue of one batcher. `now` and all times are seconds on one monotonic clock.

    A batch starts when it is full; otherwise when `patience` says so, counted from its oldest item; and
    earlier for a call with a deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(
        self,
        *,
        queue: AnyQueue,
        batch_size: int,
        patience: Window,
        name: str,
        counters: Counters | None = None,
    ) -> None:
        self.queue = queue
        self.batch_size = batch_size
        self.name = name
        self._patience = patience
        self._counters = Counters() if counters is None else counters
        self._running: dict[Batch, float] = {}  # since when
        self._draining = False
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
        queue = self.queue
        before = queue.items
        urgent = queue.push_all(calls)
        self._counters.accepted += queue.items - before
        for call in urgent:
            heappush(self._deadlines, (call.deadline or 0.0, next(self._order), call))
            if len(self._deadlines) > self._deadlines_limit:
                self._forget_deadlines()

    def take_in(self, arriving: deque[Call], leaving: deque[Call]) -> None:
        """Queue all of `arriving`, drop those of `leaving`, and empty both, to which others may be adding."""
        gone = len(leaving)  # counted first: whoever has left by now came before
        self.push_all(arriving)
        while gone:
            gone -= 1
            self.drop(leaving.popleft())

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
        if not queue.items:
            return None
        if self._draining or queue.is_full():
            return 0.0
        start = self._patience.start(queue.oldest())
        if self._deadlines:
            start = min(start, self._urgent_start())
        return start - now if start > now else 0.0

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, due or not. At least one item must wait."""
        if self._deadlines:
            self._expire(now)
        queues = self.queue
        queue = queues if isinstance(queues, Queue) else self._choose(queues, now)
        waiting = queue.items
        if waiting >= self.batch_size:
            size, reason = self.batch_size, "full"
        else:
            size, reason = waiting, "drain" if self._draining else "window"
        batch = Batch(queue.take(size), size, reason)
        if not isinstance(queues, Queue):
            queues.taken(batch.slices[0][0].key, size)
        self._running[batch] = now
        return batch

    def _choose(self, groups: Groups, now: float) -> Queue:
        """Return the queue whose turn it is: of those that are due, that of the oldest item."""
        oldest = groups.oldest_queue()
        if self._draining or self._patience.start(oldest.oldest()) <= now:
            return oldest
        due = groups.oldest_full()
        if self._deadlines and self._urgent_start() <= now:
            urgent = groups.of(self._deadlines[0][2])
            if due is None or urgent.oldest() < due.oldest():
                due = urgent
        return due or oldest

    def _urgent_start(self) -> float:
        """Return when to start for the call whose deadline is next. There must be one, and it must wait."""
        deadline, _, call = self._deadlines[0]
        return (call.arrived + deadline) / 2

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
        if batch.padded:
            counters.real += batch.real
            counters.padded += batch.padded
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
        return self._counters.snapshot(waiting=self.queue.items, running=self.running(now))

    def running(self, now: float) -> list[tuple[int, float]]:
        """Return the batches that run: their items, and seconds since."""
        return [(batch.size, now - started) for batch, started in self._running.items()]

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
