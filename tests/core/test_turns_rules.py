"""Bounds on what tenants, and large calls of one tenant, get ahead of each other, as a state machine."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batched._core.batcher import with_tenants
from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._core.tenants import Tenants
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed
from tests.kit.effort import times

Line = tuple[int, bool]
"""A tenant, and whether its large calls are meant."""


class FairRules(RuleBasedStateMachine):
    """While several have items that wait, they get the same, but for a few."""

    @initialize(batch_size=st.integers(1, 9), tenants=st.integers(1, 4))
    def start(self, batch_size: int, tenants: int) -> None:
        """Begin with an empty queue."""
        self.batch_size = batch_size
        self.quantum = -(-batch_size // 4)
        self.tenants = tenants
        options = Options(batch_size=batch_size, small_batch_threshold=3, timeout_ms=0, adaptive=False)
        self.driver = ManualDriver(options, with_tenants(Queue), COLLATOR)
        self.shared: Tenants = self.driver.queue.tenants
        self.calls: list[Call] = []
        self.served: Counter[Line] = Counter()
        self.ahead: dict[Any, tuple[int, int, int]] = {}
        self.alone: dict[Call, Counter[Line]] = {}
        """Calls that have been the only ones of their tenant, and what all had been served before them."""

    @rule(tenant=st.integers(0, 3), size=st.integers(1, 3), number=st.integers(1, 12))
    def push_small(self, tenant: int, size: int, number: int) -> None:
        """Small calls come."""
        for _ in range(number):
            self.push(tenant, size)

    @rule(tenant=st.integers(0, 3), size=st.integers(4, 100))
    def push(self, tenant: int, size: int) -> None:
        """A large call comes."""
        call = listed(size)
        call.tenant = tenant % self.tenants
        line = call.tenant, size > 3
        others = [other for other in self.waiting(line) if other is not call]
        for other in others:
            self.alone.pop(other, None)
        if not others:
            self.alone[call] = self.served.copy()
        self.calls.append(call)
        self.driver.push(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """A caller leaves."""
        call = data.draw(st.sampled_from(self.calls))
        call.left = "cancelled"
        self.driver.drop(call)
        self.alone.pop(call, None)
        self.forget_gone()

    @precondition(lambda self: self.calls)
    @rule(batches=st.integers(1, 12))
    def run(self, batches: int) -> None:
        """Batches run, each as full as it can be."""
        for _ in range(batches):
            if self.driver.delay(0.0) is not None:
                self.run_one()

    def run_one(self) -> None:
        """Run the next batch, and check what has been served."""
        before = {call: call.waiting for call in self.calls}
        batch = self.driver.pop(0.0)
        assert len(batch) == min(sum(before.values()), self.batch_size)
        taken = Counter({call: waiting - call.waiting for call, waiting in before.items()})
        lines: Counter[Line] = Counter()
        for call, items in taken.items():
            lines[call.tenant, call.large] += items
        self.served.update(lines)
        for one, other in combinations(sorted({(call.tenant, call.large) for call in before}), 2):
            if one[1] == other[1]:
                still = bool(self.waiting(one)) and bool(self.waiting(other))
                self.check_ahead((one, other), lines[one] - lines[other], 2 * self.quantum, still=still)
        for first, second in combinations([call for call in before if call.large], 2):
            if first.tenant == second.tenant:
                most = 3 * self.quantum + 2 * self.batch_size
                still = bool(first.waiting and second.waiting)
                self.check_ahead((id(first), id(second)), taken[first] - taken[second], most, still=still)
        for call in [call for call in self.alone if not call.waiting]:
            self.check_alone(call, self.alone.pop(call))
        self.driver.run(batch, 0.0)
        self.forget_gone()

    def check_ahead(self, pair: Any, more: int, bound: int, *, still: bool) -> None:
        """Neither of two, which wait all the time, is ahead of the other by more than `bound`.

        The rest of the last batch of one is the other's.
        """
        now, least, most = self.ahead.pop(pair, (0, 0, 0))
        now += more
        least, most = min(now, least), max(now, most)
        assert most - least <= bound + (0 if still else self.batch_size)
        if still:
            self.ahead[pair] = now, least, most

    def check_alone(self, call: Call, before: Counter[Line]) -> None:
        """A call that was alone in its tenant had a quantum in each round of the tenants."""
        rounds = -(-call.size // self.quantum)
        for tenant in range(self.tenants):
            if tenant != call.tenant:
                line = tenant, call.large
                most = (rounds + 1) * self.quantum + self.batch_size  # with the rest of its last batch
                assert self.served[line] - before[line] <= most

    def waiting(self, line: Line) -> list[Call]:
        """Return the calls of one class that wait of a tenant."""
        return [call for call in self.calls if call.waiting and (call.tenant, call.size > 3) == line]

    def forget_gone(self) -> None:
        """Forget the calls of which no item waits, and pairs of which one does not wait."""
        self.calls = [call for call in self.calls if call.waiting]
        lines = {(call.tenant, call.size > 3) for call in self.calls}
        known = lines | {id(call) for call in self.calls}
        self.ahead = {pair: by for pair, by in self.ahead.items() if known >= {*pair}}

    @invariant()
    def tenants_are_known_as_long_as_they_wait(self) -> None:
        """And no longer."""
        assert len(self.shared) == len({call.tenant for call in self.calls})

    def teardown(self) -> None:
        """All that waits runs."""
        if hasattr(self, "driver"):
            while self.driver.delay(0.0) is not None:
                self.run_one()
            assert not self.calls


TestFairRules = FairRules.TestCase

TestFairRules.settings = settings(max_examples=times(100), stateful_step_count=20)
