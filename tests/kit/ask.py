"""Every kind of call that a thread can make, and threads to make them in."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.gate import PATIENCE_S


def ask_by_call(fn: Any, item: Any) -> Any:
    return fn(item)


def ask_by_future(fn: Any, item: Any) -> Any:
    return fn.submit(item).result(PATIENCE_S)


def ask_by_map(fn: Any, item: Any) -> Any:
    return next(fn.map([item]))


def ask_on_a_loop(fn: Any, item: Any) -> Any:
    return asyncio.run(fn.acall(item))


EVERY_KIND_OF_CALL = [ask_by_call, ask_by_future, ask_by_map, ask_on_a_loop]
