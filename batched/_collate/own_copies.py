"""Copies of results that two callers get: of arrays and containers, which are easily changed in place."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping
from copy import copy
from io import BytesIO, StringIO
from operator import is_not
from typing import Any, TypeAlias

from batched._collate.libraries import library_of, type_named
from batched._collate.nested import with_children
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
    if type(result) in _FIXED:
        return result
    library = library_of(result)
    if library is not None:
        return library.copy(result)
    if type(result) is dict:
        return {key: _copy(value) for key, value in result.items()}
    if type(result) in {list, tuple}:
        return type(result)(row if type(row) in _FIXED else _copy(row) for row in result)
    if type(result) is deque:
        return deque(map(_copy, result), result.maxlen)
    if type(result) is UserList:
        return UserList(map(_copy, result))
    if type(result) in _COPIED or is_like_an_array(type(result)) or _is_frame(type(result)):
        return copy(result)
    if issubclass(type(result), Mapping | list | tuple):  # such as a named tuple, or a model's outputs
        children = list(result.values()) if issubclass(type(result), Mapping) else result
        copied = [*map(_copy, children)]
        if type(result) in _STANDARD or any(map(is_not, copied, children)):
            made = with_children(result, result, copied)
            return made if type(made) is type(result) else result  # the function knows it by its class
    return result


own_copy = if_it_can(_copy)
"""Returns a copy of an array or a container, which are easily changed in place; else the result itself.

Also the result itself if it cannot be copied, as it contains itself, say.
"""

_FIXED = {int, float, str, bool, bytes, type(None)}  # cannot be changed, and most rows are one of these
_COPIED = {set, bytearray, array, BytesIO, StringIO}
_STANDARD = {OrderedDict, defaultdict, Counter, UserDict}


def _is_frame(kind: type) -> bool:
    """Whether `kind` is one of pandas' tables and columns."""
    others = type_named("pandas", "DataFrame"), type_named("pandas", "Series")
    return any(other is not None and issubclass(kind, other) for other in others)


def is_like_an_array(kind: type) -> bool:
    """Whether `kind` is one of rows with fields, arrays on a GPU, or images, that no library here is of.

    An image of Pillow that is still in a file is of a subclass, and none.
    """
    others = type_named("numpy", "void"), type_named("cupy", "ndarray")
    is_one = any(other is not None and issubclass(kind, other) for other in others)
    return is_one or kind is type_named("PIL.Image", "Image")
