"""The waiting calls of one batcher that knows lengths: batches within a budget, and of near lengths.

Where padding is cheap, this is the plain queue with a budget. Where it is costly, small and large calls take
turns to lead a batch, and share it only if their lengths are near.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

from batched._core.batch import Batch
from batched._core.call import Call, Slice, runs_of
from batched._core.queue import PAID_OUT, RESERVE, Queue
from batched._core.turns import Flow
from batched._policy.lengths import Choice, Lengths, choose, longest_first
from batched._policy.lengths import Item as PolicyItem

Item = PolicyItem[Call]
_Range = tuple[int, int]

_LENGTH = itemgetter(0)
_LOOK_AHEAD = 3  # batches: items farther back than that are not looked at yet


class _Sight(NamedTuple):
    """The items that the next batch is chosen from."""

    small: list[Item]
    """The first items of small calls."""
    large: list[Item]
    """The first items of large calls, as many as a batch may have of them."""
    small_items: int
    """How many items of small calls wait, in sight or not."""
    room: int
    """The most items of the batch."""

    @property
    def both(self) -> bool:
        """Whether calls of both classes wait."""
        return bool(self.small) and bool(self.large)


class LengthQueue(Queue):
    """A queue that keeps batches within a budget and, where padding costs, chooses items of near lengths."""

    __slots__ = ("_led", "_passed_over", "_remainders", "lengths")

    def __init__(self, batch_size: int, threshold: int, lengths: Lengths) -> None:
        self.lengths: Lengths = lengths  # pyright: ignore[reportIncompatibleVariableOverride]
        self._remainders = _Remainders()
        # Whether the last batch that a class has led left out its oldest item; the key: whether it is large.
        self._passed_over = {False: False, True: False}
        self._led = False  # whether large calls have led the last batch, before small ones
        super().__init__(batch_size, threshold)
        self.by_number = False

    def follow_rule(self) -> bool:
        """Be as cheap as a plain queue while the rule does not choose, and has no budget; return if it is."""
        rule = self.lengths
        rests = not (rule.chooses or self._remainders.ranges or rule.budget is not None)
        kind: Any = RestingLengthQueue if rests else LengthQueue
        self.__class__ = kind
        self.by_number = rests
        return rests

    def drop(self, call: Call, after: int = -1) -> int:
        """Forget what of `call` still waits `after` a place of its list; return how many items that was."""
        return self._drop(call, self._remainders.drop(call, after))

    def may_choose(self) -> bool:
        """Whether other calls than the oldest may be in the next batch."""
        return self.lengths.chooses

    def is_uneven(self, call: Call) -> bool:
        """Whether other items of `call` wait than just the last ones."""
        return call in self._remainders.ranges

    def is_full(self) -> bool:
        """Whether enough items wait for a full batch, by number or by the budget."""
        if self.items >= self.batch_size:
            return True
        return self.lengths.budget is not None and self.fitting() < self.items

    def fitting(self) -> int:
        """Return how many of the items that are next go into one batch, by the budget."""
        size = self.batch_size
        in_turn = [*self._first(self._small, size), *self._first(self._large, size)]
        return len(self.lengths.fitting(in_turn, size))

    def leader(self) -> Call:
        """Return the call of which an item is in the next batch, however long. At least one must wait."""
        is_large = self._large_items and (not self.small_items or (self._credit >= 1 and not self._led))
        return (self._large if is_large else self._small).upcoming(1)[0][0]

    def lacks(self) -> int:
        """Return the least number of further items that may fill a batch."""
        return super().lacks() if self.lengths.budget is None else 1

    def take(self, room: int) -> Batch:
        """Remove and return the next batch, of at most `room` items; at least so many must wait."""
        rule = self.lengths
        if not (rule.chooses or self._remainders.ranges):
            return super().take(room)
        rule.how = Choice.ARRIVAL
        if self._goes_by_arrival(room):
            self._led = self._passed_over[False] = self._passed_over[True] = False
            return super().take(room)
        sight = self._look(room)
        chosen, share, is_crowded = self._by_arrival(sight)
        leads = share > 0 and sight.small[0] not in chosen  # if the budget leaves no room for both
        if rule.reorders and rule.is_costly(list(map(_LENGTH, chosen)), len(sight.small) + len(sight.large)):
            chosen, leads = self._by_length(sight, share, is_crowded=is_crowded)
        elif sight.small:
            self._passed_over[False] = sight.small[0] not in chosen
        self._led = sight.both and leads
        self._charge(sight, chosen, is_crowded=is_crowded)
        slices: list[Slice] = []
        self.taking = slices
        self._remainders.take((item[2:] for item in chosen), slices)
        taken: dict[Call, int] = {}
        for call, start, stop in slices:
            taken[call] = taken.get(call, 0) + stop - start
        for call, items in taken.items():
            (self._large if call.large else self._small).removed(call, items, ran=True)
        self.items -= len(chosen)
        if not self.items:
            self._clear()
        return Batch(slices, len(chosen))

    def _goes_by_arrival(self, room: int) -> bool:
        """Whether the next batch is that of a queue without lengths, as most are where padding is cheap."""
        lengths = self.lengths
        return (
            not self._remainders.ranges
            and lengths.budget is None
            and (not lengths.reorders or not lengths.weighed.per_length or self._are_near_singles(room))
        )

    def _are_near_singles(self, room: int) -> bool:
        """Whether the oldest items are single ones that waste little: no other item need be looked at."""
        if self._large_items or not self.lengths.reorders:
            return False
        oldest = islice(self._small, room) if self.tenants is None else dict(self._small.upcoming(room))
        first = [self.lengths.at(call, 0) for call in oldest if call.waiting == call.size == 1]
        if len(first) < min(room, self.items):
            return False
        return not self.lengths.is_costly(first, min(self.items, room * _LOOK_AHEAD))

    def _look(self, room: int) -> _Sight:
        look = room * _LOOK_AHEAD
        small_items = self.items - self._large_items
        small = self._first(self._small, look)
        large = self._first(self._large, look)
        return _Sight(small, large[: self._most_of(large, small_items, look)], small_items, room)

    def _by_arrival(self, sight: _Sight) -> tuple[list[Item], int, bool]:
        """Return the batch in order of arrival, the share of large calls in it, and whether it is crowded.

        It is where so many small items wait that large calls get no more than their share.
        """
        small, large, small_items, room = sight
        chosen = self.lengths.fitting([*small, *large], room)
        if not sight.both or (small_items < room and len(chosen) > small_items):
            return chosen, 0, False
        share = 0 if self._led else min(int(self._credit), _least_share(room))
        if share:
            chosen = self.lengths.fitting([*large[:share], *small, *large[share:]], room)
        return chosen, share, True

    def _by_length(self, sight: _Sight, share: int, *, is_crowded: bool) -> tuple[list[Item], bool]:
        """Return a batch of near lengths, and whether large calls lead it, so that it has their oldest item.

        Classes do not mix here, unless they are of near lengths: large calls lead every other batch at most,
        and pay for it with what they have saved.
        """
        small, large, small_items, room = sight
        if sight.both and not is_crowded:
            share = min(int(self._credit), room - small_items)
        leads = not small or (sight.both and not self._led and share >= _least_share(room))
        lead, others = (large, small) if leads else (small, large)
        urgent = None if self._passed_over[leads] else self.lengths.urgent
        due = next((item for item in lead if item[2] is urgent), None)
        most = share if sight.both and leads else room
        chosen, self.lengths.how = choose(lead, most, self.lengths, due)
        if sight.both and len(chosen) < room:
            chosen = self._filled(chosen, others, room)
        self._passed_over[leads] = lead[0] not in chosen
        return chosen, leads

    def _charge(self, sight: _Sight, chosen: list[Item], *, is_crowded: bool) -> None:
        """Note what a batch of `chosen` items saves up or costs large calls of their share."""
        large_taken = sum([item[2].large for item in chosen])
        credit = self._credit + len(chosen) * RESERVE
        if sight.both and not is_crowded and self.lengths.how != Choice.ARRIVAL:
            # In order of arrival, large calls would have had the room that small ones leave.
            credit += (len(chosen) - large_taken) * (sight.room - sight.small_items) / sight.small_items
        self._credit = min(max(credit - large_taken, 0.0), self._most_saved)
        self._large_items -= large_taken

    def _most_of(self, large: list[Item], small_items: int, room: int) -> int:
        """Return how many items of `large`, the waiting ones of large calls, the next batch may have."""
        self._without_small = 0 if small_items else self._without_small + 1
        most = self._most_large(room)
        cost = self.lengths.cost
        if not large or not cost.each or self.large_limit is None or most > self.large_limit:
            return most
        # The limit stands for a time, and these items may take longer: a list has its longest items first.
        longest = cost.each_of(max(map(_LENGTH, large[:most])))
        return max(int(most * cost.each / longest), 1) if longest > cost.each else most

    def _filled(self, chosen: list[Item], others: list[Item], room: int) -> list[Item]:
        """Return `chosen`, and the items of the other class that are so long that they cost less here."""
        cost = self.lengths.weighed
        longest = max(map(_LENGTH, chosen))
        shortest = longest - cost.another_batch / room / cost.per_length
        near = [item for item in others if shortest <= item[0] <= longest]
        return self.lengths.fitting([*chosen, *sorted(near, key=longest_first)], room)

    def _first(self, calls: Flow, most: int) -> list[Item]:
        """Return the first items that wait in `calls`."""
        items: list[Item] = []
        length_at = self.lengths.at
        places: dict[Call, Iterator[int]] = {}  # of calls that have several turns
        for call, count in calls.upcoming(most):
            if call.size == 1:  # this saves half of the time that choosing takes
                items.append((length_at(call, 0), len(items), call, 0))
                continue
            if call not in places:
                ranges = self._remainders.of(call)
                places[call] = chain.from_iterable(range(start, stop) for start, stop in ranges)
            numbered = enumerate(islice(places[call], count), len(items))
            items += [(length_at(call, at), number, call, at) for number, at in numbered]
        return items


def _least_share(room: int) -> int:
    """Return the most items of the share of large calls that are paid out at once: at least one."""
    return max(int(room * PAID_OUT), 1)


class RestingLengthQueue(LengthQueue):
    """Such a queue while its rule does not choose: it does what a plain one does, in no more time."""

    __slots__ = ()

    is_full = Queue.is_full
    take = Queue.take


class _Remainders:
    """The places that wait, as ranges, of calls of which other items wait than just the last ones."""

    def __init__(self) -> None:
        self.ranges: dict[Call, list[_Range]] = {}

    def of(self, call: Call) -> list[_Range]:
        """Return from where to where items of `call` wait."""
        return self.ranges.get(call) or [(call.size - call.waiting, call.size)]

    def forget(self, call: Call) -> None:
        """Note that no item of `call` waits any more."""
        self.ranges.pop(call, None)

    def drop(self, call: Call, after: int) -> int:
        """Forget what of `call` waits `after` a place of its list; return how many items that was."""
        ranges = [left for start, stop in self.of(call) for left in call.before(after, start, stop)]
        left = sum(stop - start for start, stop in ranges)
        if left:
            self.ranges[call] = ranges
        else:
            self.forget(call)
        return call.waiting - left

    def take(self, items: Iterable[tuple[Call, int]], slices: list[Slice]) -> None:
        """Take items from their calls, given by call and place; append them to `slices`, call by call."""
        places: dict[Call, list[int]] = {}
        for call, at in items:
            places.setdefault(call, []).append(at)
        for call, taken in places.items():
            runs = runs_of(sorted(taken))
            slices += [(call, start, stop) for start, stop in runs]
            ranges = self.of(call)
            call.waiting -= len(taken)
            if call.waiting:
                ranges = _without(ranges, runs)
            if not call.waiting or ranges == [(call.size - call.waiting, call.size)]:
                self.forget(call)
            else:
                self.ranges[call] = ranges


def _without(ranges: list[_Range], runs: list[_Range]) -> list[_Range]:
    """Return `ranges` less `runs`, both in order. It looks at none behind the last run."""
    left: list[_Range] = []
    looked = at = 0
    for start, stop in ranges:
        if at == len(runs):
            break
        looked += 1
        begin = start
        while at < len(runs) and runs[at][0] < stop:
            if begin < runs[at][0]:
                left.append((begin, runs[at][0]))
            begin = runs[at][1]
            at += 1
        if begin < stop:
            left.append((begin, stop))
    return left + ranges[looked:]
