"""The cost of a batch whose items are padded: it grows with the longest, learned from batches that ran."""

from __future__ import annotations

from operator import mul

from batched._policy.batch_cost import OUTLIERS, OVERHEAD_S, TOO_SHORT_S

_FORGET = 1 / 32  # the costs of lengths are those of about so many batches
_DRIFT = 1 / 16  # how fast all costs follow together, where batches of one size tell no more
_FIT_EACH = 16  # so many batches are fitted one by one, ...
_FIT_EVERY = 4  # ... and then so many at a time
_RIDGE = 0.01  # sizes and lengths that differ less, squared, hardly tell the costs apart


class LengthCost:
    """The cost where items are padded, `fixed + (each_alone + per_length * longest) * n`, fitted likewise.

    The error of a batch counts in percent of its time, so long batches do not decide alone. Where all batches
    have one size and length, the costs keep the proportion that was known; if none was, they are equal. So
    batches are put in order of length for once where each has an item of the most that inputs are cut to, and
    tell what length costs.
    """

    def __init__(self) -> None:
        self.fixed = 0.0
        """The seconds that a batch takes whatever its size; 0.0 if they are not known."""
        self.each = 0.0
        """The seconds that an item adds to a batch with a longest item of the mean length."""
        self.each_alone = 0.0
        """The seconds that an item adds whatever the length."""
        self.per_length = 0.0
        """The seconds that an item adds for each unit of the longest item's length."""
        self._seen = 0  # batches
        self._length = 0.0  # of the longest item of a batch, the mean
        # The equations of the fit, one for each cost.
        self._products = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3

    @property
    def known(self) -> bool:
        """Whether there was a batch to learn from."""
        return self._seen > 1

    def add(self, size: int, longest: float, duration: float) -> None:
        """Learn from a batch of `size` items that took `duration` seconds."""
        if duration <= 0.0:  # a coarse clock
            return
        self._seen += 1
        if self._seen == 1:
            return
        keep = drift = 1 - _FORGET
        if self._seen > OUTLIERS:
            expected = self.fixed + self.each_of(longest) * size
            duration = min(duration, 2 * expected)
            # Earlier batches count as if they had drifted too: else the fast ones would weigh more for long.
            drift = keep / (1 + _DRIFT * (duration / expected - 1))
        weight = max(_FORGET, 1 / (self._seen - 1))
        self._length += weight * (longest - self._length)
        # Divided by the duration: the errors of all batches count in percent.
        row = (1 / duration, size / duration, size * longest / duration)
        self._sums = [old * drift + value for old, value in zip(self._sums, row, strict=True)]
        drift *= drift / keep
        self._products = [
            [old * drift + value * other for old, other in zip(products, row, strict=True)]
            for value, products in zip(row, self._products, strict=True)
        ]
        if self._seen <= _FIT_EACH or self._seen % _FIT_EVERY == 0:  # a fit takes long and changes little
            known = [self.fixed, self.each_alone, self.per_length]
            fixed, self.each_alone, self.per_length = _fit(self._products, self._sums, known)
            self.fixed = max(fixed, TOO_SHORT_S)
        self.each = self.each_of(self._length)

    @property
    def another_batch(self) -> float:
        """The seconds that one more batch costs, however few items are in it."""
        return self.fixed + OVERHEAD_S

    def each_of(self, longest: float) -> float:
        """Return the seconds that an item adds to a batch with a longest item of this length."""
        return self.each_alone + self.per_length * longest


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
