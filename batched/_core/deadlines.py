"""Calls that have a deadline, soonest first."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from batched._core.lazy_heap import EntryT, LazyHeap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from batched._core.call import Call

__all__ = ["DeadlineHeap", "Deadlines"]


class DeadlineHeap(LazyHeap[EntryT, float]):
    """Entries in order of their deadline."""

    def next(self) -> float:
        """Return the next deadline, `inf` if there is none."""
        return inf if self.first() is None else self.entries[0][0]

    def passed(self, now: float) -> Iterator[EntryT]:
        """Remove and return the entries with a deadline that has passed."""
        while self.next() <= now:
            yield self.pop()


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
        first = self.heap.first()
        return inf if first is None else first.latest_start()

    def first(self) -> Call | None:
        """Return the call with the next deadline, if there is one."""
        return self.heap.first()

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return the calls with a deadline that has passed."""
        return self.heap.passed(now)


def _deadline_of(call: Call) -> float | None:
    return call.deadline if call.waiting else None
