"""What callers tell a batcher without its lock: calls that have come, and calls to be dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batched._core.call import Call


class Inbox:
    """Calls on their way to the queue, and when they are reason to wake the driver. Needs no lock."""

    __slots__ = (
        "arrive",
        "arrive_all",
        "arriving",
        "batch_s",
        "later",
        "leave",
        "leaving",
        "until",
        "wake_after",
    )

    def __init__(self) -> None:
        self.arriving: list[Call] = []
        self.arrive: Callable[[Call], None] = self.arriving.append
        """Note a call that has come. (The list's own method, as a method of ours would cost more than it.)"""
        self.arrive_all: Callable[[list[Call]], None] = self.arriving.extend
        """Note calls that have come together, in one step."""
        self.leaving: deque[Call] = deque()
        """Calls that are to be dropped: their callers have left."""
        self.leave: Callable[[Call], None] = self.leaving.append
        """Note that the caller of a call has left. The garbage collector may do so, at any moment."""
        self.later: deque[Callable[[], None]] = deque()
        """What callers want to have done with the lock, before calls that arrive later are queued."""
        self.batch_s: float = 0.0
        """The least seconds that a batch takes, as far as they are known."""
        self.wake_after: int | None = None
        """So many calls in `arriving` are reason to wake the driver before `until`.

        None: the driver is about to look by itself. 0: there is no worker thread, and the call starts one.
        """
        self.until: float = 0.0
        """When the driver looks in any case, if calls wait."""

    def wakes(self, call: Call) -> bool:
        """Whether `call`, which has just been added to `arriving`, is reason to look at once."""
        after = self.wake_after
        return after is not None and (
            len(self.arriving) >= after
            or call.size > 1
            or (
                call.deadline is not None
                and min(call.latest_start(), call.deadline - self.batch_s) < self.until
            )
        )
