"""Types of functions that are decorated, and of what the decorators make of them. Nothing here runs."""
# pyright: reportRedeclaration=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
    from typing import Generic as Generic  # noqa: PLC0414  exported, for those that it stands for
    from typing import Protocol as Protocol  # noqa: PLC0414
    from typing import TypeAlias

    from typing_extensions import TypeVar as DefaultTypeVar

    from batched._core.change import Done

    F_co = DefaultTypeVar("F_co", covariant=True, default=Any)
    """The type of the decorated function itself. An annotation leaves it out: `BatchedFunction[str, int]`."""
else:
    import typing

    F_co = TypeVar("F_co", covariant=True)

    class _WithoutFunction:
        """`Generic` and `Protocol` at run time, where no type of a function is given or left out.

        A type variable has a default from Python 3.13 on only.
        """

        def __init__(self, base: Any) -> None:
            self._base = base

        def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
            return (self._base,)

        def __getitem__(self, parameters: Any) -> Any:
            return self._base[tuple(each for each in parameters if each is not F_co)]

    Generic = _WithoutFunction(typing.Generic)
    Protocol = _WithoutFunction(typing.Protocol)

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T_co = TypeVar("T_co", covariant=True)
T1_co = TypeVar("T1_co", covariant=True)
T2_co = TypeVar("T2_co", covariant=True)
U = TypeVar("U")
U_co = TypeVar("U_co", covariant=True)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
E = TypeVar("E", bound=BaseException)
O_co = TypeVar("O_co", covariant=True)
P = ParamSpec("P")


# -- what batch functions return --------------------------------------------------------------------------

if TYPE_CHECKING:
    In_contra = TypeVar("In_contra", contravariant=True)

    class OneResultPerItem(Protocol[U_co]):
        """The outputs of a batch function: sized, ordered, one row per item."""

        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[U_co]: ...

    Outputs: TypeAlias = OneResultPerItem[U] | Awaitable[OneResultPerItem[U]]
    """What a batch function returns, `async def` or not."""
    Stage: TypeAlias = Callable[..., Any] | str
    """`prepare` or `finish`, of which no type is known: a string is the name of a method."""

    class AnyItem:
        """An item of a function that takes items of any type.

        Type checkers say its name of a function that takes no list, and take it for the items of a lambda.
        """

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __float__(self) -> float: ...
        def __index__(self) -> int: ...
        def __neg__(self) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> bool: ...

    class Array(Protocol):
        """An array of numpy, torch or JAX: a row of it is an array of the same type."""

        def __len__(self) -> int: ...
        @property
        def ndim(self) -> int: ...
        @property
        def shape(self) -> Any: ...
        @property
        def reshape(self) -> Any: ...

    A = TypeVar("A", bound=Array)
    FeaturesT = TypeVar("FeaturesT", bound=Mapping[Any, Any])

    class _List(Protocol[U_co, In_contra]):
        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[U_co]: ...
        def append(self, item: In_contra, /) -> None: ...

    _NumberErrors: TypeAlias = ArithmeticError | OverflowError | ZeroDivisionError
    _ValueErrors: TypeAlias = TypeError | ValueError | UnicodeError | UnicodeDecodeError | UnicodeEncodeError
    _LookupErrors: TypeAlias = AttributeError | IndexError | KeyError | LookupError | NameError
    _FileErrors: TypeAlias = (
        OSError | ConnectionError | EOFError | FileNotFoundError | PermissionError | TimeoutError
    )
    _CodeErrors: TypeAlias = (
        AssertionError | ImportError | NotImplementedError | StopAsyncIteration | StopIteration | SyntaxError
    )
    _RunErrors: TypeAlias = (
        BufferError | MemoryError | RecursionError | ReferenceError | RuntimeError | SystemError
    )
    _Errors: TypeAlias = _NumberErrors | _ValueErrors | _LookupErrors | _FileErrors | _CodeErrors | _RunErrors

    # A row that is an exception fails its item, so callers never get it. mypy takes all exceptions for
    # `BaseException`; pyright removes those that are named, or any one that is beside one other type. With
    # `append`, mypy finds no type here where it would make `object` of `int | str`, and goes on.
    _MixedRows: TypeAlias = _List[U | BaseException | Exception | _Errors, U]
    RowsOrErrors: TypeAlias = list[U | E] | _MixedRows[U]

    # A function as it is, so that `__wrapped__` has its type. Were it no class, mypy would lose the types of
    # items and results; to pyright, an instance of a class fits no overload, so it could not be decorated.
    MYPY = False  # as pyright reads it; to mypy it is true
    if MYPY:

        class Function(Protocol[P, R_co]):
            def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...
    else:
        Function: TypeAlias = Callable[P, R]

    Pieces: TypeAlias = OneResultPerItem[U | Done]
    Steps: TypeAlias = Iterator[Pieces[U]] | AsyncIterator[Pieces[U]]  # of a function that streams

    # -- batch functions ----------------------------------------------------------------------------------
    #
    # Each is two patterns, and a function fits both: what its lists and outputs are, and the function as it
    # is, for `__wrapped__`. Type checkers want other variances, as of functions with one signature.
    #
    # `*args: Any, **named: Any` stand for any further parameters. Of a `ParamSpec` in their place mypy makes
    # `Never` where it expects a type, as for an attribute: it would refuse `self.embed = dynamically(embed)`.

    class OneList(Protocol[T_co, O_co, P, R_co]):  # type: ignore[misc]
        """A batch function of one list, and perhaps of settings."""

        @overload
        def __call__(self, items: list[T_co], /, *args: Any, **named: Any) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...

    class TwoLists(Protocol[T1_co, T2_co, O_co, P, R_co]):  # type: ignore[misc]
        """A batch function of two columns; the second may be optional."""

        @overload
        def __call__(
            self, xs: list[T1_co], ys: list[T2_co], /, *args: Any, **named: Any
        ) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...

    class ThreeLists(Protocol[T_co, O_co, P, R_co]):  # type: ignore[misc]
        """A batch function of three columns, or more."""

        @overload
        def __call__(
            self, xs: list[T_co], ys: list[Any], zs: list[Any], /, *args: Any, **named: Any
        ) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...

    class ListStream(Protocol[T_co, U_co, P, R_co]):  # type: ignore[misc]
        """A generator function of one column, or of several."""

        @overload
        def __call__(self, xs: list[T_co], /, *args: Any, **named: Any) -> Steps[U_co]: ...
        @overload
        def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...

    class MethodOfOneList(Protocol[S_contra, T_co, O_co, P, R_co]):  # type: ignore[misc]
        """A method, as `OneList`."""

        @overload
        def __call__(
            self, instance: S_contra, items: list[T_co], /, *args: Any, **named: Any
        ) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, instance: S_contra, /, *args: P.args, **named: P.kwargs) -> R_co: ...

    class MethodOfTwoLists(Protocol[S_contra, T1_co, T2_co, O_co, P, R_co]):  # type: ignore[misc]
        """A method, as `TwoLists`."""

        @overload
        def __call__(
            self, instance: S_contra, xs: list[T1_co], ys: list[T2_co], /, *args: Any, **named: Any
        ) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, instance: S_contra, /, *args: P.args, **named: P.kwargs) -> R_co: ...

    class MethodOfThreeLists(Protocol[S_contra, T_co, O_co, P, R_co]):  # type: ignore[misc]
        """A method, as `ThreeLists`."""

        @overload
        def __call__(
            self,
            instance: S_contra,
            xs: list[T_co],
            ys: list[Any],
            zs: list[Any],
            /,
            *args: Any,
            **named: Any,
        ) -> O_co | Awaitable[O_co]: ...
        @overload
        def __call__(self, instance: S_contra, /, *args: P.args, **named: P.kwargs) -> R_co: ...

    class ListStreamMethod(Protocol[S_contra, T_co, U_co, P, R_co]):  # type: ignore[misc]
        """A method, as `ListStream`."""

        @overload
        def __call__(
            self, instance: S_contra, xs: list[T_co], /, *args: Any, **named: Any
        ) -> Steps[U_co]: ...
        @overload
        def __call__(self, instance: S_contra, /, *args: P.args, **named: P.kwargs) -> R_co: ...


