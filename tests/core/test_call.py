"""What one caller asks for."""

from __future__ import annotations

import pytest

from batched._core.call import Call


@pytest.mark.parametrize("arrived", [0.0, 70_000.7, 12_345_678.9])
@pytest.mark.parametrize("asked_ms", ["0.001", "0.1", "33.3", "250", "3600000", "1234567.25"])
def test_a_missed_deadline_is_named_as_it_was_asked_however_long_the_clock_has_run(
    arrived: float, asked_ms: str
) -> None:
    deadline = arrived + float(asked_ms) / 1000
    call = Call().begin(len, None, 1, False, arrived, deadline)  # type: ignore[arg-type]
    assert call.overdue("f") == f"f did not answer within deadline_ms={asked_ms}"
