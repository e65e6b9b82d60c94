"""Whether there is room for a call: `max_queue_size` and `on_full`."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from batched._core.call import Call, MapFlow
from batched._core.options import Options
from batched._core.tenants import Tenants, tenant_of
from batched.errors import QueueFullError

_PASSED = 8  # looks at what may come in: then small calls do not go ahead of a `map` that waits for room


def admits_with_lock(options: Options) -> bool:
    """Whether calls are admitted one by one: they are counted, divided or looked up."""
    told = (
        options.max_queue_size,
        options.group_by,
        options.cache,
        options.fair_by,
    )
    return any(option is not None for option in told)


class Admission:
    """The bound on waiting items, and the calls that wait for room, oldest first.

    A call has room if it fits beside what waits and what was promised to calls that wait for room before it.
    Small calls go ahead of a `map` that waits for room, but not for ever; and the maps together fill no more
    than half of the queue, so that others find room. Where tenants take turns, their shares see to that.
    """

    def __init__(self, name: str, options: Options, tenants: Tenants | None) -> None:
        self._name = name
        self.retry_after_s: Callable[[int, int, int, float], float | None] | None = None
        """Says when a call of so many items may come back, for which so many wait where so many may, if that
        is known: for a feature to set."""
        self._tenants = tenants
        self._asked = 0.0  # when the last call came
        self.in_the_way: list[Call] = []
        """Calls that are to be refused after all, for the one that has just been let in."""
        self.awaiting_room: dict[Call, list[Call]] = {}
        """The calls that wait for room, each with the parts to queue in its place."""
        self.arriving: int = 0
        """Items that were let in and are not in the queue yet."""
        self._promised = 0  # items of the calls that wait for room, maps left out
        self._maps: dict[Call, int] = {}  # the calls of maps that wait for room, with their items
        self._flows: WeakSet[MapFlow] = WeakSet()  # the maps of which calls were let in
        self._passed = 0  # looks that found no room for the oldest call of a map
        self.configure(options)

    def configure(self, options: Options) -> None:
        """Follow new bounds."""
        self._bound = options.max_queue_size

    def take_turns(self, tenants: Tenants) -> None:
        """Have `tenants` take turns from now on, with the calls that wait for room too."""
        self._tenants = tenants
        for call, parts in self.awaiting_room.items():
            call.tenant = tenant_of(parts[0])
            tenants.wait(call)

    def admit(  # noqa: PLR0913
        self, call: Call, parts: list[Call], queued: int, *, large: bool, wait: bool, of_map: bool = False
    ) -> bool:
        """Return whether there is room for `parts` beside `queued` items; if not, `call` waits for it.

        A call of a `map` that is larger than the bound has room when no item waits: the bound may have been
        lowered since its elements were read. Raises `QueueFullError` if a call cannot `wait`, and
        `ValueError` if there will never be room.
        """
        self._asked = call.arrived
        size = _items(parts)
        if not of_map:
            self._check_size(size)
        most = self._bound
        if most is None or not size:
            return True
        waiting = queued + self.arriving
        tenants = self._tenants
        has_right = tenants is not None and tenants.has_right(parts[0], size, most)
        ahead = 0
        if self.awaiting_room and not has_right:
            ahead = self._promised + self._promised_to_maps(most, large=large or of_map)
        missing = waiting + ahead + size - most if waiting or ahead else 0
        if missing <= 0 and not (of_map and self._exceeds_half(size, most)):
            if of_map:
                self._note_let_in(parts)
            return True
        if not wait:
            if tenants is not None and has_right:
                self.in_the_way = tenants.in_the_way(missing, parts[0], most)
                if self.in_the_way:
                    return True
            raise self.full(waiting, ahead, size, most)
        self.await_room(call, parts)
        return False

    def _check_size(self, size: int) -> None:
        """Raise if a call of so many items will never fit."""
        if self._bound is not None and size > self._bound:
            raise ValueError(
                f"{self._name} has max_queue_size={self._bound}: a call of {size} items can never fit, so "
                f"split it or raise max_queue_size"
            )

    def await_room(self, call: Call, parts: list[Call]) -> None:
        """Have `call` wait for room."""
        self.awaiting_room[call] = parts
        if hasattr(parts[0], "flow"):  # of a map
            self._maps[call] = _items(parts)
        else:
            self._promised += _items(parts)
        if self._tenants is not None:
            call.tenant = tenant_of(parts[0])
            self._tenants.wait(call)

    def _promised_to_maps(self, most: int, *, large: bool) -> int:
        """Return how many items of maps that wait for room go ahead of a call."""
        if not self._maps or not (large or self._passed > _PASSED):
            return 0
        return min(sum(self._maps.values()), max(_half(most) - self._items_of_maps(), 0))

    def _exceeds_half(self, size: int, most: int) -> bool:
        """Whether maps would have more than half of the room with `size` items more."""
        theirs = self._items_of_maps()
        return theirs > 0 and theirs + size > _half(most)

    def _items_of_maps(self) -> int:
        """Return how many items of maps wait in the queue."""
        return sum([part.waiting for flow in self._flows for part in flow.parts])

    def _note_let_in(self, parts: list[Call]) -> None:
        """Note that `parts`, of a map, are in the queue."""
        flow: MapFlow = parts[0].flow
        flow.parts = [part for part in flow.parts if part.waiting] + parts
        self._flows.add(flow)

    def full(self, waiting: int, ahead: int, size: int, most: int) -> QueueFullError:
        """Return the error of a call of `size` items for which there is no room.

        So many items wait, and so many go `ahead` of it that wait for room.
        """
        items = "item" if waiting == 1 else "items"
        outside = f" and {ahead} more waiting for room ahead of this call" if ahead else ""
        error = QueueFullError(
            f"{self._name} has no room for {size} more: {waiting} {items} in the queue{outside}, "
            f"max_queue_size={most}"
        )
        error.retry_after_s = self._retry_after_s(size, waiting + ahead + size - most, most)
        return error

    def _retry_after_s(self, items: int, too_many: int, most: int) -> float | None:
        """Return when a call of `items` may come back, if that is known."""
        ask = self.retry_after_s
        return None if ask is None else ask(items, too_many, most, self._asked)

    def refused(self, items: int, queued: int) -> QueueFullError:
        """Return the error of a call of so many `items`, which has waited, and makes room for another."""
        most = self._bound or queued
        error = QueueFullError(
            f"{self._name} has no room left (max_queue_size={most}), so this call of {items} "
            f"{'item' if items == 1 else 'items'}, the newest of the tenant (fair_by) with the most items in "
            f"the queue, was removed to make room for another tenant"
        )
        error.retry_after_s = self._retry_after_s(items, queued + self.arriving + items - most, most)
        return error

    def next(self, queued: int) -> tuple[Call, list[Call]] | None:
        """Return the call that is the next, with its parts, if there is room for it now.

        That is the one that has waited longest, where tenants do not take turns; behind a `map` for which
        there is no room, small calls come first. A call that is alone is let in though it be larger: the
        bound was lowered while it waited.
        """
        if not self.awaiting_room:
            return None
        waiting = queued + self.arriving
        most = self._bound
        for call in self._next():
            size = _items(self.awaiting_room[call])
            of_map = call in self._maps
            has_room = most is None or not waiting or waiting + size <= most
            if has_room and (most is None or not (of_map and self._exceeds_half(size, most))):
                parts = self.awaiting_room[call]
                if of_map:
                    self._passed = 0
                    self._note_let_in(parts)
                return call, parts
            if not of_map:
                return None
            self._passed += not has_room
            if self._passed > _PASSED and not has_room:
                return None
        return None

    def _next(self) -> list[Call]:
        """Return the calls of which one is let in next, in this order."""
        if self._tenants is not None:
            return [self._tenants.next_outside()]
        first = next(iter(self.awaiting_room))
        if first not in self._maps:
            return [first]
        other = next((call for call in self.awaiting_room if call not in self._maps), None)
        return [first] if other is None else [first, other]

    def end_wait(self, call: Call) -> list[Call]:
        """Forget that `call` waits for room; return its parts, none if it did not wait."""
        parts = self.awaiting_room.pop(call, [])
        if parts:
            if call in self._maps:
                del self._maps[call]
            else:
                self._promised -= _items(parts)
            if self._tenants is not None:
                self._tenants.end_wait(call)
        return parts

    def hand_over(self, call: Call, other: Call) -> None:
        """Have `other` wait for room in the place of `call`, with the same parts."""
        self.awaiting_room = {
            other if each is call else each: parts for each, parts in self.awaiting_room.items()
        }
        if call in self._maps:
            self._maps[other] = self._maps.pop(call)
        if self._tenants is not None:
            other.tenant = tenant_of(call)
            self._tenants.wait(other)
            self._tenants.end_wait(call)

    def clear(self) -> list[Call]:
        """Forget the calls that wait for room; return their parts."""
        return [part for call in [*self.awaiting_room] for part in self.end_wait(call)]

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait for room."""
        return [part for parts in self.awaiting_room.values() for part in parts]


def _items(parts: list[Call]) -> int:
    """Return how many items these calls have."""
    return sum([part.size for part in parts])


def _half(most: int) -> int:
    """Return how many items of maps may wait where `most` items may."""
    return max(most // 2, 1)
