"""The checks of a user's cache at decoration: which kind it is, and whether it can be one.

A cache is a mapping, or an object with `get` and `set`.
"""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Sequence
from typing import Any

__all__ = ["check_cache", "is_async", "is_mapping"]

_ITEM = ("__getitem__", "__setitem__")
_MAPPING = (*_ITEM, "__len__")


def is_mapping(cache: Any) -> bool:
    """Whether a cache is asked by `cache[key]`, not by `get` and `set`.

    Clients of Redis have both, but are no mappings: they have no length, and `[]` of the asynchronous one
    raises.
    """
    if not all(callable(getattr(cache, name, None)) for name in ("get", "set")):
        return True
    return all(hasattr(type(cache), name) for name in _MAPPING) and not is_async(cache)


def is_async(cache: Any) -> bool:
    """Whether a cache says that its `get` or `set` is asynchronous."""
    return any(inspect.iscoroutinefunction(getattr(cache, name, None)) for name in ("get", "set"))


def check_cache(cache: Any) -> None:
    """Raise `TypeError` if `cache` cannot be a cache, or has an answer for keys that it does not have."""
    kind = type(cache).__name__
    if isinstance(cache, type):
        raise TypeError(
            f"cache must be an object, got the class {cache.__name__}: write {cache.__name__}(...)"
        )
    if not is_mapping(cache):
        if not (_takes(cache.get, 1) and _takes(cache.set, 2)):
            raise TypeError(
                f"cache must have a get that takes a key, and a set that takes a key and a value; "
                f"{kind} has others"
            )
        return
    item = [getattr(type(cache), name, None) for name in _ITEM]
    if None in item or isinstance(cache, Sequence | memoryview) or hasattr(cache, "__array__"):
        raise TypeError(
            f"cache must be a mapping such as a dict, or an object with get and set, "
            f"got {cache!r:.100} of the type {kind}"
        )
    if any(map(inspect.iscoroutinefunction, item)):
        raise TypeError(f"a cache that is asynchronous needs get and set, and {kind} has only []")
    if isinstance(cache, dict | UserDict) and hasattr(cache, "__missing__"):
        raise TypeError(
            f"cache must not answer for keys that it does not have, as {kind} does by __missing__: use a dict"
        )


def _takes(function: Any, count: int) -> bool:
    """Whether `function` can be called with `count` arguments, as far as its signature says."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some callables in C
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
