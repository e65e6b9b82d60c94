"""What the length of items costs: learned from batches, and used by a queue that knows lengths."""

from __future__ import annotations

from collections.abc import Callable

from batched._core.batch import Batch
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._core.river import River
from batched._policy.length_cost import LengthCost
from batched._policy.lengths import Lengths
from batched._policy.window import StartReason

_LEARNS = ("lesson",)
_LOOKS = ("took", "lesson")


class LearnedLengths(Feature):
    """Has the rule of lengths, which the queue asks, too, learn from batches."""

    def __init__(self, share_cost: Callable[[LengthCost | None], object]) -> None:
        """Give `share_cost` the cost of batches once lengths are used, and None once they are not."""
        self._share_cost = share_cost
        self.lengths: Lengths | None = None
        self.is_used: bool = False
        """Whether lengths decide which items share a batch."""
        self.is_open: bool = False
        """Whether it may soon turn out that they should."""
        self._is_plain = False  # whether the queue follows no rule, until this chooses or has another budget
        self._rests = False  # whether the rule stays as it is while batches are not felt

    def begin(self, river: River, options: Options) -> None:
        """Begin with the rule of the new queue."""
        super().begin(river, options)
        self.lengths = river.queue.lengths
        self.is_used = self.is_open = False
        self._follow()

    def configure(self, options: Options) -> None:  # noqa: ARG002  as features need it
        """Have the queue follow the rule with the next lesson: it may have another budget."""
        self._is_plain = self._rests = False

    def look_soon(self) -> None:
        """Have the next batch looked at."""
        if self.lengths is not None:
            self.lengths.looks = True
            self._follow()

    def _follow(self) -> None:
        """Have the hooks that the rule needs now; the window shares its costs where it is used."""
        lengths = self.lengths
        if lengths is None:
            return
        if lengths.chooses or not self._is_plain:
            self._is_plain = self.river.queue.follow_rule()
        self.is_open = lengths.is_open
        if self.is_used != lengths.is_used:
            self.is_used = lengths.is_used
            self._share_cost(lengths.cost if lengths.is_used else None)
        self.is_at_rest = not lengths.is_used
        hooks = _LOOKS if lengths.looks or lengths.chooses or lengths.is_used else _LEARNS
        self._rests = self._is_plain and hooks is _LEARNS and not lengths.is_open
        self.have(*hooks)

    def took(self, batch: Batch, now: float) -> None:  # noqa: ARG002  as for every feature
        """Look at the lengths in a batch, and count how it was chosen."""
        lengths = self.lengths
        if lengths is None or batch.reason == StartReason.RETRY:
            return
        if lengths.is_used:
            self.river.counters.chosen[lengths.how] += 1
        lengths.urgent = None  # an idle batcher holds on to no call
        if lengths.looks:
            longest, real = lengths.look(batch.slices)
            batch.real, batch.padded = round(real), round(longest * batch.size)

    def lesson(self, run: Run) -> None:
        """Learn what a batch of these lengths takes."""
        batch, lengths, duration = run.batch, self.lengths, run.now - run.started
        if lengths is None or batch.failed >= batch.size or (self._rests and duration < lengths.felt_s):
            return
        lengths.ran(batch, duration)
        self._follow()
