"""`dynamically` for lists: one item or a list, called from threads and event loops."""
# pyright: reportOverlappingOverload=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from batched._api.decorate import decorate, takes_options
from batched._api.flavours import ThreadedFunction
from batched._api.map_types import Answers, AsyncAnswers, Source, WithMaps
from batched._api.option_types import (
    ByPosition,
    CallChanges,
    ListKeywordOptions,
    OtherCallChanges,
    StagedListOptions,
)
from batched._api.signatures import (
    T1,
    T2,
    F_co,
    Generic,
    Method,
    P,
    Protocol,
    R,
    S,
    S_co,
    T,
    U,
    V,
    V_co,
    W,
    W_contra,
)
from batched._api.streams import AsyncStream, Stream
from batched._core.options import Options

if TYPE_CHECKING:
    from batched._api.signatures import (
        A,
        AnyItem,
        E,
        Function,
        Instance,
        ListStream,
        ListStreamMethod,
        MethodOfOneList,
        MethodOfThreeLists,
        MethodOfTwoLists,
        OneList,
        OneResultPerItem,
        Outputs,
        RowsOrErrors,
        Stage,
        Staged,
        ThreeLists,
        TwoLists,
    )


class BatchedFunction(WithMaps[T, Any, tuple[Any, ...], U], ThreadedFunction, Generic[T, U, F_co]):
    """A decorated function: call it with one item, or with a list of items.

    `fn(item)` returns the item's result, `fn([item, ...])` the list of their results. Only a `list` means
    several items: a tuple or an array is one. All callers share the batches of one worker thread. Each gets
    what the function would have returned, or raised, for that caller's items alone.

    The batch function sees a new list of at most `batch_size` items. It must return one result per item, as a
    list, tuple, array or anything else that is sized and ordered. A result that is an exception fails its own
    item only. The function runs in a thread of its own, where the context variables of callers are not set.

    A function of several parameters gets a list for each parameter that a call passes. A parameter with a
    bool, a number, a `str` or `bytes` as its default is a setting of the whole batch, unless its annotation
    is a list. A call that passes a setting is a `TypeError`: set it with `functools.partial`, before
    decorating.

    A generator function streams: a call passes one item, even if that is a list, and returns all of its
    pieces in a list.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...
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


class BatchedColumns(WithMaps[T1, T2, tuple[T1, T2], U], ThreadedFunction, Generic[T1, T2, U, F_co]):
    """A decorated function of two columns, for type checkers: at run time it is a `BatchedFunction`."""

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...
        @overload
        def options(
            self, *, return_exceptions: Literal[True], **changes: Unpack[OtherCallChanges]
        ) -> BatchedColumns[T1, T2, U | Exception, F_co]: ...
        @overload
        def options(self, **changes: Unpack[CallChanges]) -> Self: ...
        def options(self, **changes: Any) -> Any: ...
        @overload
        def __call__(self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[Any]) -> list[U]: ...
        @overload
        def __call__(self, x: T1 = ..., y: T2 = ..., /, **named: Any) -> U: ...
        def __call__(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        async def acall(self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[Any]) -> list[U]: ...
        @overload
        async def acall(self, x: T1 = ..., y: T2 = ..., /, **named: Any) -> U: ...
        async def acall(self, /, *args: Any, **named: Any) -> Any: ...
        @overload
        def submit(
            self, xs: list[T1] = ..., ys: list[T2] = ..., /, **named: list[Any]
        ) -> Future[list[U]]: ...
        @overload
        def submit(self, x: T1 = ..., y: T2 = ..., /, **named: Any) -> Future[U]: ...
        def submit(self, /, *args: Any, **named: Any) -> Any: ...


class ManyColumns(WithMaps[T, Any, tuple[Any, ...], U], ThreadedFunction, Generic[T, U, F_co]):
    """A decorated function of three columns or more, or of some that are passed by name only.

    For type checkers: at run time it is a `BatchedFunction`. They check the first column.
    """

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...
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


class StreamingFunction(ThreadedFunction, Generic[T, U, F_co]):
    """A decorated generator function, for type checkers: at run time it is a `BatchedFunction`."""

    if TYPE_CHECKING:

        @property
        def __wrapped__(self) -> F_co: ...
        def __call__(self, item: T = ..., /, *more: Any, **named: Any) -> list[U]: ...
        async def acall(self, item: T = ..., /, *more: Any, **named: Any) -> list[U]: ...
        def submit(self, item: T = ..., /, *more: Any, **named: Any) -> Future[list[U]]: ...
        def stream(self, item: T = ..., /, *more: Any, **named: Any) -> Stream[U]: ...
        def astream(self, item: T = ..., /, *more: Any, **named: Any) -> AsyncStream[U]: ...


class BatchedMethod(  # type: ignore[misc]
    Method[S_co, BatchedFunction[T, U, F_co]], Protocol[S_co, T, U, F_co]
):
    """A batched method in its class, where it is called with the instance first."""

    @overload
    def __call__(self, instance: Instance[S_co], items: list[T] = ..., /, **named: list[Any]) -> list[U]: ...
    @overload
    def __call__(self, instance: Instance[S_co], item: T = ..., /, **named: Any) -> U: ...
    @overload
    async def acall(
        self, instance: Instance[S_co], items: list[T] = ..., /, **named: list[Any]
    ) -> list[U]: ...
    @overload
    async def acall(self, instance: Instance[S_co], item: T = ..., /, **named: Any) -> U: ...
    @overload
    def submit(
        self, instance: Instance[S_co], items: list[T] = ..., /, **named: list[Any]
    ) -> Future[list[U]]: ...
    @overload
    def submit(self, instance: Instance[S_co], item: T = ..., /, **named: Any) -> Future[U]: ...
    @overload
    def map(
        self, instance: Instance[S_co], items: Iterable[T], /, *, with_items: Literal[False] = ...
    ) -> Answers[U]: ...
    @overload
    def map(
        self, instance: Instance[S_co], items: Iterable[T], /, *, with_items: Literal[True]
    ) -> Answers[tuple[T, U]]: ...
    @overload
    def amap(
        self, instance: Instance[S_co], items: Source[T], /, *, with_items: Literal[False] = ...
    ) -> AsyncAnswers[U]: ...
    @overload
    def amap(
        self, instance: Instance[S_co], items: Source[T], /, *, with_items: Literal[True]
    ) -> AsyncAnswers[tuple[T, U]]: ...


class Dynamically(Protocol):
    """`dynamically` with its options: a decorator."""

    @overload
    def __call__(
        self, func: Callable[[list[AnyItem]], OneResultPerItem[AnyItem]], /
    ) -> BatchedFunction[Any, Any]: ...
    @overload
    def __call__(self, func: ThreeLists[T, A, P, R], /) -> ManyColumns[T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ThreeLists[T, RowsOrErrors[U, E], P, R], /
    ) -> ManyColumns[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ThreeLists[T, OneResultPerItem[U], P, R], /
    ) -> ManyColumns[T, U, Function[P, R]]: ...
    @overload
    def __call__(self, func: TwoLists[T1, T2, A, P, R], /) -> BatchedColumns[T1, T2, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, RowsOrErrors[U, E], P, R], /
    ) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: TwoLists[T1, T2, OneResultPerItem[U], P, R], /
    ) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
    @overload
    def __call__(self, func: OneList[T, A, P, R], /) -> BatchedFunction[T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: OneList[T, RowsOrErrors[U, E], P, R], /
    ) -> BatchedFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: OneList[T, OneResultPerItem[U], P, R], /
    ) -> BatchedFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, A, P, R], /
    ) -> Method[S, ManyColumns[T, A, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, RowsOrErrors[U, E], P, R], /
    ) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfThreeLists[S, T, OneResultPerItem[U], P, R], /
    ) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, A, P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, A, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, RowsOrErrors[U, E], P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
    @overload
    def __call__(
        self, func: MethodOfTwoLists[S, T1, T2, OneResultPerItem[U], P, R], /
    ) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
    @overload
    def __call__(self, func: MethodOfOneList[S, T, A, P, R], /) -> BatchedMethod[S, T, A, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, RowsOrErrors[U, E], P, R], /
    ) -> BatchedMethod[S, T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: MethodOfOneList[S, T, OneResultPerItem[U], P, R], /
    ) -> BatchedMethod[S, T, U, Function[P, R]]: ...
    @overload
    def __call__(self, func: ListStream[T, U, P, R], /) -> StreamingFunction[T, U, Function[P, R]]: ...
    @overload
    def __call__(
        self, func: ListStreamMethod[S, T, U, P, R], /
    ) -> Method[S, StreamingFunction[T, U, Function[P, R]]]: ...
    @overload
    def __call__(self, func: Callable[[list[AnyItem]], Outputs[U]], /) -> BatchedFunction[Any, U]: ...


class Prepared(Protocol[T, V_co]):
    """A decorator with `prepare`: callers pass what that takes."""

    @overload
    def __call__(self, func: Callable[[V_co], Outputs[U]], /) -> BatchedFunction[T, U]: ...
    @overload
    def __call__(self, func: Callable[[S, V_co], Outputs[U]], /) -> Method[S, BatchedFunction[T, U]]: ...


class Finished(Protocol[W_contra, U]):
    """A decorator with `finish`: callers get what that returns."""

    @overload
    def __call__(
        self, func: Callable[[list[T]], W_contra | Awaitable[W_contra]], /
    ) -> BatchedFunction[T, U]: ...
    @overload
    def __call__(
        self, func: Callable[[list[T1], list[T2]], W_contra | Awaitable[W_contra]], /
    ) -> BatchedColumns[T1, T2, U]: ...
    @overload
    def __call__(
        self, func: Callable[[S, list[T]], W_contra | Awaitable[W_contra]], /
    ) -> Method[S, BatchedFunction[T, U]]: ...
    @overload
    def __call__(self, func: Callable[..., W_contra | Awaitable[W_contra]], /) -> ManyColumns[Any, U]: ...


# With stages, callers pass what `prepare` takes, and get what `finish` returns. Of a lambda no type is known.
@overload
def dynamically(
    *by_position: ByPosition,
    prepare: Callable[[list[AnyItem]], Any],
    finish: Stage,
    **options: Unpack[StagedListOptions],
) -> Staged[Any, Any, BatchedFunction[Any, Any]]: ...
@overload
def dynamically(
    *by_position: ByPosition,
    prepare: Stage,
    finish: Callable[[AnyItem], Any],
    **options: Unpack[StagedListOptions],
) -> Staged[Any, Any, BatchedFunction[Any, Any]]: ...
@overload
def dynamically(
    *by_position: ByPosition,
    prepare: Callable[[list[T]], V],
    finish: Callable[[W], Outputs[U]],
    **options: Unpack[StagedListOptions],
) -> Staged[V, W, BatchedFunction[T, U]]: ...
@overload
def dynamically(
    *by_position: ByPosition, prepare: Stage, finish: Stage, **options: Unpack[StagedListOptions]
) -> Staged[Any, Any, BatchedFunction[Any, Any]]: ...
@overload
def dynamically(
    *by_position: ByPosition,
    prepare: Callable[[list[AnyItem]], Any],
    finish: None = None,
    **options: Unpack[StagedListOptions],
) -> Prepared[Any, Any]: ...
@overload
def dynamically(
    *by_position: ByPosition,
    prepare: Callable[[list[T]], V],
    finish: None = None,
    **options: Unpack[StagedListOptions],
) -> Prepared[T, V]: ...
@overload
def dynamically(
    *by_position: ByPosition, prepare: Stage, finish: None = None, **options: Unpack[StagedListOptions]
) -> Prepared[Any, Any]: ...
@overload
def dynamically(
    *by_position: ByPosition, finish: Callable[[AnyItem], Any], **options: Unpack[StagedListOptions]
) -> Finished[Any, Any]: ...
@overload
def dynamically(
    *by_position: ByPosition, finish: Callable[[W], Outputs[U]], **options: Unpack[StagedListOptions]
) -> Finished[W, U]: ...
@overload
def dynamically(
    *by_position: ByPosition, finish: Stage, **options: Unpack[StagedListOptions]
) -> Finished[Any, Any]: ...
@overload
def dynamically(
    func: Callable[..., Any],
    /,
    *by_position: ByPosition,
    prepare: Stage,
    finish: Stage | None = None,
    **options: Unpack[StagedListOptions],
) -> BatchedFunction[Any, Any]: ...
@overload
def dynamically(
    func: Callable[..., Any], /, *by_position: ByPosition, finish: Stage, **options: Unpack[StagedListOptions]
) -> BatchedFunction[Any, Any]: ...
@overload
def dynamically(
    func: Callable[[list[AnyItem]], OneResultPerItem[AnyItem]],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[Any, Any]: ...
@overload
def dynamically(
    batch_size_: int = 64,
    timeout_ms_: float | Literal["auto"] = "auto",
    small_batch_threshold_: int = 8,
    /,
    **options: Unpack[ListKeywordOptions],
) -> Dynamically: ...
@overload
def dynamically(
    func: ThreeLists[T, A, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> ManyColumns[T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: ThreeLists[T, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ThreeLists[T, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> ManyColumns[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, A, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> BatchedColumns[T1, T2, A, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
@overload
def dynamically(
    func: TwoLists[T1, T2, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedColumns[T1, T2, U, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, A, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> BatchedFunction[T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: OneList[T, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, A, P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, A, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfThreeLists[S, T, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, ManyColumns[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, A, P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, A, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfTwoLists[S, T1, T2, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> Method[S, BatchedColumns[T1, T2, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, A, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> BatchedMethod[S, T, A, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, RowsOrErrors[U, E], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: MethodOfOneList[S, T, OneResultPerItem[U], P, R],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedMethod[S, T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ListStream[T, U, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> StreamingFunction[T, U, Function[P, R]]: ...
@overload
def dynamically(
    func: ListStreamMethod[S, T, U, P, R], /, *by_position: ByPosition, **options: Unpack[ListKeywordOptions]
) -> Method[S, StreamingFunction[T, U, Function[P, R]]]: ...
@overload
def dynamically(
    func: Callable[[list[AnyItem]], Outputs[U]],
    /,
    *by_position: ByPosition,
    **options: Unpack[ListKeywordOptions],
) -> BatchedFunction[Any, U]: ...
@takes_options(Options)
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a list. Threads and event loops may call it.

    The function takes a list of items, and returns one result per item. Callers pass one item, or a list:

        import batched

        @batched.dynamically
        def embed(texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

        assert embed("hello") == 5
        assert embed(["a", "bb"]) == [1, 2]

    `@dynamically(batch_size=64)` and `dynamically(model.encode, batch_size=64)` work too. On a method, each
    instance has a batcher of its own. The worker thread starts with the first call.

    Args:
        options: Each one says in an editor what it means, as `help` says of all.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedFunction, Options, args, options)
