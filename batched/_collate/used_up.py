"""Items that a run may use up, so that a second run would find them empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

_LEVELS = 2  # of containers: the file in `{"files": [file]}` is found
_MOST = 64  # elements that are looked at in each: those of a long list are alike
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None))
_CONTAINERS = (list, tuple, set, frozenset)


def is_used_up(item: Any, levels: int = _LEVELS) -> bool:
    """Return whether `item` is an iterator, a coroutine or an open file, or contains one.

    It looks into containers, and into the fields of dataclasses and their like. Code of the item's class may
    run; where that fails, the item is taken for an ordinary one.
    """
    if isinstance(item, _PLAIN):
        return False
    try:
        if isinstance(item, Iterator | AsyncIterator | Coroutine) or callable(getattr(item, "read", None)):
            return True
        return levels > 0 and any(is_used_up(part, levels - 1) for part in islice(_parts(item), _MOST))
    except Exception:  # noqa: BLE001  of the item's class
        return False


def _parts(item: Any) -> Iterable[Any]:
    """Return what `item` contains, if it is a container or has fields."""
    if isinstance(item, _CONTAINERS):
        return item
    if isinstance(item, Mapping):
        return item.values()
    names = getattr(type(item), "__match_args__", ())  # the fields of a dataclass, of attrs too
    return [getattr(item, name, None) for name in names]
