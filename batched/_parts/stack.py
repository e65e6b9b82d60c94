"""What joins a function to its batcher: a collator, what options put in front of it, and a kind of queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from batched._collate.arrays import FeatureCollator, check_takes_features
from batched._collate.columns import ColumnCollator, parameters_of, takes_columns
from batched._collate.copies import CopyingCollator
from batched._collate.item_length import length_in_columns, length_in_list
from batched._collate.lists import ListCollator
from batched._core.batcher import NewQueue, with_tenants
from batched._core.collator import Collator
from batched._core.hooks import Feature
from batched._core.keyed_queues import KeyedQueues
from batched._core.lazy_heap import Deadlines
from batched._core.length_queue import LengthQueue
from batched._core.options import ArrayOptions, Options, has_stages, knows_lengths, last_stage
from batched._core.queue import Queue
from batched._features.backlog import Backlog, KnowsWorkers, SharedBacklog
from batched._features.best_size import BestSizes
from batched._features.deadlines import WithDeadlines
from batched._features.fixed_sizes import FixedSizes
from batched._features.isolation import Isolation
from batched._features.learned_lengths import LearnedLengths
from batched._features.memory import FitsMemory
from batched._features.overlap import Overlap
from batched._features.records import Records, Tells
from batched._features.waiting import Waiting
from batched._parts.cache import CachingCollator
from batched._parts.layers import Grouping, Layer, LayeredCollator, Measuring, Sharing
from batched._parts.stages import StagedCollator, first_of
from batched._policy.auto_lengths import AutoLengths
from batched._policy.lengths import Lengths
from batched._policy.size_choice import SizeChoice


def join(
    func: Any,
    options: Options,
    name: str,
    *,
    bound: bool,
    owner: object,
) -> tuple[Collator, NewQueue]:
    """Return the collator for a function, `bound` to its `owner` or not, and its kind of queue."""
    first, is_bound = first_of(func, options, name, owner, bound=bound)
    collator, queue, length_of = _kind_of(first, options, name, bound=is_bound)
    padded = isinstance(options, ArrayOptions)
    if options.batch_sizes is not None:
        collator = CopyingCollator(collator, name, tuple(options.batch_sizes))
    if has_stages(options):
        collator = StagedCollator(collator, options)
    layers: list[Layer] = []
    if options.group_by is not None:
        layers.append(Grouping(collator, options.group_by, name))
        queue = KeyedQueues
    new_lengths: Callable[[], Lengths] | None = None
    if knows_lengths(options):
        reorders = padded or callable(options.length)
        new_lengths = partial(Lengths, reorders=reorders, padded=padded, sizes=options.batch_sizes)
        if not padded:
            length = options.length if callable(options.length) else None
            layers.append(Measuring(collator, length, name))
    elif options.length == "auto" and not options.streams:  # a stream takes as long as it has pieces
        new_lengths = partial(AutoLengths, length_of, sizes=options.batch_sizes)
    if options.fair_by is not None:
        layers.append(Sharing(collator, options.fair_by, name))
    new_queue: NewQueue = queue if new_lengths is None else partial(_measured, queue, new_lengths)
    if options.fair_by is not None:
        new_queue = with_tenants(new_queue)
    if options.cache is not None:
        cached = CachingCollator(collator, layers, options.cache, options.cache_key, name, bound=bound)
        return cached.claim(func, owner), new_queue
    return LayeredCollator(collator, layers) if layers else collator, new_queue


def _kind_of(
    func: Any, options: Options, name: str, *, bound: bool
) -> tuple[Any, type[Queue | KeyedQueues], Callable[..., Any]]:
    """Return the collator for the items of a function, its kind of queue, and how items are measured."""
    if isinstance(options, ArrayOptions):
        if not options.spread_kwargs:
            check_takes_features(func, bound=bound)
        return FeatureCollator(name, options), KeyedQueues, length_in_list
    last = last_stage(name, options)
    if takes_columns(parameters := parameters_of(func, bound=bound)):
        columns = ColumnCollator(name, parameters, streams=options.streams, last=last)
        return columns, KeyedQueues, length_in_columns
    return ListCollator(name, streams=options.streams, last=last), Queue, length_in_list


def _measured(
    kind: type[Queue | KeyedQueues], new_lengths: Callable[[], Lengths], batch_size: int, threshold: int
) -> Queue | KeyedQueues:
    """Return a queue that knows the lengths of items, or one for each key."""
    with_lengths = LengthQueue if kind is Queue else KeyedQueues
    return with_lengths(batch_size, threshold, new_lengths())


def features(
    name: str,
    *,
    overlaps: bool = False,
    workers: KnowsWorkers | None = None,
    teller: Tells | None = None,
) -> list[Feature]:
    """Return the features of a batcher, in the order in which they are asked and told.

    Its `workers` are given if it shares them, and its `teller` if batches are told of.
    """
    waiting = Waiting()
    deadlines = Deadlines()
    backlog = Backlog(deadlines, name)
    if workers is not None:
        backlog = SharedBacklog(deadlines, name, workers)
    # The window takes what batches cost from lengths, where they are used.
    lengths = LearnedLengths(waiting.follow_cost)
    sizes = SizeChoice()
    memory = FitsMemory(sizes)
    overlap = [Overlap()] if overlaps else []
    records = [Records(name, teller)] if teller is not None else []
    return [
        memory,  # before items are to blame
        Isolation(sizes, name),  # before what sees the batch that runs, of which it may make less
        FixedSizes(sizes),  # likewise; and before what may have a reason for fewer items, or more
        waiting,  # after what knows the only sizes; before deadlines, which may want still fewer
        lengths,  # before sizes, which learn nothing where lengths explain what batches take
        WithDeadlines(deadlines, backlog),
        # After deadlines: a trial is of the size that is to be tried.
        BestSizes(lengths, memory, deadlines, sizes),
        backlog,  # last of all that see a batch start: it sees what runs, and what is left
        *overlap,  # behind what says how many can be in time, of which it may take a part
        *records,
    ]
