"""Keys take turns, whatever waits under them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._policy.lengths import Lengths
from tests.kit.effort import times
from tests.kit.kept import size_of


class TurnRules(RuleBasedStateMachine):
    """Whatever waits under whatever keys, all of it due: each turn is one batch of one key."""

    def new_groups(self, batch_size: int, threshold: int) -> KeyedQueues:
        """Return queues by key."""
        return KeyedQueues(batch_size, threshold)

    @initialize(batch_size=st.integers(1, 9), threshold=st.integers(1, 4))
    def start(self, batch_size: int, threshold: int) -> None:
        """Begin with nothing waiting."""
        self.groups = self.new_groups(batch_size, threshold)
        self.now = 0.0
        self.calls: list[Call] = []
        self.pushed = self.taken = self.dropped = 0
        self.items: Counter[Call] = Counter()  # taken, by call
        self.turns: list[tuple[int, bool]] = []  # the key, and whether it only had large calls
        self.since: dict[int, int] = {}  # turns before a key, with small calls, stood in line

    @rule(
        wanted=st.lists(
            st.tuples(st.integers(0, 5), st.integers(1, 30), st.sampled_from([None, None, True, False])),
            min_size=1,
            max_size=8,
        )
    )
    def push(self, wanted: list[tuple[int, int, bool | None]]) -> None:
        """Callers come, several at once."""
        calls = []
        for key, size, bulk in wanted:
            call = Call().begin(list, None, size, True, self.now, None, bulk)
            call.key = key
            call.lengths = [float(1 + at % 5) for at in range(size)]
            calls.append(call)
        self.calls += calls
        self.pushed += self.groups.push_all(calls)
        self.note_lines()

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, or the clock is too coarse to tell."""
        self.now += seconds

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        """A caller leaves, whatever of it has been taken."""
        call = data.draw(st.sampled_from(self.waiting()))
        self.dropped += self.groups.drop(call)
        assert self.groups.drop(call) == 0
        self.since.pop(call.key, None)  # it may have been the oldest, by which its key has its place
        self.note_lines()

    @rule(batch_size=st.integers(1, 9), threshold=st.integers(1, 4))
    def resize(self, batch_size: int, threshold: int) -> None:
        """Options change."""
        self.groups.resize(batch_size, threshold)
        self.since.clear()
        self.note_lines()

    @precondition(lambda self: self.groups.items)
    @rule()
    def take(self) -> None:
        """A slot is free."""
        before = {id(call): call.waiting for call in self.calls}
        small = {call.key for call in self.waiting() if not call.large}
        large = {call.key for call in self.waiting()} - small
        queue = self.groups.in_turn(lambda _oldest: True, None)
        batch = queue.take(min(queue.items, self.groups.batch_size))
        key = batch.slices[0][0].key
        self.groups.taken(batch, self.now)
        self.taken += len(batch)
        assert {call.key for call, _, _ in batch.slices} == {key}
        for call, start, stop in batch.slices:
            self.items[call] += stop - start
        self.check_order([call for call in self.calls if call.key == key and not call.large], before)
        self.turns.append((key, key in large))
        self.check_waits(key, small, large)
        self.since.pop(key, None)
        self.note_lines()

    def check_order(self, calls: list[Call], before: dict[int, int]) -> None:
        """First come, first served among small calls of one key: at most one is cut."""
        begun = [call for call in calls if call.waiting < before[id(call)]]
        latest = max((call.arrived for call in begun), default=0.0)
        untouched = [call for call in calls if call.waiting and call not in begun]
        assert all(call.arrived >= latest for call in untouched)
        assert sum(call.waiting > 0 for call in begun) <= 1

    def check_waits(self, key: int, small: set[int], large: set[int]) -> None:
        """Between two turns of a key with small calls each other key has one; large calls have an eighth."""
        for other in small - {key}:
            meanwhile = self.turns[self.since[other] :]
            of_small = Counter(turn for turn, is_large in meanwhile if not is_large)
            assert max(of_small.values(), default=0) <= 1
            assert sum(is_large for _, is_large in meanwhile) <= 1 + len(meanwhile) / 8
        lately = self.turns[-9:]
        assert key in large or not large or len(lately) < 9 or any(is_large for _, is_large in lately)

    def note_lines(self) -> None:
        """Note which keys have begun to stand in line, with small calls."""
        small = {call.key for call in self.waiting() if not call.large}
        self.since = {key: self.since.get(key, len(self.turns)) for key in small}

    def waiting(self) -> list[Call]:
        """The calls that wait, as they came."""
        return [call for call in self.calls if call.waiting]

    @invariant()
    def no_item_is_lost(self) -> None:
        """Each is taken once, or has left, or waits."""
        waiting = self.waiting()
        assert self.pushed == self.taken + self.dropped + self.groups.items
        assert self.groups.items == sum(call.waiting for call in waiting)
        assert {*self.groups.waiting_calls()} == {*waiting}
        assert all(count <= call.size for call, count in self.items.items())

    @invariant()
    def what_it_says_of_itself_is_true(self) -> None:
        """Whether a key is full, and since when the oldest item waits."""
        by_key: Counter[int] = Counter()
        for call in self.waiting():
            by_key[call.key] += call.waiting
        assert self.groups.is_full() == (max(by_key.values(), default=0) >= self.groups.batch_size)
        if by_key:
            assert self.groups.oldest() == min(call.arrived for call in self.waiting())
        else:
            assert size_of(self.groups) == 0


class LengthTurnRules(TurnRules):
    """The same where lengths are known, and padding costs so little that the order is that of arrival."""

    def new_groups(self, batch_size: int, threshold: int) -> KeyedQueues:
        """Return queues by key that know lengths."""
        return KeyedQueues(batch_size, threshold, Lengths(reorders=True, padded=True))


TestTurnRules = TurnRules.TestCase


TestLengthTurnRules = LengthTurnRules.TestCase

TestTurnRules.settings = settings(max_examples=times(100), stateful_step_count=40)

TestLengthTurnRules.settings = settings(max_examples=times(50), stateful_step_count=40)
