"""The figures of a batcher, made up: what `explain` is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batched._core.counters import Counters
from batched._core.histograms import Sizes, Times
from batched._core.stats import Distribution, Padding, Stats
from batched._policy.window import Learned

LEARNED = Learned(batch_ms=4.0, item_ms=0.5, wait_ms=0.0, capacity=1600.0)
LENGTHS = replace(LEARNED, item_ms=0.25, length_ms=0.025, mean_length=10.0, uses_lengths=True)
UNKNOWN = replace(LEARNED, batch_ms=None, item_ms=None, capacity=None)
ONE_SIZE = replace(UNKNOWN, sizes_differ=False)
EMPTY = Counters().snapshot()


def sizes(**batches: int) -> Distribution:
    """Return how many batches had which size: `sizes(of_20=3)`."""
    seen = Sizes()
    for size, times in batches.items():
        seen.add(int(size.removeprefix("of_")), times)
    return seen.snapshot()


def times(*seconds: float) -> Distribution:
    """Return the distribution of so many seconds."""
    seen = Times()
    seen.add([*seconds])
    return seen.snapshot()


def stats(**changes: Any) -> Stats:
    """Return the figures of 100 batches of about 20 items, with `changes`."""
    usual = replace(
        EMPTY,
        total_batches=100,
        total_processed=2000,
        total_accepted=2000,
        processing_time=times(*[0.014] * 100),
        closed={"full": 10, "no gain": 90},
        learned=LEARNED,
        wait=times(*[0.002] * 100),
        batch_size=sizes(of_10=50, of_30=50),
    )
    return replace(usual, **changes)


ALONE: dict[str, Any] = {"batch_size": sizes(of_1=95, of_2=5)}
ALL_FULL = {"full": 90, "no gain": 10}
LEFT: dict[str, Any] = {"closed": ALL_FULL, "wait": times(*[0.02] * 100)}
"""Batches that leave out as many items as they have."""
PADDED = Padding(75, 100, 24)
OUTAGE: dict[str, Any] = {"total_failed": 2000, "learned": None}
