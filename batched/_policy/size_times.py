"""What items take in batches of about one size: a mean that fades, and how far it can be trusted."""

from __future__ import annotations

from math import sqrt

LEAST_BATCHES = 4  # batches: fewer tell nothing
OUTLIER = 8.0  # times the expected: no batch counts for more

_MEMORY = 1024  # the means are those of about so many batches of a level
_PRIOR = 16  # batches of a level weigh as much as what is known of the noise of all
_NOISE = 0.02  # there is no less of it


class Seen:
    """What an item takes in batches of about one size."""

    __slots__ = ("batches", "seconds", "size", "variance")

    def __init__(self) -> None:
        self.batches = -1  # the first does not count
        self.size = 0.0  # the mean
        self.seconds = 0.0  # the mean time of a batch
        self.variance = 0.0  # of the time of a batch, around what its size explains

    def add(self, size: int, seconds: float) -> None:
        """Learn from a batch."""
        self.batches += 1
        if not self.batches:
            return
        if self.batches > LEAST_BATCHES:
            seconds = min(seconds, OUTLIER * self.each * size)
        elif self.batches > 1 and 2.0 * seconds < self.seconds and 2.0 * seconds < self.each * size:
            self.batches = 1  # those before compiled something too
            self.seconds = self.size = self.variance = 0.0
        weight = 1.0 / min(self.batches, _MEMORY)
        self.seconds += weight * (seconds - self.seconds)
        self.size += weight * (size - self.size)
        off = seconds - size * self.each
        self.variance += weight * (off * off - self.variance)

    @property
    def is_known(self) -> bool:
        """Whether there were enough batches."""
        return self.batches >= LEAST_BATCHES

    @property
    def each(self) -> float:
        """The seconds that an item takes."""
        return self.seconds / self.size

    @property
    def items(self) -> float:
        """How many items there were, as far as they are remembered."""
        return self.size * min(self.batches, _MEMORY)

    def error(self, noise: float) -> float:
        """Return the standard error of `each`, where the squared `noise` of batches of any size is known."""
        own = self.variance / self.seconds**2 + _NOISE**2
        squared = (own * self.batches + noise * _PRIOR) / (self.batches + _PRIOR)
        return self.each * sqrt(squared / min(self.batches, 2 * _MEMORY))
