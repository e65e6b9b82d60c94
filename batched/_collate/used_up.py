"""Items that a run may use up, so that a second run would find them empty."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import (
    AsyncIterator,
    Coroutine,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from functools import partial
from itertools import chain, islice
from logging import Logger
from types import BuiltinMethodType, MethodType, MethodWrapperType, ModuleType
from typing import Any
from weakref import ProxyTypes

from batched._collate.libraries import is_one_of, type_named
from batched._collate.nested import attributes

_TAKING = ("read", "recv", "receive", "get_nowait")  # methods of files; sockets and pipes; streams; queues
_LEVELS = 4  # of containers: the file in `{"messages": [{"content": [file]}]}` is found
_MOST = 4096  # parts of an item that are looked at
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), type, Logger, ModuleType)
_LASTING = (("PIL.Image", "Image"), ("numpy", "memmap"))  # they have files, and are the same when read again
_WITHOUT_ATTRIBUTES = (list, tuple, dict, set, frozenset)
_ITERATORS = (Iterator, AsyncIterator, Coroutine)
_CONTAINERS = (list, tuple, set, frozenset, deque, UserList, KeysView, ValuesView, ItemsView)
_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)


def is_used_up(item: Any) -> bool:
    """Return whether `item` is an iterator, a coroutine, an open file, a socket or a queue, or contains one.

    It looks into containers, and into the attributes of objects. Code of the item's class may run; where that
    fails, the object is taken for an ordinary one.
    """
    parts = [item]
    left = _MOST
    for _ in range(_LEVELS + 1):
        if any(map(_is_consumed, parts)):
            return True
        parts = list(islice((inner for part in parts for inner in _parts(part)), left))
        left -= len(parts)
    return False


def _is_plain(part: Any) -> bool:
    """Return whether `part` is neither used up nor has parts."""
    kind = type(part)  # a proxy may fail when asked for its class
    mock = type_named("unittest.mock", "NonCallableMock")
    if mock is not None and issubclass(kind, mock):  # without a `spec` it has any method
        return part.__class__ is kind
    return issubclass(kind, _PLAIN) or is_one_of(kind, _LASTING)


def _is_consumed(part: Any) -> bool:
    if issubclass(type(part), _METHODS):  # `in` would compare the class, by its metaclass
        part = part.__self__  # itself only: a callback may belong to a service, which has all kinds of things
    if _is_plain(part):
        return False
    try:
        # Python's own proxies have the methods of an iterator, whatever they stand for.
        is_proxy = type(part) in ProxyTypes
        is_iterator = issubclass(part.__class__, _ITERATORS) if is_proxy else isinstance(part, _ITERATORS)
        return is_iterator or any(callable(getattr(part, name, None)) for name in _TAKING)
    except Exception:  # noqa: BLE001  of the item's class
        return False


def _parts(item: Any) -> Iterable[Any]:
    """Return what `item` contains: its attributes, elements or values."""
    if _is_plain(item):
        return ()
    try:
        own = () if type(item) in _WITHOUT_ATTRIBUTES else _attributes(item)
        return list(islice(chain(own, _elements(item)), _MOST))
    except Exception:  # noqa: BLE001  of the item's class
        return ()


def _elements(item: Any) -> Iterable[Any]:
    if isinstance(item, _CONTAINERS):
        return item
    if isinstance(item, Mapping):
        return chain(item, item.values())
    if isinstance(item, partial):
        return chain((item.func,), item.args, item.keywords.values())
    return item.flat if getattr(item, "dtype", None) == "object" else ()  # of an array


def _attributes(item: Any) -> list[Any]:
    """Return the values of what an instance has: in its dictionary, in its slots, or in fields."""
    cls = type(item)
    names = *getattr(cls, "__match_args__", ()), *getattr(cls, "__struct_fields__", ())  # of msgspec
    own = {**attributes(item), **getattr(item, "__dict__", {})}  # a proxy has that of another object
    return [*own.values(), *(getattr(item, name, None) for name in names)]
