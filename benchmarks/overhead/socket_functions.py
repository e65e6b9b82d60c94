"""The functions that a server holds, and that are called in its clients' own process too."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.kit.ours import dynamically

__all__ = ["BIG_BYTES", "FLOATS", "echo", "floats", "list_of_floats", "measured", "on_demand"]

FLOATS = 384  # of a vector of MiniLM
BIG_BYTES = 16_000_000

_BIG = np.ones(BIG_BYTES // 4, np.float32)


@dynamically
def echo(items: list[Any]) -> list[Any]:
    """Do nothing."""
    return items


@dynamically
def floats(items: list[Any]) -> Any:
    """Return a row of an array for each item, as a model does."""
    return np.zeros((len(items), FLOATS), np.float32)


@dynamically
def list_of_floats(items: list[Any]) -> list[list[float]]:
    """Return a list of its own for each item, as `tolist` makes them.

    Of one list for all items the calls would have copies, which take longer than all the rest of a call.
    """
    rows: list[list[float]] = floats.__wrapped__(items).tolist()
    return rows


@dynamically
def measured(items: list[Any]) -> list[int]:
    """Return how many bytes each array has."""
    return [item.nbytes for item in items]


@dynamically
def on_demand(items: list[Any]) -> list[Any]:
    """Return a big array for each item."""
    return [_BIG] * len(items)
