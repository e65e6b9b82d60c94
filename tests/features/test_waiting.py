"""Whether a wait is learned, by the options."""

from __future__ import annotations

from typing import Any

import pytest

import batched
from batched.testing import manual_clock


@pytest.mark.parametrize(
    ("options", "learns"),
    [({}, True), ({"adaptive": False}, False), ({"timeout_ms": 0}, False), ({"batch_size": 1}, False)],
)
def test_only_a_wait_that_may_pay_is_learned(options: dict[str, Any], learns: bool) -> None:
    """And nothing is kept of what happens."""
    fn = batched.dynamically(list, **{"timeout_ms": 0.1, **options})
    clock = manual_clock(fn, takes_ms=1)
    for item in range(20):
        call = clock.call(item)
        clock.step()
        assert call.result() == item
    assert (clock.stats.learned is not None) == learns
