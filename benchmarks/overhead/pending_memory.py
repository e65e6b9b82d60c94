"""What a call of `acall` holds while it waits, beside a task that waits for a future of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import batched
from benchmarks.kit.bare import Gate
from benchmarks.kit.measure import peak_rss
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import BYTES, Goal, Row
from benchmarks.kit.turns import Turns


def growth(contender: str, size: int) -> float:
    """Return the bytes that each of `size` tasks takes while it waits for its answer."""
    return asyncio.run(_ours(size) if contender == "ours" else _own_futures(size))


async def _ours(size: int) -> float:
    gate = Gate()
    fn = batched.dynamically(gate.echo, timeout_ms=0)
    first = asyncio.create_task(fn.acall(-1))
    await gate.hold()
    grown = await _grown(fn.acall, size, gate.open)
    assert await first == -1
    return grown


async def _own_futures(size: int) -> float:
    futures: list[Any] = [None] * size  # before anything is measured: a bare task keeps no list

    async def wait(item: int) -> Any:
        futures[item] = future = asyncio.get_running_loop().create_future()
        return await future

    def release() -> None:
        for item, future in enumerate(futures):
            future.set_result(item)

    return await _grown(wait, size, release)


async def _grown(
    acall: Callable[[Any], Coroutine[Any, Any, Any]], size: int, release: Callable[[], None]
) -> float:
    before = peak_rss()
    tasks = [asyncio.create_task(acall(item)) for item in range(size)]
    await asyncio.sleep(0)  # every task runs up to its wait
    grown = peak_rss() - before
    release()
    assert await asyncio.gather(*tasks) == list(range(size))
    return grown / size


GROWTH = Turns({name: Alone(growth, (name, (100_000, 1_000))) for name in ("ours", "own future")}, rounds=3)

ROWS = (Row("pending memory", "100k pending acalls, each", GROWTH, "own future", BYTES, Goal(450.0)),)
