"""The batcher's contract where the lengths of items are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._features.waiting import Waiting
from batched._policy.lengths import Lengths
from tests.kit.batcher_rules import COLLATOR, BatcherRules, echo
from tests.kit.effort import times
from tests.kit.lengths import known


class LengthRules(BatcherRules):
    """Whatever the lengths, the cost and the budget: every item runs once, and no call waits for long."""

    @initialize(
        batch_size=st.integers(1, 9),
        threshold=st.integers(0, 4),
        per_length=st.sampled_from([0.0, 0.001, 0.01, 1.0]),
        budget=st.sampled_from([None, None, 3, 40]),
        reorders=st.booleans(),
        padded=st.booleans(),
    )
    def start_with_lengths(  # noqa: PLR0913, PLR0917  what a run depends on
        self,
        batch_size: int,
        threshold: int,
        per_length: float,
        budget: int | None,
        reorders: bool,
        padded: bool,
    ) -> None:
        """Begin with an empty queue that knows what padding costs."""
        self.lengths = known(0.1, per_length, reorders=reorders, padded=padded)
        self.queue = partial(self.new_queue, lengths=self.lengths)
        super().start(batch_size, threshold)
        self.configure(budget)
        self.left_out: dict[int, tuple[Call, int]] = {}

    new_queue: Any = LengthQueue
    is_sorted = True

    def start(self, batch_size: int, threshold: int) -> None:
        """Begin once only, with lengths."""

    @rule(
        lengths=st.one_of(
            st.lists(st.integers(0, 60), min_size=1, max_size=20),
            st.integers(0, 60).map(lambda length: [length]),
        ),
        bulk=st.sampled_from([None, None, True, False]),
        allowed_s=st.sampled_from([None, None, 0.5, 5.0]),
        keep_errors=st.booleans(),
        key=st.integers(0, 9),
    )
    def push(  # type: ignore[override]
        self, lengths: list[int], bulk: bool | None, allowed_s: float | None, keep_errors: bool, key: int
    ) -> None:
        """A caller comes, with items in order of length or not."""
        deadline = None if allowed_s is None else self.now + allowed_s
        items = [(len(self.calls), index) for index in range(len(lengths))]
        call = Call().begin(echo, items[:], len(items), True, self.now, deadline, bulk)
        call.keep_errors = keep_errors
        call.key = key % self.keys
        call.lengths = sorted(lengths, reverse=True) if self.is_sorted else [*lengths]
        self.calls.append(call)
        self.driver.push(call)

    def call_of(self, size: int, *args: Any, **named: Any) -> Call:
        """Return a call of items that are all as long."""
        call = super().call_of(size, *args, **named)
        call.lengths = [10.0] * call.size
        return call

    @rule(budget=st.sampled_from([None, 1, 50]))
    def configure(self, budget: int | None) -> None:
        """The budget changes while calls wait."""
        batcher = self.driver.batcher
        waiting = batcher.feature(Waiting)
        window = waiting.window
        batcher.configure(replace(batcher.options, max_batch_length=budget))
        waiting.use(window)

    @precondition(lambda self: self.driver.delay(self.now) == 0.0)
    @rule()
    def pop(self) -> None:
        """A slot is free: the next batch is within its bounds, and leaves no item out too often."""
        before = {id(call): call.waiting for call in self.calls}
        waiting = self.waiting()

        batch = self.driver.pop(self.now)

        key = batch.slices[0][0].key
        mine = [call for call in waiting if call.key == key]
        assert 1 <= len(batch) <= self.batch_size
        assert len(batch) == sum(stop - start for _, start, stop in batch.slices)
        assert all(call.key == key and before[id(call)] for call, _, _ in batch.slices)
        assert all(call.deadline is None or call.deadline > self.now for call, _, _ in batch.slices)
        lengths = [length for call, start, stop in batch.slices for length in call.lengths[start:stop]]  # type: ignore[index]
        if self.lengths.budget is not None and len(batch) > 1:
            spent = len(lengths) * max(lengths) if self.lengths.padded else sum(lengths)
            assert spent <= self.lengths.budget
        if not self.lengths.reorders or not self.lengths.cost.per_length:
            assert self.lengths.how == "arrival"
            self.check_classes([call for call in mine if not call.large], [], before)
        self.check_large([call for call in mine if call.large], before)
        self.check_oldest(batch, mine)
        items = COLLATOR.collate(batch)
        self.ran += items
        self.running.append((batch, items))

    @property
    def most_ahead(self) -> int:
        """Return how many items more than another a large call may get while both wait."""
        return super().most_ahead + 6 * self.batch_size  # items of three batches are looked at

    def check_oldest(self, batch: Batch, mine: list[Call]) -> None:
        """The oldest of the small calls is soon taken."""
        taken = [call for call, _, _ in batch.slices]
        small = [call for call in mine if not call.large]
        key = batch.slices[0][0].key
        oldest, times = self.left_out.get(key, (None, 0))
        if not small or small[0] in taken:
            self.left_out.pop(key, None)
            return
        times = times + 1 if small[0] is oldest else 1
        self.left_out[key] = (small[0], times)
        # One batch may start for a deadline that is near. In between, large calls lead every other one.
        assert times <= 3

    @invariant()
    def every_item_runs_at_most_once_and_in_order(self) -> None:
        """An item that was taken is never taken again, and each caller is answered with its own."""
        assert len(self.ran) == len(set(self.ran))
        for number, call in enumerate(self.calls):
            if call.error is None and call.left is None and not call.missing:
                assert sum(owner == number for owner, _ in self.ran) == call.size
                for index, result in enumerate(call.results if call.many else [call.results]):
                    assert result == ("out", number, index) or isinstance(result, ZeroDivisionError)


class LengthGroupRules(LengthRules):
    """The same for three keys."""

    keys = 3

    @staticmethod
    def new_queue(batch_size: int, threshold: int, lengths: Lengths) -> KeyedQueues:
        """Return queues by key."""
        return KeyedQueues(batch_size, threshold, lengths)


class UnsortedLengthRules(LengthRules):
    """The same for lists as their callers wrote them."""

    is_sorted = False


TestLengthRules = LengthRules.TestCase


TestUnsortedLengthRules = UnsortedLengthRules.TestCase


TestLengthGroupRules = LengthGroupRules.TestCase

TestLengthRules.settings = settings(max_examples=times(200), stateful_step_count=60)

TestLengthGroupRules.settings = settings(max_examples=times(100), stateful_step_count=60)

TestUnsortedLengthRules.settings = settings(max_examples=times(100), stateful_step_count=60)
