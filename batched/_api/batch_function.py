"""The kinds of batch functions: plain or asynchronous, with results or with streams of pieces."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from batched._core.options import DEFAULT_MAX_PIECES

if TYPE_CHECKING:
    from batched._core.options import Options

__all__ = ["NO_ISOLATION", "is_async", "is_stream", "name_of", "written_for_class"]

NO_ISOLATION = "isolate_errors does not go with a function that streams: items cannot run twice"


def is_async(func: Any) -> bool:
    """Whether only an event loop can run what `func` returns, also if `func` is wrapped."""
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in _code_of(func))


def is_stream(func: Any, options: Options) -> bool:
    """Whether `func` yields its results piece by piece; `TypeError` if `options` do not go with that."""
    streams = any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in _code_of(func))
    if streams and options.isolate_errors:
        raise TypeError(NO_ISOLATION)
    if streams and options.cache is not None:
        raise TypeError("cache does not go with a function that streams: it keeps results, not pieces")
    if not streams and options.max_pieces != DEFAULT_MAX_PIECES:
        raise TypeError(
            f"max_pieces={options.max_pieces} goes only with a function that streams: make it a generator"
        )
    return streams


def written_for_class(func: Any) -> bool:
    """Whether `func` was written as a class method: from Python 3.13 on only its code tells."""
    if not isinstance(func, FunctionType):
        return False
    place = func.__qualname__.rpartition(".")[0]
    return bool(place) and not place.endswith("<locals>") and func.__code__.co_varnames[:1] == ("cls",)


def name_of(func: Any, options: Options) -> str:
    """Return the name for threads, logs and errors."""
    name = options.name or getattr(func, "__qualname__", None) or type(func).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _code_of(func: Any) -> tuple[Any, Any]:
    """Return the function that `func` wraps, and the `__call__` of its class: one of them is the code."""
    func = getattr(func, "__func__", func)  # class and static methods
    while isinstance(func, partial):
        func = func.func
    return func, getattr(type(func), "__call__", None)  # noqa: B004  not whether there is one
