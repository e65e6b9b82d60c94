"""How many items a batch has at most, where fewer than `batch_size` serve better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from batched._core.hooks import Feature, Run
from batched._core.lazy_heap import Deadlines
from batched._core.options import Options
from batched._core.river import River
from batched._policy.best_size import BestSize
from batched._policy.size_choice import SizeChoice

_LEARNS = ("lesson",)
_TRIES = ("room", "lesson")


class KnowsLengths(Protocol):
    """What knows whether the length of items explains what batches take."""

    @property
    def is_used(self) -> bool:
        """Whether lengths decide which items share a batch."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it may soon turn out that they should."""
        ...

    def look_soon(self) -> None:
        """Have the next batch looked at."""
        ...


class BestSizes(Feature):
    """Learns which batch size is fastest, and tries others now and then.

    Where lengths are known, they explain what a batch takes, and their rule divides it. Batches that run at
    once slow each other down, and a batch of streams takes as long as its slowest consumer.
    """

    def __init__(
        self,
        lengths: KnowsLengths,
        memory: Feature,
        deadlines: Deadlines,
        fixed: SizeChoice,
    ) -> None:
        """The `limit` of `memory` is how many items fit into it."""
        self._lengths = lengths
        self._memory = memory
        self._deadlines = deadlines
        self._fixed = fixed
        self.sizes: BestSize | None = None

    def begin(self, river: River, options: Options) -> None:
        """Begin with nothing learned."""
        self.sizes = None
        super().begin(river, options)

    def configure(self, options: Options) -> None:
        """Learn, or not; anew if another number is allowed."""
        alone = options.max_concurrent_batches == 1 and not options.streams
        if not (alone and options.adaptive and options.batch_size > 1 and not self._lengths.is_used):
            self.sizes = None
        elif self.sizes is None or self.sizes.most != options.batch_size:
            self.sizes = BestSize(options.batch_size, options.batch_sizes)
        self._follow()

    def _follow(self) -> None:
        sizes = self.sizes
        self.limit = None if sizes is None else sizes.size
        self.is_at_rest = sizes is None or sizes.is_at_rest
        hooks = () if sizes is None else _TRIES if sizes.is_due else _LEARNS
        self.have(*hooks)

    def room(self, queue: Any, room: int, now: float) -> int:
        """Return the size that is to be tried, if there is time and there are items for it."""
        sizes = self.sizes
        if sizes is None or queue.items <= 1:
            return room
        most = self._memory.limit or sizes.most
        size = sizes.try_size(queue.items, most, self._deadlines.spare_s(now))
        if size is None:
            return room
        self._lengths.look_soon()  # they are not used; in batches of this size they may tell more
        return size if size <= queue.items else int(queue.items)  # the rest are copies

    def lesson(self, run: Run) -> None:
        """Learn what a batch of this size takes, and go on with the fastest size."""
        sizes = self.sizes
        # With smaller batches there is less padding: then it would not be found out that lengths cost.
        if sizes is None or run.batch.failed or self._lengths.is_open:
            return
        before = sizes.size
        if not self._lengths.is_used:
            sizes.ran(self._fixed.size_of(run.batch.size), run.started, run.now)
        elif sizes.is_due or before != sizes.most:  # from now on lengths explain what batches take
            self.sizes = sizes = BestSize(sizes.most, sizes.fixed)
        self._follow()
        if sizes.size != before:
            self.river.resize()

    def lessons(self) -> Mapping[str, Any]:
        """Return the size, if it is less than is allowed."""
        sizes = self.sizes
        return {"best": None if sizes is None or sizes.size == sizes.most else sizes.size}
