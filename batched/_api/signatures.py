"""Types of functions that are decorated, and of what the decorators make of them. Nothing here runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from typing import TypeAlias

    from batched._core.call import Done

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
U = TypeVar("U")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)


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
