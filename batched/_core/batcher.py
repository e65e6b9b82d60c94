"""All that is decided: which calls share a batch, when it starts, and what becomes of them.

Pure: a driver tells the time and does the waiting. Callers put calls into the `inbox`; a driver asks `next`
for the batch to run, or for how long to wait, and reports the batch by `running.finish` or `running.fail`.
After each step it takes the calls in `calls.answered`, `let_in`, `released` and `gone`.

Nothing is assigned to a batch before a driver is free to run it (late binding), so the queue keeps growing
behind a running batch. All but the inbox needs the lock of the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batched._core.backlog import Backlog
from batched._core.batch import Batch
from batched._core.calls import Calls, NewQueue
from batched._core.collator import Collator
from batched._core.counters import Counters
from batched._core.inbox import Inbox
from batched._core.lessons import NOTHING, Lessons, of_all
from batched._core.next_batch import NextBatch
from batched._core.options import Options
from batched._core.running import Running
from batched._core.stats import Stats
from batched._policy.window import Learned


class Batcher:
    """What waits is in `calls`, what runs in `running`; `next_batch` decides what goes from one to the other.

    `now` and all times are seconds on one monotonic clock.
    """

    def __init__(  # noqa: PLR0913
        self,
        options: Options,
        new_queue: NewQueue,
        collator: Collator,
        name: str,
        counters: Counters,
        *,
        in_flight: Any = None,
        streams: bool = False,
    ) -> None:
        self.calls: Calls = Calls(options, new_queue, name, counters, in_flight, streams=streams)
        self.inbox: Inbox = self.calls.inbox
        self.backlog: Backlog = self.calls.backlog
        self.next_batch: NextBatch = NextBatch(self.calls, options, streams=streams)
        self.running: Running = Running(name, self.calls, self.next_batch, collator, streams=streams)
        self.backlog.since = self.running.since
        self.backlog.retried = self.running.retries.batches
        self.next_batch.resize(None)

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self.calls.take_in()
        if options != self.next_batch.options:
            self.calls.counters.configured(self.running.since)
        self.next_batch.configure(options)
        self.next_batch.resize(self.fits)
        self.backlog.configure(options)
        self.calls.admission.configure(options)
        self.calls.admit_waiting()

    def next(self, now: float) -> Batch | float | None:
        """Remove and return the next batch if it is due.

        Else return the seconds until it is worth asking again, None if no call waits. Raises a fault of this
        library that calls met while they were queued; the driver then has to `give_up`.
        """
        while (delay := self.plan(now)) == 0.0:
            batch = self.pop(now)
            if batch.size:
                return batch
        return delay

    def rest(self) -> bool:
        """Return whether no call waits: then only the next call is reason to look."""
        calls, inbox = self.calls, self.inbox
        if inbox.arriving or inbox.leaving or calls.queue.items or calls.deadlines.entries or calls.fault:
            return False
        if self.running.retries.batches or calls.admission.awaiting_room:
            return False
        inbox.wake_after = 1
        return True

    def plan(self, now: float) -> float | None:
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits.

        Notes how many more calls are reason to ask earlier; if it is due, none are.
        """
        calls = self.calls
        calls.take_in()
        if calls.fault is not None:
            raise calls.fault
        if calls.unreported or calls.deadlines.entries:
            self.next_batch.catch_up(now)
        retries = self.running.retries.batches
        delay = 0.0 if retries and self.running.prune_retries(now) else self.next_batch.delay(now)
        inbox = self.inbox
        inbox.has_moved = False
        inbox.wake_after = 1
        if delay is not None:
            inbox.wake_after = self.next_batch.awaited() if delay else None
            inbox.until = now + delay
        return delay

    def pop(self, now: float) -> Batch:
        """Remove and return the next batch, for which `plan` has just said that it is due.

        It is empty if the keys of all of its calls have changed.
        """
        running, options = self.running, self.next_batch.options
        if running.retries.batches:
            batch: Batch = running.retries.batches[0]
            running.since[batch] = now
            running.retries.batches.popleft()
        else:
            batch = self.next_batch.take(now)
            if not batch.size:  # an earlier fault: without this, the driver would ask for ever
                raise RuntimeError("more items were counted than wait")
            if self.calls.keys_may_change:
                running.refuse_changed(batch, now)
                if not batch.size:
                    self.calls.taking_from = None
                    return batch
        if running.retries.is_watching:
            taken = batch
            batch = running.retries.to_run(taken, isolates=options.isolate_errors)
            if batch is not taken:
                running.since[batch] = now
                running.since.pop(taken, None)
        running.since[batch] = now
        self.calls.taking_from = None
        if self.backlog.is_used:
            self.backlog.started(now)
        return batch

    def give_up(self, error: BaseException, batch: Batch | None) -> None:
        """Answer with `error`, a fault of this library, the calls of `batch`, or else all that wait.

        The queue may be broken: a new one begins, and calls that were half-way into the old one are answered
        too. Counters, and other batches that run, go on.
        """
        if batch is not None:
            self.running.give_up(batch, error)
            return
        retries = self.running.retries
        self.calls.counters.cancelled += retries.items
        options = self.next_batch.options
        retried = retries.calls()
        retries.clear()
        self.calls.abandon(error, retried, options)
        self.next_batch.begin(options)
        self.next_batch.resize(self.fits)

    def mend(self, error: BaseException) -> None:
        """Put right what waits after `error`, a Ctrl-C, which has broken off a step anywhere.

        Batches that run go on. What was learned is forgotten.
        """
        options = self.next_batch.options
        self.calls.mend(error, [*self.running.since, *self.running.retries.waiting()], options)
        self.next_batch.begin(options)
        self.next_batch.resize(self.fits)

    @property
    def unfinished(self) -> int:
        """How many items wait or run."""
        running = self.running
        waiting: int = self.calls.queue.items
        return waiting + sum(batch.size for batch in running.since) + running.retries.items

    # -- what is there ----------------------------------------------------------------------------------

    @property
    def fits(self) -> int | None:
        """The most items of a batch as far as memory is known to go."""
        return self.running.retries.memory.limit

    @property
    def best_batch_size(self) -> int | None:
        """The most items of a batch where fewer than `batch_size` serve better."""
        sizes = self.next_batch.sizes
        return None if sizes is None or sizes.size == sizes.most else sizes.size

    @property
    def learned(self) -> Learned | None:
        """What it has learned of its function and its callers."""
        learned: Learned | None = self.next_batch.policy.learned()
        return learned

    @property
    def lessons(self) -> Lessons:
        """What it has learned, in numbers that outlive it."""
        return Lessons(self.next_batch.policy.cohorts, self.learned, self.fits, self.best_batch_size)


def snapshot(counters: Counters, batchers: Sequence[Batcher], now: float, gone: Lessons = NOTHING) -> Stats:
    """Return what `batchers`, which count together, have done so far, and what was learned by one `gone`."""
    lessons = of_all([batcher.lessons for batcher in batchers], gone)
    running = [batcher.running for batcher in batchers]
    refused = [batcher.inbox.refused.copy() for batcher in batchers]
    return counters.snapshot(
        waiting=sum(batcher.calls.queue.items for batcher in batchers),
        running=[(batch.size, now - since) for each in running for batch, since in each.since.items()],
        refused=sum(map(sum, refused)),
        again=sum(each.retries.items for each in running),
        paused=any(each.retries.is_paused for each in running),
        fits=lessons.fits,
        best=lessons.best,
        learned=lessons.learned,
    )
