"""What joins a function to its batcher: a collator, what options put in front of it, and a kind of queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from batched._collate.arrays import FeatureCollator
from batched._collate.columns import ColumnCollator, parameters_of, takes_columns
from batched._collate.item_length import length_in_columns, length_in_list
from batched._collate.lists import ListCollator
from batched._core.batcher import NewQueue
from batched._core.collator import Collator
from batched._core.hooks import Feature
from batched._core.keyed_queues import KeyedQueues
from batched._core.lazy_heap import Deadlines
from batched._core.length_queue import LengthQueue
from batched._core.options import ArrayOptions, Options, knows_lengths
from batched._core.queue import Queue
from batched._core.tenants import Tenants
from batched._features.backlog import Backlog
from batched._features.best_size import BestSizes
from batched._features.deadlines import WithDeadlines
from batched._features.isolation import Isolation
from batched._features.learned_lengths import LearnedLengths
from batched._features.memory import FitsMemory
from batched._features.waiting import Waiting
from batched._parts.cache import CachingCollator
from batched._parts.layers import Divisible, Grouping, Layer, LayeredCollator, Measuring, Sharing
from batched._policy.auto_lengths import AutoLengths
from batched._policy.lengths import Lengths


def join(func: Any, options: Options, name: str, *, bound: bool, streams: bool) -> tuple[Collator, NewQueue]:
    """Return the collator for a function, `bound` to an instance or class or not, and its kind of queue."""
    collator: Divisible = ListCollator(name)
    length_of = length_in_list
    queue: type[Queue | KeyedQueues] = Queue
    padded = False
    if isinstance(options, ArrayOptions):
        collator, queue, padded = FeatureCollator(name, options), KeyedQueues, True
    elif takes_columns(parameters := parameters_of(func, bound=bound)):
        collator, queue = ColumnCollator(name, parameters), KeyedQueues
        length_of = length_in_columns
    layers: list[Layer] = []
    if options.group_by is not None:
        layers.append(Grouping(collator, options.group_by, name))
        queue = KeyedQueues
    new_lengths: Callable[[], Lengths] | None = None
    if knows_lengths(options):
        new_lengths = partial(Lengths, reorders=padded or callable(options.length), padded=padded)
        if not padded:
            length = options.length if callable(options.length) else None
            layers.append(Measuring(collator, length, name))
    elif options.length == "auto" and not streams:  # a stream takes as long as it has pieces
        new_lengths = partial(AutoLengths, length_of)
    if options.fair_by is not None:
        layers.append(Sharing(collator, options.fair_by, name))
    tenants = None if options.fair_by is None else Tenants
    new_queue: NewQueue = queue
    if new_lengths is not None or tenants is not None:
        new_queue = partial(_new_queue, queue, new_lengths, tenants)
    if options.cache is not None:
        return CachingCollator(collator, layers, options, name, bound=bound), new_queue
    return LayeredCollator(collator, layers) if layers else collator, new_queue


def _new_queue(
    kind: type[Queue | KeyedQueues],
    new_lengths: Callable[[], Lengths] | None,
    new_tenants: Callable[[], Tenants] | None,
    batch_size: int,
    threshold: int,
) -> Queue | KeyedQueues:
    """Return a queue, or one for each key, that knows the lengths of items, or whose tenants take turns."""
    tenants = None if new_tenants is None else new_tenants()
    if new_lengths is None:
        return kind(batch_size, threshold, tenants=tenants)
    if kind is Queue:
        return LengthQueue(batch_size, threshold, new_lengths(), tenants=tenants)
    return KeyedQueues(batch_size, threshold, new_lengths(), LengthQueue, tenants=tenants)


def features(name: str, *, streams: bool = False) -> list[Feature]:
    """Return the features of a batcher, in the order in which they are asked and told."""
    waiting = Waiting()
    deadlines = Deadlines()
    backlog = Backlog(deadlines, name, streams=streams)
    lengths = LearnedLengths(waiting)  # the window takes what batches cost from them, where they are used
    memory = FitsMemory()
    return [
        memory,  # before items are to blame
        Isolation(),  # before what sees the batch that runs, of which it may make less
        waiting,
        lengths,  # before sizes, which learn nothing where lengths explain what batches take
        WithDeadlines(deadlines, backlog),
        BestSizes(lengths, memory, deadlines, streams=streams),  # a trial is of the size that is to be tried
        backlog,  # last: it sees what runs, and what is left
    ]
