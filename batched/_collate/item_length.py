"""The length of an item, where it costs little to look at and runs no code of the user's.

An item of several parts, such as the pair of a cross-encoder or a dict of features, is as long as its texts,
lists and arrays together.
"""

from __future__ import annotations

from collections import UserDict, UserList, UserString, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

from batched._collate.libraries import is_plain_array
from batched._collate.nested import attributes
from batched._core.call import Call

_TEXTS: tuple[Any, ...] = (str, bytes, bytearray)
_SEQUENCES: tuple[Any, ...] = (list, tuple)
_STRINGS = frozenset({str})
_NUMBERS = frozenset({int, float, bool})
_WITH_FIELDS = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_validator__", "__struct_fields__")
_PRIVATE = "__pydantic_private__"  # what a model has beside its fields
_DEEPEST = 7  # containers in each other, as in `{"messages": [{"content": [{"text": "a question"}]}]}`
_SEQUENCE = 2  # so many of these levels is a list, which may have many parts
_LOOKED_AT = 8  # parts: of more, the first one tells whether they are numbers
_MOST = 64  # parts that are looked at: those of a longer list stand for the others


def length_of(item: Any, depth: int = _DEEPEST) -> int | None:  # noqa: PLR0911  one kind after another
    """Return the length of a text, of an array or tensor with one axis, or of the parts of an item together.

    Parts are those of a list, tuple, dict, dataclass or model. A list or tuple of numbers, or of what has no
    length, has its `len`. None for anything else: its `len` could be slow, or mean something else.
    """
    kind = type(item)
    if kind is str:
        return len(item)
    for sequence in _SEQUENCES:
        if issubclass(kind, sequence):
            return _of_sequence(item, sequence.__len__(item), depth)
    for text in _TEXTS:
        if issubclass(kind, text):
            return int(text.__len__(item))
    if is_plain_array(kind):
        return _of_array(item)
    if issubclass(kind, dict):
        return _together(dict.values(item), depth - 1) if depth else None
    if issubclass(kind, UserDict | UserList | UserString):  # such as a tokenizer's `BatchEncoding`
        return length_of(object.__getattribute__(item, "__dict__").get("data"), depth)
    if kind is deque:
        return _of_sequence(list(islice(item, _MOST)), len(item), depth)
    return _together(_fields(item), depth - 1) if depth and has_fields(kind) else None


def has_fields(kind: type) -> bool:
    """Whether objects of this type are known by their fields: dataclasses, models, simple namespaces."""
    for name in _WITH_FIELDS:  # `any` with a generator is five frames, for a number
        if hasattr(kind, name):
            return True
    return issubclass(kind, SimpleNamespace)


def length_in_list(call: Call, at: int) -> int | None:
    """Return the length of an item of a function of one list."""
    return length_of(call.inputs[at] if call.many else call.inputs)


def length_in_columns(call: Call, at: int) -> int | None:
    """Return the length of an item of several columns: that in all columns together."""
    return _together([column[at] for column in call.inputs] if call.many else call.inputs, _DEEPEST)


def _of_sequence(item: Sequence[Any], size: int, depth: int) -> int:
    """Return the length of the parts of a list or tuple together, or how many there are."""
    if not size or depth < _SEQUENCE:
        return size
    # Not the methods of a class of the user's.
    part_at: Any = list.__getitem__ if isinstance(item, list) else tuple.__getitem__
    if size > _LOOKED_AT and type(part_at(item, 0)) in _NUMBERS:
        return size
    parts = part_at(item, slice(None, None, -(-size // _MOST)))
    are_texts = _STRINGS.issuperset(map(type, parts))
    total = sum(map(len, parts)) if are_texts else _together(parts, depth - _SEQUENCE)
    return size if total is None else total * size // len(parts)


def _of_array(array: Any) -> int | None:
    """Return the length of an array with one axis, or with one row, as tokenizers return them."""
    shape: Any = getattr(array, "shape", ())
    is_row = len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)  # noqa: PLR2004
    return int(shape[-1]) if is_row else None


def _together(parts: Iterable[Any], depth: int) -> int | None:
    """Return the lengths of those parts that have one, added up; None if none has."""
    lengths = [length for part in parts if (length := length_of(part, depth)) is not None]
    return sum(lengths) if lengths else None


def _fields(item: Any) -> list[Any]:
    """Return the values of the fields of a dataclass or model; without properties, which are code."""
    try:
        own = attributes(item)
    except Exception:  # noqa: BLE001  of its class, which may read slots its own way
        return []
    return [value for name, value in own.items() if name != _PRIVATE]
