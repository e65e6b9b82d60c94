"""`dynamically` for lists: one item or a list, called from threads and event loops."""
# pyright: reportOverlappingOverload=false

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import ThreadedFunction
from batched._api.option_types import CallChanges, ListKeywordOptions, OtherCallChanges
from batched._api.signatures import (
    T1,
    T2,
    F_co,
    Generic,
    Method,
    P,
    Protocol,
    Q,
    R,
    S,
    S_contra,
    T,
    U,
)
from batched._api.streams import AsyncStream, Stream
from batched._core.options import Options

if TYPE_CHECKING:
    from batched._api.signatures import (
        A,
        AnyItem,
        E,
        Function,
        ListStream,
        ListStreamMethod,
        MethodOfOneList,
        MethodOfThreeLists,
        MethodOfTwoLists,
        MixedRows,
        OneList,
        OneOrError,
        OneResultPerItem,
        ThreeLists,
        TwoLists,
    )


class BatchedFunction(ThreadedFunction, Generic[T, U, F_co]):
    """A batch function that callers pass one item or a list of items.

    `fn(item)` returns the item's result, and `fn([item, ...])` a list of results. Only a `list` is many
    items; anything else, even a tuple or an array, is one item. All callers share the batches of one worker
    thread. Each gets what the function would have returned, or raised, for its own items alone.

    The function gets a new list of at most `batch_size` items. It must return one result per item, as a list,
    tuple, array or anything else that is sized and ordered; a result that is an exception fails only its own
    item. It runs in its own thread, so a caller's context variables do not reach it.

    A function with several parameters gets a list for each parameter that a call passes. A parameter with a
    bool, a number, a `str` or `bytes` as its default is a setting of the whole batch, unless it is annotated
    as a list. A call that passes a setting raises `TypeError`: set it before decorating, with
    `functools.partial`.

    After `shutdown` a call raises `ClosedError`. A call from inside the batch function raises `RuntimeError`.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...  # type: ignore[override]
        @overload
        def options(
            self, *, return_exceptions: Literal[True], **changes: Unpack[OtherCallChanges]
        ) -> BatchedFunction[T, U | Exception, F_co]: ...
        @overload
        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def options(self, **changes: Any) -> Any: ...
        @overload
        def __call__(self, items: list[T] = ..., /, **named: list[Any]) -> list[U]: ...
        @overload
        def __call__(self, item: T = ..., /, **named: Any) -> U: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        async def acall(self, items: list[T] = ..., /, **named: list[Any]) -> list[U]: ...
        @overload
        async def acall(self, item: T = ..., /, **named: Any) -> U: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        def submit(self, items: list[T] = ..., /, **named: list[Any]) -> Future[list[U]]: ...
        @overload
        def submit(self, item: T = ..., /, **named: Any) -> Future[U]: ...
        def submit(self, /, *args: Any, **named: Any) -> Any: ...
        def map(self, items: Iterable[T], /, *more: Iterable[Any]) -> Iterator[U]: ...
        def amap(
            self, items: Iterable[T] | AsyncIterable[T], /, *more: Iterable[Any] | AsyncIterable[Any]
        ) -> AsyncIterator[U]: ...


class BatchedColumns(ThreadedFunction, Generic[T1, T2, U, F_co]):
    """A decorated function with two columns, for type checkers: at run time it is a `BatchedFunction`."""

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...  # type: ignore[override]
        @overload
        def options(
            self, *, return_exceptions: Literal[True], **changes: Unpack[OtherCallChanges]
        ) -> BatchedColumns[T1, T2, U | Exception, F_co]: ...
        @overload
        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def options(self, **changes: Any) -> Any: ...
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


class ManyColumns(ThreadedFunction, Generic[T, U, F_co]):
    """A decorated function with three or more columns, or with columns that are passed by name only.

    For type checkers: at run time it is a `BatchedFunction`. They check only the first column.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...  # type: ignore[override]
        @overload
        def options(
            self, *, return_exceptions: Literal[True], **changes: Unpack[OtherCallChanges]
        ) -> ManyColumns[T, U | Exception, F_co]: ...
        @overload
        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def options(self, **changes: Any) -> Any: ...
        @overload
        def __call__(self, items: list[T], /, *more: Any, **named: Any) -> list[U]: ...
        @overload
        def __call__(self, item: T, /, *more: Any, **named: Any) -> U: ...
        @overload
        def __call__(self, /, **named: list[Any]) -> list[U]: ...
        @overload
        def __call__(self, /, **named: Any) -> U: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        async def acall(self, items: list[T], /, *more: Any, **named: Any) -> list[U]: ...
        @overload
        async def acall(self, item: T, /, *more: Any, **named: Any) -> U: ...
        @overload
        async def acall(self, /, **named: list[Any]) -> list[U]: ...
        @overload
        async def acall(self, /, **named: Any) -> U: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        def submit(self, items: list[T], /, *more: Any, **named: Any) -> Future[list[U]]: ...
        @overload
        def submit(self, item: T, /, *more: Any, **named: Any) -> Future[U]: ...
        @overload
        def submit(self, /, **named: list[Any]) -> Future[list[U]]: ...
        @overload
        def submit(self, /, **named: Any) -> Future[U]: ...
        def submit(self, /, *args: Any, **named: Any) -> Any: ...
        def map(self, items: Iterable[T], /, *more: Iterable[Any]) -> Iterator[U]: ...
        def amap(
            self, items: Iterable[T] | AsyncIterable[T], /, *more: Iterable[Any] | AsyncIterable[Any]
        ) -> AsyncIterator[U]: ...


