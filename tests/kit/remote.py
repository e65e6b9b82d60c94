"""A cache that callers await, and a batch function that notes what it runs."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.gate import turns_until


class Remote:
    """A cache on a server, which holds the questions for some keys for as long as it is told."""

    def __init__(self, known: dict[Any, Any] | None = None) -> None:
        self.kept: dict[Any, Any] = dict(known or {})
        self.held: set[Any] = set()  # ("get", key) or ("set", key)
        self.asked: list[Any] = []
        self.refused: set[Any] = set()
        self.listens = True  # to the first cancel; to the second in any case, so that the loop can end
        self.opened = asyncio.Event()

    async def get(self, key: Any) -> Any:
        await self._question("get", key)
        return self.kept.get(key)

    async def set(self, key: Any, value: Any) -> Any:
        await self._question("set", key)
        self.kept[key] = value

    async def _question(self, what: str, key: Any) -> None:
        self.asked.append((what, key))
        await asyncio.sleep(0)
        if key in self.refused:
            raise ValueError(f"{what} {key}")
        listens = self.listens
        while (what, key) in self.held and not self.opened.is_set():
            try:
                await self.opened.wait()
            except asyncio.CancelledError:
                if listens:
                    raise
                listens = True

    async def until_asked(self, what: str, key: Any) -> None:
        """Wait until that question has come."""
        await turns_until(lambda: (what, key) in self.asked)


class Model:
    """A batch function that notes what it runs."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        """Note the items."""
        self.ran += items
        return [KeyError(item) if item == "bad" else ("out", item) for item in items]


def check_counts(fn: Any, **expected: int) -> None:
    """Check some of the counters, and that all add up."""
    stats = fn.stats
    ended = stats.total_processed + stats.total_cancelled + stats.total_expired
    assert stats.total_accepted == ended + stats.queue_size + stats.running_items
    assert {name: getattr(stats, f"total_{name}") for name in expected} == expected
