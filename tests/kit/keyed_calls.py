"""A batcher with a queue for each key, told the time by hand, and calls with keys."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver

COLLATOR = ListCollator("f")


WINDOW_S = 10.0


def driver_of(batch_size: int, threshold: int = 8) -> tuple[ManualDriver, KeyedQueues]:
    """Return a driver with a queue for each key, and these queues."""
    options = Options(
        batch_size=batch_size, small_batch_threshold=threshold, timeout_ms=WINDOW_S * 1000, adaptive=False
    )
    driver = ManualDriver(options, KeyedQueues, COLLATOR)
    assert isinstance(driver.queue, KeyedQueues)
    return driver, driver.queue


def call_of(key: Any, size: int = 1, arrived: float = 0.0, deadline: float | None = None) -> Call:
    """Return a call of `size` items of one key."""
    same = SimpleNamespace(__wrapped__=lambda items: items)
    call = Call().begin(same, [key] * size, size, True, arrived, deadline)
    call.key = key
    return call


def run_all(driver: ManualDriver, now: float) -> Iterator[Batch]:
    """Yield the batches that are due, each run to its end."""
    while driver.delay(now) == 0.0:
        batch = driver.pop(now)
        slices = batch.slices[:]
        driver.run(batch, now)
        batch.slices[:] = slices
        yield batch


def keys_of(batches: Iterator[Batch]) -> list[Any]:
    """Return the key and the size of each batch."""
    return [(batch.slices[0][0].key, batch.size) for batch in batches]
