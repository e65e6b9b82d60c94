"""The batcher's contract where calls of three keys wait."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import invariant

from batched._core.keyed_queues import KeyedQueues
from tests.kit.batcher_rules import BatcherRules
from tests.kit.effort import times
from tests.kit.kept import known_keys, size_of


class GroupRules(BatcherRules):
    """The same for three keys: none shares a batch with another, and none is forgotten."""

    queue = KeyedQueues
    keys = 3

    @invariant()
    def a_key_without_calls_is_forgotten(self) -> None:
        """And what is kept of the others is no more than a few words each."""
        groups = self.driver.queue
        assert isinstance(groups, KeyedQueues)
        assert known_keys(groups) == len({call.key for call in self.waiting()})
        assert groups.items or not size_of(groups)


TestGroupRules = GroupRules.TestCase

TestGroupRules.settings = settings(max_examples=times(200), stateful_step_count=60)
