"""What a function may return in the place of one result per item: how it is known, and what to write."""

from __future__ import annotations

import reprlib
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import NoneType
from typing import Any

from batched._collate.libraries import is_plain_array, library_of

_REMEDIES: tuple[tuple[type, str], ...] = (
    (NoneType, ": is a `return` missing?"),
    (Awaitable, ": is an `await` missing?"),
    (AsyncIterator, ": to stream, decorate the asynchronous generator function without a wrapper"),
    (BaseException, ": raise it, or return it in the place of the result of each item that it is for"),
    (Generator, ": write `return list(...)`; to stream, decorate the generator function without a wrapper"),
    (Iterator, ": write `return list(...)`"),
    (
        Mapping,
        (
            ": if its keys are the items, write `return [outputs[item] for item in items]`; if it has a "
            "column for each name, `return [dict(zip(outputs, row)) for row in zip(*outputs.values())]`"
        ),
    ),
    (AbstractSet, ", which has no order"),
    (tuple, ", which has a column for each name: write `return list(zip(*outputs))`"),
)
"""By the type of outputs that are no rows: what may have been meant, and what to write. The first counts."""


def remedy(outputs: Any) -> str:
    """Return what may have been meant by outputs that are no rows, and what to write."""
    for kind, text in _REMEDIES:
        if isinstance(outputs, kind):
            return text
    if hasattr(outputs, "columns"):
        return ", which iterates over its columns: return a list of its rows"
    return f", {reprlib.repr(outputs)}"


def remedy_of_tuple(outputs: Any, items: int) -> str:
    """Return what to write if `outputs` is a tuple such as all vectors and all scores; else nothing."""
    if not isinstance(outputs, tuple) or not outputs:
        return ""
    try:
        fit = all(len(each) == items for each in outputs)
    except Exception:  # noqa: BLE001  a result may fail in any way when it is asked for its length
        return ""
    return "; if each of these has one element per item, write `return list(zip(*outputs))`" if fit else ""


def may_be_rows(outputs: Any) -> bool:
    """Whether `outputs`, if it is sized and iterable, is made of rows."""
    if isinstance(outputs, list | tuple):
        return not _is_named(outputs)
    unordered = isinstance(outputs, str | bytes | bytearray | Mapping | AbstractSet | Iterator)
    return not (unordered or hasattr(outputs, "columns"))  # a data frame iterates over its columns


def _is_named(outputs: Any) -> bool:
    """Whether `outputs` is a tuple with a name for each element, as `torch.max(rows, dim=1)` returns."""
    kind = type(outputs)
    return issubclass(kind, tuple) and (hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields"))


def are_columns(rows: Sequence[Any], *, in_tuple: bool) -> bool:
    """Whether several results may be columns, such as all vectors and all scores: each is as long as these.

    Arrays and lists `in_tuple`, as `return vectors, scores` makes one. Otherwise only arrays of several
    shapes: other rows may well be as long as they are many.
    """
    kinds = {_kind_of(row, len(rows), in_tuple=in_tuple) for row in rows}
    return len(rows) > 1 and None not in kinds and (in_tuple or len(kinds) > 1)


def _kind_of(row: Any, size: int, *, in_tuple: bool) -> Any:
    """Return what of an array or list tells it from others, None unless it has so many elements."""
    if type(row) is list:
        return list if in_tuple and len(row) == size else None
    if library_of(row) is None or not is_plain_array(type(row)):  # a subclass may have code of its own
        return None
    shape = getattr(row, "shape", None)  # a nested tensor has none
    return None if shape is None or tuple(shape[:1]) != (size,) else (shape, row.dtype)
