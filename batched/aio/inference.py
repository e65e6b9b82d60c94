"""`dynamically` for arrays on event loops: rows padded to a common length, outputs cut into callers' rows."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import LoopedFunction
from batched._api.option_types import ArrayKeywordOptions
from batched._core.options import ArrayOptions
from batched.inference import Feature, Features, R

__all__ = ["BatchedInference", "dynamically"]


class BatchedInference(LoopedFunction, Generic[R]):
    """A function over features that tasks await with their own rows.

    `await fn(features)` and `await fn(input_ids=..., attention_mask=...)` return what the function returns,
    with the caller's rows only. `batched.inference.BatchedInference` tells what features and outputs may be,
    `batched.aio.BatchedFunction` where the batches run and what is raised.
    """

    if TYPE_CHECKING:

        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...

        __call__ = acall

        def amap(  # type: ignore[override]
            self, items: Iterable[Features] | AsyncIterable[Features], /
        ) -> AsyncIterator[R]: ...


class Dynamically(Protocol):
    """`dynamically` with its options: a decorator."""

    @overload
    def __call__(self, func: Callable[..., Awaitable[R]], /) -> BatchedInference[R]: ...
    @overload
    def __call__(self, func: Callable[..., R], /) -> BatchedInference[R]: ...


@overload
def dynamically(
    func: Callable[..., Awaitable[R]],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> BatchedInference[R]: ...
@overload
def dynamically(
    func: Callable[..., R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> BatchedInference[R]: ...
@overload
def dynamically(
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> Dynamically: ...
@takes_options(ArrayOptions)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a dict of arrays, `async def` or not; callers await them.

    An item is a row here.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
