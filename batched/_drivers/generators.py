"""Batch functions that are generators: each step yields the next piece of every item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from batched._core.change import OVER, Change
from batched._logs import log_error

_CANNOT_BE_TOLD = (
    "with continuous=True a function is told what has changed: `change = yield pieces`; what it has after "
    "`yield from` must be a generator, which is told instead"
)
_UNCLOSED = "%s: could not close the generator"


def run_steps(
    steps: Any, step: Callable[[Any], Change[Any] | None], name: str
) -> Coroutine[Any, Any, None] | None:
    """Hand all that `steps` yields to `step`, and tell it what that returns, until it is over.

    Of steps that are asynchronous, return what does so.
    """
    if isinstance(steps, AsyncGenerator):
        return walk_steps(steps, step, name)
    send = getattr(steps, "send", lambda _: next(steps))  # an iterator that is no generator has none
    change = None
    try:
        while change is not OVER:
            try:
                pieces = send(change)
            except StopIteration:
                break
            except AttributeError as error:
                if error.name == "send" and change is not None:
                    error.add_note(_CANNOT_BE_TOLD)
                raise
            change = step(pieces)
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            try:
                close()
            except BaseException:  # noqa: BLE001  its callers have their pieces
                log_error(_UNCLOSED, name)
    return None


async def walk_steps(
    steps: AsyncGenerator[Any, Change[Any] | None],
    step: Callable[[Any], Change[Any] | None],
    name: str,
    turn: Awaitable[object] | None = None,
) -> None:
    """Do the same in one task, with a `turn` for others in between."""
    change = None
    try:
        while change is not OVER:
            try:
                pieces = await steps.asend(change)
            except StopAsyncIteration:
                break
            change = step(pieces)
            if turn is not None:
                await turn
    finally:
        try:
            await steps.aclose()
        except BaseException:  # noqa: BLE001  its callers have their pieces
            log_error(_UNCLOSED, name)
