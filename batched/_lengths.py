"""Items of like length together: what padding costs, and who shares a batch because of it.

A batch of n items takes about `fixed + each * n + per_length * n * longest` seconds, since items are padded
to the longest. Where padding costs next to nothing, items go in order of arrival. Where it costs less than
another batch would, those nearest in length to the oldest item go. Where it costs more, the waiting items are
cut into groups of like length, and the group goes that takes the least time per item.

Nobody is passed over for ever: of each class the oldest item is in one of the next `PASSED_OVER + 1` batches
that its class leads, however the lengths fall. (Large calls lead a batch, besides when no small ones wait,
whenever their share, an eighth of all, has come to a quarter of a batch.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from batched._patience import Service

if TYPE_CHECKING:
    from collections.abc import Iterable

    from batched._call import Call, Slice

__all__ = [
    "CHEAP",
    "PASSED_OVER",
    "PASSED_OVER_SHARE",
    "Cost",
    "Item",
    "Lengths",
    "choose",
    "cut",
    "longest_first",
    "padding",
]

PASSED_OVER = 4
"""So many batches of its class in a row may leave out the oldest item, ..."""

PASSED_OVER_SHARE = 1 / 4
"""... and fewer if they took longer than this share of a batch in order of arrival."""

Item: TypeAlias = "tuple[float, int, Call, int]"
"""A waiting item: its length, its place in the order of arrival, its call, and which of that it is."""

CHEAP = 1 / 4  # fixed costs: padding that costs no more is not worth leaving anybody out
_FORGET = 1 / 32  # what is known of the function is of about so many batches
_DRIFT = 1 / 16  # how fast all costs together follow, which batches of one size tell too
_OUTLIERS = 5  # batches; then one that takes very long is known to be no usual one
_OVERHEAD_S = 100e-6  # what another batch costs besides: to choose it, start it and hand it out
_SHARED = 0.003  # how alike sizes and lengths may be before the costs that they cannot tell apart are shared


class Cost(Service):
    """What a batch takes, fitted to those that ran, the last ones above all.

    The first may compile or load something and does not count; later ones count at most double what was to be
    expected. Every batch counts by how far off the fit is in percent, so the long ones do not decide alone.
    Where all batches were alike, what they took is shared out among the three costs.
    """

    __slots__ = ("_length", "_products", "_seen", "_sums", "_varies", "per_length")

    def __init__(self) -> None:
        super().__init__()
        self.per_length = 0.0
        self._seen = 0
        self._length = 0.0  # of the longest item of a batch, the mean
        self._varies = False  # else there is nothing to choose
        self._products = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3

    @property
    def known(self) -> bool:
        """Whether there is anything to go by."""
        return self._seen > 1

    def add(self, size: int, duration: float) -> None:
        """Ignore what does not tell the lengths."""

    def ran(self, size: int, longest: float, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        self._seen += 1
        if self._seen == 1 or duration <= 0.0:
            return
        keep = drift = 1 - _FORGET
        if self._seen > _OUTLIERS:
            expected = self.fixed + self.each_of(longest) * size
            duration = min(duration, 2 * expected)
            # As if earlier batches had taken longer, or less, too: else the fast ones weigh more for long.
            drift = keep / (1 + _DRIFT * (duration / expected - 1))
        self._varies = self._varies or (self._seen > 2 and longest != self._length)  # noqa: PLR2004
        self._length += max(_FORGET, 1 / (self._seen - 1)) * (longest - self._length)
        row = (1 / duration, size / duration, size * longest / duration)
        for at, value in enumerate(row):
            self._sums[at] = self._sums[at] * drift + value
            products = self._products[at]
            for other in range(3):
                products[other] = products[other] * drift * drift / keep + value * row[other]
        fixed, each, self.per_length = _fit(self._products, self._sums, 3 if self._varies else 2)
        self.fixed = max(fixed, 1e-6)
        self.each = each + self.per_length * self._length

    @property
    def another(self) -> float:
        """What one more batch costs, however few are in it."""
        return self.fixed + _OVERHEAD_S

    def each_of(self, longest: float) -> float:
        """Return what an item adds to a batch whose longest is so long."""
        return self.each + self.per_length * (longest - self._length)

    @property
    def each_alone(self) -> float:
        """What an item adds whatever the length."""
        return max(self.each - self.per_length * self._length, 0.0)


def _fit(products: list[list[float]], sums: list[float], most: int) -> list[float]:
    """Return the costs, `most` of them and none negative, that explain the durations best."""
    scales = [products[at][at] ** 0.5 for at in range(3)]
    used = [at for at in range(most) if scales[at]]
    while True:
        matrix = [
            [
                products[at][other] / (scales[at] * scales[other]) + (_SHARED if at == other else 0.0)
                for other in used
            ]
            for at in used
        ]
        found = _solve(matrix, [sums[at] / scales[at] for at in used])
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

    __slots__ = ("budget", "cost", "how", "padded", "reorders")

    def __init__(self, *, reorders: bool, padded: bool) -> None:
        self.reorders = reorders
        self.padded = padded
        self.budget: float | None = None
        self.cost = Cost()
        self.how = "arrival"
        """How the last batch was chosen."""

    def ran(self, slices: list[Slice], size: int, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        self.cost.ran(size, max(_longest(*piece) for piece in slices), duration)

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

    def exceeds(self, size: int, longest: float, real: float) -> bool:
        """Whether a batch is over the budget."""
        return self.budget is not None and (size * longest if self.padded else real) > self.budget


class _Chosen(NamedTuple):
    items: list[Item]
    how: str


def choose(waiting: list[Item], room: int, lengths: Lengths, *, oldest_due: bool) -> _Chosen:
    """Return which of `waiting`, in order of arrival, go next, at most `room`; and how they were chosen."""
    first = lengths.fitting(waiting, room)
    cost = lengths.cost
    if not lengths.reorders or not cost.known:
        return _Chosen(first, "arrival")
    waste = padding(first) * cost.per_length
    if waste <= cost.another * CHEAP:
        return _Chosen(first, "arrival")
    oldest = waiting[0]
    in_order = sorted(waiting, key=longest_first)
    if waste <= cost.another:
        if len(waiting) <= room:
            return _Chosen(first, "arrival")
        start = min(in_order.index(oldest), len(in_order) - room)
        window = in_order[start : start + room]
        kept = lengths.fitting(window, room)
        if len(kept) < room and oldest not in kept:
            kept = lengths.fitting(in_order[in_order.index(oldest) :], room)
        return _Chosen(kept, "window")
    groups = cut(in_order, room, lengths)
    if oldest_due:
        return _Chosen(next(group for group in groups if oldest in group), "cut")
    return _Chosen(
        min(groups, key=lambda group: cost.another / len(group) + cost.each_of(group[0][0])), "cut"
    )


def cut(in_order: list[Item], room: int, lengths: Lengths) -> list[list[Item]]:
    """Divide items, the longest first, where padding the rest would cost more than another batch."""
    another, per_length = lengths.cost.another, lengths.cost.per_length
    left = len(in_order)
    group: list[Item] = []
    groups = [group]
    real = 0.0
    for item in in_order:
        length = item[0]
        longest = group[0][0] if group else length
        real += length
        if group and (
            len(group) == room
            or min(left, room - len(group)) * per_length * (longest - length) > another
            or lengths.exceeds(len(group) + 1, longest, real)
        ):
            group = []
            groups.append(group)
            real = length
        group.append(item)
        left -= 1
    return groups


def _longest(call: Call, start: int, stop: int) -> float:
    lengths: Any = call.lengths
    return max(lengths[start:stop]) if type(lengths) is list else lengths  # type: ignore[no-any-return]


def padding(items: list[Item]) -> float:
    lengths = [item[0] for item in items]
    return len(lengths) * max(lengths) - sum(lengths)


def longest_first(item: Item) -> tuple[float, int]:
    return -item[0], item[1]
