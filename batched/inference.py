"""`dynamically` for arrays: features in, rows padded to a common length, outputs cut into callers' rows."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from batched._api.decorate import decorate, is_stream, takes_options
from batched._api.signatures import array_options
from batched._api.sync_calls import ThreadedFunction
from batched._collate.arrays import FeatureCollator
from batched._core.keyed_queues import Groups
from batched._core.options import ArrayOptions
from batched._parts.stack import layered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Future
    from typing import TypeAlias

    from batched._core.batch import Collator
    from batched._core.batcher import NewQueue

__all__ = ["BatchedInference", "dynamically"]

R = TypeVar("R")
P = ParamSpec("P")

Feature: TypeAlias = Any
"""A numpy array, a torch tensor, or a list of either; the rows of a list may differ in shape."""
Features: TypeAlias = "Mapping[Any, Feature]"


class BatchedInference(ThreadedFunction, Generic[R]):
    """A function over features that callers pass their own rows.

    `fn(features)` and `fn(input_ids=..., attention_mask=...)` return what the function returns, with the
    caller's rows only. A feature is a numpy array or torch tensor, with the rows as its first axis, or a
    list of such rows, which may then differ in shape. All features of a call have as many rows. All callers
    share the batches of one worker thread, as far as their features are alike: the same keys in the same
    order, dtypes, devices, ranks, and sizes of all axes but the first two.

    The function sees a new, plain array for each feature, of at most `batch_size` rows. Where callers' rows
    differ in length they are padded. It must return an array, or a dict, list or tuple of arrays, each
    with as many rows; callers get copies of theirs. It runs in a thread of its own, so a caller's
    `torch.no_grad()` does not reach it: that belongs on the function. A call of no rows runs alone and
    counts as one item.

    A call raises `TypeError` or `ValueError` for features that cannot be batched, `ClosedError` after
    `shutdown`, and `RuntimeError` from inside the batch function itself.
    """

    def __init__(self, func: Callable[..., Any], options: ArrayOptions) -> None:
        check_arrays(func, options)
        super().__init__(func, options, join_arrays)

    if TYPE_CHECKING:

        def __call__(self, features: Features = ..., /, **named: Feature) -> R: ...
        async def acall(self, features: Features = ..., /, **named: Feature) -> R: ...
        def submit(self, features: Features = ..., /, **named: Feature) -> Future[R]: ...
        def map(self, items: Iterable[Features], /) -> Iterator[R]: ...  # type: ignore[override]
        def amap(  # type: ignore[override]
            self, items: Iterable[Features] | AsyncIterable[Features], /
        ) -> AsyncIterator[R]: ...


def check_arrays(func: Callable[..., Any], options: ArrayOptions) -> None:
    """Raise `TypeError` for a function that streams, and for a cache without a key."""
    if is_stream(func, options):
        raise TypeError("a function over arrays cannot stream: its outputs are rows")
    if options.cache is not None and options.cache_key is None:
        raise TypeError("a cache of arrays needs a cache_key, since arrays cannot be keys")


def join_arrays(
    func: Callable[..., Any],  # noqa: ARG001  as for lists
    options: ArrayOptions,
    name: str,
    bound: bool,  # noqa: FBT001
) -> tuple[Collator, NewQueue]:
    """Return the collator of a function over features, and the kind of queue that it needs."""
    return layered(FeatureCollator(name, options), Groups, options, name, bound=bound)


class Decorator(Protocol):
    """`dynamically` with its options given and the function still to come."""

    @overload
    def __call__(self, func: Callable[..., Awaitable[R]], /) -> BatchedInference[R]: ...
    @overload
    def __call__(self, func: Callable[..., R], /) -> BatchedInference[R]: ...


class Dynamically(Protocol[P]):
    """`dynamically`, with options `P`."""

    @overload
    def __call__(
        self, func: Callable[..., Awaitable[R]], /, *args: P.args, **options: P.kwargs
    ) -> BatchedInference[R]: ...
    @overload
    def __call__(
        self, func: Callable[..., R], /, *args: P.args, **options: P.kwargs
    ) -> BatchedInference[R]: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Decorator: ...


def _typed(options: Callable[P, None]) -> Callable[[object], Dynamically[P]]:  # noqa: ARG001  its type counts
    return lambda function: cast("Dynamically[P]", function)


@_typed(array_options)
@takes_options(ArrayOptions)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a dict of arrays.

    An item is a row here. Where rows differ in length and padding takes time, which is learned from the
    batches that run, rows of like length share a batch; elsewhere the order is that of arrival. Of small
    calls, as of large ones, the oldest is left out of at most four batches in a row.

    Args:
        {options}

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
