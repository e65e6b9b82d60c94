"""Rows that are handed out as they are: no view of a larger array, and no exception."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None)})
_NUMBERS = frozenset({int, float, bool})
_LONG = 16  # so many numbers are added up, which takes a fifth of a look at each


def are_plain(rows: Sequence[Any]) -> bool:
    """Whether all `rows` are numbers, text, bytes or None, so that none is a view or an exception.

    Many numbers are added up, as only numbers add up to a number. To add up 1,024 integers takes 5 us, to
    look at their types 17.
    """
    if len(rows) >= _LONG and type(rows[0]) in _NUMBERS:
        try:
            if type(sum(rows)) in _NUMBERS:
                return True
        except Exception:  # noqa: BLE001, S110  one of them is no number
            pass
    try:
        return PLAIN.issuperset(map(type, rows))
    except Exception:  # noqa: BLE001  of a metaclass: a class has no hash if that defines `__eq__` alone
        return False


def kinds_of(rows: Iterable[Any]) -> set[type] | list[type]:
    """Return the types of `rows` as a set; if one of them has no hash, the type of each row."""
    try:
        return set(map(type, rows))
    except Exception:  # noqa: BLE001  of a metaclass
        return [*map(type, rows)]


def hashed(kind: type) -> type:
    """Return `kind`, or `object` in the place of a type that has no hash."""
    try:
        hash(kind)
    except Exception:  # noqa: BLE001  of the metaclass
        return object
    return kind
