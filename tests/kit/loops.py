"""Event loops that note their timers, so that a test can say which ones a function takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

KINDS = ["asyncio", "uvloop", "debug"]


def noting(kind: str) -> Any:
    """Return a new event loop of `kind`, whose `timers` are those that were set by `call_later`."""
    base: Any = pytest.importorskip("uvloop").Loop if kind == "uvloop" else asyncio.SelectorEventLoop

    class Noting(base):
        def __init__(self) -> None:
            super().__init__()
            self.set_debug(kind == "debug")
            self.timers: list[asyncio.TimerHandle] = []

        def call_later(self, *args: Any, **named: Any) -> asyncio.TimerHandle:
            timer: asyncio.TimerHandle = super().call_later(*args, **named)
            self.timers.append(timer)
            return timer

    return Noting()
