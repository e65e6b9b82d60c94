"""The plain window, and what every rule for the start of a batch can be told and asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batched._policy.start_reason import StartReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batched._policy.learned import Learned

__all__ = ["ANY_NUMBER", "Arrival", "Window"]

ANY_NUMBER = 1 << 60
"""More calls than will ever come."""


class Arrival(Protocol):
    """A call, as far as a window looks at it."""

    @property
    def arrived(self) -> float:
        """When the call came."""
        ...


class Window:
    """The plain window: a batch that is not full starts when its oldest item is `timeout_s` old.

    It learns nothing, so `start` is all that it is asked. The other methods are for rules that learn.
    """

    learns = False
    """Whether it has to be told of calls and batches."""
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

    def arrived(self, calls: Sequence[Arrival]) -> None:
        """Learn that `calls`, one at least, have come, in about this order."""

    def popped(self, now: float) -> None:
        """Learn that a batch starts."""

    def ran(self, size: int, duration: float) -> None:
        """Learn that a batch of `size` items took so long, of a list that goes on while no call comes."""

    def done(self, size: int, calls: int, answered: int, now: float, started: float | None) -> None:
        """Learn that a batch of `size` items, of `calls` calls, has ended and `answered` of them with it.

        `now` is before the first of their callers could call again. `started` is None if the batch failed.
        """

    def resumes(self, size: int, duration: float) -> bool:  # noqa: ARG002  it is never suspended
        """Return whether a batch of `size` items took so long that it is suspended no longer."""
        return False

    def chunk(self) -> int | None:
        """Return how many items of large calls may share a batch while small ones come; None: all."""
        return None

    @property
    def cohorts(self) -> int:
        """The number of batches that it has learned from, as to what their callers did next."""
        return 0

    def learned(self) -> Learned | None:
        """Return the figures for the stats."""
        return None
