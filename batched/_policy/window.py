"""When an incomplete batch starts: the plain window, and the reasons and figures that any window gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

ANY_NUMBER = 1 << 60
"""More calls than will ever come: none of them ends a wait."""


DEFAULT_S = 0.005
"""How long a batch may be held back where no timeout is set, and nothing is known of the function."""
_NO_WAIT_MS = 0.001  # a shorter wait is not felt


class StartReason(StrEnum):
    """Why a batch started, by the names that `stats.closed` and the metrics use."""

    FULL = "full"
    """As many items were in the queue as a batch may have; it has fewer where more would have been late."""
    CALLERS_BACK = "callers back"
    """All callers of the last batch had called again."""
    NO_GAIN = "no gain"
    """Waiting for more calls would have cost more than it saved."""
    WAITED = "waited"
    """It had waited for more calls as long as that was worth it."""
    TRIAL = "trial"
    """Early on: batches of different sizes tell the cost of a batch from that of an item."""
    WINDOW = "window"
    """The oldest item was `timeout_ms` old."""
    AHEAD = "ahead"
    """It was taken to be prepared, or to run, while the batch before was in a later stage."""
    DEADLINE = "deadline"
    """A call had used up half of the time until its deadline."""
    CROWDED = "crowded"
    """Other calls were waiting for room in the queue."""
    DRAIN = "drain"
    """The batcher was shutting down."""
    STEP = "step"
    """It was the next step of a batch that is refilled."""
    RETRY = "retry"
    """It was part of a failed batch, or of one that was split up front because earlier batches had failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a batcher has learned about its function and its callers."""

    batch_ms: float | None
    """The cost of a batch of any size, in milliseconds: what calls save when they share one.

    None if it is not known: too few batches have run, all had about the same size, or their times vary so
    much that size does not explain them.
    """
    item_ms: float | None
    """What each item adds, in milliseconds, with its copies; None if `batch_ms` is not known."""
    wait_ms: float
    """How many milliseconds recent batches waited for more calls, on average."""
    length_ms: float | None = None
    """What each item adds for every unit of the longest item's length, in milliseconds.

    None if lengths are not used, or if what they cost is not known: then `item_ms` is the cost of an item of
    the usual length.
    """
    uses_lengths: bool = False
    """Whether the costs take the lengths of items into account."""
    mean_length: float = 0.0
    """The average length of a batch's longest item, if `length_ms` is known."""
    sizes_differ: bool = True
    """Whether batch sizes have changed from one batch to the next, at least a few times."""
    capacity: float | None
    """Items per second in full batches, calculated from these costs, in all workers or overlapping stages.

    None if that is not known, if no batch has been nearly that large, or with `max_batch_length`.
    """

    @property
    def waits(self) -> bool:
        """Whether recent batches waited for more calls, for a time that is felt."""
        return self.wait_ms >= _NO_WAIT_MS

    def __str__(self) -> str:
        told = "cost per batch and per item not known"
        if self.batch_ms is not None and self.item_ms is not None:
            told = f"{short(self.batch_ms)} ms per batch + {short(self.item_ms)} ms per item"
        if self.length_ms is not None:
            told += f" + {short(self.length_ms)} ms per item and unit of length"
        if self.capacity is not None:
            told += f"; at most {self.capacity:,.0f} items/s"
        if not self.waits:
            return f"{told}; no wait for more calls"
        return f"{told}; waits {short(self.wait_ms)} ms for more calls"


def short(value: float) -> str:
    """Return `value` with three digits, a large one with all before the point, never with an exponent."""
    if value < 1e-4:  # noqa: PLR2004  below it, three digits have an exponent
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"  # noqa: PLR2004


class Window:
    """A batch that is not full starts when its oldest item is `timeout_s` old; None: no timeout is set."""

    learns = False
    """Whether calls and batches are to be reported to it, as to an `AdaptiveWindow`."""
    is_immediate = False
    """Whether any batch starts at once."""
    is_suspended = False
    """Whether no wait can save anything: then it is told only of batches, by `ran_suspended`."""

    def __init__(self, timeout_s: float | None) -> None:
        self.is_auto: bool = timeout_s is None
        self.timeout_s: float = DEFAULT_S if timeout_s is None else timeout_s
        self.is_holding: bool = False
        """Whether a batch is held back that the end of another may let go."""
        self.awaited: int = ANY_NUMBER
        """How many more calls end the wait that `start_at` has asked for."""
        self.reason: StartReason = StartReason.WINDOW
        """Why the batch starts, once the time that `start_at` has returned has come."""
        self.free_at: float = -inf
        """When a worker last became free after a batch of another function; -inf: it has run none."""
        self.workers: int = 1
        """How many workers run batches of this function, or are free to."""

    def start_at(self, oldest: float, items: int, now: float) -> float:  # noqa: ARG002  it learns nothing
        """Return when to start a batch that is not full: `items` wait, the first of them since `oldest`."""
        return oldest + self.timeout_s

    def configure(self, timeout_s: float | None, batch_size: int) -> None:  # noqa: ARG002
        """Go on with other options."""
        self.is_auto = timeout_s is None
        self.timeout_s = DEFAULT_S if timeout_s is None else timeout_s

    def follow(self, cost: Any) -> None:
        """Do nothing: it asks for no cost."""

    @property
    def cohorts(self) -> int:
        """The number of batches of which it has seen what their callers did next."""
        return 0

    def learned(self) -> Learned | None:
        """Return the figures for the stats."""
        return None


class AtOnce(Window):
    """Any batch starts at once, for this reason."""

    is_immediate = True

    def __init__(self, reason: StartReason) -> None:
        super().__init__(0.0)
        self.reason = reason

    def start_at(self, oldest: float, items: int, now: float) -> float:  # noqa: ARG002  no wait is asked for
        """Return a time before all others."""
        return -inf
