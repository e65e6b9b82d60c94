"""Items of near lengths together: what padding costs, and which items share a batch because of it.

A batch of n items takes about `fixed + (each + per_length * longest) * n` seconds, since items are padded to
the longest. Where padding takes little of that, items go in order of arrival, and where it takes less than
another batch would, all that fit into one batch go. Elsewhere all items in sight are split, in order of
length, into the batches that take the least time together; the batch that has the oldest item goes first.

So no item is passed over for long: of each class of calls the oldest item is in every batch that its class
leads, however the lengths fall, or in the next one if this one starts for an item that has a deadline which
is near. (Large calls lead a batch, besides when no small ones wait, whenever their share, an eighth of all,
has come to a quarter of a batch.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from operator import add, itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from batched._policy.length_cost import LengthCost, PaddedCost
from batched._policy.size_choice import SizeChoice

CallT = TypeVar("CallT")

Item: TypeAlias = tuple[float, int, CallT, int]
"""A waiting item: its length, its place in the order of arrival, its call, and its place in the call."""

_CHEAP = 1 / 4  # of a batch: padding that takes no more is no reason to leave items out
_LOOK_S = 1e-6  # the time to look at an item, ...
_TRY_S = 30e-9  # ... and at each of the batches that may end with it


class Choice(StrEnum):
    """How the items of a batch were chosen, by the names that `stats.chosen` and the metrics use."""

    ARRIVAL = "arrival"
    """In order of arrival, because padding costs almost nothing."""
    LENGTH = "length"
    """The oldest item and items of similar length, because padding costs more."""


class Measured(Protocol):
    """A call that knows the lengths of its items."""

    lengths: float | list[float]
    """The length of each item, or one length that all have."""


def length_at(call: Measured, at: int) -> float:
    """Return the length of an item of `call`."""
    lengths = call.lengths
    return lengths[at] if isinstance(lengths, list) else lengths


def extent(call: Measured, start: int, stop: int) -> tuple[float, float]:
    """Return the longest and the total length of some items of `call`."""
    lengths = call.lengths
    if isinstance(lengths, list):
        part = lengths[start:stop]
        return max(part), sum(part)
    return lengths, lengths * (stop - start)


def extent_of(slices: Iterable[tuple[Measured, int, int]]) -> tuple[float, float]:
    """Return the longest and the total length of items of several calls."""
    longest = total = 0.0
    for call, start, stop in slices:
        length, real = extent(call, start, stop)
        longest = max(longest, length)
        total += real
    return longest, total


class Lengths:
    """The rule that all queues of one batcher share: the cost of lengths, the budget, whether to reorder."""

    felt_s: float = 0.0
    """Batches that take less tell nothing to a rule that neither looks at batches nor chooses them."""

    def __init__(self, *, reorders: bool, padded: bool, sizes: Sequence[int] | None = None) -> None:
        self.reorders = reorders
        self.padded = padded
        self.budget: float | None = None
        self.cost: LengthCost = LengthCost()
        self.how = Choice.ARRIVAL
        """How the last batch was chosen."""
        self.is_used: bool = True
        """Whether lengths are known to decide which items share a batch."""
        self.chooses: bool = True
        """Whether they do: where they are used, and where it is tried whether they are worth it."""
        self.is_open: bool = False
        """Whether padding seems to cost time, and it is not decided yet that lengths are used."""
        self.looks: bool = False
        """Whether the next batch is to be looked at: here calls know their lengths."""
        self.sizes: SizeChoice = SizeChoice(tuple(sizes or ()))
        """The only sizes that a batch may have."""
        self.urgent: object = None
        """The call with the next deadline, if half of its time is over."""

    @property
    def weighed(self) -> PaddedCost:
        """The cost that choices weigh: the most that length may cost, while batches do not tell."""
        cost = self.cost
        return cost if cost.is_told else cost.most

    def at(self, call: Measured, place: int) -> float:
        """Return the length of an item of `call`."""
        return length_at(call, place)

    def look(self, slices: Iterable[tuple[Measured, int, int]]) -> tuple[float, float]:
        """Return the longest and the total length of items."""
        return extent_of(slices)

    def ran(self, batch: Any, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        longest, _ = extent_of(batch.slices)
        self.cost.add(self.sizes.size_of(batch.size), longest, duration)

    def fitting(self, items: Iterable[Item[CallT]], room: int) -> list[Item[CallT]]:
        """Return the first of `items` that go into one batch; at least one, however long."""
        taken: list[Item[CallT]] = []
        longest = real = 0.0
        for item in items:
            if len(taken) == room:
                break
            length = item[0]
            longest = max(longest, length)
            real += length
            if self.exceeds(len(taken) + 1, longest, real) and taken:
                break
            taken.append(item)
        return taken

    def is_costly(self, lengths: list[float], in_sight: int) -> bool:
        """Whether a batch of these lengths wastes more than it takes to choose another of all `in_sight`."""
        size = len(lengths)
        longest = max(lengths)
        cost = self.weighed
        choosing_s = in_sight * (_LOOK_S + size * _TRY_S)
        return self.waste_s(lengths) > _CHEAP * (cost.fixed + cost.each_of(longest) * size) + choosing_s

    def waste_s(self, lengths: list[float]) -> float:
        """Return the seconds that padding takes in a batch of these lengths."""
        return (len(lengths) * max(lengths) - sum(lengths)) * self.weighed.per_length

    def exceeds(self, size: int, longest: float, real: float) -> bool:
        """Whether a batch is over the budget."""
        return self.budget is not None and (size * longest if self.padded else real) > self.budget


def choose(
    waiting: list[Item[CallT]], room: int, rule: Lengths, due: Item[CallT] | None = None
) -> tuple[list[Item[CallT]], Choice]:
    """Return which of `waiting`, in order of arrival, go next, at most `room`; and how they were chosen.

    The oldest is among them or, if near lengths are chosen, the one that is `due`.
    """
    first = rule.fitting(waiting, room)
    lengths = list(map(itemgetter(0), first))
    if not (rule.reorders and rule.cost.known and rule.is_costly(lengths, len(waiting))):
        return first, Choice.ARRIVAL
    if len(first) == len(waiting) and rule.waste_s(lengths) <= rule.weighed.another_batch:
        return first, Choice.ARRIVAL
    in_order = sorted(waiting, key=longest_first)
    wanted = in_order.index(due or waiting[0])
    start, stop = next(batch for batch in _split(in_order, room, rule) if batch[0] <= wanted)
    if rule.sizes.sizes:
        start, stop = _of_a_size(in_order, start, stop, wanted, rule)
        return rule.fitting(in_order[start : min(stop, start + room)], room), Choice.LENGTH
    return in_order[start:stop], Choice.LENGTH


def _of_a_size(
    in_order: list[Item[CallT]], start: int, stop: int, wanted: int, rule: Lengths
) -> tuple[int, int]:
    """Return from where to where a batch goes that is to have one of a few sizes, with the item `wanted`.

    It has fewer items, as many as fill a size, where copies would take longer than another batch. Else
    shorter items come in the place of copies: they run in the same time.
    """
    size = stop - start
    up, filled = rule.sizes.size_of(size), rule.sizes.at_most(size)
    if filled and (up - size) * rule.weighed.each_of(in_order[start][0]) > rule.weighed.another_batch:
        start = max(start, wanted - filled + 1)
        return start, start + filled
    return start, min(start + up, len(in_order))


def _split(in_order: list[Item[CallT]], room: int, rule: Lengths) -> Iterator[tuple[int, int]]:
    """Yield from where to where the batches go that take the least time together, the last one first."""
    cost = rule.weighed
    another = cost.another_batch
    each = [cost.each_of(item[0]) for item in in_order]
    totals: list[
        float
    ] = []  # seconds for all items up to `last`, for each start of its batch from `first` on
    starts: list[int] = []
    seconds = real = 0.0
    first = 0
    for last, item in enumerate(in_order):
        totals.append(seconds + another)
        real += item[0]
        size = last - first + 1
        while size > 1 and (
            size > room
            or (each[first] - each[first + size // 2]) * (size - size // 2) > another  # two batches take less
            or rule.exceeds(size, in_order[first][0], real)
        ):
            real -= in_order[first][0]
            first += 1
            size -= 1
        totals = list(map(add, totals[-size:], each[first : last + 1]))
        seconds = min(totals)
        starts.append(first + totals.index(seconds))
    stop = len(in_order)
    while stop:
        start = starts[stop - 1]
        yield start, stop
        stop = start


def longest_first(item: Item[CallT]) -> tuple[float, int]:
    """Return the key that sorts items by length, the longest and oldest first."""
    return -item[0], item[1]
