"""Batches have one of `batch_sizes`: they take as many items as fill one, or are filled up with copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from batched._core.batch import Batch, Place, copies_of
from batched._core.halves import Half, cut_at
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._core.river import River
from batched._policy.lengths import extent_of, length_at
from batched._policy.size_choice import SizeChoice


class FixedSizes(Feature):
    """Says how many copies a batch has, and of which item; the collator makes them.

    An item that a run may use up, or may change (`isolate_errors=False`), has no copy. A batch of such items
    is cut to a size that it fills, and so is one that copies would bring over its budget of lengths.
    """

    def __init__(self, choice: SizeChoice) -> None:
        self.choice: SizeChoice = choice

    def begin(self, river: River, options: Options) -> None:
        """Begin with nothing learned."""
        super().begin(river, options)
        self.choice.begin(tuple(options.batch_sizes or ()))
        self._chosen = 0  # the number of items that `room` has chosen for the next batch
        if not self.choice.sizes:
            self.hooks = ()
        elif options.streams:  # these take as long as they have pieces
            self.hooks = ("took", "ended")
        else:
            self.hooks = ("room", "took", "ended", "lesson")

    def configure(self, options: Options) -> None:
        """Follow new options."""
        self._may_copy = options.isolate_errors

    def room(self, queue: object, room: int, now: float) -> int:  # noqa: ARG002  as for every feature
        """Return fewer items if a batch that they fill, and the rest after it, take less."""
        self._chosen = room = self.choice.choose(room)
        return room

    def took(self, batch: Batch, now: float) -> None:  # noqa: ARG002  as for every feature
        """Have `batch` filled up with copies, or cut to a size that it fills."""
        choice = self.choice
        if batch.size == choice.size_of(batch.size):
            return
        size = batch.size
        if not (size == self._chosen or self.river.options.streams or isinstance(batch, Half)):
            size = choice.choose(size)  # the queue has chosen others, or fewer
        if size < batch.size:
            self._cut(batch, size)
            return
        copies = choice.size_of(size) - size
        filled = choice.at_most(size)
        place = None
        if not (filled and self._is_over_budget(batch, copies)):
            place = next((place for place in _by_length(batch) if self._has_copy(batch, place)), None)
        if place is None and filled:
            self._cut(batch, filled)
        else:
            batch.copies = copies, place

    def _has_copy(self, batch: Batch, place: Place) -> bool:
        call, at = batch.slices[place[0]][0], place[1]
        return self._may_copy and self.river.can_repeat(Batch([(call, at, at + 1)], 1))

    def _is_over_budget(self, batch: Batch, copies: int) -> bool:
        """Whether its lengths with those of `copies` add up to more than a batch may have."""
        lengths = self.river.queue.lengths
        if lengths is None or lengths.budget is None:
            return False
        longest, total = extent_of(batch.slices)
        if lengths.padded:
            return bool(longest * (batch.size + copies) > lengths.budget)
        shortest = _length(batch, next(_by_length(batch)))
        return bool(total + copies * shortest > lengths.budget)

    def _cut(self, batch: Batch, size: int) -> None:
        """Have `size` items of `batch` run now, and the others next."""
        error = batch.error if isinstance(batch, Half) else None
        now, after = cut_at(batch, size, error, batch.search)
        now.reason = after.reason = batch.reason
        self.river.first.divide(batch, [now, after])

    def ended(self, run: Run) -> None:
        """Count copies."""
        self.river.counters.copies += copies_of(run.batch)

    def lesson(self, run: Run) -> None:
        """Learn what a batch of this size takes."""
        if run.error is None and not run.batch.failed:
            self.choice.ran(run.batch.size + copies_of(run.batch), run.now - run.started)


def _by_length(batch: Batch) -> Iterator[Place]:
    """Return each item of `batch`: the shortest one first, if lengths are known, and then the last ones."""
    if all(hasattr(call, "lengths") for call in batch.calls):
        yield min(_places(batch), key=partial(_length, batch))
    yield from _places(batch)


def _places(batch: Batch) -> Iterator[Place]:
    for number in reversed(range(len(batch.slices))):
        _, start, stop = batch.slices[number]
        for at in reversed(range(start, stop)):
            yield number, at


def _length(batch: Batch, place: Place) -> float:
    return length_at(batch.slices[place[0]][0], place[1])
