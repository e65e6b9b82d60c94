"""Calls in order of arrival: small ones, a large one that is alone, or those of one flow among others."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from batched._core.call import Call, Slice


class Line(deque[Call]):
    """Calls in order of arrival, and where they stand among other flows."""

    __slots__ = ("credit", "items", "key")

    # Of a flow, kept by its `Turns`.
    credit: int
    """Items that it may still have in this turn, or has had too much."""
    items: int
    """Items that wait."""
    key: Hashable

    flows = 1

    def take(self, room: int, slices: list[Slice]) -> int:
        """Move up to `room` items from the front to `slices`; return how many."""
        left = room
        while left and self:
            call = self[0]  # it is here, in `slices`, or both: so Ctrl-C loses no call
            waiting = call.waiting
            size = call.size
            if waiting > left:
                start = size - waiting
                slices.append((call, start, start + left))
                call.waiting = waiting - left
                return room
            if waiting:  # else its caller has left
                slices.append((call, size - waiting, size))
                call.waiting = 0
                left -= waiting
            self.popleft()
        return room - left

    def upcoming(self, most: int) -> list[tuple[Call, int]]:
        """Return the next `most` items, as calls and numbers; forget calls of which no item waits."""
        found: list[tuple[Call, int]] = []
        left = most
        gone: list[Call] = []
        for call in self:
            if left <= 0:
                break
            if call.waiting:
                found.append((call, min(call.waiting, left)))
                left -= call.waiting
            else:
                gone.append(call)
        for call in gone:
            self.remove(call)
        return found

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        while not self[0].waiting:
            self.popleft()
        return self[0].arrived

    def removed(self, call: Call, items: int, *, ran: bool = False) -> None:
        """Do nothing: calls of which no item waits are skipped when it is their turn."""
