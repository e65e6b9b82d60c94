"""Types for type checkers: of the decorators for lists, and of the options of all decorators.

Nothing here runs. The typed dicts repeat the names and types of `batched._core.options`, as type checkers
need them written down; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, overload

from batched._core.option_checks import Cache
from batched._core.options import OnFull, PaddingSide, Priority

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
    from concurrent.futures import Future
    from typing import TypeAlias, Unpack

    from batched._api.lists import BatchedColumns, BatchedFunction, StreamingFunction
    from batched._core.call import Done

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
U = TypeVar("U")
S = TypeVar("S")
P = ParamSpec("P")
S_contra = TypeVar("S_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)


# -- options ----------------------------------------------------------------------------------------------


class LiveOptions(TypedDict, total=False):
    """The options that are given by name only, and that `configure` changes."""

    adaptive: bool
    max_concurrent_batches: int
    max_queue_size: int | None
    on_full: OnFull
    max_queue_delay_ms: float | None
    isolate_errors: bool
    max_batch_length: int | None


class Changes(LiveOptions, total=False):
    """The options that `configure` changes."""

    batch_size: int
    timeout_ms: float
    small_batch_threshold: int


class KeywordOptions(LiveOptions, total=False):
    """The options of all decorators that are given by name only."""

    group_by: Callable[..., Hashable] | None
    fair_by: Callable[..., Hashable] | None
    cache: Cache | None
    cache_key: Callable[..., Hashable] | None
    default_deadline_ms: float | None
    name: str | None


class ListKeywordOptions(KeywordOptions, total=False):
    """The same of the decorators for lists."""

    length: Callable[..., float] | Literal["auto"] | None
    max_pieces: int


class ArrayKeywordOptions(KeywordOptions, total=False):
    """The same of the decorators for arrays."""

    pad_token: Any
    pad_tokens: Any
    padding_side: PaddingSide
    pad_to_multiple_of: int | Mapping[Any, int] | None
    unpad_outputs: bool | Mapping[Any, Any]
    spread_kwargs: bool


class CallChanges(TypedDict, total=False):
    """The options of single calls."""

    deadline_ms: float | Literal["default"] | None
    priority: Priority | None
    return_exceptions: bool


def list_options(
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ListKeywordOptions],
) -> None:
    """Take the options of the decorators for lists, for type checkers."""
    ...  # noqa: PIE790  else pyright refuses the defaults


def array_options(
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[ArrayKeywordOptions],
) -> None:
    """Take the options of the decorators for arrays, for type checkers."""
    ...  # noqa: PIE790  else pyright refuses the defaults


# -- batch functions, and what the decorators make of them ------------------------------------------------


class Rows(Protocol[U_co]):
    """The outputs of a batch function: sized, ordered, one row per item."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[U_co]: ...


Outputs: TypeAlias = "Rows[U] | Awaitable[Rows[U]]"  # of a plain batch function, or an `async def` one
Pieces: TypeAlias = "Rows[U | Done]"
Steps: TypeAlias = "Iterator[Pieces[U]] | AsyncIterator[Pieces[U]]"  # of one that streams

ListFunction: TypeAlias = "Callable[[list[T]], Outputs[U]]"
ListMethod: TypeAlias = "Callable[[S, list[T]], Outputs[U]]"
ListStream: TypeAlias = "Callable[[list[T]], Steps[U]]"
ListStreamMethod: TypeAlias = "Callable[[S, list[T]], Steps[U]]"
ColumnsFunction: TypeAlias = "Callable[[list[T1], list[T2]], Outputs[U]]"
ColumnsMethod: TypeAlias = "Callable[[S, list[T1], list[T2]], Outputs[U]]"


class Method(Protocol[S_contra, U_co]):
    """A batched method in its class, which is a `U_co` once it is bound.

    The first `__get__` is for class methods, where `self` is a class.
    """

    @overload
    def __get__(self: Method[type[S], U], instance: S | None, owner: type[S], /) -> U: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None, /) -> U_co: ...


class BatchedMethod(Method[S_contra, "BatchedFunction[T, U]"], Protocol[S_contra, T, U]):
    """A batched method in its class, where it is called with the instance first."""

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


class Dynamically(Protocol[P]):
    """`dynamically`, with options `P`; once these are given there are none left."""

    @overload
    def __call__(
        self, func: ListFunction[T, U], /, *args: P.args, **options: P.kwargs
    ) -> BatchedFunction[T, U]: ...
    @overload
    def __call__(
        self, func: ColumnsFunction[T1, T2, U], /, *args: P.args, **options: P.kwargs
    ) -> BatchedColumns[T1, T2, U]: ...
    @overload
    def __call__(
        self, func: ListMethod[S, T, U], /, *args: P.args, **options: P.kwargs
    ) -> BatchedMethod[S, T, U]: ...
    @overload
    def __call__(
        self, func: ColumnsMethod[S, T1, T2, U], /, *args: P.args, **options: P.kwargs
    ) -> Method[S, BatchedColumns[T1, T2, U]]: ...
    @overload
    def __call__(
        self, func: ListStream[T, U], /, *args: P.args, **options: P.kwargs
    ) -> StreamingFunction[T, U]: ...
    @overload
    def __call__(
        self, func: ListStreamMethod[S, T, U], /, *args: P.args, **options: P.kwargs
    ) -> Method[S, StreamingFunction[T, U]]: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Dynamically[[]]: ...
