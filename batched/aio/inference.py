"""`dynamically` for arrays on event loops: rows padded to a common length, outputs cut into callers' rows."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import LoopedFunction
from batched._api.signatures import P, array_options
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


class Dynamically(Protocol[P]):
    """`dynamically`, with options `P`; once these are given there are none left."""

    @overload
    def __call__(
        self, func: Callable[..., Awaitable[R]], /, *args: P.args, **options: P.kwargs
    ) -> BatchedInference[R]: ...
    @overload
    def __call__(
        self, func: Callable[..., R], /, *args: P.args, **options: P.kwargs
    ) -> BatchedInference[R]: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Dynamically[[]]: ...


def _typed(options: Callable[P, None]) -> Callable[[object], Dynamically[P]]:  # noqa: ARG001  its type counts
    return lambda function: cast("Dynamically[P]", function)


@_typed(array_options)
@takes_options(ArrayOptions)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a dict of arrays, `async def` or not; callers await them.

    An item is a row here.

    Args:
        {options}

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