class StreamingFunction(ThreadedFunction, Generic[T, U, F_co]):
    """A decorated generator function, for type checkers: at run time it is a `BatchedFunction`."""

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...  # type: ignore[override]
        def stream(self, item: T = ..., /, *more: Any, **named: Any) -> Stream[U]: ...
        def astream(self, item: T = ..., /, *more: Any, **named: Any) -> AsyncStream[U]: ...


class BatchedMethod(Method[S_contra, BatchedFunction[T, U, F_co]], Protocol[S_contra, T, U, F_co]):
    """A batched method on its class, where it is called with the instance first."""

    @overload
    def __call__(self, instance: S_contra, items: list[T] = ..., /, **named: list[Any]) -> list[U]: ...
    @overload
    def __call__(self, instance: S_contra, item: T = ..., /, **named: Any) -> U: ...
    @overload
    async def acall(self, instance: S_contra, items: list[T] = ..., /, **named: list[Any]) -> list[U]: ...
    @overload
    async def acall(self, instance: S_contra, item: T = ..., /, **named: Any) -> U: ...
    @overload
    def submit(self, instance: S_contra, items: list[T] = ..., /, **named: list[Any]) -> Future[list[U]]: ...
    @overload
    def submit(self, instance: S_contra, item: T = ..., /, **named: Any) -> Future[U]: ...
    def map(self, instance: S_contra, items: Iterable[T], /) -> Iterator[U]: ...
    def amap(self, instance: S_contra, items: Iterable[T] | AsyncIterable[T], /) -> AsyncIterator[U]: ...


class Dynamically(Protocol):
    """`dynamically` with its options: a decorator."""

    @overload
    def __call__(
        self, func: Callable[[list[AnyItem]], OneResultPerItem[AnyItem]], /
    ) -> BatchedFunction[Any, Any]: ...
    @overload
    def __call__(self, func: ThreeLists[T, A, Q, P, R], /) -> ManyColumns[T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ThreeLists[T, OneOrError[U, E], Q, P, R], /
    ) -> ManyColumns[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ThreeLists[T, MixedRows[U], Q, P, R], /
    ) -> ManyColumns[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ThreeLists[T, OneResultPerItem[U], Q, P, R], /
    ) -> ManyColumns[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, A, Q, P, R], /
    ) -> BatchedColumns[T1, T2, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, OneOrError[U, E], Q, P, R], /
    ) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, MixedRows[U], Q, P, R], /
    ) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, OneResultPerItem[U], Q, P, R], /
    ) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
    @overload
    def __call__(self, func: OneList[T, A, Q, P, R], /) -> BatchedFunction[T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: OneList[T, OneOrError[U, E], Q, P, R], /
    ) -> BatchedFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: OneList[T, MixedRows[U], Q, P, R], /
    ) -> BatchedFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: OneList[T, OneResultPerItem[U], Q, P, R], /
    ) -> BatchedFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, A, Q, P, R], /
    ) -> Method[S, ManyColumns[T, A, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, OneOrError[U, E], Q, P, R], /
    ) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, MixedRows[U], Q, P, R], /
    ) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, OneResultPerItem[U], Q, P, R], /
    ) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, A, Q, P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, A, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, OneOrError[U, E], Q, P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, MixedRows[U], Q, P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, OneResultPerItem[U], Q, P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, A, Q, P, R], /
    ) -> BatchedMethod[S, T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, OneOrError[U, E], Q, P, R], /
    ) -> BatchedMethod[S, T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, MixedRows[U], Q, P, R], /
    ) -> BatchedMethod[S, T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, OneResultPerItem[U], Q, P, R], /
    ) -> BatchedMethod[S, T, U, Function[P, R]]: ...
    @overload
    def __call__(self, func: ListStream[T, U, Q, P, R], /) -> StreamingFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ListStreamMethod[S, T, U, Q, P, R], /
    ) -> Method[S, StreamingFunction[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: Callable[[list[AnyItem]], OneResultPerItem[U] | Awaitable[OneResultPerItem[U]]], /
    ) -> BatchedFunction[Any, U]: ...


@overload
def dynamically(
    func: Callable[[list[AnyItem]], OneResultPerItem[AnyItem]],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[Any, Any]: ...
@overload
def dynamically(
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Dynamically: ...
@overload
def dynamically(
    func: ThreeLists[T, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: ThreeLists[T, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ThreeLists[T, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ThreeLists[T, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, A, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, A, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, A, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, A, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, OneOrError[U, E], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, MixedRows[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, OneResultPerItem[U], Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ListStream[T, U, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> StreamingFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ListStreamMethod[S, T, U, Q, P, R],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, StreamingFunction[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: Callable[[list[AnyItem]], OneResultPerItem[U] | Awaitable[OneResultPerItem[U]]],
    batch_size_: int = 64,
    timeout_ms_: float = 5.0,
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[Any, U]: ...
@takes_options(Options)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a list.

    `@dynamically`, `@dynamically(batch_size=64)` and `dynamically(model.encode, batch_size=64)` all work.
    If it decorates a method, each instance gets its own batcher, made at first use.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedFunction, Options, args, options)
