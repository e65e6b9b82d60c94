"""Batchers for event loops, each around an `async def` that does nothing, in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.kit.ours import dynamically_on_loops
from benchmarks.kit.own_process import Alone
from benchmarks.kit.turns import Turns

__all__ = ["BATCH", "beside", "contender", "echo"]

BATCH = 32

One = Callable[[Any], Awaitable[Any]]
Many = Callable[[list[Any]], Awaitable[list[Any]]]


async def echo(items: list[Any]) -> list[Any]:
    """Do nothing."""
    return items


@asynccontextmanager
async def contender(name: str) -> AsyncIterator[tuple[One, Many]]:
    """Provide how a contender answers one item, and many, by an `async def` and without a wait."""
    if name == "aiodataloader":
        from aiodataloader import DataLoader  # noqa: PLC0415

        loader = DataLoader(echo, max_batch_size=BATCH, cache=False)  # the others have none
        yield loader.load, loader.load_many
    elif name == "async-batcher":
        from async_batcher.batcher import AsyncBatcher  # noqa: PLC0415

        class Echo(AsyncBatcher):  # type: ignore[misc]
            async def process_batch(self, batch: list[Any]) -> list[Any]:
                return batch

        batcher = Echo(max_batch_size=BATCH, max_queue_time=0)
        yield batcher.process, lambda items: asyncio.gather(*map(batcher.process, items))
        await batcher.stop(force=True)
    else:  # ours, or 0.1.5: whichever `batched` is found first
        fn = dynamically_on_loops(echo, batch_size=BATCH)
        yield fn, fn


def beside(rival: str, function: Callable[[str, int], float], size: tuple[int, int]) -> Turns:
    """Return the turns of ours and a rival; `function` is called with the name of a contender and a size."""
    return Turns(
        {"ours": Alone(function, ("ours", size)), rival: Alone(function, (rival, size), rival=rival)},
        rounds=5,
    )
