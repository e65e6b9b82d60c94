"""A nearly full stack of one caller harms no other caller: each level of an endless recursion asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import batched
from batched import aio
from batched.errors import BatchError
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.threads import together

LEVELS = 60
"""So many levels ask, those next to the limit: more than there are frames in a step."""

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "max_queue_size": lambda: {"max_queue_size": 1000},
    "on_full": lambda: {"max_queue_size": 1000, "on_full": "wait"},
    "group_by": lambda: {"group_by": abs},
    "fair_by": lambda: {"fair_by": abs},
    "cache": lambda: {"cache": {}},
}

ASKS: dict[str, Callable[[Any, int], object]] = {
    "submit": lambda fn, number: fn.submit(number),
    "cancel": lambda fn, number: fn.submit(number).cancel(),
    "stats": lambda fn, _: fn.stats,
    "configure": lambda fn, number: fn.configure(batch_size=8 + number % 2),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_thread_near_the_recursion_limit_harms_no_other_caller(options: str, ask: str) -> None:
    """The lock is free, and calls in the queue get their answers."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, **OPTIONS[options]())
    first = fn.submit(0)
    gate.wait_for_batch()
    waiting = [fn.submit(number) for number in range(1, 6)]
    asked = 0

    def descend() -> None:
        nonlocal asked
        with contextlib.suppress(RecursionError):
            descend()
        if asked < LEVELS:
            asked += 1
            with contextlib.suppress(RecursionError, BatchError):  # of a key function, it is a cause
                ASKS[ask](fn, 100 + asked)

    together(1, lambda _: descend())
    assert asked == LEVELS
    after = fn.submit(6)
    gate.open()
    assert [call.result(PATIENCE_S) for call in (first, *waiting, after)] == list(range(7))
    fn.shutdown()


@pytest.mark.parametrize("options", OPTIONS)
def test_a_task_near_the_recursion_limit_harms_no_other_caller(options: str) -> None:
    """So it is on event loops."""

    @aio.dynamically(timeout_ms=0, **OPTIONS[options]())
    async def same(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return numbers

    asked = 0

    async def descend() -> None:
        nonlocal asked
        with contextlib.suppress(RecursionError):
            await descend()
        if asked < LEVELS:
            asked += 1
            with contextlib.suppress(RecursionError, BatchError):
                await same(asked)

    async def main() -> None:
        other = asyncio.create_task(others())
        await asyncio.wait_for(descend(), PATIENCE_S)
        await asyncio.wait_for(other, PATIENCE_S)
        assert await asyncio.wait_for(same(-1), PATIENCE_S) == -1

    async def others() -> None:
        for number in range(1000, 1500):
            assert await same(number) == number

    asyncio.run(main())
    assert asked == LEVELS
