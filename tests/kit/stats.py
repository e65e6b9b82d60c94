"""What the stats of any batcher must say."""

from __future__ import annotations

from typing import Any

from tests.kit.gate import until


def check_sums(fn: Any) -> None:
    """Wait until no call waits or runs, and check that every item was counted once."""
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
