"""`dynamically` for arrays on event loops: rows padded to a common length, outputs cut into callers' rows."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from batched._api.async_calls import LoopedFunction
from batched._core.options import FUNC, ArrayOptions, decorate, takes
from batched.inference import Feature, Features, KeywordOptions, check_arrays, join_arrays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Unpack

__all__ = ["BatchedInference", "dynamically"]

R = TypeVar("R")


class BatchedInference(LoopedFunction, Generic[R]):
    """A function over features that tasks await with their own rows.

    `await fn(features)` and `await fn(input_ids=..., attention_mask=...)` return what the function returns,
    with the caller's rows only. `batched.inference.BatchedInference` tells what features and outputs may be,
    `batched.aio.BatchedFunction` where the batches run and what is raised.
    """

    def __init__(self, func: Callable[..., Any], options: ArrayOptions) -> None:
        check_arrays(func, options)
        super().__init__(func, options, join_arrays)

    if TYPE_CHECKING:

        async def __call__(self, features: Features = ..., /, **named: Feature) -> R: ...
        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...
        def amap(  # type: ignore[override]
            self, items: Iterable[Features] | AsyncIterable[Features], /
        ) -> AsyncIterator[R]: ...


class Decorator(Protocol):
    """`dynamically` with its options given and the function still to come."""

    @overload
    def __call__(self, func: Callable[..., Awaitable[R]], /) -> BatchedInference[R]: ...
    @overload
    def __call__(self, func: Callable[..., R], /) -> BatchedInference[R]: ...


@overload
def dynamically(
    func: Callable[..., Awaitable[R]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> BatchedInference[R]: ...
@overload
def dynamically(
    func: Callable[..., R],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> BatchedInference[R]: ...
@overload
def dynamically(
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> Decorator: ...
@takes(FUNC, ArrayOptions)
def dynamically(*args: Any, **options: Any) -> Any:
    """Batch the calls of a function that takes a dict of arrays, `async def` or not; callers await them.

    The options, and what is raised for wrong ones, are those of `batched.inference.dynamically`.
    """
    return decorate(BatchedInference, ArrayOptions, args, options)
