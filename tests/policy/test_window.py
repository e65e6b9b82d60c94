"""The plain window, which holds until something is learned."""

from __future__ import annotations

import pytest

from tests.kit.server import TIMEOUT_S, adaptive


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
