"""Stages on event loops: when a loop looks for the next batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batched import aio
from batched._core.batcher import Batcher
from tests.kit.gate import PATIENCE_S

TURNS = 60


class Outage:
    """A function with a stage that fails until it is over; then a single item waits until it may go on."""

    def __init__(self) -> None:
        self.is_over = False
        self.runs_ahead, self.goes_on = asyncio.Event(), asyncio.Event()
        self.fn = aio.dynamically(self.answer, prepare=self.prepare, timeout_ms=0)

    async def prepare(self, items: list[int]) -> list[int]:
        """Return the items."""
        return items

    async def answer(self, items: list[int]) -> list[int]:
        """Return the items, if it is over."""
        if not self.is_over:
            raise RuntimeError("503")
        if len(items) == 1:
            self.runs_ahead.set()
            await self.goes_on.wait()
        return items

    async def ask(self) -> Any:
        """Ask for eight items."""
        return await self.fn.options(return_exceptions=True)([*range(8)])

    async def ends(self) -> asyncio.Task[Any]:
        """Return a call of which, when it is over, one item runs and the others wait for its end."""
        while True:  # by chance, one item of every other batch runs ahead
            self.is_over = False
            while not self.fn.stats.isolation_paused:
                await self.ask()
            self.is_over = True
            asked = asyncio.create_task(self.ask())
            ahead = asyncio.create_task(self.runs_ahead.wait())
            await asyncio.wait({asked, ahead}, return_when=asyncio.FIRST_COMPLETED)
            ahead.cancel()
            if self.runs_ahead.is_set():
                return asked


def test_a_loop_does_not_look_again_and_again_while_a_part_waits_for_the_end_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, plan = [0], Batcher.plan

    def noted(batcher: Batcher, now: float) -> float | None:
        looks[0] += 1
        return plan(batcher, now)

    monkeypatch.setattr(Batcher, "plan", noted)

    async def turns() -> None:
        outage = Outage()
        asked = await outage.ends()
        looks[0] = 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert looks[0] < TURNS // 10
        outage.goes_on.set()
        assert await asked == [*range(8)]
        await outage.fn.aclose()

    asyncio.run(asyncio.wait_for(turns(), PATIENCE_S))
