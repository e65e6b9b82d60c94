"""The waiting calls of one batcher where only calls of one key may share a batch: a queue for each key.

Keys stand in line, one batch a turn: a key joins the end when its first item comes, and again after each of
its batches. Keys for which a small call waits go ahead of keys for which only large calls wait; those get
one batch in eight while small calls come. A key is known as long as an item of it waits.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from batched._core.lazy_heap import LazyHeap
from batched._core.queue import RESERVE, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import TypeAlias

    from batched._core.batch import Batch
    from batched._core.call import Call
    from batched._policy.lengths import Lengths

    Rank: TypeAlias = tuple[float, int]
    """A time, and for equal times a number that no two keys share."""

__all__ = ["Groups"]


class _Key:
    """What is known of one key."""

    __slots__ = ("is_full", "is_large", "number", "queue", "turn")

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.turn = 0.0  # when its last batch was taken, if any was
        self.number = number  # of that turn
        self.is_full = False
        self.is_large = False  # whether only large calls wait

    def oldest(self) -> Rank:
        """Return when the oldest item arrived."""
        return self.queue.oldest(), self.number

    def since(self) -> Rank:
        """Return since when the key stands in line."""
        return max(self.turn, self.queue.oldest()), self.number


class Groups:
    """Queues by key. Costs O(log n) a batch for n keys, and nothing for a key that is not used."""

    is_keyed = True

    def __init__(
        self,
        batch_size: int,
        threshold: int,
        lengths: Lengths | None = None,
        kind: Callable[..., Queue] = Queue,
    ) -> None:
        self.lengths = lengths  # what is known of the lengths of items, if they are measured
        self._new = kind if lengths is None else partial(kind, lengths=lengths)
        self.items = 0  # waiting, of all keys
        self.chunk: int | None = None  # as that of a queue; set for each when its turn comes
        self.batch_size = batch_size
        self.threshold = threshold
        self._keys: dict[Hashable, _Key] = {}
        self._full_keys = 0
        self._numbers = count()
        self._credit = 0.0  # batches of the reserve that keys of large calls have not used
        # Of all keys, and of those that are full, by whether only large calls wait.
        self._waiting = [LazyHeap(partial(_since, large)) for large in (False, True)]
        self._full = [LazyHeap(partial(_since_if_full, large)) for large in (False, True)]
        self._by_age = LazyHeap(_oldest)
        self._lines = (*self._waiting, *self._full, self._by_age)

    def resize(self, batch_size: int, threshold: int) -> None:
        """Follow new options; calls that wait are classed anew."""
        self.batch_size = batch_size
        self.threshold = threshold
        for key in self._keys.values():
            key.queue.resize(batch_size, threshold)
            self._settle(key)

    def push_all(self, calls: list[Call]) -> int:
        """Append `calls` to the queues of their keys; return their items."""
        arrived: dict[Hashable, list[Call]] = {}
        for call in calls:
            arrived.setdefault(call.key, []).append(call)
        items = 0
        for name, theirs in arrived.items():
            key = self._keys.get(name)
            if key is None:
                key = self._begin(name)
            items += key.queue.push_all(theirs)
            self._settle(key)
        self.items += items
        return items

    def _begin(self, name: Hashable) -> _Key:
        """Return a new key, for which an item is about to wait."""
        keys = self._keys
        if len(keys) == 1:
            for other in keys.values():
                self._stand(other)
        keys[name] = key = _Key(self._new(self.batch_size, self.threshold), next(self._numbers))
        return key

    def _settle(self, key: _Key) -> None:
        """Put `key`, for which at least one item waits, where it belongs now."""
        queue = key.queue
        is_full = queue.is_full()
        self._full_keys += is_full - key.is_full
        key.is_full = is_full
        key.is_large = not queue.small_items
        if len(self._keys) > 1:
            self._stand(key)

    def _stand(self, key: _Key) -> None:
        """Put `key` in its lines. A key that is the only one needs none: that saves 3 us a batch."""
        since = key.since()
        self._waiting[key.is_large].add(key, since)
        if key.is_full:
            self._full[key.is_large].add(key, since)
        self._by_age.add(key, key.oldest())

    def drop(self, call: Call) -> int:
        """Forget what of `call` still waits; return how many items that was."""
        key = self._keys.get(call.key)
        if key is None or not call.waiting:
            call.waiting = 0
            return 0
        dropped = key.queue.drop(call)
        self._left(call.key, key, dropped)
        return dropped

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait."""
        return [call for key in self._keys.values() for call in key.queue.waiting_calls()]

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        return self._oldest().queue.oldest()

    def is_full(self) -> bool:
        """Whether enough of some key wait for a full batch."""
        return self._full_keys > 0

    def lacks(self) -> int:
        """Return the least number of further items that may fill a batch."""
        if len(self._keys) == 1:
            (key,) = self._keys.values()
            return key.queue.lacks()
        return 1

    def check_key(self, call: Call) -> None:
        """Raise what comparing the key of `call` with others raises."""
        self._keys.get(call.key)

    def next(self, is_due: Callable[[float], bool], urgent: Call | None) -> Queue:
        """Return the queue that has its turn. At least one item must wait.

        A key has its turn if it is full, if `urgent` waits in it, or if it `is_due` by the time at which its
        oldest item arrived; if there is no such key, the one of the oldest item has.
        """
        if len(self._keys) == 1:
            return self._oldest().queue
        small = self._first(False, is_due, urgent)  # noqa: FBT003
        if small is not None and self._credit < 1:
            return small.queue
        large = self._first(True, is_due, urgent)  # noqa: FBT003
        return (large or small or self._oldest()).queue

    def _first(self, large: bool, is_due: Callable[[float], bool], urgent: Call | None) -> _Key | None:  # noqa: FBT001
        """Return the first key in line that may have a turn, of those with small calls or of the others."""
        first = self._waiting[large].first()
        if first is None or is_due(first.queue.oldest()):
            return first
        full = self._full[large].first()
        oldest = self._oldest()
        found = [] if full is None else [full]
        found += [oldest] if is_due(oldest.queue.oldest()) else []
        found += [self._keys[urgent.key]] if urgent is not None else []
        return min((key for key in found if key.is_large is large), key=_Key.since, default=None)

    def taken(self, batch: Batch, now: float) -> None:
        """Say that `batch` has been taken from the queue of a key: its turn is over."""
        name = batch.slices[0][0].key
        key = self._keys[name]
        self._credit = max(self._credit - 1, 0.0) if key.is_large else min(self._credit + RESERVE, 1.0)
        key.turn = now
        key.number = next(self._numbers)
        self._left(name, key, batch.size)

    def _left(self, name: Hashable, key: _Key, items: int) -> None:
        """Say that so many `items` of `key` wait no more."""
        self.items -= items
        if key.queue.items:
            self._settle(key)
            return
        del self._keys[name]
        self._full_keys -= key.is_full
        if not self._keys and self._by_age:
            for line in self._lines:
                line.clear()

    def _oldest(self) -> _Key:
        """Return the key of the oldest item. At least one must wait."""
        if len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._by_age.first()
        assert key is not None  # noqa: S101  for the type
        return key


def _oldest(key: _Key) -> Rank | None:
    """Return when the oldest item of `key` arrived, None if no item waits."""
    return key.oldest() if key.queue.items else None


def _since(large: bool, key: _Key) -> Rank | None:  # noqa: FBT001
    """Return since when `key` stands in line with the keys of large calls only, or with the others."""
    return key.since() if key.queue.items and key.is_large is large else None


def _since_if_full(large: bool, key: _Key) -> Rank | None:  # noqa: FBT001
    return _since(large, key) if key.is_full else None
