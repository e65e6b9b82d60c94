"""Entries in order of a rank that only grows, such as their deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count, islice
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar
from weakref import ref

from batched._core.call import Call

LEAST_LIMIT = 64  # entries: beyond, those without a rank are cleared away

_WAITING = attrgetter("waiting")

EntryT = TypeVar("EntryT")
RankT = TypeVar("RankT", float, tuple[float, int])


class LazyHeap(Generic[EntryT, RankT]):
    """Entries in order of their rank, equal ones as they came. An entry has one place at most.

    An entry without a rank is forgotten, and one with a higher rank is moved, when it comes to the top. So a
    change costs nothing at first, and O(log n) at the next look.
    """

    def __init__(self, rank_of: Callable[[EntryT], RankT | None]) -> None:
        """Ask `rank_of` for the rank of an entry: None once it has none any more."""
        self.entries: list[tuple[RankT, int, EntryT]] = []
        self._known: set[EntryT] = set()
        self._rank_of: Callable[[EntryT], RankT | None] = rank_of
        self._limit = LEAST_LIMIT
        self._order = count()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: EntryT, rank: RankT) -> None:
        """Add an entry, with the rank that it has now, unless it has its place."""
        if entry in self._known:
            return
        self._known.add(entry)
        heap = self.entries
        heappush(heap, (rank, next(self._order), entry))
        if len(heap) > self._limit:
            # Entries without a rank would pile up here until they come to the top.
            heap[:] = [each for each in heap if self._rank_of(each[2]) is not None]
            heapify(heap)
            self._known = {each[2] for each in heap}
            self._limit = max(LEAST_LIMIT, 2 * len(heap))

    def first(self) -> EntryT | None:
        """Return the entry of the least rank, None if there is no entry."""
        heap = self.entries
        while heap:
            said, _, entry = heap[0]
            rank = self._rank_of(entry)
            if rank is None:
                self.pop()
            elif rank > said:
                heapreplace(heap, (rank, next(self._order), entry))
            else:
                return entry
        return None

    def pop(self) -> EntryT:
        """Remove and return the entry that is `first`, just asked for."""
        entry = heappop(self.entries)[2]
        self._known.discard(entry)
        return entry

    def clear(self) -> None:
        """Forget all entries."""
        self.entries.clear()
        self._known.clear()
        self._limit = LEAST_LIMIT


class DeadlineHeap(LazyHeap[ref[Call], float]):
    """Calls in order of their deadline, as long as they wait. They are kept elsewhere."""

    def __init__(self, waits: Callable[[Call], object]) -> None:
        """Ask `waits` whether the deadline of a call still matters."""

        def deadline(reference: ref[Call]) -> float | None:
            call = reference()
            return call.deadline if call is not None and waits(call) else None

        super().__init__(deadline)

    def next(self) -> float:
        """Return the next deadline, `inf` if there is none."""
        return inf if self.first() is None else self.entries[0][0]

    def passed(self, now: float) -> Iterator[Call]:
        """Remove and return the calls with a deadline that has passed."""
        while self.next() <= now:
            if (call := self.pop()()) is not None:
                yield call


class Deadlines(DeadlineHeap):
    """The calls that wait and have a deadline.

    They are kept by the queue, not here: a call that has been answered is to end without the lock, as the
    finalizer of its result may call the batcher.
    """

    def __init__(self) -> None:
        super().__init__(_WAITING)
        self._lists: deque[ref[Call]] = deque()
        self._most_lists = LEAST_LIMIT

    def watch(self, call: Call, deadline: float) -> None:
        """Watch `call`."""
        self.add(ref(call), deadline)
        if call.size > 1:
            self._lists.append(ref(call))
            if len(self._lists) > self._most_lists:
                # Calls of which nothing waits would pile up behind one of which something does.
                self._lists = deque([each for each in self._lists if (its := each()) and its.waiting])
                self._most_lists = max(LEAST_LIMIT, 2 * len(self._lists))

    def clear(self) -> None:
        """Forget all calls."""
        super().clear()
        self._lists.clear()

    def spare_s(self, now: float) -> float:
        """Return how many seconds are left until the next deadline."""
        return self.next() - now if self.entries else inf

    def are_after(self, now: float) -> bool:
        """Whether all deadlines are; False may be wrong."""
        return not self.entries or self.entries[0][0] > now

    def are_far(self, now: float) -> bool:
        """Whether all deadlines are after `now`, and no list waits; False may be wrong."""
        return not self._lists and (not self.entries or self.entries[0][0] > now)

    def lists(self) -> list[Call]:
        """Return the oldest calls of several items that wait: so many that a look costs little."""
        lists = self._lists
        while lists and ((first := lists[0]()) is None or not first.waiting):
            lists.popleft()
        oldest = (each() for each in islice(lists, LEAST_LIMIT))
        return [call for call in oldest if call is not None and call.waiting]

    def first_call(self) -> Call | None:
        """Return the call with the next deadline, if there is one."""
        first = self.first()
        return None if first is None else first()

    def start(self) -> float:
        """Return when to start for the call with the next deadline; `inf` if there is none."""
        first = self.first_call()
        return inf if first is None else first.latest_start()
