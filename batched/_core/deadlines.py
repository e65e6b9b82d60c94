"""The calls that have a deadline, soonest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from weakref import ref

    from batched._core.call import Call

__all__ = ["Deadlines", "WatchedCalls"]

_FEW = 1024


class Deadlines:
    """The calls that wait and have a deadline."""

    __slots__ = ("_limit", "_order", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Call]] = []
        """By deadline, then as they came. Calls that wait no longer stay in it until they are met."""
        self._limit = _FEW
        self._order = count()

    def add(self, calls: Iterable[Call]) -> None:
        """Heed the deadlines of `calls`."""
        heap = self.heap
        for call in calls:
            heappush(heap, (call.deadline or 0.0, next(self._order), call))
            if len(heap) > self._limit:
                # Calls that ended before their deadline would pile up here until it passes.
                heap[:] = [entry for entry in heap if entry[2].waiting]
                heapify(heap)
                self._limit = max(_FEW, 2 * len(heap))

    def first(self) -> Call:
        """Return the call whose deadline is next. There must be one, and it must wait."""
        return self.heap[0][2]

    def start(self) -> float:
        """Return when to start for that call at the latest."""
        deadline, _, call = self.heap[0]
        return (call.arrived + deadline) / 2

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return those whose deadline has passed, and forget those that no longer wait."""
        heap = self.heap
        while heap and (heap[0][0] <= now or not heap[0][2].waiting):
            deadline, _, call = heappop(heap)
            if not call.waiting:
                continue
            if call.deadline == deadline:
                yield call
            elif call.deadline is not None:  # somebody has joined who can wait longer
                heappush(heap, (call.deadline, next(self._order), call))


class WatchedCalls:
    """Calls that something outside of the queue watches, soonest deadline first. It keeps no call alive."""

    __slots__ = ("_heap", "_limit", "_order", "_waits")

    def __init__(self, waits: Callable[[Call], object]) -> None:
        # By deadline, then as they came. Calls that wait no longer stay until they are met, or are too many.
        self._heap: list[tuple[float, int, ref[Call]]] = []
        self._order = count()
        self._limit = _FEW
        self._waits = waits

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: ref[Call], deadline: float) -> None:
        """Watch a call."""
        heap = self._heap
        heappush(heap, (deadline, next(self._order), call))
        if len(heap) > self._limit:
            heap[:] = [entry for entry in heap if self._still_waits(entry)]
            heapify(heap)
            self._limit = max(_FEW, 2 * len(heap))

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return the calls whose deadline has passed, and forget those that wait no longer."""
        heap = self._heap
        while heap and (heap[0][0] <= now or not self._still_waits(heap[0])):
            call = heappop(heap)[2]()
            if call is not None and self._waits(call):
                yield call

    def next(self) -> float | None:
        """Return the next deadline, None if no call is watched."""
        return self._heap[0][0] if self._heap else None

    def _still_waits(self, entry: tuple[float, int, ref[Call]]) -> bool:
        call = entry[2]()
        return call is not None and bool(self._waits(call))
