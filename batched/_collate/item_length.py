"""The length of an item, where it costs nothing to look at and runs no code of the user's."""

from __future__ import annotations

from typing import Any

from batched._core.call import Call

_SIZED = (str, bytes, list, tuple)
_ARRAYS = frozenset({"numpy", "torch"})  # the modules that their types are in


def length_of(item: Any) -> int | None:
    """Return the length of a `str`, `bytes`, `list`, `tuple`, or of an array or tensor with one axis.

    None for anything else: its `len` could be slow, or mean something else.
    """
    kind = type(item)
    if kind in _SIZED:
        return len(item)
    for sized in _SIZED:
        if issubclass(kind, sized):
            return sized.__len__(item)
    if kind.__module__ in _ARRAYS and getattr(item, "ndim", 0) == 1:
        return int(item.shape[0])
    return None


def length_in_list(call: Call, at: int) -> int | None:
    """Return the length of an item of a function of one list."""
    return length_of(call.inputs[at] if call.many else call.inputs)


def length_in_columns(call: Call, at: int) -> int | None:
    """Return the length of an item of several columns: that in the first column that has one."""
    for column in call.inputs:
        length = length_of(column[at] if call.many else column)
        if length is not None:
            return length
    return None
