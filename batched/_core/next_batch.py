"""When the next batch starts, and which calls are in it."""

from __future__ import annotations

from typing import Any

from batched._core.batch import Batch
from batched._core.calls import Calls
from batched._core.options import Options
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.length_cost import LengthCost
from batched._policy.window import StartReason, Window


class NextBatch:
    """Decides on the next batch of a queue: when it starts, how large it is, and which calls it has.

    A batch starts when it is full; otherwise when the delay policy says so; and earlier for a call with a
    deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(self, calls: Calls, options: Options) -> None:
        self._calls = calls
        self._draining = False
        self.begin(options)

    def begin(self, options: Options) -> None:
        """Begin with the new queue of the calls, and nothing learned."""
        self._lengths = self._calls.queue.lengths
        self._cost = None if self._lengths is None else self._lengths.cost
        self._reason = StartReason.FULL  # why the next batch is due, as the look finds that finds it due
        self.policy: Any = new_window(options, self._cost)
        self.apply_options(options)

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self.policy = new_window(options, self._cost, self.policy)
        self.apply_options(options)

    def apply_options(self, options: Options) -> None:
        """Follow `options` with the present policy."""
        self.options = options
        self._calls.policy_listens = self.policy.learns and not self.policy.is_suspended
        self._holds_back = options.timeout_ms > 0 and not self.policy.is_suspended
        self._reason_at_once = StartReason.NO_GAIN if options.timeout_ms > 0 else StartReason.WINDOW

    def resize(self, fits: int | None) -> None:
        """Bring the queue up to date with the options, and with how many items fit into memory."""
        options = self.options
        queue = self._calls.queue
        size = options.batch_size if fits is None else min(options.batch_size, fits)
        lengths = self._lengths
        changed = lengths is not None and lengths.budget != options.max_batch_length
        if lengths is not None:
            lengths.budget = options.max_batch_length
        if changed or (size, options.small_batch_threshold) != (queue.batch_size, queue.threshold):
            queue.resize(size, options.small_batch_threshold)

    def drain(self) -> None:
        """Wait for company no more: every call in the queue is due."""
        self._draining = True

    # -- when it starts ---------------------------------------------------------------------------------

    def catch_up(self, now: float) -> None:
        """Tell the delay policy which calls have come, and answer calls that are late."""
        calls = self._calls
        if calls.unreported:
            self.policy.arrived([call.arrived for call in calls.unreported])
            calls.unreported.clear()
        if calls.deadlines.entries:
            for call in calls.deadlines.passed(now):
                calls.expire(call)

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits."""
        queue = self._calls.queue
        if not queue.items:
            return None
        if queue.is_full():
            self._reason = StartReason.FULL
            return 0.0
        if self._starts_at_once:
            self._reason = self._why_early()
            return 0.0
        start = self.policy.start_at(queue.oldest(), queue.items, now)
        self._reason = self.policy.reason
        deadlines = self._calls.deadlines
        if deadlines.entries and (urgent := deadlines.start()) < start:
            start = urgent
            self._reason = StartReason.DEADLINE
        return start - now if start > now else 0.0

    def awaited(self) -> int:
        """Return how many more calls are reason to look before the batch is due."""
        awaited: int = min(self._calls.queue.lacks(), self.policy.awaited)
        return awaited

    @property
    def _starts_at_once(self) -> bool:
        """Whether a batch that is not full starts without a wait."""
        return self._draining or not self._holds_back or bool(self._calls.admission.awaiting_room)

    def _why_early(self) -> StartReason:
        """Return why a batch that is not full starts."""
        if self._draining:
            return StartReason.DRAIN
        if self._calls.admission.awaiting_room:
            return StartReason.CROWDED
        reason: StartReason = self.policy.reason if self._holds_back else self._reason_at_once
        return reason

    # -- which calls it has -----------------------------------------------------------------------------

    def take(self, now: float) -> Batch:
        """Remove and return the next batch, of which `delay` has just said that it is due."""
        calls = self._calls
        queues = calls.queue
        deadlines = calls.deadlines
        urgent = deadlines.first() if deadlines.entries and deadlines.start() <= now else None
        lengths = self._lengths
        if lengths is not None:
            lengths.urgent = urgent
        queue, reason = queues, self._reason
        if queues.is_keyed:
            queue = queues.in_turn(lambda oldest: self._is_due(oldest, now), urgent)
            queue.large_limit = queues.large_limit
            if queue.is_full():
                reason = StartReason.FULL
            elif reason == StartReason.FULL:  # another key's was
                reason = self._why_early()
        batch: Batch = queue.take(min(queue.batch_size, queue.items))
        batch.reason = reason
        if queues.is_keyed:
            queues.taken(batch, now)
        if lengths is not None:
            calls.counters.chosen[lengths.how] += 1
            lengths.urgent = None  # an idle batcher holds on to no call
        if calls.policy_listens:
            self.policy.popped(now)
        if calls.admission.awaiting_room:
            calls.admit_waiting()
        return batch

    def _is_due(self, oldest: float, now: float) -> bool:
        """Whether a batch starts now if its oldest item has arrived at `oldest`."""
        return self._starts_at_once or self.policy.start_at(oldest, self._calls.queue.items, now) <= now

    # -- what is learned --------------------------------------------------------------------------------

    def learn(self, batch: Batch, answered: int, started: float, now: float) -> None:
        """Learn from `batch`, which has ended and `answered` so many calls."""
        lengths = self._lengths
        if lengths is not None and batch.failed < batch.size:
            lengths.ran(batch.slices, batch.size, now - started)
        policy = self.policy
        if not policy.learns:
            return
        if policy.is_suspended:
            self._calls.policy_listens = self._holds_back = policy.resumes(batch.size, now - started)
            return
        measured = started if batch.failed < batch.size else None
        policy.done(batch.size, len(batch.slices), answered, now, measured)
        self._calls.queue.large_limit = policy.large_limit
        self._calls.policy_listens = self._holds_back = not policy.is_suspended


def new_window(options: Options, cost: LengthCost | None = None, old: Window | None = None) -> Window:
    """Return the window that `options` ask for: the `old` one, with all it has learned, if it still fits.

    The `cost` of batches is given where it is learned elsewhere.
    """
    timeout_s = options.timeout_ms / 1000
    # Of callers that come back while several batches run, it is not known to which batch they belong.
    one_by_one = options.max_concurrent_batches == 1
    if not (options.adaptive and one_by_one and timeout_s and options.batch_size > 1):
        return Window(timeout_s)
    if isinstance(old, AdaptiveWindow):
        old.configure(timeout_s, options.batch_size)
        return old
    return AdaptiveWindow(timeout_s, options.batch_size, cost)
