"""The batcher's whole contract as a state machine: no thread, no clock, no sleep."""

from __future__ import annotations

from hypothesis import settings

from batched._core.call import Call
from tests.kit.batcher_rules import BatcherRules
from tests.kit.effort import times


class GreedyBatcherRules(BatcherRules):
    """The same where no batch waits for company."""

    window_s = 0.0


class AdaptiveBatcherRules(BatcherRules):
    """The same with the learned patience, whose window begins anew when the function becomes free."""

    adaptive = True

    def latest(self, oldest: float) -> float:
        """Return until when a batch with an item of that time may wait."""
        return max(oldest, self.freed) + self.window_s

    def check_turn(self, mine: list[Call], everyone_waiting: list[Call], full: set[int]) -> None:
        """There is one key, and no window that a batch has to wait for."""


TestGreedyBatcherRules = GreedyBatcherRules.TestCase

TestGreedyBatcherRules.settings = settings(max_examples=times(200), stateful_step_count=60)


TestAdaptiveBatcherRules = AdaptiveBatcherRules.TestCase

TestAdaptiveBatcherRules.settings = settings(max_examples=times(200), stateful_step_count=60)


TestBatcherRules = BatcherRules.TestCase

TestBatcherRules.settings = settings(max_examples=times(200), stateful_step_count=60)
