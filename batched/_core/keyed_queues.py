"""The waiting calls of one batcher where only calls of one key may share a batch: a queue for each key.

Keys take turns, one batch each: a key waits for its turn since its first item came, or since its last batch.
A key of which a small call waits goes ahead of keys of which only large calls wait; these get a batch after
each eight of the others, while small calls come. A key is known as long as an item of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import TypeAlias

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.lazy_heap import LazyHeap
from batched._core.length_queue import LengthQueue
from batched._core.queue import RESERVE, Queue
from batched._core.tenants import Tenants
from batched._policy.lengths import Lengths

Rank: TypeAlias = tuple[float, int]
"""A time, and for equal times a number that no two keys share."""


class _Entry:
    """One key: its queue, and its place in the order of turns."""

    __slots__ = ("is_full", "is_large", "number", "queue", "small_items", "turn")

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.turn = 0.0  # when its last batch was taken, if any was
        self.number = number  # of its last turn, or of its creation
        self.is_full = False
        self.is_large = False  # whether only large calls wait
        self.small_items = 0  # of small calls

    def oldest(self) -> Rank:
        """Return when the oldest item arrived."""
        return self.queue.oldest(), self.number

    def since(self) -> Rank:
        """Return since when the key waits for its turn."""
        return max(self.turn, self.queue.oldest()), self.number


class KeyedQueues:
    """A queue for each key. Costs O(log n) a batch for n keys, and nothing for a key that is not used."""

    is_keyed = True
    by_number = False

    def __init__(self, batch_size: int, threshold: int, lengths: Lengths | None = None) -> None:
        self.lengths = lengths  # what is known of the lengths of items, if they are measured
        self.tenants: Tenants | None = None
        """With items that wait, if tenants take turns, as they do within each key."""
        self.items = 0  # waiting, of all keys
        self.small_items = 0  # of small calls
        self.large_limit: int | None = (
            None  # the limit on large calls, given to each queue when its turn comes
        )
        self.batch_size = batch_size
        self.threshold = threshold
        self._entries: dict[Hashable, _Entry] = {}
        self._full_keys = 0
        self._large_keys = 0  # of which only large calls wait
        self._numbers = count()
        self._credit = 0.0  # batches of the reserve that keys of large calls have not used
        # The keys with small calls and the others; then those of each that are full.
        self._waiting = [LazyHeap(partial(_since, large, False)) for large in (False, True)]  # noqa: FBT003
        self._full = [LazyHeap(partial(_since, large, True)) for large in (False, True)]  # noqa: FBT003
        self._by_age = LazyHeap(_oldest)
        self._heaps = (*self._waiting, *self._full, self._by_age)

    def resize(self, batch_size: int, threshold: int) -> None:
        """Follow new options; calls that wait are classed anew."""
        self.batch_size = batch_size
        self.threshold = threshold
        for entry in self._entries.values():
            entry.queue.resize(batch_size, threshold)
            self._update(entry)

    def take_turns(self, tenants: Tenants) -> None:
        """Have `tenants` take turns within each key from now on, with the calls that wait too."""
        self.tenants = tenants
        for entry in self._entries.values():
            entry.queue.take_turns(tenants)
            self._update(entry)

    def follow_rule(self) -> bool:
        """Return True: the queue of each key looks at the rule by itself."""
        return True

    def push_all(self, calls: list[Call]) -> int:
        """Append `calls` to the queues of their keys; return their items."""
        arrived: dict[Hashable, list[Call]] = {}
        for call in calls:
            arrived.setdefault(call.key, []).append(call)
        items = 0
        for key, its_calls in arrived.items():
            entry = self._entries.get(key)
            if entry is None:
                entry = self._added(key)
            items += entry.queue.push_all(its_calls)
            self._update(entry)
        self.items += items
        return items

    def _added(self, key: Hashable) -> _Entry:
        """Return the entry of a new key, of which an item is about to wait."""
        entries = self._entries
        if len(entries) == 1:
            for other in entries.values():
                self._rank(other)
        size, threshold, lengths = self.batch_size, self.threshold, self.lengths
        queue = Queue(size, threshold) if lengths is None else LengthQueue(size, threshold, lengths)
        if self.tenants is not None:
            queue.take_turns(self.tenants)
        entries[key] = entry = _Entry(queue, next(self._numbers))
        return entry

    def _update(self, entry: _Entry) -> None:
        """Note what has changed for a key of which at least one item waits."""
        queue = entry.queue
        is_full = queue.is_full()
        self._full_keys += is_full - entry.is_full
        entry.is_full = is_full
        small_items = queue.small_items
        self.small_items += small_items - entry.small_items
        entry.small_items = small_items
        is_large = not small_items
        self._large_keys += is_large - entry.is_large
        entry.is_large = is_large
        if len(self._entries) > 1:
            self._rank(entry)

    def _rank(self, entry: _Entry) -> None:
        """Put a key into the heaps. A key that is the only one needs no rank: that saves 3 us a batch."""
        since = entry.since()
        self._waiting[entry.is_large].add(entry, since)
        if entry.is_full:
            self._full[entry.is_large].add(entry, since)
        self._by_age.add(entry, entry.oldest())

    saved = 0.0
    """As of a queue of one key: here it is counted in batches."""

    def ahead(self, items: int, call: Call | None, *, large: bool) -> int:
        """Return how many items that wait go ahead of a call of `items`, as turns have it; `call`, if known.

        Needs no lock: it is an estimate.
        """
        waiting = self.items if large else self.small_items
        if call is None or not hasattr(call, "key"):
            return waiting
        entry = self._entries.get(call.key)
        own = 0 if entry is None else entry.queue.ahead(items, call, large=large)
        others = len(self._entries) - (entry is not None)
        if not large:  # it goes ahead of keys of which only large calls wait
            others -= self._large_keys - (entry is not None and entry.is_large)
        if others <= 0:
            return own
        batches = -(-(own + items) // self.batch_size)
        return min(waiting, own + others * batches * self.batch_size)

    def of_its_key(self, call: Call, ahead: int) -> int:
        """Return how many items of those that go `ahead` of `call`, a small one, have its key.

        All if it has several. Needs no lock.
        """
        if not hasattr(call, "key"):
            return ahead
        entry = self._entries.get(call.key)
        return 0 if entry is None else min(ahead, entry.queue.small_items)

    def small_calls(self) -> tuple[Call, ...]:
        """Return none: which are taken next depends on the key."""
        return ()

    def drop(self, call: Call, after: int = -1) -> int:
        """Forget what of `call` still waits `after` a place of its list; return how many items that was."""
        entry = self._entries.get(call.key)
        if entry is None or not call.waiting:
            call.waiting = 0
            return 0
        dropped = entry.queue.drop(call, after)
        self._removed(call.key, entry, dropped)
        return dropped

    def known_calls(self) -> list[Call]:
        """Return all calls that may wait, some twice, also where a step was broken off in the middle."""
        return [call for entry in self._entries.values() for call in entry.queue.known_calls()]

    def is_uneven(self, call: Call) -> bool:
        """Whether other items of `call` wait than just the last ones."""
        return any(entry.queue.is_uneven(call) for entry in self._entries.values())

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait."""
        return [call for entry in self._entries.values() for call in entry.queue.waiting_calls()]

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        return self._oldest().queue.oldest()

    def is_full(self) -> bool:
        """Whether enough items of some key wait for a full batch."""
        return self._full_keys > 0

    def may_choose(self) -> bool:
        """Whether other calls than the oldest may be in the next batch: those of other keys."""
        return True

    def lacks(self) -> int:
        """Return the least number of further items that may fill a batch."""
        return self._oldest().queue.lacks() if len(self._entries) == 1 else 1

    def in_turn(self, is_due: Callable[[float], bool], urgent: Call | None) -> Queue:
        """Return the queue that has its turn. At least one item must wait.

        A key may have its turn if it is full, if `urgent` waits in its queue, or if it `is_due` by the time
        at which its oldest item arrived. If there is no such key, the key of the oldest item has its turn.
        """
        if len(self._entries) == 1:
            return self._oldest().queue
        small = self._first(False, is_due, urgent)  # noqa: FBT003
        if small is not None and self._credit < 1:
            return small.queue
        large = self._first(True, is_due, urgent)  # noqa: FBT003
        return (large or small or self._oldest()).queue

    def _first(self, large: bool, is_due: Callable[[float], bool], urgent: Call | None) -> _Entry | None:  # noqa: FBT001
        """Return the first key that may have its turn, of the keys with small calls or of the others."""
        first = self._waiting[large].first()
        if first is None or is_due(first.queue.oldest()):
            return first
        full = self._full[large].first()
        oldest = self._oldest()
        found = [] if full is None else [full]
        found += [oldest] if is_due(oldest.queue.oldest()) else []
        found += [self._entries[urgent.key]] if urgent is not None else []
        return min((entry for entry in found if entry.is_large is large), key=_Entry.since, default=None)

    def of_key(self, key: Hashable) -> Queue | None:
        """Return the queue of `key` if it has the oldest item; else None, so that other keys have a turn.

        With small calls it goes ahead of keys of which only large calls wait, until these have a turn.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        first = self._oldest()
        if first.is_large and not entry.is_large and self._credit < 1:
            first = self._waiting[False].first() or entry
            return entry.queue if entry.oldest() <= first.since() else None
        return entry.queue if entry is first else None

    def taken(self, batch: Batch, now: float, share: float = 1.0) -> None:
        """Note that `batch`, which counts as a `share` of one, has been taken from the queue of a key."""
        key = batch.slices[0][0].key
        entry = self._entries[key]
        earned = -share if entry.is_large else share * RESERVE
        self._credit = min(max(self._credit + earned, 0.0), 1.0)
        entry.turn = now
        entry.number = next(self._numbers)
        self._removed(key, entry, batch.size)

    def _removed(self, key: Hashable, entry: _Entry, items: int) -> None:
        """Note that so many `items` of a key do not wait any more."""
        self.items -= items
        if entry.queue.items:
            self._update(entry)
            return
        del self._entries[key]
        self._full_keys -= entry.is_full
        self._large_keys -= entry.is_large
        self.small_items -= entry.small_items
        if not self._entries and self._by_age:
            for heap in self._heaps:
                heap.clear()

    def _oldest(self) -> _Entry:
        """Return the key of the oldest item. At least one must wait."""
        if len(self._entries) == 1:
            return next(iter(self._entries.values()))
        entry = self._by_age.first()
        assert entry is not None  # noqa: S101  for the type
        return entry


def _oldest(entry: _Entry) -> Rank | None:
    """Return when the oldest item of a key arrived, None if no item waits."""
    return entry.oldest() if entry.queue.items else None


def _since(large: bool, full: bool, entry: _Entry) -> Rank | None:  # noqa: FBT001
    """Return since when a key waits for its turn, None if it is not one of the keys meant."""
    is_meant = entry.queue.items and entry.is_large is large and (entry.is_full or not full)
    return entry.since() if is_meant else None
