"""`dynamically` for lists, and its types: one item or a list, called from threads and event loops."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from batched._api.sync_calls import ThreadedFunction
from batched._collate.columns import ColumnCollator, parameters_of
from batched._collate.lists import ListCollator
from batched._core.keyed_queues import Groups
from batched._core.options import FUNC, ListKeywordOptions, Options, decorate, takes
from batched._core.queue import Queue
from batched._parts.stack import layered

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from concurrent.futures import Future
    from typing import TypeAlias, Unpack

    from batched._api.streams import AsyncStream, Stream
    from batched._core.call import Collator, Done
    from batched._core.scheduler import NewQueue

__all__ = ["BatchedFunction", "BatchedMethod", "dynamically"]

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
U = TypeVar("U")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)


class Rows(Protocol[U_co]):
    """What a batch function may return: sized, ordered, one row per item."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[U_co]: ...


Outputs: TypeAlias = "Rows[U] | Awaitable[Rows[U]]"  # of a plain batch function, or an `async def` one
Pieces: TypeAlias = "Rows[U | Done]"
Steps: TypeAlias = "Iterator[Pieces[U]] | AsyncIterator[Pieces[U]]"  # of one that streams


class BatchedFunction(ThreadedFunction, Generic[T, U]):
    """A batch function that callers pass one item or a list of items.

    `fn(item)` returns the item's result, `fn([item, ...])` the list of theirs; a `list` is many items,
    anything else, a tuple or an array too, is one. All callers share the batches of one worker thread. They
    get what the function would have returned for their own items alone, or what it would have raised.

    The function sees a new list of at most `batch_size` items. It must return one result per item, as a list,
    tuple, array or anything else that is sized and ordered; a result that is an exception fails its own item
    only. It runs in a thread of its own, so a caller's context variables do not reach it.

    A call raises `ClosedError` after `shutdown`, and `RuntimeError` from inside the batch function itself.
    """

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        super().__init__(func, options, join_lists)

    if TYPE_CHECKING:

        @overload
        def __call__(self, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
        @overload
        def __call__(self, item: T = ..., /, **named: T) -> U: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        async def acall(self, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
        @overload
        async def acall(self, item: T = ..., /, **named: T) -> U: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        def submit(self, items: list[T] = ..., /, **named: list[T]) -> Future[list[U]]: ...
        @overload
        def submit(self, item: T = ..., /, **named: T) -> Future[U]: ...
        def submit(self, /, *args: Any, **named: Any) -> Any: ...
        def map(self, items: Iterable[T], /, *more: Iterable[Any]) -> Iterator[U]: ...
        def amap(
            self, items: Iterable[T] | AsyncIterable[T], /, *more: Iterable[Any] | AsyncIterable[Any]
        ) -> AsyncIterator[U]: ...


def join_lists(
    func: Callable[..., Any],
    options: Options,
    name: str,
    bound: bool,  # noqa: FBT001
) -> tuple[Collator, NewQueue]:
    """Return the collator of a function over lists, and the kind of queue that it needs."""
    parameters = parameters_of(func, bound=bound)
    collator: ListCollator | ColumnCollator = ListCollator(name)
    one = len(parameters) == 1 and parameters[0].kind not in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    if parameters and not one:
        collator = ColumnCollator(name, parameters)
    return layered(
        collator, Queue if isinstance(collator, ListCollator) else Groups, options, name, bound=bound
    )


if TYPE_CHECKING:

    class BatchedColumns(ThreadedFunction, Generic[T1, T2, U]):
        """What a type checker sees of a batch function of two columns, a `BatchedFunction` else."""

        @overload
        def __call__(
            self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[T1] | list[T2]
        ) -> list[U]: ...
        @overload
        def __call__(self, x: T1 = ..., y: T2 = ..., /, **named: T1 | T2) -> U: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        async def acall(
            self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[T1] | list[T2]
        ) -> list[U]: ...
        @overload
        async def acall(self, x: T1 = ..., y: T2 = ..., /, **named: T1 | T2) -> U: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        def submit(
            self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[T1] | list[T2]
        ) -> Future[list[U]]: ...
        @overload
        def submit(self, x: T1 = ..., y: T2 = ..., /, **named: T1 | T2) -> Future[U]: ...
        def submit(self, /, *args: Any, **named: Any) -> Any: ...
        def map(self, xs: Iterable[T1], /, *more: Iterable[T2]) -> Iterator[U]: ...
        def amap(
            self, xs: Iterable[T1] | AsyncIterable[T1], /, *more: Iterable[T2] | AsyncIterable[T2]
        ) -> AsyncIterator[U]: ...

    class StreamingFunction(ThreadedFunction, Generic[T, U]):
        """What a type checker sees of a batch function that is a generator, a `BatchedFunction` else."""

        def stream(self, item: T = ..., /, *more: Any, **named: Any) -> Stream[U]: ...
        def astream(self, item: T = ..., /, *more: Any, **named: Any) -> AsyncStream[U]: ...


class Method(Protocol[S_contra, U_co]):
    """What a type checker sees, in its class, of a batched method that is a `U_co` once bound."""

    @overload
    def __get__(self: Method[type[S], U], instance: S | None, owner: type[S], /) -> U: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None, /) -> U_co: ...


class BatchedMethod(Protocol[S_contra, T, U]):
    """What a type checker sees of a batched method in its class.

    The first `__get__` is for class methods, whose `self` is a class.
    """

    @overload
    def __get__(
        self: BatchedMethod[type[S], T, U], instance: S | None, owner: type[S], /
    ) -> BatchedFunction[T, U]: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None, /) -> BatchedFunction[T, U]: ...

    @overload
    def __call__(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    def __call__(self, instance: S_contra, item: T = ..., /, **named: T) -> U: ...
    @overload
    async def acall(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    async def acall(self, instance: S_contra, item: T = ..., /, **named: T) -> U: ...
    @overload
    def submit(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> Future[list[U]]: ...
    @overload
    def submit(self, instance: S_contra, item: T = ..., /, **named: T) -> Future[U]: ...
    def map(self, instance: S_contra, items: Iterable[T], /) -> Iterator[U]: ...
    def amap(self, instance: S_contra, items: Iterable[T] | AsyncIterable[T], /) -> AsyncIterator[U]: ...


class Decorator(Protocol):
    """`dynamically` with its options given and the function still to come."""

    @overload
    def __call__(self, func: Callable[[list[T]], Outputs[U]], /) -> BatchedFunction[T, U]: ...
    @overload
    def __call__(self, func: Callable[[list[T1], list[T2]], Outputs[U]], /) -> BatchedColumns[T1, T2, U]: ...
    @overload
    def __call__(self, func: Callable[[S, list[T]], Outputs[U]], /) -> BatchedMethod[S, T, U]: ...
    @overload
    def __call__(
        self, func: Callable[[S, list[T1], list[T2]], Outputs[U]], /
    ) -> Method[S, BatchedColumns[T1, T2, U]]: ...
    @overload
    def __call__(self, func: Callable[[list[T]], Steps[U]], /) -> StreamingFunction[T, U]: ...
    @overload
    def __call__(self, func: Callable[[S, list[T]], Steps[U]], /) -> Method[S, StreamingFunction[T, U]]: ...


@overload
def dynamically(
    func: Callable[[list[T]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U]: ...
@overload
def dynamically(
    func: Callable[[list[T1], list[T2]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U]: ...
@overload
def dynamically(
    func: Callable[[S, list[T]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U]: ...
@overload
def dynamically(
    func: Callable[[S, list[T1], list[T2]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U]]: ...
@overload
def dynamically(
    func: Callable[[list[T]], Steps[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> StreamingFunction[T, U]: ...
@overload
def dynamically(
    func: Callable[[S, list[T]], Steps[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, StreamingFunction[T, U]]: ...
@overload
def dynamically(
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> Decorator: ...
@takes(FUNC, Options)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a list.

    `@dynamically`, `@dynamically(batch_size=64)` and `dynamically(model.encode, batch_size=64)` all work.
    On a method every instance has a batcher of its own, made at first use.

    Args:
        batch_size: The most items in one batch.
        timeout_ms: The most that a batch which is not full is delayed to gain company while the function is
            free. 0 never waits.
        small_batch_threshold: Calls of at most this many items go ahead of larger ones.
        adaptive: Wait only while it pays, which is learned from the first batches on: for callers that were
            just answered and come straight back, and for the rest of a burst. The first few batches, and all
            with False, start when their oldest item is `timeout_ms` old, time behind a running batch
            included.
        max_concurrent_batches: Batches that run at once, each in a thread of its own.
        max_queue_size: The most items that wait; None for no bound. A list is admitted whole or not at all.
        on_full: What becomes of a call for which there is no room: "raise" `QueueFullError`, or "wait".
        isolate_errors: When a batch raises an `Exception`, run it again in halves until only culprits fail.
        group_by: From an item, a key; only items of an equal key share a batch.
        cache: A mapping of results, or an object with `set`, and a `get` that returns None for what it does
            not know. What it knows is not queued, and equal items in flight run once. With `batched.aio` what
            `get` and `set` return is awaited if it is awaitable: until the deadline of the call at most.
        cache_key: From an item, its key in the cache; the item itself by default.
        length: Says how long an item is, `len` for instance. Where padding to the longest item of a batch
            takes time, which is learned from the batches that run, those of like length share a batch;
            elsewhere the order is that of arrival. Of small calls, as of large ones, whoever waits longest is
            left out of at most four batches in a row. With several parameters it is given all of an item's.
            It is called once per item, in the caller's thread; see `map` for the exception.
        max_pieces: Of a function that is a generator: how many pieces may wait for their consumer. One that
            falls further behind gets these, then a `SlowConsumerError`; its neighbours go on.
        max_batch_length: The most that the lengths of a batch's items add up to, by `length` or else `len`;
            an item that is longer runs alone. A budget without a `length` changes no order.
        name: For the thread, the logs and the errors; the function's own by default.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedFunction, Options, args, options)
