"""The cost of a batch of padded items: it grows with the longest, learned from batches that ran."""

from __future__ import annotations

from math import inf, sqrt
from operator import mul

from batched._policy.batch_cost import OUTLIERS, OVERHEAD_S, TOO_SHORT_S

_MEMORY = 32.0
_FORGET = 1 / _MEMORY  # the costs of lengths are those of about so many batches
_DRIFT = 1 / 16  # how fast all costs follow together, where batches of one size tell no more
_FIT_EACH = 16  # so many batches are fitted one by one, ...
_FIT_EVERY = 4  # ... and then so many at a time
_RIDGE = 0.01  # sizes and lengths that differ less, squared, hardly tell the costs apart
_ALIKE = 0.001  # likewise: sizes that differ less have been the same for long
_LEAST_FIXED = 1 / 4  # of a batch: as little as is fixed where sizes do not tell
_TOLD = 8  # batches: fewer tell too little to be sure of any cost
_NOISE = 0.02  # of the time: there is no less of it
_KNOWN = 0.12  # of the time of a batch: the standard error of a cost that is known
_TINY = 1e-9  # added, so that there is a solution
_FAINT = 100.0  # times the variance of costs that do not overlap: above it, the ridge decides


class PaddedCost:
    """The cost where items are padded: `fixed + (each_alone + per_length * longest) * n`."""

    def __init__(self, fixed: float = 0.0, per_length: float = 0.0) -> None:
        self.fixed: float = fixed
        """The seconds that a batch takes whatever its size; 0.0 if they are not known."""
        self.each_alone: float = 0.0
        """The seconds that an item adds whatever the length."""
        self.per_length: float = per_length
        """The seconds that an item adds for each unit of the longest item's length."""

    @property
    def another_batch(self) -> float:
        """The seconds that one more batch costs, however few items are in it."""
        return self.fixed + OVERHEAD_S

    def each_of(self, longest: float) -> float:
        """Return the seconds that an item adds to a batch with a longest item of this length."""
        return self.each_alone + self.per_length * longest


