"""The learned window, where a worker waits in it."""

from __future__ import annotations

import time

import batched


def test_a_real_lone_caller_soon_waits_no_more() -> None:
    """With all defaults and a function that takes its time, the worker sees it come back."""

    def answer(items: list[int]) -> list[int]:
        time.sleep(0.005)
        return items

    fn = batched.dynamically(answer)
    for item in range(30):
        assert fn(item) == item
    closed = fn.stats.closed
    assert closed["window"] <= 5
    assert closed["callers back"] >= 10
