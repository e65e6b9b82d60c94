"""Whose deadline is next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from batched._call import Call

__all__ = ["Deadlines"]

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
