"""What is made of a function at first use is made once, though several threads use it first at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S


def same(items: list[int]) -> list[int]:
    return items


def at_each_line(
    inside: str, work: Callable[[], Any], meanwhile: Callable[[], Any], skip: int = 0
) -> list[Any]:
    """Return what `meanwhile` returns in another thread, at each line of `inside` but the first ones."""
    found: list[Any] = []
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_qualname != inside:
            return None
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines > skip:
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
    answers = at_each_line("DecoratedFunction._find", lambda: view(0), lambda: view(1))
    assert len(answers) > 5
    assert [type(each) for each in answers] == [KeyError] * len(answers)


@pytest.mark.thread_unsafe(reason="it traces its thread")
def test_all_pickles_name_one_alias() -> None:
    """Of another one, pickle says that it is not what stands under the name."""
    seen = 0
    for skip in range(4):
        fn = batched.dynamically(same)
        aliases = at_each_line("alias_of", lambda: fn.plain_function, lambda: fn.plain_function, skip)
        seen += len(aliases)
        assert {id(each) for each in aliases} <= {id(fn.plain_function)}
    assert seen > 10
