"""Batch functions that yield, which tests can watch and hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from batched import DONE
from tests.kit.gate import PATIENCE_S, Door


class Steps:
    """A batch function that yields `rows(items, step)` until that is None; while shut, it holds each step."""

    def __init__(self, rows: Any, *, shut: bool = False) -> None:
        self.rows = rows
        self.batches: list[list[Any]] = []
        self.steps = 0
        self.closed = threading.Event()
        self.entered = threading.Semaphore(0)
        self._door = Door(shut=shut)

    def __call__(self, items: list[Any]) -> Iterator[Any]:
        """Yield the pieces of a batch."""
        self.batches.append(list(items))
        step = 0
        try:
            while True:
                self.entered.release()
                self._door.wait()
                pieces = self.rows(items, step)
                if pieces is None:
                    return
                step += 1
                self.steps += 1
                yield pieces
        finally:
            self.closed.set()

    def let_through(self, steps: int = 1) -> None:
        """Let so many steps pass."""
        self._door.let_through(steps)

    def open(self) -> None:
        """Hold no step any more."""
        self._door.open()

    def wait_for_step(self) -> None:
        """Wait until one more step has begun."""
        assert self.entered.acquire(timeout=PATIENCE_S), "no further step came"


def counting(items: list[int], step: int) -> list[Any] | None:
    """Item `n` has the pieces `(n, 0)` to `(n, n - 1)`."""
    if step >= max(items):
        return None
    return [(item, step) if step < item else DONE for item in items]


def endless(items: list[Any], step: int) -> list[Any]:
    """Each item has one more piece at each step."""
    return [(item, step) for item in items]
