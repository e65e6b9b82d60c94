"""The CPU of a process in ten seconds without a call, after use, beside one that only sleeps."""

from __future__ import annotations

import asyncio
from time import process_time, sleep

import batched
from benchmarks.kit.bare import echo
from benchmarks.kit.own_process import Alone
from benchmarks.kit.row import SECONDS, Goal, Row
from benchmarks.kit.turns import Turns


def cpu(contender: str, seconds: float) -> float:
    """Return the CPU seconds that the whole process takes while a batcher that was used has nothing to do."""
    fn = batched.dynamically(echo, timeout_ms=0)

    async def use() -> None:
        assert await asyncio.gather(*map(fn.acall, range(1000))) == list(range(1000))

    if contender == "ours":
        asyncio.run(use())
        assert [fn(item) for item in range(1000)] == list(range(1000))
    before = process_time()
    sleep(seconds)
    return process_time() - before


TURNS = Turns({name: Alone(cpu, (name, (10.0, 0.1))) for name in ("ours", "sleep")}, rounds=3)

ROWS = (Row("idle", "CPU of 10 s idle, after use", TURNS, "sleep", SECONDS, Goal(0.001)),)
