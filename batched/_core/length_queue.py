"""The waiting calls of one batcher whose lengths are known: batches within a budget, and of like items.

In order of arrival it is the queue that others have, the budget apart. Where padding costs more than that
allows, the classes of calls take turns to lead a batch, and share it only where they are of like length.
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from batched._core.call import Batch
from batched._core.queue import PAID_OUT, RESERVE, Queue
from batched._policy.lengths import Lengths, choose, longest_first

if TYPE_CHECKING:
    from collections import deque

    from batched._core.call import Call, Slice
    from batched._policy.lengths import Item

__all__ = ["LengthQueue"]

_LENGTH = itemgetter(0)
_LOOK_AHEAD = 3  # batches: who is further back than that is not looked at yet


class LengthQueue(Queue):
    """A queue that keeps batches within a budget and, where padding costs, chooses items of like length."""

    __slots__ = ("_led", "_passed_over", "_rest", "lengths")

    def __init__(self, batch_size: int, threshold: int, lengths: Lengths) -> None:
        self.lengths: Lengths = lengths  # pyright: ignore[reportIncompatibleVariableOverride]
        self._rest: dict[Call, list[tuple[int, int]]] = {}  # what waits of calls that were taken apart
        self._passed_over = {False: False, True: False}  # the oldest, in the last batch that its class led
        self._led = False  # whether large calls have led the last batch, before small ones
        super().__init__(batch_size, threshold)

    def drop(self, call: Call) -> int:
        """Forget what of `call` still waits; return how many items that was."""
        self._rest.pop(call, None)
        return super().drop(call)

    def is_full(self) -> bool:
        """Whether enough wait for a full batch, by number or by the budget."""
        if self.items >= self.batch_size:
            return True
        if self.lengths.budget is None:
            return False
        return len(self.lengths.fitting(self._in_turn(self.batch_size), self.batch_size)) < self.items

    def lacks(self) -> int:
        """Return the least number of further items that may fill a batch."""
        return super().lacks() if self.lengths.budget is None else 1

    def take(self, room: int) -> Batch:
        """Remove and return the next batch, of at most `room` items, which at least must wait."""
        lengths = self.lengths
        lengths.how = "arrival"
        if (
            not self._rest
            and lengths.budget is None
            and (not lengths.cost.per_length or self._is_plainly_cheap(room))
        ):
            self._led = self._passed_over[False] = self._passed_over[True] = False
            return super().take(room)
        look = room * _LOOK_AHEAD
        small_items = self.items - self._large_items
        small = self._first(self._small, look)
        large = self._first(self._large, look)
        large = large[: self._most_large(small_items, look, large)]
        both = bool(small) and bool(large)
        first = lengths.fitting([*small, *large], room)
        crowded = both and (small_items >= room or len(first) < small_items)
        share = min(int(self._credit), max(int(room * PAID_OUT), 1)) if crowded and not self._led else 0
        if share:
            first = lengths.fitting([*large[:share], *small, *large[share:]], room)
        chosen = first
        leads = share > 0 and small[0] not in first  # if the budget leaves no room for both
        if lengths.reorders and lengths.is_costly(list(map(_LENGTH, first)), len(small) + len(large)):
            # Here classes do not mix, unless they are of like length: large calls lead every other batch at
            # most, and pay for it with what they have saved.
            if both and not crowded:
                share = min(int(self._credit), room - small_items)
            leads = not small or (both and not self._led and share >= max(int(room * PAID_OUT), 1))
            lead, others = (large, small) if leads else (small, large)
            due = None if self._passed_over[leads] else self._urgent(lead)
            chosen, lengths.how = choose(lead, share if both and leads else room, lengths, due)
            if both and len(chosen) < room:
                chosen = self._filled(chosen, others, room)
            self._passed_over[leads] = lead[0] not in chosen
        elif small:
            self._passed_over[False] = small[0] not in chosen
        self._led = both and leads
        large_taken = sum([item[2].large for item in chosen])
        credit = self._credit + len(chosen) * RESERVE
        if both and not crowded and lengths.how != "arrival":
            # In order of arrival they would have had the room that small calls leave.
            credit += (len(chosen) - large_taken) * (room - small_items) / small_items
        self._credit = min(max(credit - large_taken, 0.0), self._most_saved)
        self._large_items -= large_taken
        self._plain = False  # what has been taken is still there
        return self._taken(self._removed(chosen), len(chosen))

    def _most_large(self, small_items: int, room: int, large: list[Item] | None = None) -> int:
        """Return how many items of `large`, the waiting ones of large calls, the next batch may have."""
        most = super()._most_large(small_items, room)
        cost = self.lengths.cost
        if not large or not cost.each or self.chunk is None or most > self.chunk:
            return most
        # The limit is meant in time, and these may take longer than others: a list has its longest first.
        longest = cost.each_of(max(map(_LENGTH, large[:most])))
        return max(int(most * cost.each / longest), 1) if longest > cost.each else most

    def _is_plainly_cheap(self, room: int) -> bool:
        """Whether those who came first are single items that waste little: nobody else need be looked at."""
        if self._large_items or not self.lengths.reorders:
            return False
        first: list[Any] = [
            lengths[0] if type(lengths := call.lengths) is list else lengths
            for call in islice(self._small, room)
            if call.waiting == call.size == 1
        ]
        if len(first) < min(room, self.items):
            return False
        return not self.lengths.is_costly(first, min(self.items, room * _LOOK_AHEAD))

    def _urgent(self, lead: list[Item]) -> Item | None:
        urgent = self.lengths.urgent
        return None if urgent is None else next((item for item in lead if item[2] is urgent), None)

    def _filled(self, chosen: list[Item], others: list[Item], room: int) -> list[Item]:
        """Return `chosen`, and what of the other class is as long and so costs less here than elsewhere."""
        cost = self.lengths.cost
        longest = max(map(_LENGTH, chosen))
        shortest = longest - cost.another / room / cost.per_length
        alike = [item for item in others if shortest <= item[0] <= longest]
        return self.lengths.fitting([*chosen, *sorted(alike, key=longest_first)], room)

    def _in_turn(self, most: int) -> list[Item]:
        return [*self._first(self._small, most), *self._first(self._large, most)]

    def _first(self, calls: deque[Call], most: int) -> list[Item]:
        """Return the first items that wait in `calls`, and forget calls of which none does."""
        items: list[Item] = []
        seen: list[Call] = []
        while calls and len(items) < most:
            call = calls.popleft()
            waiting = call.waiting
            if not waiting:
                continue
            seen.append(call)
            if call.size == 1:
                items.append((_length_at(call, 0), len(items), call, 0))
                continue
            for start, stop in self._rest.get(call) or ((call.size - waiting, call.size),):
                to = min(stop, start + most - len(items))
                items += [
                    (_length_at(call, at), len(items) + at - start, call, at) for at in range(start, to)
                ]
        calls.extendleft(reversed(seen))
        return items

    def _removed(self, chosen: list[Item]) -> list[Slice]:
        """Take `chosen` from their calls; return them as slices, those of a call together."""
        places: dict[Call, list[int]] = {}
        for _, _, call, at in chosen:
            places.setdefault(call, []).append(at)
        slices: list[Slice] = []
        for call, theirs in places.items():
            theirs.sort()
            parts = _runs(theirs)
            slices += [(call, start, stop) for start, stop in parts]
            if len(theirs) == call.waiting:
                self._rest.pop(call, None)
            else:
                rest = self._rest.get(call) or [(call.size - call.waiting, call.size)]
                for start, stop in parts:
                    rest = _without(rest, start, stop)
                if len(rest) == 1 and rest[0][1] == call.size:
                    self._rest.pop(call, None)  # as if it had been taken in order
                else:
                    self._rest[call] = rest
            call.waiting -= len(theirs)
        return slices


def _runs(places: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for at in places:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def _without(rest: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges of `rest` less one that is within one of them."""
    left: list[tuple[int, int]] = []
    for begin, end in rest:
        left += [part for part in ((begin, min(end, start)), (max(begin, stop), end)) if part[0] < part[1]]
    return left


def _length_at(call: Call, at: int) -> float:
    lengths: Any = call.lengths
    return lengths[at] if type(lengths) is list else lengths  # type: ignore[no-any-return]
