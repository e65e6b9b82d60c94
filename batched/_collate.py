"""Lists in, lists out: how calls become the batch function's list, and its rows their answers.

Knows nothing of when a batch runs, nor of who waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from batched.errors import BatchError

if TYPE_CHECKING:
    from batched._call import Batch, Call, Slice

__all__ = ["ListCollator"]


class ListCollator:
    """Collates items to a list; splits any sized, ordered object of one row per item."""

    def __init__(self, name: str) -> None:
        self._name = name

    def collate(self, batch: Batch) -> list[Any]:
        """Return a new list of the batch's items."""
        items: list[Any] = []
        for call, start, stop in batch.slices:
            if call.many:
                items += call.inputs[start:stop]
            else:
                items.append(call.inputs)
        return items

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice: a row for a single item, else a list of rows."""
        rows = outputs if type(outputs) is list else self._rows(outputs)
        slices = batch.slices
        if len(rows) != batch.size:
            raise BatchError(self._miscounted(len(rows), batch.size))
        call = slices[0][0]
        if len(slices) == 1 and call.many:
            # Copied where it becomes the answer: the function may keep and reuse its own list.
            part = rows[:] if call.size == batch.size else rows
            return [_checked(part, call, batch)]
        parts: list[Any] = []
        at = 0
        for call, start, stop in slices:
            if call.many:
                parts.append(_checked(rows[at : at + stop - start], call, batch))
                at += stop - start
            else:
                parts.append(rows[at])
                at += 1
        return parts

    def place(self, piece: Slice, part: list[Any]) -> None:
        """Write `part` into the call's list of results."""
        call, start, stop = piece
        if call.results is None:
            call.results = [None] * call.size
        call.results[start:stop] = part

    def _rows(self, outputs: Any) -> list[Any]:
        """Return the rows of `outputs`, an array or tuple say, as a list."""
        # A data frame is sized and iterable, but what it iterates over is its columns.
        unordered = isinstance(outputs, str | bytes | bytearray | Mapping | AbstractSet | Iterator)
        if not unordered and not hasattr(outputs, "columns"):
            try:
                size = len(outputs)
                rows = list(outputs)
            except TypeError:
                pass  # neither sized nor iterable; a 0-dimensional array says so only when asked
            else:
                if len(rows) == size:
                    return rows
                raise BatchError(self._miscounted(len(rows), size))
        raise TypeError(
            f"{self._name} must return one result per item, as a list, tuple or array, "
            f"not {type(outputs).__qualname__}"
        )

    def _miscounted(self, results: int, items: int) -> str:
        return f"{self._name} returned {results} results for a batch of {items} items"


def _checked(part: list[Any], call: Call, batch: Batch) -> list[Any] | BaseException:
    """Return `part`, or its first exception if that fails `call`."""
    types = list(map(type, part))
    # Most parts are of one type, and counting it is three times faster than asking every row.
    if types.count(types[0]) == len(types) and not issubclass(types[0], BaseException):
        return part
    errors = [row for row in part if isinstance(row, BaseException)]
    batch.failed += len(errors)
    return errors[0] if errors and not call.keep_errors else part
