"""Calls that have a deadline, soonest first."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from batched._core.call import Call
from batched._core.lazy_heap import EntryT, LazyHeap

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


class Deadlines(DeadlineHeap["Call"]):
    """The calls that wait and have a deadline."""

    def __init__(self) -> None:
        super().__init__(_deadline_of)

    def start(self) -> float:
        """Return when to start for the call with the next deadline; `inf` if there is none."""
        first = self.first()
        return inf if first is None else first.latest_start()


def _deadline_of(call: Call) -> float | None:
    return call.deadline if call.waiting else None
