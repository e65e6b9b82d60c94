"""Ways to read a map, sources for one, and an item that callbacks do not take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.kit.flavours import Flavour

BAD = 3.5
"""An item that the callbacks below do not take."""


def picky(item: Any) -> int:
    """Take any item but one, as a `length`, `group_by` or `cache_key` may."""
    if item == BAD:
        raise KeyError("no such item")
    return int(item)


def read(flavour: Flavour, fn: Any, *sources: Any) -> tuple[list[Any], BaseException | None]:
    """Return the answers that a map gives, and the error that ends it."""
    answers: list[Any] = []

    async def consume() -> None:
        async for answer in fn.amap(*sources):
            answers.append(answer)

    try:
        if flavour.in_tasks:
            flavour.run(consume())
        else:
            for answer in fn.map(*sources):
                answers.append(answer)  # noqa: PERF402  those before an error are to be kept
    except Exception as error:
        return answers, error
    return answers, None


def noted(items: Any, seen: list[Any]) -> Iterator[Any]:
    """Yield `items`, and note those that have been read."""
    for item in items:
        seen.append(item)
        yield item


async def slowly(items: Any) -> AsyncIterator[Any]:
    """Yield `items`, and let the loop turn between them."""
    for item in items:
        yield item
        await asyncio.sleep(0)
