"""Rows that belong to the callers they go to: copies in the place of views.

A view of a larger array keeps the rows of all callers alive, is pickled with them, and shows what others
write to them; and the function may use its array again while callers still read their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import is_not, methodcaller
from typing import Any

from batched._collate.item_length import has_fields
from batched._collate.libraries import (
    LIBRARIES,
    Library,
    is_one_of,
    is_plain_array,
    library_of_type,
    type_named,
)
from batched._collate.nested import CONTAINERS, parts_of, with_parts
from batched._collate.own_copies import (
    PANDAS,
    Copier,
    copy_of_memory,
    if_it_can,
    is_like_an_array,
    objects_in,
    own_copy,
    put_objects,
)
from batched._collate.plain import PLAIN, are_plain, hashed, kinds_of

_DEEPEST = 3  # containers and models, one in the other
_LARGE = 10_000  # elements: to copy a smaller frame takes less time than to find out whether it is a part
_MOST_COLUMNS = 64  # that are looked at; wider frames are copied


def owned(rows: list[Any]) -> list[Any]:
    """Return `rows` with copies in the place of views; if no row is a view, the rows as they are.

    Also where they lie in rows that are containers, dataclasses or models of attrs, msgspec and pydantic. An
    array that two rows have is copied for the second one, as is a container that is the result of two items.
    (Rows that `are_plain` need not come here.)
    """
    return _Rows(is_lone=len(rows) == 1).each(rows, _DEEPEST)  # type: ignore[return-value]


def _apart(rows: Sequence[Any]) -> list[Any]:
    """Return `rows`, of which some are the same object, with copies in the place of all but the first."""
    met: set[int] = set()
    apart: list[Any] = []
    for row in rows:
        apart.append(own_copy(row) if id(row) in met else row)
        met.add(id(row))
    return apart


class _Rows:
    """The rows of one batch, of which the type of each says how it is looked at."""

    def __init__(self, *, is_lone: bool) -> None:
        self._is_lone = is_lone  # then a row may have all the memory of what it is a view of
        self._met: set[int] = set()  # the memory of arrays that are handed out as they are

    def each(self, rows: Sequence[Any], depth: int) -> Sequence[Any]:
        """Return `rows` as they may be handed out; `depth` containers may lie in each other."""
        types: Iterable[type] = map(type, rows)
        kinds = kinds_of(rows)
        if not isinstance(kinds, set):  # a row of a type without a hash is handed out as it is
            types = [*map(hashed, kinds)]
            kinds = set(types)
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        library = LIBRARIES.get(kind)  # type: ignore[arg-type]
        if library is not None and is_plain_array(kind) and not library.hold_objects(rows):  # type: ignore[arg-type]
            mine = [self._own(library, row) for row in rows] if self._is_lone else library.own(rows)
            kept = [row for row, own in zip(rows, mine, strict=True) if row is own]
            memories = set(map(library.memory, kept))
            if len(memories) == len(kept) and self._met.isdisjoint(memories):
                self._met |= memories
                return mine
        if depth == _DEEPEST and len(set(map(id, rows))) < len(rows):
            rows = _apart(rows)
        copiers = {kind: None if kind in PLAIN else self._copier(kind, depth) for kind in kinds}
        if not any(copiers.values()):
            return rows
        return [
            row if (own := copiers[kind]) is None else own(row) for kind, row in zip(types, rows, strict=True)
        ]

    @staticmethod
    def _own(library: Library, row: Any) -> Any:
        return library.copy(row) if library.may_be_view(row) else row

    def _copier(self, kind: type, depth: int) -> Copier | None:
        """Return what copies rows of this type where that is needed, None if that is never."""
        library = library_of_type(kind)
        if library is not None:
            is_view = library.may_be_view if self._is_lone else library.is_view
            copier = self._of_arrays(is_view, library.copy, library.memory, depth)
            return copier if is_plain_array(kind) else if_it_can(copier)
        if depth and (issubclass(kind, CONTAINERS) or has_fields(kind)):
            return if_it_can(partial(self._whole, depth=depth - 1))
        if is_like_an_array(kind):
            return self._of_arrays(_shows_memory, methodcaller("copy"), id, 0)
        if is_one_of(kind, PANDAS):
            return if_it_can(self._of_arrays(_may_be_part, methodcaller("copy"), id, depth))
        return copy_of_memory if issubclass(kind, memoryview) else None

    def _of_arrays(
        self, is_view: Callable[[Any], bool], copied: Copier, memory: Callable[[Any], int], depth: int
    ) -> Copier:
        """Return what returns an array, or a copy of one that is a view or has been handed out already.

        Objects in it, `depth` containers deep, are looked at too.
        """
        met = self._met

        def array(row: Any) -> Any:
            place = None if is_view(row) else memory(row)
            is_new = place is None or place in met
            if place is not None:
                met.add(place)
            mine = copied(row) if is_new else row
            if depth and (found := objects_in(mine)):
                children = self.each([*found.values()], depth - 1)
                if any(map(is_not, children, found.values())):
                    mine = mine if is_new else copied(row)
                    put_objects(mine, found, children)
            return mine

        return array

    def _whole(self, row: Any, depth: int) -> Any:
        """Return a container, or an object with fields; a copy of it if some of its parts are copied."""
        parts = parts_of(row)
        if are_plain(parts):
            return row
        copied = self.each(parts, depth)
        return with_parts(row, copied) if any(map(is_not, copied, parts)) else row


def _shows_memory(row: Any) -> bool:
    """Whether what is like an array shows the memory of another object. An image is read-only then."""
    return row.base is not None if hasattr(row, "base") else bool(row.readonly)


def _may_be_part(table: Any) -> bool:
    """Whether a frame or column of pandas may show memory of another object, or is as well copied.

    Its columns that are arrays of numpy tell; without any, that is not known.
    """
    if table.size < _LARGE or (table.ndim > 1 and table.shape[1] > _MOST_COLUMNS):
        return True
    array: Any = type_named("numpy", "ndarray")
    shown: dict[int, tuple[int, int]] = {}  # of each array that has memory of its own: bytes, and those shown
    for column in [table] if table.ndim == 1 else [table.iloc[:, at] for at in range(table.shape[1])]:
        base = memory = column.values
        while type(base) is array and base.base is not None:
            base = base.base
        if type(base) is array:
            shown[id(base)] = base.nbytes, memory.nbytes + shown.get(id(base), (0, 0))[1]
        elif base is not memory:  # another library's memory, or that of a file
            return True
    return not shown or any(has > of_table for has, of_table in shown.values())
