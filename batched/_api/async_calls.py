"""Calls from event loops only: nothing here blocks.

The same for lists and arrays; the collator knows the difference.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

from batched._api.decorate import is_async
from batched._api.function import DecoratedFunction
from batched._core.option_checks import is_mapping
from batched._drivers.event_loop import LoopDriver
from batched._drivers.thread import ThreadDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._core.options import Options

__all__ = ["LoopedFunction"]


class LoopedFunction(DecoratedFunction["ThreadDriver | LoopDriver"]):
    """A decorated function that only tasks call.

    The batches of an `async def` function run on the loop of their callers; those of any other callable in a
    thread, so that the loops stay free.
    """

    __slots__ = ()

    ways_to_call = frozenset({"acall", "amap", "astream"})

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        new_driver: Any = _loop_driver if is_async(func) else partial(ThreadDriver, awaits=False)
        super().__init__(func, options, new_driver, callers_ask=not is_mapping(options.cache))

    __call__ = DecoratedFunction.acall

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _loop_driver(
    options: Any, queue: Any, collator: Any, name: str, _: object, *, streams: bool
) -> LoopDriver:
    return LoopDriver(options, queue, collator, name, streams=streams)
