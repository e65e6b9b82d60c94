"""Calls with a deadline: they are answered once they are late, and batches start in time for them.

Under overload some of the waiting calls are given up, so that most are answered in time. A batch has as many
items as can all be answered in time. Calls that are too late for a batch of this size are given up, and later
ones take their places. Else a batch would be as small as its oldest call demands, and small batches lose the
capacity that is lacking (early drop over a sliding window: Nexus, SOSP 2019, section 6.3).

A list that cannot be finished is not begun, nor gone on with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol

from batched._core.call import Call
from batched._core.hooks import Feature, Run
from batched._core.lazy_heap import Deadlines
from batched._core.options import Options
from batched._core.river import River
from batched._policy.service_time import ServiceTime
from batched._policy.window import StartReason
from batched.errors import OverloadError

_USED = ("queued", "look", "urgent", "start", "room", "ended")


class KnowsWaits(Protocol):
    """What knows how long batches take, and calls wait."""

    times: ServiceTime

    def is_free(self, now: float, items: int = 0) -> bool:
        """Whether calls may run though they seem late: that may be wrong."""
        ...

    def overload(self, call: Call, too_long: float, now: float, *, in_vain: bool) -> OverloadError:
        """Return the error of `call`, for which what waits takes `too_long` by so many seconds.

        One `in_vain` would have been late though nothing else ran.
        """
        ...


class WithDeadlines(Feature):
    """Watches the calls that have a deadline; begins with the first one."""

    hooks: tuple[str, ...] = ("door",)

    def __init__(self, deadlines: Deadlines, waits: KnowsWaits) -> None:
        self._deadlines = deadlines
        self._waits = waits
        self._is_used = False

    def begin(self, river: River, options: Options) -> None:
        """Begin with the deadlines of the new queue, which has none."""
        super().begin(river, options)
        self._deadlines.clear()
        if self._is_used:  # Ctrl-C may have come before it took part
            self.hooks = _USED

    def door(self, call: Call, now: float) -> None:  # noqa: ARG002  as for every feature
        """Take part from the first call on."""
        if not self._is_used:
            self.river.later.append(self._use)  # first: another caller relies on it, and Ctrl-C may come
            self._is_used = True

    def _use(self) -> None:
        self.have(*_USED)

    def queued(self, calls: list[Call]) -> None:
        """Watch those that have a deadline."""
        for call in calls:
            if call.deadline is not None:
                self._deadlines.watch(call, call.deadline)

    def look(self, now: float) -> None:
        """Answer calls that are late, or will be."""
        deadlines = self._deadlines
        if not deadlines.are_far(now + self.river.batch_s):
            for call in deadlines.passed(now):
                self.river.expire(call)
            if self._waits.times.is_known:
                self._give_up_late(now)

    def start(self, start: float, reason: StartReason, _now: float) -> tuple[float, StartReason]:
        """Start sooner for the call with the next deadline: it spends half of its time waiting, at most."""
        if self._deadlines.entries and (urgent := self._start()) < start:
            return urgent, StartReason.DEADLINE
        return start, reason

    def _start(self) -> float:
        """Return when to start for the call with the next deadline."""
        queue = self.river.queue
        start = self._deadlines.start()
        if self._waits.times.is_known:
            takes_s = self._waits.times.safe_seconds(min(queue.items, queue.batch_size))
            start = min(start, self._deadlines.next() - takes_s)
        return start

    def urgent(self, now: float) -> Call | None:
        """Return the call with the next deadline, if half of its time is over."""
        deadlines = self._deadlines
        return deadlines.first_call() if deadlines.entries and self._start() <= now else None

    def room(self, queue: Any, room: int, now: float) -> int:
        """Return how many items of `queue` can be answered in time, of `room` at most.

        Small calls that are too late for a batch of as many as can be in time are given up.
        """
        times = self._waits.times
        if not times.is_known or self._deadlines.are_after(now + times.safe_seconds(room)):
            return room
        ends = partial(self._ends, now)
        if self._deadlines.next() >= ends(room) or self._waits.is_free(now):
            return room
        size = min(room, queue.small_items)
        late, found = _too_late(queue, size, ends(size))
        if found < size:  # then these were all small calls
            size = _largest_in_time(queue, size, ends)
            late, _ = _too_late(queue, size, ends(size))
        if not size:
            return room
        for call in late:
            self._give_up(call, ends(size), now)
        # Large calls fill the batch as far as the deadlines of small ones allow.
        first = min(map(_deadline, queue.small_calls()), default=inf) if room > size else inf
        while room > size and first < ends(room):
            room = (room + size) // 2
        left: int = queue.items
        return min(room, left)

    def ended(self, run: Run) -> None:
        """Count the items that are late: no caller waits for their results any more."""
        if run.is_divided or hasattr(run.batch, "fresh"):  # they run again, or are counted as they leave
            return
        for call, start, stop in run.batch.slices:
            if (call.left is not None or call.parent is not None) and call.has_expired:
                self.river.counters.late += stop - start

    # -- calls that cannot be answered in time are given up, as soon as that is known ------------------------

    def _give_up_late(self, now: float) -> None:
        """Give up the calls that would be late even if they ran at once, and nothing else did."""
        waits = self._waits
        if waits.is_free(now):
            return
        times = waits.times
        late = [*self._deadlines.passed(now + times.safe_seconds(1)), *self._deadlines.lists()]
        for call in late:
            self._give_up(call, now + self._alone_s(call.waiting), now)

    def _alone_s(self, items: int) -> float:
        """Return how long `items` take, if nothing else runs."""
        size: int = self.river.queue.batch_size
        batches, last = divmod(max(items, 1) - 1, size)
        times = self._waits.times
        return batches * times.seconds(size) / self.river.slots + times.safe_seconds(last + 1)

    def _give_up(self, call: Call, answered: float, now: float) -> None:
        """Give up `call` if it would be `answered` too late."""
        # A list may be found in two ways; the first has dropped it.
        if call.deadline is not None and call.waiting and answered >= call.deadline:
            counters = self.river.counters
            before = counters.expired
            in_vain = call.arrived + self._alone_s(call.size) >= call.deadline
            error = self._waits.overload(call, answered - call.deadline, now, in_vain=in_vain)
            self.river.expire(call, error)
            counters.given_up += counters.expired - before

    def _ends(self, now: float, size: int) -> float:
        """Return when a batch of `size` items that starts now has its answers, at the latest."""
        return now + self._waits.times.safe_seconds(size)


def _too_late(queue: Any, size: int, ends: float) -> tuple[list[Call], int]:
    """Return the small calls that come before the first `size` items which are in time, and how many are."""
    late: list[Call] = []
    found = 0
    for call in queue.small_calls():
        if found >= size:
            break
        if _deadline(call) < ends:
            late.append(call)
        else:
            found += call.waiting
    return late, found


def _largest_in_time(queue: Any, most: int, ends: Callable[[int], float]) -> int:
    """Return how many items the largest batch of small calls has that are all answered in time, 0 if none is.

    `ends` returns when a batch of a size has its answers.
    """
    deadlines = sorted([_deadline(call) for call in queue.small_calls() for _ in range(call.waiting)])
    least = 0
    while least < most:
        size = (least + most + 1) // 2
        if len(deadlines) - bisect_left(deadlines, ends(size)) >= size:
            least = size
        else:
            most = size - 1
    return least


def _deadline(call: Call) -> float:
    """Return the deadline of `call`; `inf` if it has none, or nothing of it waits."""
    return inf if call.deadline is None or not call.waiting else call.deadline
