"""How many items a batch has, at most, where several run at once and callers come back."""

from __future__ import annotations

from typing import Any, Protocol

from batched._core.hooks import Feature
from batched._core.options import Options
from batched._policy.several import SeveralWindow


class HasWindow(Protocol):
    """What knows how callers come back."""

    window: Any


class EvenBatches(Feature):
    """Leaves to the next worker what is more than the share of one.

    Not where sizes are fixed: a share would be filled up with copies.
    """

    def __init__(self, waiting: HasWindow) -> None:
        self._waiting = waiting

    def configure(self, options: Options) -> None:
        """Take part if several batches may run at once."""
        several = options.max_concurrent_batches > 1 and options.batch_sizes is None
        self.have(*(("room",) if several and options.adaptive else ()))

    def room(self, queue: Any, room: int, now: float) -> int:  # noqa: ARG002  of all keys
        """Return the share of one worker, if that is less."""
        window = self._waiting.window
        share = window.share(self.river.queue.items) if isinstance(window, SeveralWindow) else None
        return room if share is None or share > room else share
