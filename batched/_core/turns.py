"""In which order the calls of one class come next: by arrival, or flow by flow, in turns.

Turns go by deficit round robin (Shreedhar and Varghese 1995), counted in items. A flow that has its turn
may have a quantum of items, a quarter of a batch; then the next flow has its turn. What it could not use,
because the batch was full, it has in the next batch; what it had too much, it pays with its next turns. So a
flow with few items waits for a quantum of each other flow at most, however much waits in those, and each
batch is as full as without turns. It takes the same time for any number of flows.

A large call is a flow of its own, as are all calls of one `map`. If all that waits of it fits into a batch,
it is not cut into quanta.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeAlias, Union

from batched._core.call import Call, Slice
from batched._core.line import Line

_SHARE = 4  # quanta in a batch: with more, batches would be cut into crumbs


class Turns:
    """Calls in flows that take turns, in order of arrival within each flow."""

    __slots__ = ("_ages", "_flow_of", "_flows", "_new_flow", "_quantum", "_whole", "credit", "items", "key")

    credit: int
    """As of a `Line`, where these flows are together a flow of others."""
    items: int
    key: Hashable

    def __init__(
        self,
        batch_size: int,
        flow_of: Callable[[Call], Hashable],
        new_flow: Callable[[], Flow],
        *,
        whole: int,
    ) -> None:
        self._quantum = -(-batch_size // _SHARE)
        self._whole = whole  # a flow of so many items at most is not cut
        self._flow_of = flow_of
        self._new_flow = new_flow
        self._flows: OrderedDict[Hashable, Flow] = (
            OrderedDict()
        )  # in the order of turns; the first has its turn
        self._ages: OrderedDict[Call, Flow] = OrderedDict()  # the calls that wait, in order of arrival

    def __iter__(self) -> Iterator[Call]:
        return iter(self._ages)

    @property
    def flows(self) -> int:
        """How many flows take turns."""
        return len(self._flows)

    def clear(self) -> None:
        """Forget all calls."""
        self._flows.clear()
        self._ages.clear()

    def append(self, call: Call) -> None:
        """Append `call` to its flow."""
        self.extend((call,))

    def extend(self, calls: Iterable[Call]) -> None:
        """Append `calls`, each to its flow; a flow that is new waits for its turn behind all others."""
        for call in calls:
            key = self._flow_of(call)
            flow = self._flows.get(key)
            if flow is None:
                flow = self._new_flow()
                flow.key = key
                flow.items = 0
                flow.credit = 0 if self._flows else self._quantum
                self._flows[key] = flow
            flow.append(call)
            flow.items += call.waiting
            self._ages[call] = flow

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        return next(iter(self._ages)).arrived

    def take(self, room: int, slices: list[Slice]) -> int:
        """Move up to `room` items of the flows that have their turn to `slices`; return how many."""
        before = len(slices)
        taken = 0
        if len(self._flows) == 1:  # no turns, and no price for them
            (flow,) = self._flows.values()
            taken = flow.take(room, slices)
            flow.items -= taken
            if not flow.items:
                self._end(flow)
        else:
            shares: dict[int, tuple[Flow, int]] = {}  # what a flow has in several turns is one slice
            for flow, items in self._planned(room):
                shares[id(flow)] = flow, shares.get(id(flow), (flow, 0))[1] + items
            for flow, items in shares.values():
                flow.take(items, slices)
                flow.credit -= items
                flow.items -= items
                taken += items
                if not flow.items:
                    self._end(flow)
            self._settle()
        self._note(slices[before:])
        return taken

    def _note(self, slices: list[Slice]) -> None:
        """Forget calls of `slices`, which have just been taken, of which no item waits any more."""
        for call, _, _ in slices:
            if not call.waiting:
                del self._ages[call]

    def upcoming(self, most: int) -> list[tuple[Call, int]]:
        """Return the next `most` items in the order of turns, as calls and numbers."""
        planned = list(self._planned(most))
        totals: dict[int, int] = {}
        for flow, items in planned:
            totals[id(flow)] = totals.get(id(flow), 0) + items
        coming: dict[int, list[tuple[Call, int]]] = {}
        found: list[tuple[Call, int]] = []
        for flow, items in planned:
            if id(flow) not in coming:
                coming[id(flow)] = flow.upcoming(totals[id(flow)])[::-1]
            calls = coming[id(flow)]
            left = items
            while left:
                call, waiting = calls.pop()
                found.append((call, min(waiting, left)))
                if waiting > left:
                    calls.append((call, waiting - left))
                left -= min(waiting, left)
        return found

    def removed(self, call: Call, items: int, *, ran: bool = False) -> None:
        """Note that `items` of `call` do not wait any more: they run, whether it was their turn, or left."""
        flow = self._ages[call]
        flow.removed(call, items, ran=ran)
        flow.items -= items
        if ran:
            flow.credit -= items
        if not call.waiting:
            del self._ages[call]
        if not flow.items:
            self._end(flow)
        self._settle()

    def _planned(self, room: int) -> Iterator[tuple[Flow, int]]:
        """Yield which flow has how many of the next `room` items, turn by turn."""
        ahead = iter(self._flows.values())
        again: deque[tuple[Flow, int, int]] = deque()  # that have had a turn, with their credit and items
        turn = 0  # the first flow is in the midst of its turn
        while room:
            flow = next(ahead, None)
            if flow is not None:
                credit, waiting = flow.credit, flow.items
            elif again:
                flow, credit, waiting = again.popleft()
            else:
                return
            credit += turn
            turn = self._quantum
            items = 0
            if credit > 0:
                items = waiting if waiting <= self._whole else min(credit, waiting)
                if items > room and items == waiting and again and self._may_fill(again[-1], room):
                    # This flow is the first of the next batch, and then need not be cut.
                    yield again[-1][0], room
                    return
                items = min(items, room)
                yield flow, items
                room -= items
            if items < waiting:
                again.append((flow, credit - items, waiting - items))

    def _may_fill(self, entry: tuple[Flow, int, int], room: int) -> bool:
        """Whether a flow may have the `room` that another leaves: it is cut in any case, and owes little."""
        _, credit, waiting = entry
        return waiting > room and credit - room >= -self._whole

    def _end(self, flow: Flow) -> None:
        """Forget a flow of which no item waits."""
        flows = self._flows
        had_turn = next(iter(flows.values())) is flow
        del flows[flow.key]
        if had_turn and flows:
            next(iter(flows.values())).credit += self._quantum

    def _settle(self) -> None:
        """Begin the next turn, if that of the first flow is over."""
        flows = self._flows
        while flows and (first := next(iter(flows.values()))).credit <= 0:
            flows.move_to_end(first.key)
            next(iter(flows.values())).credit += self._quantum


Flow: TypeAlias = Union[Line, Turns]  # noqa: UP007  a name that is defined below its first use
"""Calls that have their turn together."""


def large_calls(batch_size: int) -> Turns:
    """Return the turns of large calls: a flow for each, one for all of a `map`."""
    return Turns(batch_size, own_flow, Line, whole=batch_size)


def own_flow(call: Call) -> Hashable:
    """Return what names the flow of a large call: its `map`, or else the call itself.

    Calls that are divided have one part in each queue.
    """
    flow: Hashable = getattr(call, "flow", None)
    return call if flow is None else flow
