"""What is left of a batched function with a cache once no call waits."""

from __future__ import annotations

from typing import Any

from batched._parts.in_flight import Item
from tests.kit.gate import until
from tests.kit.kept import batchers, kept_by


def nothing_is_left(fn: Any) -> None:
    """Wait until no call waits, and check that no item in flight is remembered."""
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    for batcher in batchers(fn):
        assert not kept_by(batcher.in_flight, Item)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
