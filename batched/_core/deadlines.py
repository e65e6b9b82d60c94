"""Calls that have a deadline, soonest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from batched._core.call import Call

__all__ = ["DeadlineHeap", "Deadlines"]

_FEW = 1024

EntryT = TypeVar("EntryT")


class DeadlineHeap(Generic[EntryT]):
    """Entries in order of their deadline, equal ones as they came.

    It is lazy: an entry that is not open any more is forgotten when it comes to the top, or when there are
    many.
    """

    __slots__ = ("_heap", "_is_open", "_limit", "_order")

    def __init__(self, is_open: Callable[[EntryT], object]) -> None:
        self._heap: list[tuple[float, int, EntryT]] = []
        self._is_open = is_open
        self._limit = _FEW
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: EntryT, deadline: float) -> None:
        """Add an entry."""
        heap = self._heap
        heappush(heap, (deadline, next(self._order), entry))
        if len(heap) > self._limit:
            # Entries that were closed before their deadline would pile up here until it passes.
            heap[:] = [each for each in heap if self._is_open(each[2])]
            heapify(heap)
            self._limit = max(_FEW, 2 * len(heap))

    def next(self) -> float | None:
        """Return the next deadline, None if there is no entry."""
        return self._heap[0][0] if self._heap else None

    def first(self) -> EntryT:
        """Return the entry of the next deadline. There must be one."""
        return self._heap[0][2]

    def passed(self, now: float) -> Iterator[EntryT]:
        """Remove and return the open entries with a deadline that has passed."""
        heap = self._heap
        while heap and (heap[0][0] <= now or not self._is_open(heap[0][2])):
            entry = heappop(heap)[2]
            if self._is_open(entry):
                yield entry

    def clear(self) -> None:
        """Forget all entries."""
        self._heap.clear()


class Deadlines:
    """The calls that wait and have a deadline."""

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: DeadlineHeap[Call] = DeadlineHeap(_waits)

    def add(self, calls: Iterable[Call]) -> None:
        """Watch the deadlines of `calls`."""
        for call in calls:
            self.heap.add(call, call.deadline or 0.0)

    def first(self) -> Call:
        """Return the call with the next deadline. There must be one, and it must wait."""
        return self.heap.first()

    def start(self) -> float:
        """Return when to start for that call at the latest."""
        return (self.first().arrived + (self.heap.next() or 0.0)) / 2

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return the calls with a deadline that has passed."""
        for call in self.heap.passed(now):
            deadline = call.deadline
            if deadline is None:
                continue
            if deadline <= now:
                yield call
            else:  # a caller that can wait longer has joined
                self.heap.add(call, deadline)


def _waits(call: Call) -> int:
    return call.waiting
