"""Calls from event loops only: nothing here blocks.

The same for lists and arrays; the collator knows the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from batched._api.batch_function import is_async, is_stream, name_of
from batched._api.driver import Driver
from batched._api.function import DecoratedFunction, is_bound
from batched._core.cache_checks import is_mapping
from batched._drivers.event_loop import LoopDriver
from batched._drivers.thread import ThreadDriver
from batched._parts.cache import CachingCollator

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from batched._api.function import Join
    from batched._core.options import Options

__all__ = ["LoopedFunction"]


class LoopedFunction(DecoratedFunction[Driver]):
    """A decorated function that only tasks call.

    The batches of an `async def` function run on the loop of their callers; those of any other callable in a
    thread, so that the loops stay free.
    """

    __slots__ = ()

    ways_to_call = frozenset({"acall", "amap", "astream"})

    def __init__(self, func: Callable[..., Any], options: Options, join: Join) -> None:
        name = name_of(func, options)
        streams = is_stream(func, options)

        def make(owner: object) -> Driver:
            collator, queue = join(func, options, name, is_bound(owner))
            if isinstance(collator, CachingCollator):
                collator.let_callers_ask()
            if is_async(func):
                return LoopDriver(options, queue, collator, name, streams=streams)
            return ThreadDriver(options, queue, collator, name, owner, streams=streams, awaits=False)

        super().__init__(func, options, make, streams=streams, callers_ask=not is_mapping(options.cache))

    __call__ = DecoratedFunction.acall

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
