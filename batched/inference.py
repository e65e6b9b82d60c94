"""`dynamically` for arrays: features in, rows padded to a common length, outputs cut into callers' rows."""
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Self, TypeAlias, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import ThreadedFunction
from batched._api.map_types import Answers, AsyncAnswers, Source
from batched._api.option_types import (
    ArrayKeywordOptions,
    ByPosition,
    CallChanges,
    OtherCallChanges,
    StagedArrayOptions,
)
from batched._api.signatures import F_co, Generic, P, Protocol, R, R_co, S
from batched._core.options import ArrayOptions

if TYPE_CHECKING:
    from batched._api.signatures import FeaturesT, Function, Stage

__all__ = ["BatchedInference", "dynamically"]

Feature: TypeAlias = Any
"""A numpy array, a torch tensor, or a list of either; the rows of a list may differ in shape."""
Features: TypeAlias = Mapping[Any, Feature]
"""What a call passes: a feature for each key."""


class BatchedInference(ThreadedFunction, Generic[R, F_co]):
    """A decorated function over arrays: call it with features, get your own rows of the outputs.

    Both `fn(features)` and `fn(input_ids=..., attention_mask=...)` work. A feature is a numpy array or a
    torch tensor with rows as its first axis, or a list of rows, which may differ in shape. All features of a
    call have as many rows.

    Calls share a batch if their features are alike: the same keys in the same order, dtypes, devices, ranks,
    and sizes of all axes but the first two; and tensors all require a gradient, or none does. (Strings of
    numpy may differ in width: the function gets the widest.) All callers share one worker thread.

    The batch function sees a new array for each feature, of at most `batch_size` rows, padded where rows
    differ in length. It must return an array, or a dict, list or tuple of arrays, each with as many rows;
    callers get copies of theirs. It runs in a thread of its own, so a caller's `torch.no_grad()` does not
    reach it: put that on the function, below the decorator. A call of no rows runs alone, and counts as one
    item.

    A call raises `TypeError` or `ValueError` for features that cannot be batched, and otherwise the same
    errors as one of `batched.BatchedFunction`.
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
        def __call__(self, features: Features = ..., /, **named: Feature) -> R: ...
        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...
        def submit(self, features: Features = ..., /, **named: Feature) -> Future[R]: ...
        @overload  # type: ignore[override]
        def map(self, items: Iterable[Features], /, *, with_items: Literal[False] = ...) -> Answers[R]: ...
        @overload
        def map(
            self, items: Iterable[FeaturesT], /, *, with_items: Literal[True]
        ) -> Answers[tuple[FeaturesT, R]]: ...
        def map(self, /, *sources: Any, with_items: bool = False) -> Any: ...
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
    """Batch the calls of a function that takes a dict of arrays. Threads and event loops may call it.

    The rows of all calls are padded to one length, and each caller gets its own rows of the outputs:

        import numpy as np
        from batched import inference

        @inference.dynamically
        def total(features):
            return features["ids"].sum(axis=1)

        rows = [np.array([1]), np.array([2, 3])]
        assert total({"ids": rows}).tolist() == [1, 5]
        assert total(ids=np.array([[4, 5]])) == 9

    An item is a row here: `batch_size` counts rows. Rows of similar length share a batch where padding proves
    to cost time.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
