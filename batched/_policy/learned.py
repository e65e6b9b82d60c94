"""The figures that a batcher has learned, as `.stats` shows them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Learned", "short"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a batcher has learned of its function and its callers."""

    batch_ms: float
    """What a batch costs whatever its size, in milliseconds: what calls that share one save."""
    item_ms: float
    """What each item adds, in milliseconds."""
    wait_ms: float
    """For how many milliseconds the last batches were held back for more calls, on average."""
    length_ms: float = 0.0
    """What each item adds for every unit of the longest item's length, in milliseconds."""
    capacity: float
    """The items a second of full batches, back to back, by these costs."""

    def __str__(self) -> str:
        length = f" and {short(self.length_ms)} ms a unit of length" if self.length_ms else ""
        return (
            f"{short(self.batch_ms)} ms a batch + {short(self.item_ms)} ms an item{length}, so at most "
            f"{self.capacity:,.0f} items/s; held back for {short(self.wait_ms)} ms"
        )


def short(value: float) -> str:
    """Return three digits of `value`, or more of a large one, but never a power of ten for it."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"  # noqa: PLR2004
