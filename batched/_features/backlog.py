"""How long calls wait for their answers: what waits and what runs, as the time that it takes.

Batches that fail, and their parts that run again, take the time of the function too: that of all runs,
relative to what the first runs were expected to take, makes each batch that waits longer.

A call that would be late behind what waits is refused at once (Clockwork, OSDI 2020, admits only what will
be on time). The time of batches is that of `ServiceTime`, and of a call's own batch the time that few
exceed. Where it is not known nothing is refused. A function that was idle for a while takes what comes, so
that it cannot seem slow for ever; and sooner after a batch that was faster than expected. One item runs in
any case where nothing else does.

In a flood, where calls are turned away before each batch, no more small calls wait than fill the next one. A
longer queue would only add to the latency of all, also for long after.
"""

from __future__ import annotations

from functools import partial
from math import ceil, inf
from typing import Protocol

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.hooks import Feature, Run
from batched._core.lazy_heap import Deadlines
from batched._core.options import Options
from batched._core.queue import PAID_OUT, RESERVE
from batched._core.river import River
from batched._policy.coming_back import ComingBack
from batched._policy.extra_runs import ExtraRuns
from batched._policy.service_time import ServiceTime
from batched._policy.window import StartReason
from batched.errors import OverloadError

_FLOOD = 16  # batches in a row before which calls were turned away: then a long queue only adds to waits
_WEIGHT = 1 / 16  # of one batch in what is learned of late
_OF_FILLED = 1 / 4  # the weight of one batch in the size of a full one
_SPARE = 0.5  # of the time of one item: where a slot was free for longer, this is no flood
_LOOK_AHEAD = 64  # batches, of a large call's wait; beyond, the rest goes on as they did
_LEAST = 0.01  # of an item
_OF_LATE = 64  # batches: what came with them comes now
_LONGER = 4  # times as long as of late: a longer time from batch to batch is a rest
_IDLE = 8  # batches that could have run since the last one: what was learned may be wrong by now


_USED = ("door", "took", "ended")


