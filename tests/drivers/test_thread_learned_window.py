"""The learned window, where a worker waits in it."""

from __future__ import annotations

import sys
from time import monotonic

import pytest

import batched


def test_a_real_lone_caller_soon_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all defaults and a function that takes its time, the worker sees it come back."""
    spent = 0.0

    def answer(items: list[int]) -> list[int]:
        nonlocal spent
        spent += 0.005  # by the clock of the package
        return items

    for name, module in sorted(sys.modules.items()):
        if name.startswith("batched.") and hasattr(module, "monotonic"):
            monkeypatch.setattr(module, "monotonic", lambda: monotonic() + spent)
    fn = batched.dynamically(answer)
    for item in range(30):
        assert fn(item) == item
    closed = fn.stats.closed
    assert closed["window"] <= 5
    assert closed["callers back"] >= 10
    fn.shutdown()
