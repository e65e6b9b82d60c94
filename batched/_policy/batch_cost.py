"""The cost of a batch: how long one of n items takes, learned from batches that ran."""

from __future__ import annotations

OVERHEAD_S = 100e-6  # what a batch costs besides the function: to choose it, start it and hand it out
TOO_SHORT_S = 1e-6  # clocks measure no less
OUTLIERS = 5  # batches; from then on a batch that takes very long is known to be an outlier

_BATCHES = 15  # the costs are those of about so many batches
_FADE_OF_BATCH = 1 / _BATCHES
_SIMILAR = 0.1  # of the mean size: sizes that differ less tell little of what an item costs


class BatchCost:
    """The cost `fixed + each * n` that fits the batches that ran, the last ones above all.

    The first batch may compile or load something and does not count; later ones count at most double what
    was to be expected. If batches of one size become slower or faster, so do both costs; only batches of
    different sizes tell them apart.
    """

    def __init__(self) -> None:
        self.fixed = 0.0  # until it is known
        self.each = 0.0
        self._batches = 0
        self._size = 0.0  # the mean
        self._variance = 0.0  # of the sizes

    def add(self, size: int, duration: float) -> None:
        """Learn from a batch that took `duration` seconds."""
        fade = _FADE_OF_BATCH
        fixed, each = self.fixed, self.each
        expected = fixed + each * size
        batches = self._batches
        if batches < _BATCHES:
            self._batches = batches + 1
            if not batches:
                return
            if batches == 1:
                self._size = size
                self.fixed = max(duration / 2, TOO_SHORT_S)  # for a start
                self.each = duration / 2 / size
                return
            fade = 1.0 / batches
        error = duration - expected
        if error > expected and batches >= OUTLIERS:
            error = expected
        error *= fade
        mean = self._size
        off = size - mean
        self._size = mean = mean + fade * off
        variance = self._variance
        self._variance = variance = variance + fade * (off * off - variance)
        change = 1.0 + error / expected
        similar = _SIMILAR * mean
        # A step towards the regression's slope; the smaller, the less sizes differ.
        step = error * off / (variance + 0.05 + similar * similar)
        # The time of a batch of the mean size is known best, so it stays even where the slope is cut off.
        level = (fixed + each * mean) * change
        each = each * change + step
        if each < 0.0:  # noqa: PLR1730  calling max would cost as much as the rest
            each = 0.0
        fixed = level - each * mean
        if fixed < TOO_SHORT_S:
            fixed = TOO_SHORT_S
            each = level / mean
        self.each = each
        self.fixed = fixed
