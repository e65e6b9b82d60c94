"""Copies of results that two callers get: of arrays and containers, which are easily changed in place."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from io import BytesIO, StringIO
from operator import is_not
from typing import Any, TypeAlias

from batched._collate.libraries import is_one_of, library_of, type_named
from batched._collate.nested import with_children
from batched._collate.plain import PLAIN, are_plain
from batched._policy.out_of_memory import is_out_of_memory

Copier: TypeAlias = Callable[[Any], Any]
"""Returns a result as it may be handed out: itself, or a copy."""


def if_it_can(copier: Copier) -> Copier:
    """Return what copies a result, or returns it as it is if that fails: no other call is to blame for it.

    But it raises if there is no memory for a copy.
    """

    def own(result: Any) -> Any:
        try:
            return copier(result)
        except Exception as error:  # of the result's class or library, or a `RecursionError`
            if is_out_of_memory(error):
                raise
            return result

    return own


def _copy(result: Any) -> Any:  # noqa: PLR0911  one kind after another
    if type(result) in PLAIN:
        return result
    library = library_of(result)
    if library is not None:
        return _with_own_objects(library.copy(result))
    if type(result) is dict:
        return {key: _copy(value) for key, value in result.items()}
    if type(result) in {list, tuple}:
        if are_plain(result):
            return result[:]
        return type(result)(row if type(row) in PLAIN else _copy(row) for row in result)
    if type(result) in _COPIED:
        return _COPIED[type(result)](result)
    if is_like_an_array(type(result)) or is_one_of(type(result), _TABLES):
        return _with_own_objects(result.copy())
    if issubclass(type(result), Mapping | list | tuple):  # such as a named tuple, or a model's outputs
        children = list(result.values()) if issubclass(type(result), Mapping) else result
        copied = [*map(_copy, children)]
        if type(result) in _STANDARD or any(map(is_not, copied, children)):
            made = with_children(result, result, copied)
            return made if type(made) is type(result) else result  # the function knows it by its class
    return result


def _with_own_objects(copied: Any) -> Any:
    """Return a copy of an array or table, of which the arrays and containers inside are copied too."""
    if found := objects_in(copied):
        put_objects(copied, found, [*map(_copy, found.values())])
    return copied


def objects_in(whole: Any) -> dict[Any, Any]:
    """Return what is in an array of objects of numpy's own, or in columns of objects, by place.

    Columns of plain values are left out: nothing in them is to be copied.
    """
    kind: Any = type(whole)
    if kind is type_named("numpy", "ndarray"):
        return _by_place(whole.flat) if whole.dtype == object else {}
    if not is_one_of(kind, PANDAS):
        return {}
    if whole.ndim == 1:
        return _by_place(whole) if whole.dtype == object else {}
    columns = [at for at, each in enumerate(whole.dtypes) if each == object]  # noqa: E721  a dtype
    return {(row, at): value for at in columns for row, value in _by_place(whole.iloc[:, at]).items()}


def _by_place(column: Iterable[Any]) -> dict[int, Any]:
    values = list(column)
    return {} if are_plain(values) else dict(enumerate(values))


def put_objects(whole: Any, found: dict[Any, Any], others: Sequence[Any]) -> None:
    """Put those of `others` that are new ones where `objects_in` has found the objects."""
    places = whole.iat if hasattr(whole, "iat") else whole.reshape(-1)
    for (place, value), other in zip(found.items(), others, strict=True):
        if other is not value:
            places[place] = other


own_copy = if_it_can(_copy)
"""Returns a copy of an array or a container, which are easily changed in place; else the result itself.

Also the result itself if it cannot be copied, as it contains itself, say.
"""


def copy_of_memory(row: memoryview) -> memoryview:
    """Return a view of a copy of what `row` shows, in its format and shape."""
    try:
        if type(row.obj) is bytes and row.nbytes == len(row.obj):  # that does not change, and is no larger
            return row
        flat = memoryview(bytearray(row.tobytes()))
        copied = flat.cast(row.format, row.shape) if row.ndim != 1 or row.format != "B" else flat  # type: ignore[call-overload]
    except (TypeError, ValueError):  # it is released, or of a format that cannot be made
        return row
    return copied.toreadonly() if row.readonly else copied


_COPIED: dict[type, Copier] = {
    **dict.fromkeys((set, bytearray, array, BytesIO, StringIO), copy),
    memoryview: copy_of_memory,
    deque: lambda result: deque(map(_copy, result), result.maxlen),
    UserList: lambda result: UserList(map(_copy, result)),
}
_STANDARD = {OrderedDict, defaultdict, Counter, UserDict}
_LIKE_ARRAYS = (("numpy", "void"), ("cupy", "ndarray"))
PANDAS = (("pandas", "DataFrame"), ("pandas", "Series"))
_TABLES = (
    *PANDAS,
    ("scipy.sparse", "spmatrix"),
    ("scipy.sparse", "sparray"),
)


def is_like_an_array(kind: type) -> bool:
    """Whether `kind` is one of rows with fields, arrays on a GPU, or images, that no library here is of.

    An image of Pillow that is still in a file is of a subclass, and none.
    """
    return is_one_of(kind, _LIKE_ARRAYS) or kind is type_named("PIL.Image", "Image")
