"""Whether there is room for a call: `max_queue_size`, `max_queue_delay_ms` and `on_full`."""

from __future__ import annotations

from typing import Protocol

from batched._core.call import Call
from batched._core.options import Options
from batched._core.tenants import Tenants
from batched.errors import QueueFullError


def admits_with_lock(options: Options) -> bool:
    """Whether calls are admitted one by one: they are counted, divided or looked up."""
    told = (
        options.max_queue_size,
        options.max_queue_delay_ms,
        options.group_by,
        options.cache,
        options.fair_by,
    )
    return any(option is not None for option in told)


class WaitingTime(Protocol):
    """What tells how long items wait, as far as that is known."""

    def most_waiting(self, delay_s: float) -> int | None:
        """Return how many items may wait so that none does for longer than `delay_s`; None if not known."""
        ...

    def retry_after_s(self, items: int, too_many: int) -> float | None:
        """Return when a call of `items` may come back, for which `too_many` wait; None if not known."""
        ...


class Admission:
    """The bound on waiting items, and the calls that wait for room, oldest first."""

    __slots__ = (
        "_bound",
        "_longest_s",
        "_name",
        "_tenants",
        "_time",
        "arriving",
        "awaiting_room",
        "in_the_way",
    )

    def __init__(self, name: str, options: Options, tenants: Tenants | None, time: WaitingTime) -> None:
        self._name = name
        self._time = time
        self._tenants = tenants
        self.in_the_way: list[Call] = []
        """Calls that are to be refused after all, for the one that has just been let in."""
        self.awaiting_room: dict[Call, list[Call]] = {}
        """The calls that wait for room, each with the parts to queue in its place."""
        self.arriving: int = 0
        """Items that were let in and are not in the queue yet."""
        self.configure(options)

    def configure(self, options: Options) -> None:
        """Follow new bounds."""
        self._bound = options.max_queue_size
        self._longest_s = None if options.max_queue_delay_ms is None else options.max_queue_delay_ms / 1000

    def _most(self) -> int | None:
        """Return how many items may wait, None if there is no bound."""
        if self._longest_s is None:
            return self._bound
        found = [most for most in (self._bound, self._time.most_waiting(self._longest_s)) if most is not None]
        return min(found, default=None)

    def admit(self, call: Call, parts: list[Call], queued: int, *, wait: bool, of_map: bool = False) -> bool:
        """Return whether there is room for `parts` beside `queued` items; if not, `call` waits for it.

        A call of a `map` that is larger than the bound has room when no item waits: the bound may have been
        lowered since its elements were read. Raises `QueueFullError` if a call cannot `wait`, and
        `ValueError` if there will never be room.
        """
        size = sum([part.size for part in parts])
        if self._bound is not None and size > self._bound and not of_map:
            raise ValueError(
                f"{self._name} has max_queue_size={self._bound}: a call of {size} items will never fit, "
                f"so divide it or raise the bound"
            )
        most = self._most()
        waiting = queued + self.arriving
        if most is None or not size:
            return True
        tenants = self._tenants
        missing = waiting + size - most if waiting else 0
        has_right = tenants is not None and tenants.has_right(parts[0], size, most)
        if missing <= 0 and (has_right or not self.awaiting_room):
            return True
        if not wait:
            if tenants is not None and has_right:
                self.in_the_way = tenants.in_the_way(missing, parts[0], most)
                if self.in_the_way:
                    return True
            raise self.full(waiting, size, most)
        self.await_room(call, parts)
        return False

    def await_room(self, call: Call, parts: list[Call]) -> None:
        """Have `call` wait for room."""
        self.awaiting_room[call] = parts
        if self._tenants is not None:
            call.tenant = parts[0].tenant
            self._tenants.wait(call)

    def full(self, waiting: int, size: int, most: int) -> QueueFullError:
        """Return the error of a call of `size` items for which there is no room."""
        bound = f"max_queue_size={self._bound}"
        if most != self._bound:
            bound = f"max_queue_delay_ms={(self._longest_s or 0.0) * 1000:g}, which is {most} items by now"
        error = QueueFullError(
            f"{self._name} has {waiting} items waiting, and {bound}: no room for {size} more"
        )
        outside = sum([part.size for part in self.waiting_calls()])
        error.retry_after_s = self._time.retry_after_s(size, waiting + outside + size - most)
        return error

    def next(self, queued: int) -> tuple[Call, list[Call]] | None:
        """Return the call that is the next, with its parts, if there is room for it now.

        That is the one that has waited longest, where tenants do not take turns.

        A call that is alone is let in though it be larger: the bound was lowered while it waited.
        """
        if not self.awaiting_room:
            return None
        tenants = self._tenants
        call = next(iter(self.awaiting_room)) if tenants is None else tenants.next_outside()
        parts = self.awaiting_room[call]
        waiting = queued + self.arriving
        most = self._most()
        if most is not None and waiting and waiting + sum([part.size for part in parts]) > most:
            return None
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
