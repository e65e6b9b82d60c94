"""`dynamically` for arrays on event loops: rows padded to a common length, outputs cut into callers' rows."""
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Self, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import LoopedFunction
from batched._api.map_types import AsyncAnswers, Source
from batched._api.option_types import (
    ArrayKeywordOptions,
    ByPosition,
    CallChanges,
    OtherCallChanges,
    StagedArrayOptions,
)
from batched._api.signatures import F_co, Generic, P, Protocol, R, R_co, S
from batched._core.options import ArrayOptions
from batched.inference import Feature, Features

if TYPE_CHECKING:
    from batched._api.signatures import FeaturesT, Function, Stage

__all__ = ["BatchedInference", "dynamically"]


class BatchedInference(LoopedFunction, Generic[R, F_co]):
    """A decorated function over arrays: await it with features, get your own rows of the outputs.

    Both `await fn(features)` and `await fn(input_ids=..., attention_mask=...)` work.
    `batched.inference.BatchedInference` says what features and outputs may be, and
    `batched.aio.BatchedFunction` where batches run and what calls raise.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...
        @overload
        def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...
        @overload
        def __get__(
            self: BatchedInference[R, Function[Concatenate[S, P], R_co]], instance: S, owner: Any = None, /
        ) -> BatchedInference[R, Function[P, R_co]]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None, /) -> Self: ...
        def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
        @overload
        def options(
            self, *, return_exceptions: Literal[True], **changes: Unpack[OtherCallChanges]
        ) -> BatchedInference[R | Exception, F_co]: ...
        @overload
        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def options(self, **changes: Any) -> Any: ...
        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...

        __call__ = acall

        @overload  # type: ignore[override]
        def amap(
            self, items: Source[Features], /, *, with_items: Literal[False] = ...
        ) -> AsyncAnswers[R]: ...
        @overload
        def amap(
            self, items: Source[FeaturesT], /, *, with_items: Literal[True]
        ) -> AsyncAnswers[tuple[FeaturesT, R]]: ...
        def amap(self, /, *sources: Any, with_items: bool = False) -> Any: ...


class Dynamically(Protocol):
    """`dynamically` with its options: a decorator."""

    @overload
    def __call__(
        self, func: Callable[P, Awaitable[R]], /
    ) -> BatchedInference[R, Function[P, Awaitable[R]]]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> BatchedInference[R, Function[P, R]]: ...


# Callers get what `finish` returns.
@overload
def dynamically(
    *by_position: ByPosition,
    finish: Stage,
    prepare: Stage | None = None,
    **options: Unpack[StagedArrayOptions],
) -> Callable[[Callable[..., Any]], BatchedInference[Any, Any]]: ...
@overload
def dynamically(
    func: Callable[..., Any],
    /,
    *by_position: ByPosition,
    finish: Stage,
    prepare: Stage | None = None,
    **options: Unpack[StagedArrayOptions],
) -> BatchedInference[Any, Any]: ...
@overload
def dynamically(
    func: Callable[P, Awaitable[R]], /, *by_position: ByPosition, **options: Unpack[ArrayKeywordOptions]
) -> BatchedInference[R, Function[P, Awaitable[R]]]: ...
@overload
def dynamically(
    func: Callable[P, R], /, *by_position: ByPosition, **options: Unpack[ArrayKeywordOptions]
) -> BatchedInference[R, Function[P, R]]: ...
@overload
def dynamically(
    batch_size_: int = 64,
    timeout_ms_: float | Literal["auto"] = "auto",
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> Dynamically: ...
@takes_options(ArrayOptions)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a dict of arrays. Only event loops call it.

    The function may be `async def`. Callers await it with their own rows:

        import asyncio
        import numpy as np
        from batched.aio import inference

        @inference.dynamically
        async def total(features):
            return features["ids"].sum(axis=1)

        async def main():
            assert await total(ids=np.array([[4, 5]])) == 9

        asyncio.run(main())

    An item is a row here: `batch_size` counts rows.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
