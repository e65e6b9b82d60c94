"""Calls that have a deadline, soonest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from batched._core.call import Call

__all__ = ["DeadlineHeap", "Deadlines"]

_FEW = 1024

EntryT = TypeVar("EntryT")


class DeadlineHeap(Generic[EntryT]):
    """Entries in order of their deadline, equal ones as they came.

    It is lazy: an entry without a deadline is forgotten, and one with a later deadline is moved, when it
    comes to the top.
    """

    def __init__(self, deadline_of: Callable[[EntryT], float | None]) -> None:
        """Ask `deadline_of` for the deadline of an entry: None once it has none any more."""
        self._heap: list[tuple[float, int, EntryT]] = []
        self._deadline_of = deadline_of
        self._limit = _FEW
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: EntryT, deadline: float) -> None:
        """Add an entry, with the deadline that it has now."""
        heap = self._heap
        heappush(heap, (deadline, next(self._order), entry))
        if len(heap) > self._limit:
            # Entries that were answered before their deadline would pile up here until it passes.
            heap[:] = [each for each in heap if self._deadline_of(each[2]) is not None]
            heapify(heap)
            self._limit = max(_FEW, 2 * len(heap))

    def next(self) -> float:
        """Return the next deadline, `inf` if there is none."""
        heap = self._heap
        while heap:
            known, _, entry = heap[0]
            deadline = self._deadline_of(entry)
            if deadline is None:
                heappop(heap)
            elif deadline > known:
                heapreplace(heap, (deadline, next(self._order), entry))
            else:
                return deadline
        return inf

    def first(self) -> EntryT:
        """Return the entry that has the `next` deadline, just asked for. There must be one."""
        return self._heap[0][2]

    def passed(self, now: float) -> Iterator[EntryT]:
        """Remove and return the entries with a deadline that has passed."""
        while self.next() <= now:
            yield heappop(self._heap)[2]

    def clear(self) -> None:
        """Forget all entries."""
        self._heap.clear()


class Deadlines:
    """The calls that wait and have a deadline."""

    def __init__(self) -> None:
        self.heap: DeadlineHeap[Call] = DeadlineHeap(_deadline_of)

    def add(self, calls: Iterable[Call]) -> None:
        """Watch the deadlines of `calls`."""
        for call in calls:
            self.heap.add(call, call.deadline or 0.0)

    def start(self) -> float:
        """Return when to start for the call with the next deadline; `inf` if there is none."""
        return inf if self.heap.next() == inf else self.heap.first().latest_start()

    def first(self) -> Call:
        """Return the call that `start` was just asked for. There must be one."""
        return self.heap.first()

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return the calls with a deadline that has passed."""
        return self.heap.passed(now)


def _deadline_of(call: Call) -> float | None:
    return call.deadline if call.waiting else None
