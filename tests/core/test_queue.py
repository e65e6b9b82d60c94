"""The waiting calls of one batcher."""

from __future__ import annotations

import weakref

import pytest

from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed, single


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_a_large_call_that_has_ended_is_not_kept(ends: str) -> None:
    """Though others wait, or the last items that waited were taken."""
    options = Options(batch_size=2, timeout_ms=0, small_batch_threshold=1, isolate_errors=False)
    driver = ManualDriver(options, Queue, COLLATOR)
    call = listed(6)
    driver.push(call)
    assert driver.delay(1.0) == 0.0
    batch = driver.pop(1.0)
    driver.push(single(), single(), single())
    if ends == "failed":
        assert driver.fail(batch, ValueError(), 2.0) == [call]
    else:
        call.left = "cancelled"
        driver.drop(call)
        driver.run(batch, 2.0)
    batch.clear()
    gone = weakref.ref(call)
    del call
    assert driver.queue.items == 3
    assert gone() is None
