"""The waiting calls of one batcher where not all may share a batch: a queue for each key.

Each key fills batches of its own, and keys take turns by their oldest item. A key is known as long as an
item of it waits.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

from batched._queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from batched._call import Call
    from batched._lengths import Lengths

__all__ = ["Groups"]

_SPARE = 64


class Groups:
    """Queues by key. Costs O(log n) a batch for n keys, and nothing for a key that is not used."""

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
        self._queues: dict[Hashable, Queue] = {}
        # Heaps of queues by when their oldest item arrived, when that was last looked at: by now it may have
        # left, which the entry is corrected for when it comes to the top.
        self._all: list[tuple[float, int, Queue]] = []
        self._full: list[tuple[float, int, Queue]] = []
        self._listed: set[Queue] = set()  # those in `_full`, each once
        self._order = count()

    def resize(self, batch_size: int, threshold: int) -> None:
        """Follow new options; calls that wait are classed anew."""
        self.batch_size = batch_size
        self.threshold = threshold
        self._full.clear()
        self._listed.clear()
        for queue in self._queues.values():
            queue.resize(batch_size, threshold)
            self._list(queue)

    def push_all(self, calls: list[Call], urgent: list[Call]) -> int:
        """Append `calls` to the queues of their keys.

        Adds those that have a deadline to `urgent`; returns how many items have come.
        """
        arrived: dict[Hashable, list[Call]] = {}
        for call in calls:
            arrived.setdefault(call.key, []).append(call)
        items = 0
        for key, theirs in arrived.items():
            queue = self._queues.get(key)
            if queue is None:
                if len(self._all) > 2 * len(self._queues) + _SPARE:
                    self._tidy()
                self._queues[key] = queue = self._new(self.batch_size, self.threshold)
                heappush(self._all, (theirs[0].arrived, next(self._order), queue))
            items += queue.push_all(theirs, urgent)
            self._list(queue)
        self.items += items
        return items

    def _tidy(self) -> None:
        """Forget the queues of keys that are not used, behind that of an item which waits long."""
        for heap in (self._all, self._full):
            heap[:] = [entry for entry in heap if entry[2].items]
            heapify(heap)
        self._listed = {queue for _, _, queue in self._full}

    def _list(self, queue: Queue) -> None:
        """See to it that a queue that fills a batch is in `_full`."""
        if queue not in self._listed and queue.is_full():
            self._listed.add(queue)
            heappush(self._full, (queue.oldest(), next(self._order), queue))

    def drop(self, call: Call) -> int:
        """Forget what of `call` still waits; return how many items that was."""
        queue = self._queues.get(call.key)
        if queue is None or not call.waiting:
            call.waiting = 0
            return 0
        dropped = queue.drop(call)
        self.items -= dropped
        if not queue.items:
            self._forget(call.key)
        return dropped

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait."""
        return [call for queue in self._queues.values() for call in queue.waiting_calls()]

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        return self._oldest_of(self._all)

    def is_full(self) -> bool:
        """Whether enough of some key wait for a full batch."""
        return bool(self._full) and self._oldest_of(self._full) >= 0

    def lacks(self) -> int:
        """Return the least number of further items that may fill a batch."""
        if len(self._queues) == 1:
            (queue,) = self._queues.values()
            return queue.lacks()
        return 1

    def oldest_queue(self) -> Queue:
        """Return the queue whose oldest item is the oldest of all. At least one must wait."""
        self._oldest_of(self._all)
        return self._all[0][2]

    def oldest_full(self) -> Queue | None:
        """Return the queue whose oldest item is the oldest of those that fill a batch; None if none does."""
        return self._full[0][2] if self.is_full() else None

    def of(self, call: Call) -> Queue:
        """Return the queue that `call` waits in."""
        return self._queues[call.key]

    def taken(self, key: Hashable, items: int) -> None:
        """Say that a batch of `items` has been taken from the queue of `key`."""
        self.items -= items
        if not self._queues[key].items:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        del self._queues[key]
        if not self._queues:
            self._all.clear()
            self._full.clear()
            self._listed.clear()

    def _belongs(self, queue: Queue, heap: list[tuple[float, int, Queue]]) -> bool:
        return queue.items > 0 if heap is self._all else queue.is_full()

    def _oldest_of(self, heap: list[tuple[float, int, Queue]]) -> float:
        """Bring the top of `heap` up to date and return its time; -1 if none belongs there."""
        while heap:
            said, order, queue = heap[0]
            if not self._belongs(queue, heap):
                heappop(heap)
                if heap is self._full:
                    self._listed.discard(queue)
                continue
            oldest = queue.oldest()
            if oldest == said:
                return oldest
            heapreplace(heap, (oldest, order, queue))
        return -1.0
