"""Calls as a collator makes them, to be queued by hand."""

from __future__ import annotations

from batched._core.call import Call
from tests.kit.batcher_rules import echo


def single() -> Call:
    """Return a call of one item, which came at time 0."""
    return Call().begin(echo, 1, 1, False, 0.0)


def listed(size: int, arrived: float = 0.0) -> Call:
    """Return a call of a list."""
    return Call().begin(echo, list(range(size)), size, True, arrived)
