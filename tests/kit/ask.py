"""Every kind of call that a thread can make."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.gate import PATIENCE_S


def ask_by_call(fn: Any, item: Any) -> Any:
    """Call, and wait."""
    return fn(item)


def ask_by_future(fn: Any, item: Any) -> Any:
    """Submit, and wait for the future."""
    return fn.submit(item).result(PATIENCE_S)


def ask_by_map(fn: Any, item: Any) -> Any:
    """Return the answer of a map of one element."""
    return next(fn.map([item]))


def ask_on_a_loop(fn: Any, item: Any) -> Any:
    """Await the answer, on a loop of its own."""
    return asyncio.run(fn.acall(item))


EVERY_KIND_OF_CALL = [ask_by_call, ask_by_future, ask_by_map, ask_on_a_loop]
