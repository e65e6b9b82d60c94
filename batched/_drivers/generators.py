"""Batch functions that are generators: each step yields the next piece of every item."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

_UNCLOSED = "%s: could not close the generator"

_logger = logging.getLogger("batched")


def run_steps(steps: Any, step: Callable[[Any], bool], name: str) -> None:
    """Hand all that `steps` yields to `step`, as long as that returns that more is wanted."""
    try:
        for pieces in steps:
            if not step(pieces):
                break
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            try:
                close()
            except BaseException:  # its callers have their pieces
                _logger.exception(_UNCLOSED, name)


async def walk_steps(
    steps: AsyncGenerator[Any],
    step: Callable[[Any], bool],
    name: str,
    turn: Awaitable[object] | None = None,
) -> None:
    """Hand all that `steps` yields to `step`, all of it in one task, with a `turn` for others in between."""
    try:
        async for pieces in steps:
            if not step(pieces):
                break
            if turn is not None:
                await turn
    finally:
        try:
            await steps.aclose()
        except BaseException:  # its callers have their pieces
            _logger.exception(_UNCLOSED, name)