class Backlog(Feature):
    """What waits and what runs, as the time that it takes.

    It learns from the first moment on at which a call has a deadline, or its wait is asked for. `door` and
    `wait_s` need no lock: they look at figures that the steps keep up to date.
    """

    hooks: tuple[str, ...] = ("door",)

    def __init__(self, deadlines: Deadlines, name: str) -> None:
        self._deadlines = deadlines
        self._name = name
        self.times: ServiceTime = ServiceTime()
        self._extra = ExtraRuns()
        self._ended = 0.0
        self._sooner = 1.0  # what the last batch took, relative to what was expected; 1 at most
        self._free_at = 0.0
        # Small items that wait, and will be too late for the next batch if that is full.
        self._losing = 0
        self._losing_before = 0.0
        self._coming_back = ComingBack()
        # Of a batch, the items and those of small calls, and from the end of one to the end of the next.
        self._items = self._small = self._cycle_s = 0.0
        self._filled = inf  # the items of batches that lengths have filled, before there were `batch_size`
        self._full = 1  # the items of a full batch
        self._of_key = inf  # the items of batches that left items of other keys
        self._flooded = 0  # batches in a row before which calls were turned away
        self._turned_away = 0  # items, since the last batch started
        self._without_room = 0  # items that were refused since then as the queue was full
        self._now = 0.0  # when something last happened
        self._has_begun = False
        self._is_asked = False

    def begin(self, river: River, options: Options) -> None:
        """Go on with what is known, for a new queue."""
        super().begin(river, options)
        river.admission.retry_after_s = self.retry_after_s
        if self._is_asked:  # Ctrl-C may have come before it took part
            self.hooks = _USED

    def configure(self, options: Options) -> None:  # noqa: ARG002  as for every feature
        """Follow new options."""
        self._filled, self._full = inf, self.river.queue.batch_size
        self._of_key = inf
        if self.times.is_known:
            self._free_at = self._next_end(self._now)

    def resized(self, options: Options, size: int) -> None:  # noqa: ARG002  as for every feature
        """Note how many items a full batch has."""
        self._full = max(round(min(size, self._filled)), 1)

    # -- what is learned, with the lock -------------------------------------------------------------------

    def use(self) -> None:
        """Take part from now on."""
        self._is_asked = True
        self.have(*_USED)

    def learn(self) -> None:
        """Learn from now on, and from the last batches that ran, of all loops."""
        self.use()
        if not self._has_begun or not (self.times.is_known or self.river.options.streams):
            self._has_begun = True
            self.times = ServiceTime()
            runs = self.river.counters.last_runs()
            for size, _, started, ended in runs:
                self._learn(size, ended - started)
            if len(runs) > 1:
                self._note_arrivals(runs[-_OF_LATE:])
            if self.times.is_known:
                self._free_at = self._next_end(max(self._now, self._ended))

    def _note_arrivals(self, runs: list[tuple[int, int, float, float]]) -> None:
        """Take it that as many items come as in the last `runs`: of lists, where slices have many each."""
        times = len(runs) - 1
        self._ended = runs[-1][3]
        self._cycle_s = max(self._ended - runs[0][3], 0.0) / times
        self._items = sum([size for size, _, _, _ in runs[1:]]) / times
        self._small = sum([self._of_small_calls(size, slices) for size, slices, _, _ in runs[1:]]) / times

    def _of_small_calls(self, size: int, slices: int) -> int:
        """Return how many items of a batch were of small calls, as far as can be told afterwards."""
        queue = self.river.queue
        if slices == 1 and size == queue.batch_size > 1:
            return 0  # a part of a list, most likely
        return size if size <= queue.threshold * slices else slices - 1

    def took(self, batch: Batch, now: float) -> None:
        """Note that a batch starts."""
        if not self.times.is_known:
            self.learn()
        self._now = max(self._now, now)
        if not self.times.is_known:
            return
        if self.river.queue.items and batch.search is None:
            self._note_full(batch)
        self._free_at = self._next_end(now)
        self._losing_before = self._free_at + self.times.safe_seconds(self._full)
        self._losing = 0 if self._deadlines.are_after(self._losing_before) else self._count_losing()
        self._coming_back.started(self._turned_away, self._items, is_full=self._without_room > 0)
        if self._turned_away:
            # Where only the rule of floods turns calls away, nothing else would end it.
            is_spare = now - self._ended > _SPARE * self.times.seconds(1)
            self._flooded = 0 if is_spare else self._flooded + 1
            self.times.caution += _WEIGHT * (1.0 - self.times.caution)
        else:
            self._flooded = 0
            self.times.caution -= _WEIGHT * self.times.caution
        if not (self.river.queue.items or self._without_room):  # else some will come back
            self._coming_back.all_came()
        self._turned_away = self._without_room = 0

    def _note_full(self, batch: Batch) -> None:
        """Note how many items a batch has that left others: it was full, or had all that wait of its key."""
        queue = self.river.queue
        if queue.is_keyed and batch.reason != StartReason.RETRY:
            before = min(self._of_key, queue.batch_size)
            self._of_key = before + _OF_FILLED * (batch.size - before)
        # Else it has left room for small calls, or is a part, as in an outage, where one item runs ahead.
        if batch.reason == StartReason.FULL and (queue.large_limit is None or queue.small_items):
            before = min(self._filled, queue.batch_size)
            self._filled = before + _OF_FILLED * (batch.size - before)
            self._full = max(round(self._filled), 1)

    def ended(self, run: Run) -> None:
        """Note that a batch has ended; learn from it, if it is a lesson, what batches take."""
        batch, started, now = run.batch, run.started, run.now
        if run.is_divided:
            self._note_run(batch, now - started, divided=True)
        else:
            if self._has_begun and not batch.failed:
                if not run.is_lesson:
                    self.times.passed(batch.size, now - started)
                else:
                    if self.times.is_known:
                        self._sooner = min((now - started) / self.times.seconds(batch.size), 1.0)
                    self._learn(batch.size, now - started)
            if run.is_lesson or batch.failed:
                self._note_run(batch, now - started)
            small = batch.size
            for call, start, stop in batch.slices:
                if call.large:
                    small -= stop - start
            self._small += _WEIGHT * (small - self._small)
            self._items += _WEIGHT * (batch.size - self._items)
            cycle_s = now - (self._ended or started)
            if self._cycle_s:  # after a night, as many may come as before it
                cycle_s = min(cycle_s, _LONGER * self._cycle_s)
            self._cycle_s += _WEIGHT * (cycle_s - self._cycle_s)
            self._ended = now
        self._now = max(self._now, now)
        if self.times.is_known:
            self._free_at = self._next_end(now)

    def _note_run(self, batch: Batch, seconds: float, *, divided: bool = False) -> None:
        """Note how much longer the function was busy than what the first run of a batch was to take."""
        if not self.times.is_known:
            return
        expected = self.times.seconds(batch.size)
        if batch.reason == StartReason.RETRY:
            self._extra.ran_again(seconds, expected)
        else:
            self._extra.ran(expected, seconds if divided or batch.failed else expected, divided=divided)

    def _learn(self, size: int, seconds: float) -> None:
        """Learn what a batch took; of streams, that is for their consumers to say."""
        if not self.river.options.streams:
            self.times.ran(size, seconds)
            if self.times.is_known:
                self.river.batch_s = self.times.safe_seconds(1)

    def _next_end(self, now: float) -> float:
        """Return when a batch of calls that wait can start, as far as is known: at once where a slot is free.

        What runs again goes first.
        """
        again_s = 0.0
        if again := self.river.first:
            takes_s = sum([self.times.seconds(batch.size) for batch in again if batch.size])
            again_s = self._extra.left(takes_s) / self.river.slots
        else:
            self._extra.left_s = 0.0
        if len(self.river.running) < self.river.slots:
            return now + again_s
        first = inf
        for batch, since in self.river.running.items():
            factor = 1.0 if batch.reason == StartReason.RETRY else self._extra.factor
            first = min(first, since + self.times.seconds(batch.size) * factor)
        return first + again_s

    def _count_losing(self) -> int:
        """Return how many small items that wait will be too late for the next batch if that is full."""
        losing = 0
        deadlines = self._deadlines
        if deadlines.next() < self._losing_before:
            for call in self.river.queue.small_calls():
                if call.waiting and (call.deadline is None or call.deadline >= self._losing_before):
                    break  # those that follow came later
                losing += call.waiting
        return losing

    # -- callers ask, without the lock --------------------------------------------------------------------

    def wait_s(self, items: int, now: float) -> float | None:
        """Return how long a call of `items` that came now would wait for its answer; None if not known."""
        if not self.times.is_known:
            return None
        queue = self.river.queue
        large = items > queue.threshold
        ahead = queue.ahead(items, None, large=large) + self._arriving(items, large=large)
        if large:
            return self._large_wait_s(items, ahead, now)
        size = min(self._full, self._of_key)
        start, own = self._starts_at(ahead, items, max(round(size), 1), now)
        if self._cycle_s:  # as many come until then as came of late
            own += round(self._items / self._cycle_s * (start - now))
        own = min(own + queue.items - queue.small_items, max(round(size), items))
        return start + self.times.seconds(own) * self._extra.until_answer - now

    def _full_of_lists(self) -> float:
        """Return the items of a full batch of large calls; deadlines of small calls only cut theirs."""
        queue = self.river.queue
        return min(queue.batch_size if queue.lengths is None else self._full, self._of_key)

    def _large_wait_s(self, items: int, ahead: int, now: float) -> float:
        """Return how long a large call would wait, batch by batch: small ones that come go ahead of it."""
        queue, times, size = self.river.queue, self.times, self._full_of_lists()
        small = float(min(queue.small_items + len(self.river.arriving), ahead))
        left = float(max(ahead - small, 0.0) + items)
        total, done = left, 0.0
        cycle_s = self._cycle_s
        if not self.river.running:  # no more have come since the last batch
            cycle_s = max(cycle_s, now - self._ended)
        each_s = self._small / cycle_s if cycle_s else 0.0  # small items that come in a second
        # Half of the large items that come go ahead, as large calls take turns; one batch is not divided.
        # Where no large call waits, those of late may be of the caller that asks, which has one at a time.
        shared = max(1.0 - size / items, 0.0) / 2 if ahead > small else 0.0
        large_s = (self._items - self._small) / cycle_s * shared if cycle_s else 0.0
        most = size if queue.large_limit is None else queue.large_limit
        takes_s, credit = 0.0, queue.saved
        start = self._starts_at(0, 1, 1, now)[0] - now
        small += each_s * start
        for _ in range(_LOOK_AHEAD):
            credit = min(credit + size * RESERVE, max(queue.saved, size * RESERVE))
            # By chance, more small ones than fill a batch wait now and then, long before they do on average.
            reserved = min(left, credit, size * PAID_OUT)
            taken = min(small, size - reserved)
            part = min(left, size - taken, most if small >= 1.0 else size)
            batch_s = times.seconds(max(round(taken + part), 1))
            left -= part
            done += part
            if left < _LEAST:
                return start + takes_s + batch_s * self._extra.until_answer
            last_s = batch_s / self.river.slots * self._extra.factor + self._between_s()
            takes_s += last_s
            # Of what is done others have their share, though more may seem to come than is done.
            others = min(large_s * last_s, part * shared)
            left += others
            done -= others
            credit = max(credit - part, 0.0)
            small += each_s * last_s - taken
        return start + takes_s * total / done

    def _between_s(self) -> float:
        """Return how long the workers do something else between two batches."""
        return 0.0

    def door(self, call: Call, now: float) -> None:
        """Raise an `OverloadError` if `call`, which has a deadline, cannot be answered in time."""
        if not self._is_asked:
            self.river.later.append(self.use)  # first: another caller relies on it, and Ctrl-C may come
            self._is_asked = True
        river = self.river
        if river.running or river.queue.items or river.arriving or call.size > 1:  # else it runs at once
            self._judge(call, now)

    def _judge(self, call: Call, now: float) -> None:
        """Raise an `OverloadError` if `call` cannot be answered in time behind what waits and runs."""
        river, deadline = self.river, call.deadline
        if deadline is None or not self.times.is_known:
            return
        items = call.unanswered  # without those that a cache knows
        queue = river.queue
        large = items > queue.threshold if call.bulk is None else call.bulk
        ahead = queue.ahead(items, call, large=large) + self._arriving(items, large=large) - self._losing
        too_long = self._too_long(call, ahead, items, now)
        if large and ahead > 0:
            last = (items - 1) % queue.batch_size + 1
            answered = now + self._large_wait_s(items, ahead, now)
            too_long = answered - self.times.seconds(last) + self.times.safe_seconds(last) - deadline
        elif self._flooded >= _FLOOD and not large:
            too_many = queue.of_its_key(call, ahead) + items - queue.batch_size
            too_long = max(too_long, too_many * self._each_s())
        if too_long <= 0.0 or self.is_free(now, items):
            if deadline < self._losing_before:
                self._losing += items
            return
        river.later.append(partial(self._count_refused, call.size))  # with those that a cache knows
        error = self.overload(call, too_long, now, in_vain=self._too_long(call, 0, items, now) > 0.0)
        call.missing = call.waiting = 0  # nothing is left to be cancelled
        raise error

    def _count_refused(self, items: int) -> None:
        self.river.counters.refused += items

    def _arriving(self, items: int, *, large: bool) -> int:
        """Return how many items that are not in the queue yet go ahead of a call of `items`."""
        arriving = self.river.arriving
        if not large:
            return len(arriving)  # of one item nearly all, and there may be thousands
        turn = max(items, self.river.queue.batch_size)
        return sum([min(call.size, turn) for call in arriving[:]])

    def _too_long(self, call: Call, ahead: int, items: int, now: float) -> float:
        """Return how late `call`, of `items`, would be behind so many items, by what is known."""
        start, own = self._starts_at(ahead, items, self._full, now)
        late: float = start + self.times.safe_seconds(own) - (call.deadline or 0.0)
        return late

    def is_free(self, now: float, items: int = 0) -> bool:
        """Whether `items` that come, and those that wait, may run though they seem late: that may be wrong.

        Nothing runs, and it is one item, or the function has not run for long.
        """
        if self.river.running:
            return False
        river = self.river
        if river.queue.items + len(river.arriving) + items <= 1:
            return True
        enough: float = _IDLE * self.times.seconds(river.queue.batch_size) * self._sooner
        return now - self._ended > enough

    def _starts_at(self, ahead: int, items: int, size: int, now: float) -> tuple[float, int]:
        """Return when the last batch of a call of `items` starts, and how many items it has up to that one.

        So many items go `ahead` of it, in batches of a `size`.
        """
        batches, last = divmod(max(ahead, 0) + items - 1, size)
        return max(now, self._free_at) + batches * size * self._each_s(size), last + 1

    def overload(self, call: Call, too_long: float, now: float, *, in_vain: bool) -> OverloadError:
        """Return the error of `call`, for which what waits takes `too_long` by so many seconds.

        A call that is late though nothing waits, one `in_vain`, is no sign of overload.
        """
        if not in_vain:
            self._turned_away += call.size
        alone_s = self._alone_s(call.unanswered)
        if call.deadline is not None and alone_s > call.deadline - call.arrived:
            takes = f"it takes {_rounded_up(alone_s)} even if nothing else runs"
            return OverloadError(f"{self._name} cannot answer within {call.allowed()}: {takes}")
        # A list of many batches takes turns with others: they are not to stay away for all of it.
        has_place = call.size <= self.river.queue.batch_size
        takes_s = call.size * self._each_s()
        retry_after_s = self._coming_back.after_s(too_long, takes_s, now, has_place=has_place)
        why = "" if in_vain else " because of the calls ahead of this one"
        error = OverloadError(
            f"{self._name} cannot answer within {call.allowed()}{why}; "
            f"try again in {_rounded_up(retry_after_s)}"
        )
        error.retry_after_s = retry_after_s
        return error

    def _alone_s(self, items: int) -> float:
        """Return how long `items` take if nothing else runs."""
        size = self._full
        batches, last = divmod(max(items, 1) - 1, size)
        return batches * size * self._each_s() + self.times.seconds(last + 1)

    def _each_s(self, size: int | None = None) -> float:
        """Return the seconds that an item takes in batches of a size, or else in full ones."""
        items = size or self._full
        return self.times.seconds(items) / items / self.river.slots * self._extra.factor

    # -- for a bound on what waits, with the lock ----------------------------------------------------------

    def retry_after_s(self, items: int, too_many: int, most: int, now: float) -> float | None:
        """Return when a call of `items` may come back, for which `too_many` wait, where `most` may.

        None if that is not known.
        """
        self._now = max(self._now, now)
        self.learn()
        if not self.times.is_known:
            return None
        self._without_room += items
        # No batch has more items than may wait.
        size = min(self._full, max(most, items))
        cycle_s = size * self._each_s(size) + self._between_s()
        each_s = cycle_s / size
        left_s = self._starts_at(0, 1, size, self._now)[0] - self._now
        missing_s, takes_s = too_many * each_s, items * each_s
        return self._coming_back.room_after_s(missing_s, takes_s, left_s, cycle_s, self._now)


