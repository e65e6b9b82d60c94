"""When the next batch starts, and which calls are in it."""

from __future__ import annotations

from math import inf
from typing import Any

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.calls import Calls
from batched._core.early_drop import EarlyDrop
from batched._core.options import Options
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.best_size import BestSize
from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Lengths
from batched._policy.window import StartReason, Window

_SHORT_S = 200e-6  # a batch that takes less tells little of sizes and lengths: ...
_OF_SHORT = 8  # ... of so many in a row one is learned from


class NextBatch:
    """Decides on the next batch of a queue: when it starts, how large it is, and which calls it has.

    A batch starts when it is full; otherwise when the delay policy says so; and earlier for a call with a
    deadline, which never spends more than half of its time waiting for company.
    """

    def __init__(self, calls: Calls, options: Options, *, streams: bool = False) -> None:
        self._calls = calls
        self._streams = streams
        self._backlog = calls.backlog
        self._early_drop = EarlyDrop(calls)
        self._draining = False
        self._fits: int | None = None
        self.begin(options)

    def begin(self, options: Options) -> None:
        """Begin with the new queue of the calls, and nothing learned."""
        self._lengths = self._calls.queue.lengths
        self._reason = StartReason.FULL  # why the next batch is due, as the look finds that finds it due
        self.policy: Any = new_window(options, self._cost_of_lengths)
        self.sizes: BestSize | None = None
        self._passed = 0  # short batches that are not learned from, as one was
        self._ended = 0.0  # when the last batch ended
        self.apply_options(options)

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        self.policy = new_window(options, self._cost_of_lengths, self.policy)
        self.apply_options(options)

    def apply_options(self, options: Options) -> None:
        """Follow `options` with the present policy."""
        self.options = options
        if not self._learns_sizes(options):
            self.sizes = None
        elif self.sizes is None or self.sizes.most != options.batch_size:
            self.sizes = BestSize(options.batch_size)
        self._calls.policy_listens = self.policy.learns and not self.policy.is_suspended
        self._holds_back = options.timeout_ms > 0 and not self.policy.is_suspended
        self._reason_at_once = StartReason.NO_GAIN if options.timeout_ms > 0 else StartReason.WINDOW

    def _learns_sizes(self, options: Options) -> bool:
        """Whether it is learned which size of batches serves best.

        Where lengths are known, they explain what a batch takes, and their rule divides it. Batches that run
        at once slow each other down, and a batch of streams takes as long as its slowest consumer.
        """
        alone = options.max_concurrent_batches == 1 and not self._streams
        return alone and options.adaptive and options.batch_size > 1 and not self._uses_lengths

    @property
    def _uses_lengths(self) -> bool:
        return self._lengths is not None and self._lengths.is_used

    def resize(self, fits: int | None) -> None:
        """Bring the queue up to date with the options, what was learned, and what fits into memory."""
        options = self.options
        queue = self._calls.queue
        self._fits = fits
        size = options.batch_size if fits is None else min(options.batch_size, fits)
        if self.sizes is not None:
            size = min(size, self.sizes.size)
        if isinstance(self.policy, AdaptiveWindow):
            self.policy.configure(options.timeout_ms / 1000, size)
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
            if self._early_drop.is_on:
                self._early_drop.give_up_late(now)

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due, 0.0 if it is, None if no call waits."""
        queue = self._calls.queue
        if not queue.items:
            return None
        if queue.is_full():
            self._reason = StartReason.FULL
            return 0.0
        at_once = self._why_at_once()
        if at_once is not None:
            self._reason = at_once
            return 0.0
        start = self.policy.start_at(queue.oldest(), queue.items, now)
        self._reason = self.policy.reason
        if self._calls.deadlines.entries and (urgent := self._urgent_start(queue)) < start:
            start = urgent
            self._reason = StartReason.DEADLINE
        return start - now if start > now else 0.0

    def _urgent_start(self, queue: Any) -> float:
        """Return when to start for the call with the next deadline."""
        start = self._calls.deadlines.start()
        if self._early_drop.is_on:
            start = min(start, self._early_drop.latest_start(min(queue.items, queue.batch_size)))
        return start

    def awaited(self) -> int:
        """Return how many more calls are reason to look before the batch is due."""
        awaited: int = min(self._calls.queue.lacks(), self.policy.awaited)
        return awaited

    def _why_at_once(self) -> StartReason | None:
        """Return why a batch that is not full starts without a wait, None if the policy may hold it back."""
        if self._draining:
            return StartReason.DRAIN
        if self._calls.admission.awaiting_room:
            return StartReason.CROWDED
        return None if self._holds_back else self._reason_at_once

    # -- which calls it has -----------------------------------------------------------------------------

    def take(self, now: float) -> Batch:
        """Remove and return the next batch, of which `delay` has just said that it is due."""
        calls = self._calls
        queue = calls.queue
        deadlines = calls.deadlines
        urgent = deadlines.first() if deadlines.entries and self._urgent_start(queue) <= now else None
        lengths = self._lengths
        if lengths is not None and lengths.chooses:
            lengths.urgent = urgent
        if queue.is_keyed:
            batch = self._take_in_turn(now, urgent)
        else:
            calls.taking_from = queue
            batch = queue.take(self._room(queue, now))
            batch.reason = self._reason
        if lengths is not None and (lengths.chooses or lengths.looks):
            self._note_lengths(batch, lengths)
        if calls.policy_listens:
            self.policy.popped(now)
        if calls.admission.awaiting_room:
            calls.admit_waiting()
        return batch

    def _take_in_turn(self, now: float, urgent: Call | None) -> Batch:
        """Remove and return the next batch of the key that has its turn."""
        queues = self._calls.queue
        queue = queues.in_turn(lambda oldest: self._is_due(oldest, now), urgent)
        self._calls.taking_from = queue
        queue.large_limit = queues.large_limit
        reason = self._reason
        if queue.is_full():
            reason = StartReason.FULL
        elif reason == StartReason.FULL:  # another key's was
            reason = self._why_at_once() or self.policy.reason
        batch: Batch = queue.take(self._room(queue, now))
        queues.taken(batch, now)
        if reason != StartReason.FULL and not queue.items and queues.items:
            batch.is_apart = True
        batch.reason = reason
        return batch

    def _note_lengths(self, batch: Batch, lengths: Lengths) -> None:
        if lengths.is_used:
            self._calls.counters.chosen[lengths.how] += 1
        if lengths.chooses:
            lengths.urgent = None  # an idle batcher holds on to no call
        if lengths.looks:
            longest, real = lengths.look(batch.slices)
            batch.real, batch.padded = round(real), round(longest * batch.size)

    def _room(self, queue: Any, now: float) -> int:
        """Return how many items the next batch of `queue` has, at most."""
        room: int = min(queue.batch_size, queue.items)
        sizes, deadlines = self.sizes, self._calls.deadlines
        if sizes is not None and sizes.is_due:
            spare_s = deadlines.next() - now if deadlines.entries else inf
            size = sizes.try_size(queue.items, self._fits or sizes.most, spare_s)
            if size is not None:
                if self._lengths is not None:  # they are not used; in batches of this size they may tell more
                    self._lengths.looks = True
                return size
        if deadlines.entries and self._early_drop.is_on:
            room = min(self._early_drop.choose(queue, room, now), queue.items)
        return room

    def _is_due(self, oldest: float, now: float) -> bool:
        """Whether a batch starts now if its oldest item has arrived at `oldest`."""
        items = self._calls.queue.items
        return self._why_at_once() is not None or self.policy.start_at(oldest, items, now) <= now

    # -- what is learned --------------------------------------------------------------------------------

    def learn(self, batch: Batch, answered: int, started: float, now: float) -> None:
        """Learn from `batch`, which has ended and `answered` so many calls."""
        if self._backlog.is_used:
            self._backlog.ended(batch, started, now)
        is_passed = self._passed and now - started < _SHORT_S
        if self.policy.learns and not (is_passed and self.policy.is_suspended):
            self._learn_when_to_wait(batch, answered, started, now)
        if is_passed:
            self._passed -= 1
        else:
            self._learn_sizes_and_lengths(batch, started, now)
        self._ended = now

    def _learn_when_to_wait(self, batch: Batch, answered: int, started: float, now: float) -> None:
        policy, calls = self.policy, self._calls
        has_worked = batch.failed < batch.size
        if not policy.is_suspended:
            policy.done(batch.size, len(batch.slices), answered, now, started if has_worked else None)
            calls.queue.large_limit = policy.large_limit
        elif has_worked:
            call, start, _ = batch.slices[0]
            has_company = len(batch.slices) > 1 or (not start and call.arrived < self._ended)
            policy.ran_suspended(batch.size, now - started, has_company=has_company)
        calls.policy_listens = self._holds_back = not policy.is_suspended

    @property
    def _cost_of_lengths(self) -> LengthCost | None:
        """What batches cost, where lengths are used."""
        lengths = self._lengths
        return lengths.cost if lengths is not None and lengths.is_used else None

    def _learn_sizes_and_lengths(self, batch: Batch, started: float, now: float) -> None:
        lengths, sizes = self._lengths, self.sizes
        if lengths is not None and batch.failed < batch.size:
            is_used = lengths.is_used
            lengths.ran(batch, now - started)
            if lengths.is_used != is_used and isinstance(self.policy, AdaptiveWindow):
                self.policy.follow(self._cost_of_lengths)
        if sizes is not None and not batch.failed:
            self._learn_size(sizes, batch.size, started, now)
        is_at_rest = (sizes is None or sizes.is_at_rest) and not self._uses_lengths
        self._passed = _OF_SHORT - 1 if is_at_rest and now - started < _SHORT_S else 0

    def _learn_size(self, sizes: BestSize, size: int, started: float, now: float) -> None:
        """Learn what a batch of `size` items takes, and go on with the size that serves best."""
        before = sizes.size
        if self._lengths is not None and self._lengths.is_open:
            return  # smaller batches have less padding: then it would not be found out
        if not self._uses_lengths:
            sizes.ran(size, started, now)
        elif sizes.is_due or before != sizes.most:  # from now on lengths explain what batches take
            self.sizes = sizes = BestSize(sizes.most)
        if sizes.size != before:
            self.resize(self._fits)


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
