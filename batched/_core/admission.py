"""Whether there is room for a call: `max_queue_size` and `on_full`."""

from __future__ import annotations

from batched._core.call import Call
from batched._core.options import Options
from batched._core.tenants import Tenants
from batched.errors import QueueFullError


def admits_with_lock(options: Options) -> bool:
    """Whether calls are admitted one by one: they are counted, divided or looked up."""
    told = (options.max_queue_size, options.group_by, options.cache, options.fair_by)
    return any(option is not None for option in told)


class Admission:
    """The bound on waiting items, and the calls that wait for room, oldest first."""

    __slots__ = ("_bound", "_name", "_tenants", "arriving", "awaiting_room", "in_the_way")

    def __init__(self, name: str, options: Options, tenants: Tenants | None) -> None:
        self._name = name
        self._tenants = tenants
        self.in_the_way: list[Call] = []
        """Calls that are to be refused after all, for the one that has just been let in."""
        self.awaiting_room: dict[Call, list[Call]] = {}
        """The calls that wait for room, each with the parts to queue in its place."""
        self._bound = options.max_queue_size
        self.arriving: int = 0
        """Items that were let in and are not in the queue yet."""

    def configure(self, options: Options) -> None:
        """Follow a new bound."""
        self._bound = options.max_queue_size

    def admit(self, call: Call, parts: list[Call], queued: int, *, wait: bool, of_map: bool = False) -> bool:
        """Return whether there is room for `parts` beside `queued` items; if not, `call` waits for it.

        A call of a `map` that is larger than the bound has room when no item waits: the bound may have been
        lowered since its elements were read. Raises `QueueFullError` if a call cannot `wait`, and
        `ValueError` if there will never be room.
        """
        size = sum([part.size for part in parts])
        bound = self._bound
        if bound is None or not size:
            return True
        if size > bound and not of_map:
            raise ValueError(
                f"{self._name} has max_queue_size={bound}: a call of {size} items will never fit, "
                f"so divide it or raise the bound"
            )
        waiting = queued + self.arriving
        tenants = self._tenants
        missing = waiting + size - bound if waiting else 0
        has_right = tenants is not None and tenants.has_right(parts[0], size, bound)
        if missing <= 0 and (has_right or not self.awaiting_room):
            return True
        if not wait:
            if tenants is not None and has_right:
                self.in_the_way = tenants.in_the_way(missing, parts[0], bound)
                if self.in_the_way:
                    return True
            raise QueueFullError(
                f"{self._name} has {waiting} items waiting, and max_queue_size={bound}: "
                f"no room for {size} more"
            )
        self.awaiting_room[call] = parts
        if tenants is not None:
            call.tenant = parts[0].tenant
            tenants.wait(call)
        return False

    def pop(self, queued: int) -> tuple[Call, list[Call]] | None:
        """Remove and return the call that is the next, with its parts, if there is room for it now.

        That is the one that has waited longest, where tenants do not take turns.

        A call that is alone is let in though it be larger: the bound was lowered while it waited.
        """
        if not self.awaiting_room:
            return None
        tenants = self._tenants
        call = next(iter(self.awaiting_room)) if tenants is None else tenants.next_outside()
        parts = self.awaiting_room[call]
        waiting = queued + self.arriving
        if self._bound is not None and waiting and waiting + sum([part.size for part in parts]) > self._bound:
            return None
        self.leave(call)
        return call, parts

    def leave(self, call: Call) -> list[Call]:
        """Forget that `call` waits for room; return its parts, none if it did not wait."""
        parts = self.awaiting_room.pop(call, [])
        if parts and self._tenants is not None:
            self._tenants.leave(call)
        return parts

    def clear(self) -> list[Call]:
        """Forget the calls that wait for room; return their parts."""
        return [part for call in [*self.awaiting_room] for part in self.leave(call)]

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait for room."""
        return [part for parts in self.awaiting_room.values() for part in parts]
