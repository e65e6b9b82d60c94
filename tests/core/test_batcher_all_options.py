"""The batcher under a bound, keys, lists of several keys, retries and options that change."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batched._collate.copies import CopyingCollator
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._parts.layers import Grouping
from batched.errors import QueueFullError
from tests.kit.batcher_rules import COLLATOR, WINDOW_S, echo
from tests.kit.effort import times
from tests.kit.kept import known_keys, size_of


class ServerRules(RuleBasedStateMachine):
    """The same with a bound, keys, lists of several keys, retries and options that change."""

    @initialize(
        batch_size=st.integers(1, 9),
        threshold=st.integers(0, 4),
        bound=st.sampled_from([None, 5, 12, 40]),
        grouped=st.booleans(),
        isolate_errors=st.booleans(),
        slots=st.integers(1, 3),
        fewer=st.none() | st.sets(st.integers(1, 8)),
    )
    def start(  # noqa: PLR0913, PLR0917
        self,
        batch_size: int,
        threshold: int,
        bound: int | None,
        grouped: bool,
        isolate_errors: bool,
        slots: int,
        fewer: set[int] | None,
    ) -> None:
        """Begin with an empty queue at time 0."""
        self.now = 0.0
        self.slots = slots
        self.grouped = grouped
        sizes = None
        if fewer is not None:
            sizes = (*sorted(size for size in fewer if size < batch_size), batch_size)
        isolate_errors = isolate_errors or bool(sizes and sizes[0] > 1)  # which needs copies
        self.options = Options(
            batch_size=batch_size, small_batch_threshold=threshold, timeout_ms=WINDOW_S * 1000,
            max_queue_size=bound, isolate_errors=isolate_errors, max_concurrent_batches=slots,
            batch_sizes=sizes,
        )  # fmt: skip
        self.collator: Any = CopyingCollator(COLLATOR, "f", sizes) if sizes else COLLATOR
        self.driver = ManualDriver(self.options, KeyedQueues if grouped else Queue, self.collator)
        self.grouping = Grouping(COLLATOR, itemgetter(1), "f")
        self.calls: list[Call] = []  # those that callers wait for
        self.outside: list[Call] = []
        self.running: list[tuple[Batch, list[Any]]] = []
        self.answers = 0
        self.counted = 0  # items

    @rule(
        keys=st.lists(st.integers(0, 3), min_size=1, max_size=12),
        bulk=st.sampled_from([None, True, False]),
        allowed_s=st.sampled_from([None, 0.5, 2.0, 5.0]),
        keep_errors=st.booleans(),
        wait=st.booleans(),
    )
    def admit(
        self, keys: list[int], bulk: bool | None, allowed_s: float | None, keep_errors: bool, wait: bool
    ) -> None:
        """A caller comes: there is room, or it waits, or it is refused; no call overtakes one that waits."""
        deadline = None if allowed_s is None else self.now + allowed_s
        items = [((len(self.calls), index), key) for index, key in enumerate(keys)]
        call = Call().begin(echo, items[:], len(items), True, self.now, deadline, bulk)
        call.keep_errors = keep_errors
        if self.grouped:
            call = self.grouping.applied(call, keys)
        self.heed()
        queued = self.driver.queue.items
        bound = self.options.max_queue_size
        room = bound is None or (queued + len(keys) <= bound and not self.outside)
        try:
            admitted = self.driver.batcher.admit(call, wait=wait)
        except QueueFullError:
            assert not room
            assert not wait
            return
        except ValueError:
            assert bound is not None
            assert len(keys) > bound
            return
        assert admitted == room
        self.calls.append(call)
        if admitted:
            self.counted += call.size
        else:
            self.outside.append(call)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        """Time passes, whatever is due."""
        self.now += seconds

    @precondition(lambda self: self.unanswered())
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """A caller leaves, whatever of it runs, or whether it waits outside."""
        call = data.draw(st.sampled_from(self.unanswered()))
        call.left = "cancelled"
        self.driver.drop(call)
        self.driver.drop(call)

    @rule(
        batch_size=st.integers(1, 9),
        bound=st.sampled_from([None, 3, 12]),
        isolate_errors=st.booleans(),
    )
    def configure(self, batch_size: int, bound: int | None, isolate_errors: bool) -> None:
        """Options change."""
        if self.options.batch_sizes is not None:
            batch_size = self.options.batch_size
            isolate_errors = isolate_errors or self.options.batch_sizes[0] > 1
        self.options = replace(
            self.options, batch_size=batch_size, max_queue_size=bound, isolate_errors=isolate_errors
        )
        self.driver.batcher.configure(self.options)

    @precondition(lambda self: len(self.running) < self.slots and self.driver.delay(self.now) == 0.0)
    @rule()
    def pop(self) -> None:
        """A slot is free: a batch that fits, of one key, without an item whose caller has left."""
        batch = self.driver.pop(self.now)
        fits = self.driver.stats(self.now).fits_memory or self.options.batch_size
        assert 1 <= len(batch) == sum(stop - start for _, start, stop in batch.slices)
        assert batch.reason == "retry" or len(batch) <= min(fits, self.options.batch_size)
        assert all(call.missing for call, _, _ in batch.slices)
        if self.grouped:
            assert len({call.key for call, _, _ in batch.slices}) == 1
        items = self.collator.collate(batch)
        assert self.options.batch_sizes is None or len(items) in self.options.batch_sizes
        assert items[: len(batch)] == COLLATOR.collate(batch)
        self.running.append((batch, items))

    def again(self) -> int:
        return sum(len(part) for part in self.driver.batcher.first)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["answers", "raises", "out of memory", "one fails"]),
        stage_s=st.none() | st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=3),
    )
    def done(self, data: Any, outcome: str, stage_s: list[float] | None) -> None:
        """A batch ends, in whatever order, way and stage; what runs again has all items with callers."""
        batch, items = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if stage_s is not None:
            self.driver.batcher.spent(batch, tuple(stage_s), self.now)
        if outcome in {"raises", "out of memory"}:
            error = MemoryError() if outcome == "out of memory" else ZeroDivisionError()
            live = sum(
                stop - start
                for call, start, stop in batch.slices
                if call.missing and (call.error is None or start < call.failed_at)
            )
            before = self.again()
            is_first = self.options.isolate_errors and batch.search is None
            is_paused = self.driver.stats(self.now).isolation_paused and outcome != "out of memory"
            smallest = (self.options.batch_sizes or (1,))[0]
            too_large = outcome == "out of memory" and len(items) > smallest
            divides = too_large or (batch.is_divisible and is_first)
            is_paused = is_paused or (outcome == "out of memory" and not too_large)
            answered = self.driver.fail(batch, error, self.now)
            if divides and not is_paused:
                assert self.again() == before + live
        else:
            results: list[Any] = [("out", *item) for item in items]
            if outcome == "one fails":
                results[0] = ZeroDivisionError()
            answered = self.driver.finish(batch, self.now, results)
        for call in answered:
            self.check(call)

    def check(self, call: Call) -> None:
        """Every item has its own answer, or an error that it could have got."""
        assert not call.missing
        number = self.calls.index(call)
        if call.error is not None:
            return
        for index, result in enumerate(call.results):
            if not isinstance(result, (ZeroDivisionError, MemoryError)):
                assert result[:2] == ("out", (number, index))

    def unanswered(self) -> list[Call]:
        """The calls without an answer."""
        return [call for call in self.calls if call.missing]

    def heed(self) -> float | None:
        """Do what a driver does after it has asked for the delay, and return that."""
        self.driver.delay(self.now)
        self.driver.take_answered()
        let_in, self.driver.let_in = self.driver.let_in, []
        for call in let_in:
            self.outside.remove(call)
            self.counted += call.size
        return self.driver.delay(self.now)

    @invariant()
    def no_call_is_forgotten(self) -> None:
        """Calls that wait outside come in, in order, and while any does the next batch is due."""
        delay = self.heed()
        assert self.outside == list(self.driver.batcher.admission.awaiting_room)
        if self.outside:
            assert delay == 0.0
            assert self.driver.queue.items
        batcher = self.driver.batcher
        may_start = any(part.behind not in batcher.running for part in batcher.first)
        assert (delay is None) == (not batcher.queue.items and not may_start)

    @invariant()
    def no_key_is_kept(self) -> None:
        """Of which no item waits."""
        queue = self.driver.queue
        if isinstance(queue, KeyedQueues):
            assert queue.items == sum(call.waiting for call in queue.waiting_calls())
            assert known_keys(queue) == len({call.key for call in queue.waiting_calls()})
            assert queue.items or not size_of(queue)

    @invariant()
    def every_item_is_counted_once(self) -> None:
        """Accepted is waiting, running, processed, cancelled and expired together, at any moment."""
        self.heed()
        stats = self.driver.stats(self.now)
        assert stats.total_accepted == self.counted
        assert stats.total_accepted == (
            stats.queue_size
            + stats.running_items
            + stats.total_processed
            + stats.total_cancelled
            + stats.total_expired
        )
        assert stats.total_failed <= stats.total_processed
        assert stats.total_batches == sum(stats.closed.values()) == stats.processing_time.count

    def teardown(self) -> None:
        """At the end all calls that wait are answered, and nothing is kept."""
        if not hasattr(self, "driver"):
            return
        while self.running:
            batch, items = self.running.pop()
            self.driver.finish(batch, self.now, [("out", *item) for item in items])
        self.driver.batcher.drain()
        while self.driver.delay(self.now) is not None:
            self.driver.run(self.driver.pop(self.now), self.now)
        assert not self.driver.batcher.waiting()
        assert not self.driver.batcher.running_calls()


TestServerRules = ServerRules.TestCase

TestServerRules.settings = settings(max_examples=times(200), stateful_step_count=50)