class KnowsWorkers(Protocol):
    """What knows when the workers are free that a function shares with others."""

    lag_s: float
    """How long a batch that could start has waited for a worker, on average of late."""

    def free_at(self, now: float) -> float:
        """Return when a worker will be free, as far as is known; `now` if one is."""
        ...


class SharedBacklog(Backlog):
    """The same where other functions use the workers too: their batches run in between."""

    def __init__(self, deadlines: Deadlines, name: str, workers: KnowsWorkers) -> None:
        super().__init__(deadlines, name)
        self._workers = workers

    def door(self, call: Call, now: float) -> None:
        """Raise an `OverloadError` if `call`, which has a deadline, cannot be answered in time."""
        river = self.river
        is_alone = not (river.running or river.queue.items or river.arriving or call.size > 1)
        super().door(call, now)
        if is_alone and self._workers.free_at(now) > now:  # it waits for batches of other functions
            self._judge(call, now)

    def _between_s(self) -> float:
        return self._workers.lag_s

    def is_free(self, now: float, items: int = 0) -> bool:
        """Whether calls may run though they seem late; not while other functions have all workers."""
        return self._workers.free_at(now) <= now and super().is_free(now, items)

    def _starts_at(self, ahead: int, items: int, size: int, now: float) -> tuple[float, int]:
        start, own = super()._starts_at(ahead, items, size, now)
        batches = (max(ahead, 0) + items - 1) // size
        return self._later(start, batches, now), own

    def _later(self, start: float, batches: int, now: float) -> float:
        """Return when a batch starts that would `start` then, behind so many, were the workers its own."""
        workers = self._workers
        free = workers.free_at(now)
        turns = batches if free <= now else batches + 1
        return max(start, free) + turns * workers.lag_s


def _rounded_up(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 1.0:
        return f"{max(ceil(seconds * 1000), 1)} ms"
    up = ceil(seconds * 10) / 10
    return f"{up:.12g} second{'s' if up > 1 else ''}"
