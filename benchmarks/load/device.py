"""The batch functions of these benchmarks: they sleep, as functions that wait for an accelerator do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from benchmarks.kit.bare import Function, capacity, device
from benchmarks.kit.measure import Effort
from benchmarks.kit.turns import Contender, Measure

__all__ = ["BATCH", "FAST", "LOADS", "SLOW", "at_capacity", "full_rate", "slow"]

BATCH = 32
FAST = (2.0, 0.05)  # ms for a batch, and for each item of it
SLOW = (4.0, 0.1)
LOADS = (10, 30, 60, 80, 95)  # % of the capacity


def slow() -> Function:
    """Return the function of 4 ms + 0.1 ms an item. Call this in the thread that is to wake on time."""
    return device(*SLOW)


@cache
def full_rate(*, quick: bool) -> float:
    """Return the items a second of the slow function in full batches: measured once for all contenders."""
    return capacity(slow(), BATCH, 0.05 if quick else 1.0)


def at_capacity(function: Callable[[], Function]) -> Contender:
    """Return the contender that runs full batches back to back; its figure is the items a second."""

    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        run = function()
        yield lambda: capacity(run, BATCH, effort.of(1.0, 0.05))

    return contender
