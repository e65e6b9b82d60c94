"""The first call of a function, or of a view, finds its driver: other threads may call meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S

FIND = "DecoratedFunction._find"


def at_each_line(work: Callable[[], Any], meanwhile: Callable[[], Any]) -> list[Any]:
    """Return what `meanwhile` returns in another thread, at each line at which `work` finds a driver."""
    found: list[Any] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_qualname != FIND:
            return None
        if event == "line":
            found.append(others.submit(meanwhile).result(PATIENCE_S))
        return trace

    with ThreadPoolExecutor(1) as others:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
    return found


@pytest.mark.thread_unsafe(reason="it traces its thread")
def test_the_options_of_a_view_hold_for_its_first_calls() -> None:
    """Of each thread that comes while another one finds the driver."""

    @batched.dynamically(timeout_ms=0)
    def fail(items: list[int]) -> list[Any]:
        return [KeyError(item) for item in items]

    view = fail.options(return_exceptions=True)
    answers = at_each_line(lambda: view(0), lambda: view(1))
    assert len(answers) > 5
    assert [type(each) for each in answers] == [KeyError] * len(answers)
