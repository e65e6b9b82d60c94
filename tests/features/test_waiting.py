"""Which delay policy the options ask for."""

from __future__ import annotations

from typing import Any

import pytest

from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.waiting import Waiting
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.window import Window
from tests.kit.calls import single


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, AdaptiveWindow),
        ({"adaptive": False}, Window),
        ({"timeout_ms": 0}, Window),
        ({"batch_size": 1}, Window),
    ],
)
def test_without_learning_there_is_the_plain_window(options: dict[str, Any], kind: type[Window]) -> None:
    """And nothing is kept of what happens."""
    driver = ManualDriver(Options(**{"timeout_ms": 0.1, **options}))
    now = 0.0
    for _ in range(20):
        call = single()
        call.arrived = now
        driver.push(call)
        now += driver.delay(now) or 0.0
        assert driver.delay(now) == 0.0
        batch = driver.pop(now)
        now += 0.001
        assert driver.finish(batch, now) == [call]
    assert type(driver.batcher.feature(Waiting).window) is kind
    assert (driver.stats(now).learned is None) == (kind is Window)
