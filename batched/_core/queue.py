"""The waiting calls of one batcher, and their order.

Small calls go ahead of large ones, in order of arrival, decided anew for every batch. A batch is filled up
from large calls, which take turns (`Turns`). While small calls alone would fill every batch, an eighth
of all is kept for large ones, so that a large call of `n` items, alone among such, waits for at most about
`8 * n / batch_size` batches whatever the small load. What large calls left unused of it is saved up, to four
batches' worth, and paid out at a quarter of a batch: a list that comes now and then is through sooner,
and still only an eighth of all is taken from small calls.

A batch that large calls fill makes every small one that comes meanwhile wait for its end. Where that takes
long and full batches save little, they get less of it while small calls come.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from batched._core.batch import Batch
from batched._core.call import Call, Slice
from batched._core.line import Line
from batched._core.tenants import Tenants, TenantTurns
from batched._core.turns import Flow, large_calls, own_flow
from batched._policy.lengths import Lengths

_ARRIVED = attrgetter("arrived")

RESERVE = 1 / 8
_SAVED = 4  # batches
_FORGOTTEN = 100  # batches without a small call: then large ones are not limited for small ones any more
PAID_OUT = 1 / 4
_READ_AHEAD = 3  # batches: so many items of a `map` wait at most


class Queue:
    """Two classes of calls: small ones, first come first served, and large ones, which take turns."""

    __slots__ = (
        "_alone",
        "_credit",
        "_large",
        "_large_items",
        "_most_saved",
        "_small",
        "_without_small",
        "batch_size",
        "by_number",
        "in_hand",
        "is_keyed",
        "items",
        "large_limit",
        "taking",
        "tenants",
        "threshold",
    )

    lengths: Lengths | None = None
    """What is known of the lengths of items, if they are measured."""

    def __init__(self, batch_size: int, threshold: int) -> None:
        self.is_keyed: bool = False
        """Whether only calls of equal keys share a batch."""
        self.by_number: bool = True
        """Whether `batch_size` items fill a batch, whichever they are, and no fewer."""
        self.items: int = 0  # waiting, of both classes
        self.taking: list[Slice] = []
        """What the last batch has, or is about to have."""
        self.in_hand: list[Call] = []
        """The calls that wait, while they are classed anew."""
        self.tenants: Tenants | None = None
        """What waits of each tenant, if tenants take turns; these queues may be several."""
        self._small: Flow = Line()
        self._alone = Line()  # large calls, as long as they are of one flow, which takes no turns
        self._large: Flow = self._alone
        self._large_items = 0
        self.large_limit: int | None = None
        """So many items of large calls at most share a batch while small calls come, if that is limited."""
        self._without_small = _FORGOTTEN  # batches since one found small calls waiting
        self._credit = 0.0  # items of the reserve that large calls have not used
        self.resize(batch_size, threshold)

    def resize(self, batch_size: int, threshold: int) -> None:
        """Follow new options; calls that wait are classed anew."""
        self.batch_size: int = batch_size
        self.threshold: int = threshold
        # Below four a batch, what is paid out at once would be all of it.
        self._most_saved = float(_SAVED * batch_size) if batch_size * PAID_OUT >= 1 else 1.0
        self.in_hand = waiting = sorted(self.waiting_calls(), key=_ARRIVED)
        self._clear()
        if self.tenants is not None:
            self._small = TenantTurns(batch_size, self.tenants, large=False)
            self._large = TenantTurns(batch_size, self.tenants, large=True)
        self.items = self._large_items = 0
        self.push_all(waiting)
        self.in_hand = []

    def take_turns(self, tenants: Tenants) -> None:
        """Have `tenants` take turns from now on, with the calls that wait too."""
        self.tenants = tenants
        self.resize(self.batch_size, self.threshold)

    def push_all(self, calls: list[Call]) -> int:
        """Append `calls`, each to the class that its size or its priority puts it in; return their items."""
        threshold = self.threshold
        items = large_items = 0
        for call in calls:
            large = call.bulk
            if large is None:  # a part of a list is of the class of that
                large = (call.size if call.parent is None else call.whole.size) > threshold
            call.large = large
            items += call.waiting
            if large:
                large_items += call.waiting
        if not large_items:
            self._small.extend(calls)
        else:
            for call in calls:
                if call.large:
                    self._append_large(call)
                else:
                    self._small.append(call)
        self.items += items
        self._large_items += large_items
        return items

    def _append_large(self, call: Call) -> None:
        alone = self._alone
        if self._large is alone and alone and own_flow(alone[0]) is not own_flow(call):
            self._large = large_calls(self.batch_size)
            for other in alone:
                if other.waiting:
                    self._large.append(other)
            alone.clear()
        self._large.append(call)

    def _clear(self) -> None:
        """Forget calls of which nothing waits any more."""
        self._small.clear()
        self._large.clear()
        if self.tenants is None:
            self._large = self._alone

    def drop(self, call: Call, after: int = -1) -> int:
        """Forget what of `call` still waits `after` a place of its list; return how many items that was."""
        waiting = call.waiting
        kept = 0
        if after >= 0:
            kept = sum([stop - start for start, stop in call.before(after, call.size - waiting, call.size)])
            if kept:  # they wait in order, so that those to forget are the last ones
                call.size -= waiting - kept
        return self._drop(call, waiting - kept)

    def _drop(self, call: Call, dropped: int) -> int:
        call.waiting -= dropped  # at 0, its place in the queue is skipped when its turn comes
        self.items -= dropped
        if call.large:
            self._large_items -= dropped
            self._large.removed(call, dropped)
            if not self._large_items:
                self._large.clear()
        else:
            self._small.removed(call, dropped)
        if not self.items:
            self._clear()
        return dropped

    @property
    def small_items(self) -> int:
        """How many items of small calls wait."""
        return self.items - self._large_items

    def ahead(self, items: int, call: Call | None, *, large: bool) -> int:
        """Return how many items that wait go ahead of a call of `items`, as turns have it; `call`, if known.

        Needs no lock: it is an estimate, and rather too low.
        """
        small = self.items - self._large_items
        ahead = self._large_items if large else small
        if self.tenants is not None:
            if call is not None:
                ahead = min(ahead, self.tenants.ahead(call, items, self.batch_size, large=large))
        elif large:
            each = _READ_AHEAD * self.batch_size if hasattr(call, "flow") else max(items, self.batch_size)
            ahead = min(ahead, self._large.flows * each)
        return small + ahead if large else ahead

    def of_its_key(self, call: Call, ahead: int) -> int:  # noqa: ARG002  all are of one key
        """Return how many items of those that go `ahead` of `call` have its key. Needs no lock."""
        return ahead

    @property
    def saved(self) -> float:
        """How many items of the reserve large calls have left unused."""
        return self._credit

    def may_choose(self) -> bool:
        """Whether other calls than the oldest may be in the next batch."""
        return False

    def small_calls(self) -> Iterable[Call]:
        """Return the small calls, in the order in which they are taken; of some nothing waits any more."""
        return self._small

    def oldest(self) -> float:
        """Return when the oldest waiting call arrived. At least one must wait."""
        if not self._large_items:
            return self._small.oldest()
        if self._large_items == self.items:
            return self._large.oldest()
        return min(self._small.oldest(), self._large.oldest())

    def is_full(self) -> bool:
        """Whether enough wait for a full batch."""
        return self.items >= self.batch_size

    def lacks(self) -> int:
        """Return the number of further items that fill a batch."""
        return self.batch_size - self.items

    def take(self, room: int) -> Batch:
        """Remove and return the next batch, of `room` items; at least so many must wait.

        It has less if `large_limit` allows no more items of large calls, and no others wait.
        """
        slices: list[Slice] = []
        self.taking = slices
        large_items = self._large_items
        small_items = self.items - large_items
        credit, most = self._credit + room * RESERVE, self._most_saved
        self._credit = credit if credit < most else most  # noqa: FURB136  `min` takes ten times as long
        self._without_small = 0 if small_items else self._without_small + 1
        if small_items >= room and not large_items:
            taken = self._small.take(room, slices)
        elif not small_items and self.large_limit is None:
            taken = self._large.take(room, slices)
            self._large_items = large_items - taken
            self._credit = self._credit - taken if self._credit > taken else 0.0
        else:
            taken = self._take_of_both(room, small_items, slices)
        self.items -= taken
        if not self.items and (self._small or self._large):  # of these calls nothing waits any more
            self._clear()
        return Batch(slices, taken)

    def _take_of_both(self, room: int, small_items: int, slices: list[Slice]) -> int:
        """Move up to `room` items of large calls, and of small ones, to `slices`; return how many."""
        left = room
        large = self._large_items
        if self.large_limit is not None:
            large = min(self._most_large(room), large)
        if small_items >= room:
            # At least one item in the end, however small the batches.
            large = min(int(self._credit), max(int(room * PAID_OUT), 1), large)
        else:
            large = min(room - small_items, large)
            if small_items:
                left -= self._small.take(left, slices)
        if large:
            taken = self._large.take(large, slices)
            left -= taken
            self._large_items -= taken
            self._credit = self._credit - taken if self._credit > taken else 0.0
        if small_items >= room:
            left -= self._small.take(left, slices)
        return room - left

    def _most_large(self, room: int) -> int:
        """Return how many items of large calls the next batch may have."""
        if self.large_limit is None or self._without_small > _FORGOTTEN:
            return room
        return min(self.large_limit, room)

    def known_calls(self) -> list[Call]:
        """Return all calls that may wait, some twice, also where a step was broken off in the middle."""
        return [*self._small, *self._large, *self._alone, *self.in_hand]

    def is_uneven(self, call: Call) -> bool:  # noqa: ARG002  here none is
        """Whether other items of `call` wait than just the last ones."""
        return False

    def waiting_calls(self) -> list[Call]:
        """Return the calls that wait, the small ones first."""
        return [call for call in (*self._small, *self._large) if call.waiting]
