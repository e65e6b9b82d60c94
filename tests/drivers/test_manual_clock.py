"""What the driver with the manual clock is for: how long batches wait, without a wait."""

from __future__ import annotations

import pytest

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver


def call(now: float) -> Call:
    """Return a call of one item that comes now."""
    return Call().begin(list, None, 1, False, now)


@pytest.mark.parametrize(("ended", "left"), [(0.03, 0.01), (0.06, 0.0)], ids=["short", "long"])
def test_the_window_counts_from_the_oldest_item(ended: float, left: float) -> None:
    """What has waited behind a running batch is not made to wait again."""
    driver = ManualDriver(Options(batch_size=2, timeout_ms=40))
    driver.push(call(0.0), call(0.0))
    assert driver.delay(0.0) == 0.0
    batch = driver.pop(0.0)
    driver.push(call(0.0))
    driver.finish(batch, ended)
    assert driver.delay(ended) == pytest.approx(left)
