"""What options put in front of a collator: `group_by`, `length` and `cache`."""

from __future__ import annotations

import os
from functools import partial
from threading import Lock, RLock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from batched._core.keyed_queues import Groups
from batched._core.length_queue import LengthQueue
from batched._core.options import ArrayOptions, knows_lengths
from batched._core.queue import Queue
from batched._parts.cache import CachingCollator
from batched._parts.group_by import GroupingCollator
from batched._parts.length_order import MeasuringCollator
from batched._policy.lengths import Lengths

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from batched._core.batch import Collator
    from batched._core.batcher import NewQueue
    from batched._core.options import Options
    from batched._parts.group_by import Groupable

__all__ = ["layered"]


class _Guard:
    """The lock of one cache, however many batchers use that: mappings of `cachetools` bear one thread only.

    The same thread may take it again: a mapping may call other code, and so may the garbage collector.
    """

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = RLock()


_guards: WeakValueDictionary[int, _Guard] = WeakValueDictionary()  # by the cache's id
_guards_lock = Lock()


def _after_fork() -> None:
    """Make new locks in the child: the thread that holds an old one may be the parent's."""
    global _guards_lock  # noqa: PLW0603
    _guards_lock = Lock()
    for guard in _guards.values():
        guard.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def layered(
    collator: Groupable, queue: type[Queue | Groups], options: Options, name: str, *, bound: bool
) -> tuple[Collator, NewQueue]:
    """Return `collator` behind the layers that `options` ask for, and the kind of queue that they need."""
    grouping = None
    if options.group_by is not None:
        grouping = GroupingCollator(collator, options.group_by, name)
        queue = Groups
    measuring = None
    new_queue: NewQueue = queue
    if isinstance(options, ArrayOptions):
        new_queue = partial(_by_length, queue, reorders=True, padded=True)
    elif knows_lengths(options):
        measuring = MeasuringCollator(collator, grouping, options.length, name)
        new_queue = partial(_by_length, queue, reorders=options.length is not None, padded=False)
    if options.cache is None:
        return measuring or grouping or collator, new_queue
    cache: Any = options.cache
    with _guards_lock:
        guard = _guards.setdefault(id(cache), _Guard())
    caching = CachingCollator(
        collator, grouping, measuring, cache, options.cache_key, guard, name, bound=bound
    )
    return caching, new_queue


def _by_length(
    kind: type[Queue | Groups], batch_size: int, threshold: int, *, reorders: bool, padded: bool
) -> Queue | Groups:
    """Return a queue, or one for each key, that knows the lengths of items."""
    lengths = Lengths(reorders=reorders, padded=padded)
    if kind is Queue:
        return LengthQueue(batch_size, threshold, lengths)
    return Groups(batch_size, threshold, lengths, LengthQueue)
