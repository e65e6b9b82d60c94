"""How large a batch fits into memory, learned from running out of it."""

from __future__ import annotations

_FIRST_PROBE = 64  # batches
_RAREST_PROBE = 8192


class MemoryLimit:
    """A limit on batches that starts with the first failure and is probed upward, ever more rarely.

    Half of a size that was too much fits, or fails in its turn. After 64 batches of that size a quarter more
    is tried; a probe that fails returns to the size that fitted, and doubles the number of batches until the
    next.
    """

    def __init__(self) -> None:
        self.limit: int | None = None  # items; None as long as everything has fitted
        self._fitted = 0  # the limit that a probe has started from, 0 if there is no probe
        self._probe_after = _FIRST_PROBE
        self._ran = 0

    @property
    def fits(self) -> int | None:
        """The limit, but for a probe: that is not known to fit yet."""
        return self._fitted or self.limit

    def exceeded(self, size: int) -> None:
        """Remember that a batch of `size` ran out of memory."""
        fits = max(size // 2, 1)
        if self._fitted and size > self._fitted:
            fits = self._fitted
            self._probe_after = min(2 * self._probe_after, _RAREST_PROBE)
        self.limit = fits if self.limit is None else min(self.limit, fits)
        self._fitted = 0
        self._ran = 0

    def ran(self, size: int, most: int) -> None:
        """Remember that a batch of `size` fitted. No batch will have more than `most` items."""
        if self.limit is None or size < self.limit:
            return
        self._fitted = 0
        self._ran += 1
        if self._ran >= self._probe_after and self.limit < most:
            self._ran = 0
            self._fitted = self.limit
            self.limit = min(self.limit + max(self.limit // 4, 1), most)