class _Spread:
    """How numbers lie around their mean, the last ones above all."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._variance = 0.0

    def add(self, value: float, weight: float) -> None:
        """Add a number that counts so much, as a share of all."""
        off = value - self.mean
        self.mean += weight * off
        self._variance = (1 - weight) * (self._variance + weight * off * off)

    def is_over(self, share: float) -> bool:
        """Whether their variance is more than this share of the squared mean."""
        return self._variance > share * self.mean * self.mean


class LengthCost(PaddedCost):
    """The cost where items are padded, fitted to the batches that ran.

    The error of a batch counts in percent of its time, so long batches do not decide alone. Where all batches
    have one size and length, the costs keep the proportion that was known; if none was, they are equal.
    """

    fixed: float
    each_alone: float
    per_length: float

    def __init__(self) -> None:
        super().__init__()
        self.each: float = 0.0
        """The seconds that an item adds to a batch with a longest item of the mean length."""
        self._seen = 0  # batches
        self._longest = _Spread()
        self._size = _Spread()
        # The equations of the fit, one for each cost.
        self._products = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3

    @property
    def known(self) -> bool:
        """Whether there was a batch to learn from."""
        return self._seen > 1

    @property
    def is_told(self) -> bool:
        """Whether lengths of batches have differed lately: else these tell nothing of what length costs."""
        return self._longest.is_over(_RIDGE)

    @property
    def is_known(self) -> bool:
        """Whether batches have told what a batch costs, and what an item of the usual length."""
        return self._error(0) < _KNOWN

    @property
    def usual_size(self) -> float:
        """The mean size of batches; 0 if not even of these it is known how long they take."""
        is_known = self._seen > _TOLD and sqrt(self._noise() / self._batches) < _KNOWN
        return self._size.mean if is_known else 0.0

    @property
    def tells_lengths(self) -> bool:
        """Whether they have told, too, what of that an item costs whatever its length."""
        return self.is_told and max(self._error(at) for at in range(3)) < _KNOWN

    def _error(self, at: int) -> float:
        """Return the standard error of one of the costs, as a share of what batches take."""
        if self._seen <= _TOLD or not all(self._products[each][each] for each in range(3)):
            return inf
        scales = [self._products[each][each] ** 0.5 for each in range(3)]
        matrix = [
            [self._products[row][column] / (scales[row] * scales[column]) for column in range(3)]
            for row in range(3)
        ]
        for each in range(3):
            matrix[each][each] += _TINY
        spread = _solve(matrix, [float(each == at) for each in range(3)])[at]
        error: float = sqrt(self._noise() * spread / self._batches) if 0.0 < spread < _FAINT else inf
        return error

    @property
    def _batches(self) -> float:
        """How many batches are remembered."""
        forgotten: float = (1 - _FORGET) ** (self._seen - 1)
        return (1.0 - forgotten) * _MEMORY

    def _noise(self) -> float:
        """Return the mean square of what batches took more or less than the costs say, relative to that."""
        costs = [self.fixed, self.each_alone, self.per_length]
        explained = sum(map(mul, costs, [sum(map(mul, row, costs)) for row in self._products]))
        squares: float = explained - 2 * sum(map(mul, self._sums, costs)) + self._batches
        return max(squares / self._batches, _NOISE**2)

    @property
    def most(self) -> PaddedCost:
        """The cost if length takes as much as it may, where batches of one length do not tell.

        That is all that items take; and a part of what batches take, if these have had one size for long.
        """
        fixed, each = self.fixed, self.each
        if self.known and not self._size.is_over(_ALIKE):
            whole = fixed + each * self._size.mean
            fixed = min(fixed, _LEAST_FIXED * whole)
            each = (whole - fixed) / self._size.mean
        return PaddedCost(fixed, each / self._longest.mean if self._longest.mean else 0.0)

    def add(self, size: int, longest: float, duration: float) -> None:
        """Learn from a batch of `size` items that took `duration` seconds."""
        if duration <= 0.0:  # a coarse clock
            return
        seen = self._seen + 1
        if seen > 1:
            self._fit_to(size, longest, duration, seen)
        self._seen = seen

    def _fit_to(self, size: int, longest: float, duration: float, seen: int) -> None:
        """Fit the costs to one more batch, which makes it so many that have been seen."""
        keep = drift = 1 - _FORGET
        if seen > OUTLIERS:
            expected = self.fixed + self.each_of(longest) * size
            duration = min(duration, 2 * expected)
            # Earlier batches count as if they had drifted too: else the fast ones would weigh more for long.
            drift = keep / (1 + _DRIFT * (duration / expected - 1))
        weight = max(_FORGET, 1 / (seen - 1))
        self._longest.add(longest, weight)
        self._size.add(size, weight)
        # Divided by the duration: the errors of all batches count in percent.
        row = (1 / duration, size / duration, size * longest / duration)
        self._sums = [old * drift + value for old, value in zip(self._sums, row, strict=True)]
        drift *= drift / keep
        self._products = [
            [old * drift + value * other for old, other in zip(products, row, strict=True)]
            for value, products in zip(row, self._products, strict=True)
        ]
        if seen <= _FIT_EACH or seen % _FIT_EVERY == 0:  # a fit takes long and changes little
            known = [self.fixed, self.each_alone, self.per_length]
            fixed, self.each_alone, self.per_length = _fit(self._products, self._sums, known)
            self.fixed = max(fixed, TOO_SHORT_S)
        self.each = self.each_of(self._longest.mean)


def _fit(products: list[list[float]], sums: list[float], known: list[float]) -> list[float]:
    """Return the costs, none of them negative, that explain the durations best.

    Costs that the durations do not tell apart stay in the proportion that was `known`.
    """
    scales = [products[at][at] ** 0.5 for at in range(3)]
    squares = sum(known[at] * products[at][other] * known[other] for at in range(3) for other in range(3))
    slower = sum(map(mul, known, sums)) / squares if squares else 0.0  # than the known costs
    used = [at for at in range(3) if scales[at]]
    while True:
        matrix = [
            [
                products[at][other] / (scales[at] * scales[other]) + (_RIDGE if at == other else 0.0)
                for other in used
            ]
            for at in used
        ]
        found = _solve(
            matrix, [sums[at] / scales[at] + _RIDGE * slower * known[at] * scales[at] for at in used]
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
