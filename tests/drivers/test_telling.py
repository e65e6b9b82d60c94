"""`on_batch` is told of one batch after another, by one thread."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from batched._drivers import telling
from batched._drivers.telling import Teller


def test_what_is_told_as_the_thread_starts_or_ends_starts_no_second_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a finalizer, say, or from another event loop, before each bytecode."""
    at = 0
    came = True
    while came:
        at += 1
        started: list[Any] = []
        monkeypatch.setattr(telling, "start_thread", started.append)
        teller = Teller("f", print)
        seen = 0

        def see(frame: FrameType, event: str, _: object, teller: Teller = teller, at: int = at) -> Any:
            nonlocal seen
            if frame.f_code.co_qualname != "Teller._start":
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                seen += 1
                if seen == at:
                    teller.tell("another")  # type: ignore[arg-type]
            return see

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # noqa: SLF001  first: else 3.12 tells of no bytecode
        sys.settrace(see)
        try:
            teller.tell("one")  # type: ignore[arg-type]
        finally:
            sys.settrace(before)
        came = seen >= at
        assert len(started) == 1, at
    assert at > 5
