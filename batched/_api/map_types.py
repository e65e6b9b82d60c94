"""What `map` and `amap` take and yield, for type checkers. Nothing here runs."""
# pyright: reportOverlappingOverload=false

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from batched._api.signatures import T, U

More = TypeVar("More")
Row = TypeVar("Row")


class WithAmap(Generic[T, More, Row, U]):
    """`amap` takes items `T`, and `More` of each further column; it yields results `U`.

    With its items, a result is a pair: of a `T`, or of a `Row` where there are several columns.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def amap(
            self,
            items: Iterable[T] | AsyncIterable[T],
            /,
            *more: Iterable[More] | AsyncIterable[More],
            with_items: Literal[False] = ...,
        ) -> AsyncIterator[U]: ...
        @overload
        def amap(
            self, items: Iterable[T] | AsyncIterable[T], /, *, with_items: Literal[True]
        ) -> AsyncIterator[tuple[T, U]]: ...
        @overload
        def amap(
            self,
            items: Iterable[T] | AsyncIterable[T],
            /,
            *more: Iterable[More] | AsyncIterable[More],
            with_items: Literal[True],
        ) -> AsyncIterator[tuple[Row, U]]: ...
        @overload
        def amap(
            self,
            items: Iterable[T] | AsyncIterable[T],
            /,
            *more: Iterable[More] | AsyncIterable[More],
            with_items: bool = ...,
        ) -> AsyncIterator[Any]: ...
        def amap(self, /, *sources: Any, with_items: bool = False) -> Any: ...


class WithMaps(WithAmap[T, More, Row, U]):
    """So does `map`."""

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: Literal[False] = ...
        ) -> Iterator[U]: ...
        @overload
        def map(self, items: Iterable[T], /, *, with_items: Literal[True]) -> Iterator[tuple[T, U]]: ...
        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: Literal[True]
        ) -> Iterator[tuple[Row, U]]: ...
        @overload
        def map(
            self, items: Iterable[T], /, *more: Iterable[More], with_items: bool = ...
        ) -> Iterator[Any]: ...
        def map(self, /, *sources: Any, with_items: bool = False) -> Any: ...