# -- what the decorators make of them ---------------------------------------------------------------------


if TYPE_CHECKING:

    class _Nothing:
        """There is none."""

    # The instance of a method that is called through its class. Its type is covariant, though it stands at a
    # parameter: a method may take the place of one of a base class, as plain methods do, and its `self` is of
    # the subclass. Type checkers refuse that of the variable alone.
    Instance: TypeAlias = S_co | _Nothing


class Method(Protocol[S_co, U_co]):  # type: ignore[misc]
    """A batched method on its class. On an instance it is bound, and has the second type in brackets.

    The first `__get__` is for class methods, where `self` is a class.
    """

    if TYPE_CHECKING:  # else they would be those of this class

        @property
        def __name__(self) -> str: ...
        @property
        def __qualname__(self) -> str: ...

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...
    def __call__(self, instance: Instance[S_co], /, *args: Any, **named: Any) -> Any: ...
    async def acall(self, instance: Instance[S_co], /, *args: Any, **named: Any) -> Any: ...
    @overload
    def __get__(self: Method[type[S], U], instance: S | None, owner: type[S], /) -> U: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: Instance[S_co], owner: type | None = None, /) -> U_co: ...


class Staged(Protocol[V_co, W_contra, U_co]):
    """A decorator with `prepare` and `finish`, which makes a `U_co` of a function between the two."""

    @overload
    def __call__(self, func: Callable[[V_co], W_contra | Awaitable[W_contra]], /) -> U_co: ...
    @overload
    def __call__(self, func: Callable[[S, V_co], W_contra | Awaitable[W_contra]], /) -> Method[S, U_co]: ...
