"""Why a batch starts."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["StartReason"]


class StartReason(StrEnum):
    """Why a batch started, by the names that `stats.closed` and the metrics use."""

    FULL = "full"
    """As many items waited as a batch may have."""
    CALLERS_BACK = "callers back"
    """All callers of the last batch had called again."""
    NO_GAIN = "no gain"
    """A wait for more calls would have cost more than it saves."""
    WAITED = "waited"
    """The wait for more calls had lasted as long as it was worth."""
    TRIAL = "trial"
    """Early on: batches of several sizes tell the cost of a batch from that of an item."""
    WINDOW = "window"
    """The oldest item was `timeout_ms` old."""
    DEADLINE = "deadline"
    """Half of the time that a call's deadline allows was spent."""
    CROWDED = "crowded"
    """Other calls waited for room in the queue."""
    DRAIN = "drain"
    """The batcher was shutting down."""
    RETRY = "retry"
    """It was a half of a batch that had failed."""
