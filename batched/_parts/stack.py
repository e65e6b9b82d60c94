"""What options put in front of a collator: `group_by`, `length` and `cache`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.options import ArrayOptions, knows_lengths
from batched._core.queue import Queue
from batched._parts.cache import CachingCollator
from batched._parts.layers import Grouping, LayeredCollator, Measuring
from batched._policy.lengths import Lengths

if TYPE_CHECKING:
    from batched._core.batch import Collator
    from batched._core.calls import NewQueue
    from batched._core.options import Options
    from batched._parts.layers import Divisible, Layer

__all__ = ["layered"]


def layered(
    collator: Divisible, queue: type[Queue | KeyedQueues], options: Options, name: str, *, bound: bool
) -> tuple[Collator, NewQueue]:
    """Return `collator` behind the layers that `options` ask for, and the kind of queue that they need."""
    layers: list[Layer] = []
    if options.group_by is not None:
        layers.append(Grouping(collator, options.group_by, name))
        queue = KeyedQueues
    new_queue: NewQueue = queue
    if isinstance(options, ArrayOptions):
        new_queue = partial(_by_length, queue, reorders=True, padded=True)
    elif knows_lengths(options):
        layers.append(Measuring(collator, options.length, name))
        new_queue = partial(_by_length, queue, reorders=options.length is not None, padded=False)
    if options.cache is not None:
        return CachingCollator(collator, layers, options, name, bound=bound), new_queue
    return LayeredCollator(collator, layers) if layers else collator, new_queue


def _by_length(
    kind: type[Queue | KeyedQueues], batch_size: int, threshold: int, *, reorders: bool, padded: bool
) -> Queue | KeyedQueues:
    """Return a queue, or one for each key, that knows the lengths of items."""
    lengths = Lengths(reorders=reorders, padded=padded)
    if kind is Queue:
        return LengthQueue(batch_size, threshold, lengths)
    return KeyedQueues(batch_size, threshold, lengths, LengthQueue)
