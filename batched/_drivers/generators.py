"""Batch functions that are generators: each step yields the next piece of every item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from batched._core.change import OVER, Change
from batched._logs import log_error

T = TypeVar("T")

_CANNOT_BE_TOLD = (
    "with continuous=True a function is told what has changed: `change = yield pieces`; what it has after "
    "`yield from` must be a generator, which is told instead"
)


def run_steps(
    steps: Any, step: Callable[[Any], Change[Any] | None], name: str, wait: Callable[[Any], T]
) -> T | None:
    """Walk `steps` here and now; of steps that are asynchronous, return what `wait` makes of what does so."""
    work = walk_steps(steps, step, name)
    if isinstance(steps, AsyncGenerator):
        return wait(work)
    with suppress(StopIteration):
        work.send(None)  # it never waits
    return None


async def walk_steps(
    steps: Any,
    step: Callable[[Any], Change[Any] | None],
    name: str,
    turn: Awaitable[object] | None = None,
) -> None:
    """Hand all that `steps` yields to `step`, and tell it what that returns, until it is over.

    In between there is a `turn` for other tasks.
    """
    is_async = isinstance(steps, AsyncGenerator)
    end = StopAsyncIteration if is_async else StopIteration
    # An iterator that is no generator can be told nothing.
    send = steps.asend if is_async else getattr(steps, "send", lambda _: next(steps))
    change = None
    try:
        while change is not OVER:
            try:
                pieces = send(change)
                if is_async:
                    pieces = await pieces
            except end:
                break
            except AttributeError as error:
                if error.name == "send" and isinstance(error.obj, Iterable) and change is not None:
                    error.add_note(_CANNOT_BE_TOLD)
                raise
            change = step(pieces)
            pieces = None  # an error among them leads to this frame
            if turn is not None:
                await turn
    finally:
        try:
            if is_async:
                await steps.aclose()
            elif hasattr(steps, "close"):
                steps.close()
        except BaseException:  # noqa: BLE001  its callers have their pieces
            log_error("%s: could not close the generator", name)
