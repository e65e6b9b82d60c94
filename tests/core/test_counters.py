"""The counters, and their snapshot as a table."""

from __future__ import annotations

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.counters import Counters


def test_the_table_says_waits_of_one_length_as_they_were() -> None:
    """Not as the bucket that they fell into; long times in full."""
    counters = Counters()
    batch = Batch([(Call().begin(None, [], 5000, True, 0.0), 0, 5000)], 5000, "full")
    counters.left(batch.slices, batch.size, 0.0011)
    counters.ran(batch, 12.345)
    text = str(
        counters.snapshot(waiting=0, running=[(1, 1234.5)], again=0, fits=None, best=None, learned=None)
    )
    assert "wait                mean 1.1, p50 1.1, p90 1.1, p99 1.1, max 1.1 ms\n" in text
    assert "processing          mean 12,345, p50 12,345, p90 12,345, p99 12,345, max 12,345 ms" in text
    assert "1 (batches since: 1,234 s)" in text
