"""The cost of a batch: how long one of n items takes, learned from batches that ran."""

from __future__ import annotations

OVERHEAD_S = 100e-6  # what a batch costs besides the function: to choose it, start it and hand it out
TOO_SHORT_S = 1e-6  # clocks measure no less
OUTLIERS = 5  # batches; from then on a batch that takes very long is known to be an outlier

_BATCHES = 15  # the costs are those of about so many batches
_FADE_OF_BATCH = 1 / _BATCHES
_SIMILAR = 0.1  # of the mean size: sizes that differ less tell little of what an item costs
_FIXED = 0.75  # of the first batches, as a first guess: where it is less, batches of other sizes soon tell
_GUESS = 0.5**2  # the error of a first guess, squared, as a share of the time of a batch
_KNOWN = 0.12**2  # likewise: with less, it is known what a batch costs, and what an item
_TOLD = 8  # batches: fewer tell too little to be sure of anything


class BatchCost:
    """The cost `fixed + each * n` that fits the batches that ran, the last ones above all.

    The first batch may compile or load something and does not count. Nor do the next ones, where a batch then
    takes less than half as long for each item, and in all: they did so too. Later ones count at most double
    what was to be expected. If batches of one size become slower or faster, so do both costs; only batches of
    different sizes tell them apart. Where eight in a row take twice or half of what was expected, the speed
    has changed: what was known is forgotten.
    """

    def __init__(self) -> None:
        self.fixed = 0.0  # until it is known
        self.each = 0.0
        self._batches = 0
        self._unlike = 0  # batches in a row that took half of what was expected, or twice that
        self._size = 0.0  # the mean
        self._variance = 0.0  # of the sizes
        self._sizes: set[int] = set()  # that batches have had
        self._warms_up = True  # until what was learned from slow batches has been given up
        self._noise = 0.0  # the mean square of what batches took more or less than expected, relative to that
        self._doubt = _GUESS  # the squared error of `each` times the mean size, as a share of a batch's time

    @property
    def is_known(self) -> bool:
        """Whether batches have told what a batch costs, and what an item; else that is a guess."""
        return self._batches >= _TOLD and self._doubt + self._noise / self._batches < _KNOWN

    @property
    def usual_size(self) -> float:
        """The mean size of batches; 0 if not even of these it is known how long they take."""
        is_known = self._batches >= _TOLD and self._noise / self._batches < _KNOWN
        return self._size if is_known else 0.0

    def _begin(self, size: int, duration: float) -> None:
        """Begin with a batch that took `duration` seconds."""
        self._batches = 2
        self._unlike = 0
        self._size = size
        self._variance = self._noise = 0.0
        self._doubt = _GUESS
        self.fixed = max(duration * _FIXED, TOO_SHORT_S)  # for a start
        self.each = duration * (1.0 - _FIXED) / size

    def _begins_anew(self, size: int, duration: float) -> bool:
        """Note a batch that took half or twice of what was expected; begin anew if eight in a row did."""
        self._unlike += size in self._sizes  # else it may have compiled something for this size
        if self._unlike < _TOLD:
            return False
        self._begin(size, duration)
        return True

    def add(self, size: int, duration: float) -> None:  # noqa: C901, PLR0915  calls would cost as much
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
                self._begin(size, duration)
                return
            usual, mean = fixed + each * self._size, self._size
            if 2.0 * duration * mean < usual * min(size, mean) and self._warms_up:
                self._warms_up = False  # once: where times differ by chance, slow ones count
                self._begin(size, duration)
                return
            fade = 1.0 / batches
        elif 2.0 * duration < expected or duration > 2.0 * expected:
            if self._begins_anew(size, duration):
                return
        else:
            self._unlike = 0
        error = duration - expected
        is_new = size not in self._sizes
        if is_new:
            self._sizes.add(size)
        if error > expected and batches >= OUTLIERS:
            if is_new:  # it may have compiled something for this size
                return
            error = expected
        off_by = error / expected
        error *= fade
        mean = self._size
        off = size - mean
        self._size = mean = mean + fade * off
        variance = self._variance
        self._variance = variance = variance + fade * (off * off - variance)
        change = 1.0 + error / expected
        similar = _SIMILAR * mean
        # A step towards the regression's slope; the smaller, the less sizes differ.
        gain = off / (variance + 0.05 + similar * similar)
        step = error * gain
        gain *= fade
        self._noise = noise = self._noise + fade * (off_by * off_by - self._noise)
        kept = 1.0 - gain * off
        gain *= mean
        surprise = off_by * off_by
        self._doubt = self._doubt * kept * kept + gain * gain * (max(noise, surprise))
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
