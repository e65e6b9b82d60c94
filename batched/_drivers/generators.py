"""Batch functions that are generators: each step yields the next piece of every item."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from batched._core.change import NOT_TOLD, Change

_END = object()
_CANNOT_BE_TOLD = (
    "with continuous=True a function is told what has changed: `change = yield pieces`; what it has after "
    "`yield from` must be a generator, which is told instead"
)
_UNCLOSED = "%s: could not close the generator"

_logger = logging.getLogger("batched")


def run_steps(steps: Any, step: Callable[[Any], Change[Any] | None], name: str) -> None:
    """Hand all that `steps` yields to `step`, and tell it what that returns, until it is None."""
    try:
        send = getattr(steps, "send", None)  # an iterator that is no generator has none
        pieces = next(steps, _END)
        while pieces is not _END and (change := step(pieces)) is not None:
            try:
                pieces = next(steps) if send is None or change is NOT_TOLD else send(change)
            except StopIteration:
                break
            except AttributeError as error:
                if error.name == "send":
                    error.add_note(_CANNOT_BE_TOLD)
                raise
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            try:
                close()
            except BaseException:  # its callers have their pieces
                _logger.exception(_UNCLOSED, name)


async def walk_steps(
    steps: AsyncGenerator[Any, Change[Any]],
    step: Callable[[Any], Change[Any] | None],
    name: str,
    turn: Awaitable[object] | None = None,
) -> None:
    """Do the same in one task, with a `turn` for others in between."""
    try:
        pieces = await anext(steps, _END)
        while pieces is not _END and (change := step(pieces)) is not None:
            if turn is not None:
                await turn
            try:
                pieces = await (anext(steps) if change is NOT_TOLD else steps.asend(change))
            except StopAsyncIteration:
                break
    finally:
        try:
            await steps.aclose()
        except BaseException:  # its callers have their pieces
            _logger.exception(_UNCLOSED, name)
