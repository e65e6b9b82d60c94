"""Batch functions with `continuous=True`, which tests can watch and hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import batched
from batched import DONE
from tests.kit.gate import PATIENCE_S, Door


class Refilled:
    """A batch function that is refilled: item by item it yields `piece(item, step)`, by its own steps.

    It keeps the rule of `Change`, and checks it. While it is `shut` it holds each step.
    """

    def __init__(self, piece: Callable[[Any, int], Any], *, shut: bool = False) -> None:
        self.piece = piece
        self.began: list[list[Any]] = []
        """The items of each call of the function."""
        self.live: list[list[Any]] = []
        """The items of each step."""
        self.changes: list[batched.Change[Any]] = []
        self.closed = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)
        self._door = Door(shut=shut)

    def __call__(self, items: list[Any]) -> Iterator[Any]:
        """Yield the pieces of what is live."""
        self.began.append([*items])
        rows = [[item, 0] for item in items]
        try:
            while True:
                self.live.append([item for item, _ in rows])
                self._entered.release()
                self._door.wait()
                pieces = [self.piece(item, step) for item, step in rows]
                for row in rows:
                    row[1] += 1
                change = yield pieces
                self.changes.append(change)
                if change:
                    rows = self._changed(rows, change)
                assert rows, "the function is asked for no pieces"
        finally:
            self.closed.release()

    def _changed(self, rows: list[list[Any]], change: batched.Change[Any]) -> list[list[Any]]:
        assert list(change.left) == sorted({*change.left})
        assert all(0 <= at < len(rows) for at in change.left)
        return [row for at, row in enumerate(rows) if at not in change.left] + [[x, 0] for x in change.joined]

    def let_through(self, steps: int = 1) -> None:
        """Let so many steps pass."""
        self._door.let_through(steps)

    def open(self) -> None:
        """Hold no step any more."""
        self._door.open()

    def wait_for_step(self) -> None:
        """Wait until one more step has begun."""
        assert self._entered.acquire(timeout=PATIENCE_S), "no further step came"

    def wait_for_end(self) -> None:
        """Wait until the generator has been closed once more."""
        assert self.closed.acquire(timeout=PATIENCE_S), "the generator was not closed"


def so_many(item: Any, step: int) -> Any:
    """Item `n`, or `(n, ...)`, has the pieces `(item, 0)` to `(item, n - 1)`."""
    length = item[0] if isinstance(item, tuple) else item
    return (item, step) if step < length else DONE


def pieces_of(item: Any) -> list[Any]:
    """Return the pieces of `so_many`."""
    return [(item, step) for step in range(item[0] if isinstance(item, tuple) else item)]
