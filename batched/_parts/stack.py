"""What joins a function to its batcher: a collator, what options put in front of it, and a kind of queue."""

from __future__ import annotations

from functools import partial
from typing import Any

from batched._collate.arrays import FeatureCollator
from batched._collate.columns import ColumnCollator, parameters_of, takes_columns
from batched._collate.lists import ListCollator
from batched._core.calls import NewQueue
from batched._core.collator import Collator
from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.options import ArrayOptions, Options, knows_lengths
from batched._core.queue import Queue
from batched._parts.cache import CachingCollator
from batched._parts.layers import Divisible, Grouping, Layer, LayeredCollator, Measuring
from batched._policy.lengths import Lengths


def join(func: Any, options: Options, name: str, *, bound: bool) -> tuple[Collator, NewQueue]:
    """Return the collator for a function, `bound` to an instance or class or not, and its kind of queue."""
    collator: Divisible = ListCollator(name)
    queue: type[Queue | KeyedQueues] = Queue
    padded = False
    if isinstance(options, ArrayOptions):
        collator, queue, padded = FeatureCollator(name, options), KeyedQueues, True
    elif takes_columns(parameters := parameters_of(func, bound=bound)):
        collator, queue = ColumnCollator(name, parameters), KeyedQueues
    layers: list[Layer] = []
    if options.group_by is not None:
        layers.append(Grouping(collator, options.group_by, name))
        queue = KeyedQueues
    new_queue: NewQueue = queue
    if knows_lengths(options):
        reorders = padded or options.length is not None
        new_queue = partial(_by_length, queue, reorders=reorders, padded=padded)
        if not padded:
            layers.append(Measuring(collator, options.length, name))
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
