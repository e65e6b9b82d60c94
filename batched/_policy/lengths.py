"""Items of like length together: what padding costs, and who shares a batch because of it.

A batch of n items takes about `fixed + each * n + per_length * n * longest` seconds, since items are padded
to the longest. Where padding takes little of that, items go in order of arrival, and where it takes less than
another batch would, all that fit into one. Elsewhere all in sight are split, in order of length, into the
batches that take the least time together; of these the one goes that has the oldest item.

So nobody is passed over: of each class the oldest item is in every batch that its class leads, however the
lengths fall, or in the next one if this one starts for an item whose deadline is near. (Large calls lead a
batch, besides when no small ones wait, whenever their share, an eighth of all, has come to a quarter of a
batch.)
"""

from __future__ import annotations

from operator import add, itemgetter, mul
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from batched._policy.batch_cost import Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from batched._core.call import Call, Slice

__all__ = [
    "Cost",
    "Item",
    "Lengths",
    "choose",
    "longest_first",
]

Item: TypeAlias = "tuple[float, int, Call, int]"
"""A waiting item: its length, its place in the order of arrival, its call, and which of that it is."""

_CHEAP = 1 / 4  # of a batch: padding that takes no more is not worth leaving anybody out
_FORGET = 1 / 32  # what is known of the function is of about so many batches
_DRIFT = 1 / 16  # how fast all costs together follow, which batches of one size tell too
_OUTLIERS = 5  # batches; then one that takes very long is known to be no usual one
_FIT_EACH = 16  # so many batches are fitted one by one, ...
_FIT_EVERY = 4  # ... and then so many at a time
_OVERHEAD_S = 100e-6  # what another batch costs besides: to choose it, start it and hand it out
_LOOK_S = 1e-6  # what it takes to look at an item, ...
_TRY_S = 30e-9  # ... and at each of the batches that may end with it
_SYMMETRIC = ((0, 1, 2), (1, 3, 4), (2, 4, 5))  # where in half of a matrix its rows are
_ALIKE = 0.01  # sizes and lengths that differ less, squared, hardly tell the costs apart


