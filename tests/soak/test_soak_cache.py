"""Calls with a cache that are answered at their deadline."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import batched


@pytest.mark.soak
def test_a_call_that_is_answered_at_its_deadline_has_its_own_answer() -> None:
    """Not the list that answers are gathered in: once in some thousand calls, at a low switch interval."""
    numbers = itertools.count()

    @batched.dynamically(batch_size=4, timeout_ms=0, cache={})
    def halves(items: list[int]) -> list[float]:
        time.sleep(0.0005)
        return [item + 0.5 for item in items]

    def ask(_: int) -> None:
        for item in itertools.islice(numbers, 10_000):
            with contextlib.suppress(TimeoutError):
                assert halves.options(deadline_ms=0.55 + item % 20 / 10)(item) == item + 0.5

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, range(3)))
    finally:
        sys.setswitchinterval(before)
