"""What options put in front of a collator: `group_by` and `cache`."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from batched._cache import CachingCollator
from batched._family import GroupingCollator
from batched._groups import Groups

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from batched._call import Collator
    from batched._family import Groupable
    from batched._options import Options
    from batched._scheduler import AnyQueue

__all__ = ["layered"]


class _CacheLock:
    """One for each cache, however many batchers use it: `cachetools` bear one thread at a time only."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


_locks: WeakValueDictionary[int, _CacheLock] = WeakValueDictionary()  # by the cache's id
_locks_lock = Lock()


def _after_fork() -> None:
    """Start afresh in the child: who holds a lock is not there to release it."""
    global _locks_lock  # noqa: PLW0603
    _locks_lock = Lock()
    for lock in _locks.values():
        lock.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def layered(
    collator: Groupable, queue: type[AnyQueue], options: Options, name: str, *, bound: bool
) -> tuple[Collator, type[AnyQueue]]:
    """Return `collator` behind the layers that `options` ask for, and the kind of queue that they need."""
    grouping = None
    if options.group_by is not None:
        grouping = GroupingCollator(collator, options.group_by, name)
        queue = Groups
    if options.cache is None:
        return grouping or collator, queue
    cache: Any = options.cache
    with _locks_lock:
        lock = _locks.setdefault(id(cache), _CacheLock())
    return CachingCollator(collator, grouping, cache, options.cache_key, lock, name, bound=bound), queue
