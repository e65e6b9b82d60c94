"""Callers that do at random what callers may do, and check every answer; functions for them."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from tests.kit.optional import HAS_TORCH, torch


class Odd(Exception):
    """What the function makes of some items."""


def answer(item: int) -> Any:
    """Return what the function makes of one item."""
    return Odd(item) if item % 97 == 0 else item * 3


def function(items: list[int]) -> list[Any]:
    """Answer a batch; some batches fail, and large ones take a millisecond."""
    if any(item % 1009 == 0 for item in items):
        raise ValueError("a whole batch fails")
    if len(items) > 20:
        time.sleep(0.001)
    return [answer(item) for item in items]


def short_of_memory(items: list[int]) -> list[Any]:
    """Answer a batch, unless it is larger than the memory."""
    if len(items) > 24:
        raise MemoryError
    return function(items)


class Caller:
    """One random caller; counts what it asked and what came of it."""

    def __init__(self, fn: Any, seed: int, turns: int) -> None:
        self.fn = fn
        self.rng = random.Random(seed)
        self.turns = turns
        self.asked = self.answered = self.failed = self.late = self.cancelled = 0

    def draw(self) -> tuple[Any, Any]:
        """Return a view of the function and what to ask it."""
        rng = self.rng
        size = rng.choice([0, 1, 1, 1, 2, 5, 40, 300])
        items = [rng.randrange(1, 10**6) for _ in range(size)]
        options: dict[str, Any] = {}
        if rng.random() < 0.2:
            options["deadline_ms"] = rng.choice([0.05, 0.5, 5, 5000])
        if rng.random() < 0.2:
            options["priority"] = rng.choice(["bulk", "interactive"])
        if rng.random() < 0.3:
            options["return_exceptions"] = True
        self.asked += 1
        return self.fn.options(**options) if options else self.fn, items or rng.randrange(1, 10**6)

    def check(self, asked: Any, got: Any) -> None:
        """Every row is that item's own answer, or an error that it could have got."""
        pairs = zip(asked, got, strict=True) if isinstance(asked, list) else [(asked, got)]
        for item, row in pairs:
            if isinstance(row, Odd):
                assert (row.args, item % 97) == ((item,), 0)
            elif not isinstance(row, ValueError | TimeoutError):  # the latter in place, of a map
                assert row == item * 3
        self.answered += 1

    def note(self, asked: Any, error: BaseException) -> None:
        """Only errors that the caller has earned may reach it."""
        if isinstance(error, TimeoutError):
            self.late += 1
        elif isinstance(error, Odd):
            assert error.args[0] in (asked if isinstance(asked, list) else [asked])
            self.failed += 1
        else:
            assert str(error) == "a whole batch fails"
            self.failed += 1

    def in_a_thread(self) -> Caller:
        """Call, submit, cancel and map, so many times."""
        for _ in range(self.turns):
            fn, asked = self.draw()
            try:
                if self.rng.random() < 0.3:
                    future = fn.submit(asked)
                    if self.rng.random() < 0.3:
                        future.cancel()
                    self.check(asked, future.result(30))
                elif self.rng.random() < 0.05:
                    self.map(fn)
                else:
                    self.check(asked, fn(asked))
            except CancelledError:
                self.cancelled += 1
            except (TimeoutError, Odd, ValueError) as error:
                self.note(asked, error)
        return self

    def map(self, fn: Any) -> None:
        """Ask for many at once, and forget what was drawn."""
        self.check([5] * 200, list(fn.map(iter([5] * 200))))

    async def in_a_task(self) -> Caller:
        """The same from an event loop."""
        for _ in range(self.turns):
            fn, asked = self.draw()
            task = asyncio.ensure_future(fn.acall(asked))
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.choice([0, 0.0001, 0.001]))
                task.cancel()
            try:
                self.check(asked, await task)
            except asyncio.CancelledError:
                self.cancelled += 1
            except (TimeoutError, Odd, ValueError) as error:
                self.note(asked, error)
        return self

    async def tasks(self, count: int) -> list[Caller]:
        """Many tasks on one loop."""
        callers = [type(self)(self.fn, self.rng.randrange(10**9), self.turns) for _ in range(count)]
        return await asyncio.gather(*(caller.in_a_task() for caller in callers))


def array_function(features: dict[str, Any]) -> dict[str, Any]:
    """Answer a batch of arrays; as `function` does, some fail and large ones take a while."""
    x = features["x"]
    if random.random() < 0.02:
        raise ValueError("a whole batch fails")
    if len(x) > 20:
        time.sleep(0.001)
    return {"tokens": x * 3, "sums": x.sum(1)}


class ArrayCaller(Caller):
    """The same with arrays of two libraries, dtypes and ranks, of any length, in blocks and ragged lists."""

    def draw(self) -> tuple[Any, Any]:
        """Return a view of the function and what to ask it."""
        fn, _ = super().draw()
        rng = self.rng
        size = rng.choice([0, 1, 1, 1, 2, 5, 40])
        ragged = size > 0 and rng.random() < 0.3
        trailing = rng.choice([(), (2,)])
        dtype = rng.choice([np.float32, np.int64])
        lengths = [rng.randrange(9) for _ in range(size or 1)]
        shapes = [(length if ragged else lengths[0], *trailing) for length in lengths]
        rows: list[Any] = [np.full(shape, rng.randrange(1, 100), dtype) for shape in shapes]
        if rng.random() < 0.5 and HAS_TORCH:
            rows = [torch.from_numpy(row) for row in rows]
        if ragged:
            return fn, {"x": rows}
        block = np.stack(rows) if isinstance(rows[0], np.ndarray) else torch.stack(rows)
        return fn, {"x": block[:size]}

    def check(self, asked: Any, got: Any) -> None:
        """Every row is that row's own answer, of its own length, dtype and library."""
        if not isinstance(got, ValueError):
            for row, tokens, total in zip(asked["x"], got["tokens"], got["sums"], strict=True):
                assert (type(tokens), tokens.dtype, tokens.shape) == (type(row), row.dtype, row.shape)
                assert (tokens == row * 3).all()
                assert (total == row.sum(0)).all()
        self.answered += 1

    def map(self, fn: Any) -> None:
        """Ask for some at once, and forget what was drawn."""
        self.asked -= 1
        asked = [self.draw()[1] for _ in range(20)]
        before = self.answered
        answers = fn.options(return_exceptions=True, deadline_ms=None).map(asked)
        for one, answer in zip(asked, answers, strict=True):
            self.check(one, answer)
        assert self.answered == before + 20
