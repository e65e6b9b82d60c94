"""The shipped scheduler, and the published rules of others in their own words, for simulation."""

from __future__ import annotations

from collections import deque

from batched._call import Batch, Call
from batched._patience import Regroup, Window
from batched._scheduler import Scheduler

__all__ = ["Shipped", "greedy", "learned", "window"]


class Shipped:
    """The scheduler that ships, with the patience that it is given."""

    def __init__(self, batch_size: int, patience: Window) -> None:
        self.scheduler = Scheduler(
            name="simulated", batch_size=batch_size, small_batch_threshold=8, patience=patience
        )
        self.patience = patience
        self.awaited = self.scheduler.awaited
        self._inbox: deque[Call] = deque()
        self.push = self._inbox.append
        self._batch: Batch | None = None

    def delay(self, now: float) -> float | None:
        """Empty the inbox and ask the scheduler."""
        if self._inbox:
            self.scheduler.push_all(self._inbox)
        return self.scheduler.delay(now)

    def pop(self, now: float) -> int:
        """Take what the scheduler gives."""
        self._batch = self.scheduler.pop(now)
        return self._batch.size

    def done(self, started: float, now: float) -> list[Call]:  # noqa: ARG002  the scheduler knows
        """Answer as a batch does."""
        assert self._batch is not None
        answered = []
        for call, start, stop in self._batch.slices:
            call.missing -= stop - start
            if not call.missing:
                answered.append(call)
        self.scheduler.done(self._batch, now)
        return answered


def learned(batch_size: int, timeout_s: float = 1.0) -> Shipped:
    """Return what ships by default."""
    return Shipped(batch_size, Regroup(timeout_s, batch_size))


def window(batch_size: int, timeout_s: float) -> Shipped:
    """Return what ships as `adaptive=False`."""
    return Shipped(batch_size, Window(timeout_s))


def greedy(batch_size: int) -> Shipped:
    """Return what ships as `timeout_ms=0`."""
    return window(batch_size, 0.0)
