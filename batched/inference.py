"""`dynamically` for arrays: features in, rows padded to a common length, outputs cut into callers' rows."""
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Self, TypeAlias, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import ThreadedFunction
from batched._api.option_types import ArrayKeywordOptions, CallChanges, OtherCallChanges
from batched._api.signatures import F_co, Generic, P, Protocol, R, R_co, S
from batched._core.options import ArrayOptions

if TYPE_CHECKING:
    from batched._api.signatures import Function

__all__ = ["BatchedInference", "dynamically"]

Feature: TypeAlias = Any
"""A numpy array, a torch tensor, or a list of either; the rows of a list may differ in shape."""
Features: TypeAlias = Mapping[Any, Feature]
"""What a call passes: a feature for each key."""


class BatchedInference(ThreadedFunction, Generic[R, F_co]):
    """A function over features that callers pass their own rows.

    `fn(features)` and `fn(input_ids=..., attention_mask=...)` return what the function returns, with the
    caller's rows only. A feature is a numpy array or torch tensor, with the rows as its first axis, or a
    list of such rows, which may then differ in shape. All features of a call have as many rows. All callers
    share the batches of one worker thread, as far as their features are alike: the same keys in the same
    order, dtypes, devices, ranks, and sizes of all axes but the first two; strings of numpy may differ in
    width, and the function gets the widest.

    The function sees a new, plain array for each feature, of at most `batch_size` rows. Where callers' rows
    differ in length they are padded. It must return an array, or a dict, list or tuple of arrays, each
    with as many rows; callers get copies of theirs. It runs in a thread of its own, so a caller's
    `torch.no_grad()` does not reach it: that belongs on the function. A call of no rows runs alone and
    counts as one item.

    A call raises `TypeError` or `ValueError` for features that cannot be batched, `ClosedError` after
    `shutdown`, and `RuntimeError` from inside the batch function itself.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...  # type: ignore[override]
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
        def __call__(self, features: Features = ..., /, **named: Feature) -> R: ...
        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...
        def submit(self, features: Features = ..., /, **named: Feature) -> Future[R]: ...
        def map(self, items: Iterable[Features], /) -> Iterator[R]: ...  # type: ignore[override]
        def amap(  # type: ignore[override]
            self, items: Iterable[Features] | AsyncIterable[Features], /
        ) -> AsyncIterator[R]: ...


class Dynamically(Protocol):
    """`dynamically` with its options: a decorator."""

    @overload
    def __call__(
        self, func: Callable[P, Awaitable[R]], /
    ) -> BatchedInference[R, Function[P, Awaitable[R]]]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> BatchedInference[R, Function[P, R]]: ...


@overload
def dynamically(
    func: Callable[P, Awaitable[R]],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> BatchedInference[R, Function[P, Awaitable[R]]]: ...
@overload
def dynamically(
    func: Callable[P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ArrayKeywordOptions],
) -> BatchedInference[R, Function[P, R]]: ...
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
    """Batch the calls of a function that takes a dict of arrays.

    An item is a row here. Where rows differ in length and padding takes time, which is learned from the
    batches that run, rows of like length share a batch; elsewhere the order is that of arrival. Of small
    calls, as of large ones, the oldest is left out of at most four batches in a row.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
