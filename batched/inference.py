"""`dynamically` for arrays: features in, rows padded to a common length, outputs cut into callers' rows."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from batched._api.function import is_stream
from batched._api.sync_calls import ThreadedFunction
from batched._collate.arrays import FeatureCollator
from batched._core.keyed_queues import Groups
from batched._core.options import FUNC, ArrayOptions, decorate, takes
from batched._core.options import KeywordOptions as CommonOptions
from batched._parts.stack import layered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Future
    from typing import TypeAlias, Unpack

    from batched._core.call import Collator
    from batched._core.options import PaddingSide
    from batched._core.scheduler import NewQueue

__all__ = ["BatchedInference", "dynamically"]

R = TypeVar("R")

Feature: TypeAlias = Any
"""A numpy array, a torch tensor, or a list of either, whose rows may differ in shape."""
Features: TypeAlias = "Mapping[Any, Feature]"


class BatchedInference(ThreadedFunction, Generic[R]):
    """A function over features that callers pass their own rows.

    `fn(features)` and `fn(input_ids=..., attention_mask=...)` return what the function returns, with the
    caller's rows only. A feature is a numpy array or torch tensor, whose first axis is the rows, or a list of
    such rows, which may then differ in shape. All features of a call have as many rows. All callers
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
    """Raise `TypeError` for what arrays cannot do."""
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


class KeywordOptions(CommonOptions, total=False):
    """The options of `dynamically` that are not positional too."""

    pad_token: Any
    pad_tokens: Any
    padding_side: PaddingSide
    pad_to_multiple_of: int | Mapping[Any, int] | None
    unpad_outputs: bool | Mapping[Any, Any]
    spread_kwargs: bool


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
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a dict of arrays.

    Where rows differ in length and padding takes time, which is learned from the batches that run, rows of
    like length share a batch; elsewhere the order is that of arrival. Of small calls, as of large ones, who
    waits longest is left out of at most four batches in a row.

    Args:
        batch_size: The most rows in one batch.
        timeout_ms: The most that a batch which is not full is delayed to gain company, counted from the
            arrival of its oldest rows, the time behind a running batch included. 0 never waits.
        small_batch_threshold: Calls of at most this many rows go ahead of larger ones.
        max_concurrent_batches: Batches that run at once, each in a thread of its own.
        max_queue_size: The most rows that wait; None for no bound.
        on_full: What becomes of a call for which there is no room: "raise" `QueueFullError`, or "wait".
        isolate_errors: When a batch raises, run it again in halves until only the culprits fail.
        group_by: From a call's features, a key; only calls of an equal key share a batch.
        cache: As for lists, with `cache_key`; equal calls in flight run once.
        cache_key: From a call's features, the key in the cache.
        max_batch_length: The most that a batch may have of rows times the longest of them, along the second
            axis of what is padded; a row that is longer runs alone.
        name: For the thread, the logs and the errors; the function's own by default.
        pad_token: What rows are padded with: a number, or a dict of a number per feature; zero by default.
            `pad_tokens` is another name for it.
        padding_side: Where: "right", after the row, or "left".
        pad_to_multiple_of: Round the length of rows, along their first axis, up to a multiple of this, also
            where the rows of a batch do not differ. A number is for all features that have such an axis, a
            dict has a number for each feature that is to be rounded. Further axes are rounded where they
            differ.
        unpad_outputs: Cut the padding off the outputs, so that an answer does not depend on the other calls
            of its batch. True cuts each output with a second axis as long as that of the padded features. A
            dict says which outputs are padded, as another could be that long by chance, and as which feature:
            `{"logits": "input_ids"}`. The outputs in a list or tuple have numbers; an array has number 0.
            Where features were padded along further axes, those are cut too. If the rows of a call then
            differ in length, they come as a list.
        spread_kwargs: Pass the features by name, as `func(input_ids=..., attention_mask=...)`.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedInference, ArrayOptions, args, options)
