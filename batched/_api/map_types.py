"""What `map` and `amap` take and yield, for type checkers. Nothing here runs."""
# pyright: reportOverlappingOverload=false

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from batched._api.signatures import T, U, U_co

More = TypeVar("More")
Row = TypeVar("Row")

Source: TypeAlias = Iterable[T] | AsyncIterable[T]
"""What `amap` takes."""


class Answers(Iterator[U_co], Protocol[U_co]):
    """What a `map` returns: an iterator that can be closed before its end, as by `contextlib.closing`.

    Then items that have not started never run.
    """

    def close(self) -> None:
        """End the map."""


class AsyncAnswers(Protocol[U_co]):
    """What an `amap` returns: an iterator that can be closed before its end, as by `contextlib.aclosing`.

    Then items that have not started never run.
    """

    def __aiter__(self) -> AsyncIterator[U_co]: ...
    def __anext__(self) -> Awaitable[U_co]: ...

    def aclose(self) -> Coroutine[Any, Any, None]:
        """End the map."""
        ...


class WithAmap(Generic[T, More, Row, U]):
    """`amap` takes items `T`, and `More` of each further column; it yields results `U`.

    With its items, a result is a pair: of a `T`, or of a `Row` where there are several columns.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def amap(
            self, items: Source[T], /, *more: Source[More], with_items: Literal[False] = ...
        ) -> AsyncAnswers[U]: ...
        @overload
        def amap(self, items: Source[T], /, *, with_items: Literal[True]) -> AsyncAnswers[tuple[T, U]]: ...
        @overload
        def amap(
            self, items: Source[T], /, *more: Source[More], with_items: Literal[True]
        ) -> AsyncAnswers[tuple[Row, U]]: ...
        @overload
        def amap(
            self, items: Source[T], /, *more: Source[More], with_items: bool = ...
        ) -> AsyncAnswers[Any]: ...
        def amap(self, /, *sources: Any, with_items: bool = False) -> Any: ...


class WithMaps(WithAmap[T, More, Row, U]):
    """So does `map`."""

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: Literal[False] = ...
        ) -> Answers[U]: ...
        @overload
        def map(self, items: Iterable[T], /, *, with_items: Literal[True]) -> Answers[tuple[T, U]]: ...
        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: Literal[True]
        ) -> Answers[tuple[Row, U]]: ...
        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: bool = ...
        ) -> Answers[Any]: ...
        def map(self, /, *sources: Any, with_items: bool = False) -> Any: ...
