"""The plain window, which holds until something is learned."""

from __future__ import annotations

import pytest

from batched._policy.window import short
from tests.kit.server import TIMEOUT_S, adaptive


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (2.15e-15, "0"),
        (5e-5, "0.00005"),
        (0.00123, "0.00123"),
        (12.345, "12.3"),
        (1234567.0, "1,234,567"),
    ],
)
def test_a_figure_is_short_and_has_no_exponent(value: float, shown: str) -> None:
    """Three digits, or all before the point."""
    assert short(value) == shown


def test_a_burst_within_the_first_window_is_one_batch() -> None:
    """Nothing is known yet: the batch starts when its oldest item is `timeout_ms` old."""
    server = adaptive(batch_size=64)
    for number in range(32):
        server.call(1 + number * TIMEOUT_S / 33)
    server.run(1)
    assert server.batches == [32]
    assert server.held == pytest.approx([TIMEOUT_S])


def test_ten_callers_make_two_full_batches() -> None:
    """With `batch_size=5` and a window that they are all in."""
    server = adaptive(batch_size=5, timeout_s=0.05)
    for number in range(10):
        server.call(number * 0.001)
    server.run(2)
    assert server.batches == [5, 5]
