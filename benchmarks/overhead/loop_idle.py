"""The CPU of an event loop in ten seconds without a call, after use, beside a loop that only sleeps."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

from batched import aio
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import SECONDS, Goal, Row
from benchmarks.kit.turns import Turns


def cpu(contender: str, seconds: float) -> float:
    """Return the CPU seconds that the whole process takes while its loop runs, and has used a batcher."""
    return asyncio.run(_idle(seconds, used=contender == "ours"))


async def _idle(seconds: float, *, used: bool) -> float:
    @aio.dynamically(timeout_ms=0)
    async def fn(items: list[Any]) -> list[Any]:
        return items

    if used:
        assert await asyncio.gather(*map(fn, range(1000))) == list(range(1000))
    await asyncio.sleep(0.1)
    before = process_time()
    await asyncio.sleep(seconds)
    return process_time() - before


TURNS = Turns({name: Alone(cpu, (name, (10.0, 0.1))) for name in ("ours", "sleep")}, rounds=3)

ROWS = (Row("idle loop", "CPU of a loop, 10 s idle, after use", TURNS, "sleep", SECONDS, Goal(0.001)),)
