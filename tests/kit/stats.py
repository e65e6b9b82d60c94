"""What the stats of any batcher must say."""

from __future__ import annotations

from typing import Any

from tests.kit.gate import until


def check_sums(fn: Any) -> None:
    """Wait until no call waits or runs, and check that every item was counted once."""
    until(lambda: fn.stats.queue_size == fn.stats.running_items == 0)
    stats = fn.stats
    assert adds_up(stats)


def adds_up(stats: Any) -> bool:
    """Whether every item that was accepted is counted once, where none waits or runs."""
    done: int = stats.total_processed + stats.total_cancelled + stats.total_expired
    return bool(stats.total_accepted == done)