class Cost(Service):
    """What a batch takes, fitted to those that ran, the last ones above all.

    The first may compile or load something and does not count; later ones count at most double what was to be
    expected. Every batch counts by how far off the fit is in percent, so the long ones do not decide alone.
    Where all batches are alike, the costs keep the proportion that was known; if none was, they are equal.
    """

    __slots__ = ("_length", "_products", "_seen", "_sums", "_varies", "each_alone", "per_length")

    def __init__(self) -> None:
        super().__init__()
        self.each_alone = 0.0
        """What an item adds whatever the length."""
        self.per_length = 0.0
        self._seen = 0
        self._length = 0.0  # of the longest item of a batch, the mean
        self._varies = False  # else there is nothing to choose
        self._products = [0.0] * 6  # of the rows' values: first with each, second with the rest, third
        self._sums = [0.0] * 3

    @property
    def known(self) -> bool:
        """Whether there is anything to go by."""
        return self._seen > 1

    def add(self, size: int, duration: float) -> None:
        """Ignore what does not tell the lengths."""

    def ran(self, size: int, longest: float, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        if duration <= 0.0:  # a coarse clock
            return
        self._seen += 1
        if self._seen == 1:
            return
        keep = drift = 1 - _FORGET
        if self._seen > _OUTLIERS:
            expected = self.fixed + self.each_of(longest) * size
            duration = min(duration, 2 * expected)
            # As if earlier batches had taken longer, or less, too: else the fast ones weigh more for long.
            drift = keep / (1 + _DRIFT * (duration / expected - 1))
        self._varies = self._varies or (self._seen > 2 and longest != self._length)  # noqa: PLR2004
        weight = max(_FORGET, 1 / (self._seen - 1))
        self._length += weight * (longest - self._length)
        # By how far off in percent: all is divided by the duration.
        batch = 1 / duration
        items = size / duration
        padded = items * longest
        first, second, third = self._sums
        self._sums = [first * drift + batch, second * drift + items, third * drift + padded]
        products = (
            batch * batch,
            batch * items,
            batch * padded,
            items * items,
            items * padded,
            padded * padded,
        )
        drift *= drift / keep
        self._products = [old * drift + new for old, new in zip(self._products, products, strict=True)]
        if self._seen <= _FIT_EACH or self._seen % _FIT_EVERY == 0:  # else it takes long and changes little
            most = 3 if self._varies else 2
            known = [self.fixed, self.each_alone, self.per_length]
            fixed, self.each_alone, self.per_length = _fit(self._products, self._sums, known, most)
            self.fixed = max(fixed, 1e-6)
        self.each = self.each_of(self._length)

    @property
    def another(self) -> float:
        """What one more batch costs, however few are in it."""
        return self.fixed + _OVERHEAD_S

    def each_of(self, longest: float) -> float:
        """Return what an item adds to a batch whose longest is so long."""
        return self.each_alone + self.per_length * longest


def _fit(triangle: list[float], sums: list[float], known: list[float], most: int) -> list[float]:
    """Return the costs, `most` of them and none negative, that explain the durations best.

    What these do not tell apart stays in the proportion that was `known`.
    """
    products = [[triangle[at] for at in row] for row in _SYMMETRIC]
    scales = [products[at][at] ** 0.5 for at in range(3)]
    squares = sum(known[at] * products[at][other] * known[other] for at in range(3) for other in range(3))
    slower = sum(map(mul, known, sums)) / squares if squares else 0.0  # than known, all of them together
    used = [at for at in range(most) if scales[at]]
    while True:
        matrix = [
            [
                products[at][other] / (scales[at] * scales[other]) + (_ALIKE if at == other else 0.0)
                for other in used
            ]
            for at in used
        ]
        found = _solve(
            matrix, [sums[at] / scales[at] + _ALIKE * slower * known[at] * scales[at] for at in used]
        )
        lowest = min(range(len(used)), key=found.__getitem__)
        if found[lowest] >= 0.0 or len(used) == 1:
            costs = [0.0] * 3
            for at, value in zip(used, found, strict=True):
                costs[at] = max(value, 0.0) / scales[at]
            return costs
        del used[lowest]


def _solve(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Solve linear equations that are positive definite, by elimination."""
    size = len(values)
    for at in range(size):
        for below in range(at + 1, size):
            factor = matrix[below][at] / matrix[at][at]
            for column in range(at, size):
                matrix[below][column] -= factor * matrix[at][column]
            values[below] -= factor * values[at]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(matrix[at][column] * found[column] for column in range(at + 1, size))
        found[at] = (values[at] - rest) / matrix[at][at]
    return found


class Lengths:
    """What all queues of one batcher know of lengths: their cost, the budget, and what is done about it."""

    __slots__ = ("budget", "cost", "how", "padded", "reorders", "urgent")

    def __init__(self, *, reorders: bool, padded: bool) -> None:
        self.reorders = reorders
        self.padded = padded
        self.budget: float | None = None
        self.cost = Cost()
        self.how = "arrival"
        """How the last batch was chosen."""
        self.urgent: Call | None = None
        """Whose deadline comes next, if half of its time is over."""

    def ran(self, slices: list[Slice], size: int, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        longest: list[Any] = [
            max(lengths[start:stop]) if type(lengths := call.lengths) is list else lengths
            for call, start, stop in slices
        ]
        self.cost.ran(size, max(longest), duration)

    def fitting(self, items: Iterable[Item], room: int) -> list[Item]:
        """Return the first of `items` that go into one batch; at least one, however long."""
        taken: list[Item] = []
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

    def is_costly(self, first: list[float], in_sight: int) -> bool:
        """Whether items of these lengths waste much of a batch, more than it takes to look for others."""
        size = len(first)
        longest = max(first)
        cost = self.cost
        waste: float = (size * longest - sum(first)) * cost.per_length
        choosing_s = in_sight * (_LOOK_S + size * _TRY_S)
        return waste > _CHEAP * (cost.fixed + cost.each_of(longest) * size) + choosing_s

    def exceeds(self, size: int, longest: float, real: float) -> bool:
        """Whether a batch is over the budget."""
        return self.budget is not None and (size * longest if self.padded else real) > self.budget


class _Chosen(NamedTuple):
    items: list[Item]
    how: str


def choose(waiting: list[Item], room: int, lengths: Lengths, due: Item | None = None) -> _Chosen:
    """Return which of `waiting`, in order of arrival, go next, at most `room`; and how they were chosen.

    The oldest is among them or, if like lengths are chosen, the one that is `due`.
    """
    first = lengths.fitting(waiting, room)
    cost = lengths.cost
    long = list(map(itemgetter(0), first))
    if not (lengths.reorders and cost.known and lengths.is_costly(long, len(waiting))):
        return _Chosen(first, "arrival")
    if len(first) == len(waiting) and (len(long) * max(long) - sum(long)) * cost.per_length <= cost.another:
        return _Chosen(first, "arrival")
    in_order = sorted(waiting, key=longest_first)
    wanted = in_order.index(due or waiting[0])
    start, stop = next(batch for batch in _split(in_order, room, lengths) if batch[0] <= wanted)
    return _Chosen(in_order[start:stop], "length")


def _split(in_order: list[Item], room: int, lengths: Lengths) -> Iterator[tuple[int, int]]:
    """Yield from where to where the batches go that take the least time together, the last one first."""
    cost = lengths.cost
    another = cost.another
    each = [cost.each_of(item[0]) for item in in_order]
    totals: list[float] = []  # what all take up to the last item, by where its batch starts, from `first` on
    starts: list[int] = []
    seconds = real = 0.0
    first = 0
    for last, item in enumerate(in_order):
        totals.append(seconds + another)
        real += item[0]
        size = last - first + 1
        while size > 1 and (
            size > room
            or (each[first] - each[first + size // 2]) * (size - size // 2) > another  # in two it takes less
            or lengths.exceeds(size, in_order[first][0], real)
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


def longest_first(item: Item) -> tuple[float, int]:
    return -item[0], item[1]
