"""The batcher's contract as a state machine, told the time by hand; suites add queues and options to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog

WINDOW_S = 1.0


COLLATOR = ListCollator("f")


class BatcherRules(RuleBasedStateMachine):
    """Whatever is pushed runs once, in its call's order, in batches that fit and are never late."""

    queue: Any = Queue
    keys = 1
    window_s = WINDOW_S
    adaptive = False

    def latest(self, oldest: float) -> float:
        """Return until when a batch with an item of that time may wait."""
        return oldest + self.window_s

    @initialize(batch_size=st.integers(1, 9), threshold=st.integers(0, 4))
    def start(self, batch_size: int, threshold: int) -> None:
        """Begin with an empty queue at time 0."""
        self.now = 0.0
        self.batch_size = batch_size
        self.threshold = threshold
        options = Options(
            isolate_errors=False,
            batch_size=batch_size,
            small_batch_threshold=threshold,
            timeout_ms=self.window_s * 1000,
            adaptive=self.adaptive,
        )
        self.driver = ManualDriver(options, self.queue, COLLATOR)
        backlog: Any = self.driver.batcher.feature(Backlog)
        backlog.learn = lambda: None  # nothing, so that no call is given up early
        self.freed = 0.0
        self.calls: list[Call] = []
        self.running: list[tuple[Batch, list[Any]]] = []
        self.ran: list[tuple[int, int]] = []
        self.large_passed_over: Counter[int] = Counter()
        self.ahead: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By how many items one large call is ahead of another since both wait: now, at least, at most."""
        self.turns: dict[int, float] = {}  # when each key has had its last
        self.reserve = 0.0  # batches that keys of large calls may take before those of small ones

    @rule(
        size=st.integers(0, 20),
        bulk=st.sampled_from([None, True, False]),
        allowed_s=st.sampled_from([None, 0.5, 2.0, 5.0]),
        keep_errors=st.booleans(),
        key=st.integers(0, 9),
    )
    def push(
        self, size: int, bulk: bool | None, allowed_s: float | None, keep_errors: bool, key: int
    ) -> None:
        """A caller comes."""
        deadline = None if allowed_s is None else self.now + allowed_s
        self.driver.push(self.call_of(size, deadline, bulk, keep_errors, key))

    def call_of(
        self,
        size: int,
        deadline: float | None = None,
        bulk: bool | None = None,
        keep_errors: bool = False,
        key: int = 0,
    ) -> Call:
        """Return a call whose items know whose they are; one of no size is of a single item, not a list."""
        items = [(len(self.calls), index) for index in range(size or 1)]
        inputs = items[:] if size else items[0]
        call = Call().begin(echo, inputs, size or 1, size > 0, self.now, deadline, bulk)
        call.keep_errors = keep_errors
        call.key = key % self.keys
        self.calls.append(call)
        return call

    @rule(sizes=st.lists(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 5]), min_size=1, max_size=12))
    def come_together(self, sizes: list[int]) -> None:
        """Several callers come before the driver looks."""
        for size in sizes:
            self.driver.batcher.arrive(self.call_of(size))
        self.driver.batcher.take_in()

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        """Time passes, but no driver sleeps past a batch that is due."""
        due = self.driver.delay(self.now)
        self.now += seconds if due is None else min(seconds, due)

    @rule(seconds=st.floats(0, 3))
    def stall(self, seconds: float) -> None:
        """Time passes behind a batch that runs."""
        self.now += seconds

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """A caller leaves, whatever of it runs."""
        call = data.draw(st.sampled_from(self.waiting()))
        call.left = "cancelled"
        self.driver.drop(call)
        self.driver.drop(call)  # saying so twice changes nothing
        runs = any(call is piece[0] for batch, _ in self.running for piece in batch.slices)
        assert (call.inputs is not None) == runs  # a batch may have yet to be collated

    @precondition(lambda self: self.driver.delay(self.now) == 0.0)
    @rule()
    def pop(self) -> None:
        """A slot is free: the next batch is full or takes all that waits, and follows the rules of order."""
        self.check_next(lambda: self.driver.pop(self.now))

    def check_next(self, choose: Callable[[], Batch | None]) -> Batch | None:
        """Check what is chosen, if anything is."""
        before = {id(call): call.waiting for call in self.calls}
        everyone_waiting = self.waiting()
        full = {key for key, items in self.items_of(everyone_waiting).items() if items >= self.batch_size}

        batch = choose()

        if batch is None:
            return None
        slices = batch.slices
        assert sum(stop - start for _, start, stop in slices) == len(batch)
        key = slices[0][0].key
        mine = [call for call in everyone_waiting if call.key == key]
        small = [call for call in mine if not call.large]
        large = [call for call in mine if call.large]
        crowded = sum(before[id(call)] for call in small) >= self.batch_size and large
        assert all(call.key == key for call, _, _ in slices)
        most = min(self.batch_size, sum(before[id(call)] for call in mine))
        chunk = self.driver.queue.large_limit
        if chunk is None:
            assert len(batch) == most
        else:  # large calls may get less, but not nothing
            smalls = sum(before[id(call)] for call in small)
            assert max(1, min(smalls, most)) <= len(batch) <= most
        assert all(call.deadline is None or call.deadline > self.now for call, _, _ in slices)
        assert all(before[id(call)] for call, _, _ in slices)
        self.check_turn(mine, everyone_waiting, full)
        self.check_classes(small, large, before)
        self.check_reserve(
            bool(crowded), sum(stop - start for call, start, stop in slices if call.large), key
        )
        items = COLLATOR.collate(batch)
        self.ran += items
        self.running.append((batch, items))
        return batch

    def check_classes(self, small: list[Call], large: list[Call], before: dict[int, int]) -> None:
        """First come, first served for small calls: one that was cut short is behind no untouched one."""
        for earlier, later in pairwise(small):
            assert not earlier.waiting or later.waiting == before[id(later)]
        self.check_large(large, before)

    @property
    def most_ahead(self) -> int:
        """Return how many items more than another a large call may get while both wait."""
        quantum = -(-self.batch_size // 4)
        return 3 * quantum + 2 * self.batch_size  # a turn, what is left of one, and debts of both

    def check_large(self, large: list[Call], before: dict[int, int]) -> None:
        """Large calls take turns: while two wait, neither gets much more than the other."""
        numbers = {id(call): number for number, call in enumerate(self.calls)}
        for one, other in combinations(large, 2):
            pair = numbers[id(one)], numbers[id(other)]
            ahead = before[id(one)] - one.waiting - (before[id(other)] - other.waiting)
            now, least, most = self.ahead.pop(pair, (0, 0, 0))
            now += ahead
            least, most = min(now, least), max(now, most)
            assert most - least <= self.most_ahead
            if one.waiting and other.waiting:
                self.ahead[pair] = now, least, most

    def check_turn(self, mine: list[Call], everyone_waiting: list[Call], full: set[int]) -> None:
        """A key that has a turn is due; keys that are due take turns; those with small calls go first."""
        key = mine[0].key
        groups: dict[int, list[Call]] = {}
        for call in everyone_waiting:
            groups.setdefault(call.key, []).append(call)
        oldest = {other: min(call.arrived for call in theirs) for other, theirs in groups.items()}
        hurried = [call for call in everyone_waiting if call.deadline is not None]
        next_one = [min(hurried, key=lambda call: call.deadline or 0.0)] if hurried else []
        urgent = {call.key for call in next_one if call.latest_start() <= self.now}
        over = {other for other, arrived in oldest.items() if arrived + self.window_s <= self.now}
        due = full | over | urgent
        assert key in due
        if self.keys == 1:
            return
        with_small = {other for other, theirs in groups.items() if not all(call.large for call in theirs)}
        if key in with_small:
            self.reserve = min(self.reserve + 1 / 8, 1.0)
        else:
            assert self.reserve == 1.0 or not with_small & due
            self.reserve = max(self.reserve - 1.0, 0.0)
        since = {other: max(self.turns.get(other, 0.0), arrived) for other, arrived in oldest.items()}
        rivals = with_small if key in with_small else {*groups} - with_small
        first = min(since[other] for other in rivals)
        in_line = {other for other in rivals if since[other] == first}  # which one of equals is no matter
        assert since[key] == first or not in_line <= due
        assert since[key] <= min((since[other] for other in full & rivals), default=since[key])
        self.turns[key] = self.now

    def check_reserve(self, crowded: bool, large_items: int, key: int) -> None:
        """While small calls alone would fill every batch, large ones get an eighth of all."""
        passed_over = self.large_passed_over[key] + self.batch_size if crowded and not large_items else 0
        self.large_passed_over[key] = passed_over
        assert passed_over < 8 + self.batch_size
        assert not crowded or large_items <= max(self.batch_size / 4, 1)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["answers", "raises", "one fails"]))
    def done(self, data: Any, outcome: str) -> None:
        """A batch ends, in whatever order and way."""
        batch, inputs = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        items: list[Any] = [("out", *item) for item in inputs]
        if outcome == "raises":
            calls = self.driver.fail(batch, ZeroDivisionError(), self.now)
        else:
            if outcome == "one fails":
                items[0] = ZeroDivisionError()
            calls = self.driver.finish(batch, self.now, items)
        for call in calls:
            assert not call.missing
        self.freed = self.now
        for call in calls:
            assert not call.waiting

    def waiting(self) -> list[Call]:
        """The calls that wait, in order of arrival."""
        return [call for call in self.calls if call.waiting]

    def items_of(self, calls: list[Call]) -> Counter[int]:
        """How many items of each key wait."""
        items: Counter[int] = Counter()
        for call in calls:
            items[call.key] += call.waiting
        return items

    @invariant()
    def no_call_waits_past_the_window(self) -> None:
        """The delay is none exactly while nothing waits, and ends with the oldest item's window."""
        delay = self.driver.delay(self.now)
        expired = self.driver.take_answered()
        assert all(call.error is not None and call.left == "expired" for call in expired)
        waiting = self.waiting()
        assert self.driver.queue.items == sum(call.waiting for call in waiting)
        for key in self.large_passed_over.keys() - self.items_of(waiting).keys():
            self.large_passed_over[key] = 0  # what is saved up is forgotten with the key
        assert (delay is None) == (not waiting)
        if delay is None:
            return
        oldest = min(map(attrgetter("arrived"), waiting))
        assert 0.0 <= delay <= max(self.latest(oldest) - self.now, 0.0)
        assert delay == 0.0 or max(self.items_of(waiting).values()) < self.batch_size
        assert delay == 0.0 or 1 <= (self.driver.batcher.wake_after or 0) <= self.batch_size
        assert all(call.deadline is None or call.deadline > self.now + delay for call in waiting)

    @invariant()
    def every_item_runs_at_most_once_and_in_order(self) -> None:
        """An item that was taken is never taken again, and a call's items come in their order."""
        assert len(self.ran) == len(set(self.ran))
        for number, call in enumerate(self.calls):
            indexes = [index for owner, index in self.ran if owner == number]
            assert indexes == list(range(len(indexes)))
            if call.error is None and call.left is None and not call.missing:
                assert len(indexes) == call.size
                for index, result in enumerate(call.results if call.many else [call.results]):
                    assert result == ("out", number, index) or isinstance(result, ZeroDivisionError)

    @invariant()
    def every_item_is_counted_once(self) -> None:
        """Accepted is waiting, running, processed, cancelled and expired together, at any moment."""
        stats = self.driver.stats(self.now)
        assert stats.total_accepted == sum(call.size for call in self.calls)
        assert stats.total_accepted == (
            stats.queue_size
            + stats.running_items
            + stats.total_processed
            + stats.total_cancelled
            + stats.total_expired
        )
        assert stats.running_items == sum(len(batch) for batch, _ in self.running)
        assert stats.total_failed <= stats.total_processed
        assert stats.total_late <= stats.total_processed
        assert stats.wait.count == stats.total_processed == stats.batch_size.sum
        assert stats.total_batches == sum(stats.closed.values()) == stats.processing_time.count

    def teardown(self) -> None:
        """Whatever waits at the end is given out by draining, without a wait."""
        if not hasattr(self, "driver"):
            return
        self.driver.batcher.drain()
        while self.driver.delay(self.now) is not None:
            assert self.driver.delay(self.now) == 0.0
            batch = self.driver.pop(self.now)
            assert 1 <= len(batch) <= self.batch_size
            self.driver.run(batch, self.now)
        assert not self.waiting()


def same(items: list[Any]) -> list[Any]:
    """Return the items as they came: a batch function."""
    return items


echo = SimpleNamespace(__wrapped__=same)
