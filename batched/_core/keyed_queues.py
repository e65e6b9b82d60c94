"""The waiting calls of one batcher where only calls of one key may share a batch: a queue for each key.

Keys stand in line, one batch a turn: a key joins the end when its first item comes, and again after each of
its batches. Keys for which a small call waits go ahead of keys for which only large calls wait; those get
one batch in eight while small calls come. A key is known as long as an item of it waits.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

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

_SPARE = 64


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


class _Line:
    """A lazy heap of keys, in order of a rank that only grows. A key has one place at most.

    A key that belongs here no longer is forgotten when it comes to the top, and one that has a higher rank by
    then is put back. So a change costs nothing at first, and O(log n) at the next look.
    """

    def __init__(self, rank: Callable[[_Key], Rank], belongs: Callable[[_Key], bool]) -> None:
        self._rank = rank
        self._belongs = belongs
        self._heap: list[tuple[Rank, _Key]] = []
        self._keys: set[_Key] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: _Key) -> None:
        """Put `key` in its place, unless it has one."""
        if key not in self._keys:
            self._keys.add(key)
            heappush(self._heap, (self._rank(key), key))

    def first(self) -> _Key | None:
        """Return the key of the least rank, None if there is no key."""
        heap = self._heap
        while heap:
            said, key = heap[0]
            if not self._belongs(key):
                heappop(heap)
                self._keys.discard(key)
                continue
            rank = self._rank(key)
            if rank == said:
                return key
            heapreplace(heap, (rank, key))
        return None

    def tidy(self) -> None:
        """Forget keys that do not belong here."""
        self._heap[:] = [entry for entry in self._heap if self._belongs(entry[1])]
        heapify(self._heap)
        self._keys = {key for _, key in self._heap}

    def clear(self) -> None:
        """Forget all keys."""
        self._heap.clear()
        self._keys.clear()


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
        self._new_keys = 0  # since the lines were tidied
        self._numbers = count()
        self._credit = 0.0  # batches of the reserve that keys of large calls have not used
        # By whether only large calls wait.
        self._waiting = [_Line(_Key.since, partial(_waits, large)) for large in (False, True)]
        self._full = [_Line(_Key.since, partial(_is_full, large)) for large in (False, True)]
        self._by_age = _Line(_Key.oldest, _waits_at_all)
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
        self._new_keys += 1
        if self._new_keys > 2 * len(keys) + _SPARE:
            for line in self._lines:
                line.tidy()
            self._new_keys = len(keys)
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
        self._waiting[key.is_large].add(key)
        if key.is_full:
            self._full[key.is_large].add(key)
        self._by_age.add(key)

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


def _waits_at_all(key: _Key) -> bool:
    return key.queue.items > 0


def _waits(large: bool, key: _Key) -> bool:  # noqa: FBT001
    return key.queue.items > 0 and key.is_large is large


def _is_full(large: bool, key: _Key) -> bool:  # noqa: FBT001
    return key.is_full and _waits(large, key)
