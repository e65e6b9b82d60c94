"""The plain window, which learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batched._policy.start_reason import StartReason

if TYPE_CHECKING:
    from batched._policy.learned import Learned

__all__ = ["ANY_NUMBER", "Window"]

ANY_NUMBER = 1 << 60
"""More calls than will ever come."""


class Window:
    """A batch that is not full starts when its oldest item is `timeout_s` old."""

    learns = False
    """Whether it has to be told of calls and batches, as an `AdaptiveWindow`."""
    is_suspended = False
    """Whether batches are so short that no wait can save anything: only `resumes` is asked then."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.awaited = ANY_NUMBER
        """How many more calls end the wait that `start` has asked for."""
        self.reason = StartReason.WINDOW
        """Why the batch starts, once `start` has returned a time that has come."""

    def start(self, oldest: float, items: int, now: float) -> float:  # noqa: ARG002  it learns nothing
        """Return when to start a batch that is not full: `items` wait, the first of them since `oldest`."""
        return oldest + self.timeout_s

    def arrived(self, times: list[float]) -> None:
        """Do nothing: these calls came before `configure` put this window in the place of another."""

    def learned(self) -> Learned | None:
        """Return the figures for the stats."""
        return None
