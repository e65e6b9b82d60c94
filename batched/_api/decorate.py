"""How `dynamically` reads its arguments, and how functions get signature and docstring from the options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from difflib import get_close_matches
from inspect import Parameter, Signature
from textwrap import TextWrapper
from typing import Any, TypeVar, get_type_hints

from batched._core.options import POSITIONAL, CallOptions, Options, live_options

__all__ = ["check_names", "decorate", "takes_changes", "takes_options"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_FUNC = Parameter("func", Parameter.POSITIONAL_ONLY, default=None, annotation=Callable[..., Any] | None)
_SELF = Parameter("self", Parameter.POSITIONAL_ONLY)

_ROWS = "{options}"
"""The line of a docstring that the rows of the table replace."""


def decorate(
    make: Callable[[Any, Any], Any], kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return `make(function, options)`, or a decorator that returns it if the function is still to come."""
    func: Any = None
    if args and _can_be_decorated(args[0]):
        func, *args = args  # type: ignore[assignment]
    options = _checked(kind, args, named)
    if func is not None:
        return make(func, options)

    def decorator(func: Any) -> Any:
        if not _can_be_decorated(func):
            raise TypeError(f"dynamically decorates a function, got {func!r}")
        return make(func, options)

    return decorator


def _can_be_decorated(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod)


def _checked(kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]) -> Options:
    """Return options of `kind`; raise for names that are unknown or given twice."""
    if len(args) > len(POSITIONAL):
        raise TypeError(f"dynamically takes {', '.join(POSITIONAL)} by position, got {args!r}")
    positional = dict(zip(POSITIONAL, args, strict=False))
    if twice := positional.keys() & named.keys():
        raise TypeError(f"{min(twice)} was given twice, by position and by name")
    for other, name in kind.other_names.items():
        if other in named:
            if name in named:
                raise TypeError(f"{name} was given twice, as {other} too")
            named[name] = named.pop(other)
    for name, reason in kind.not_taken.items():
        if named.pop(name, None) is not None:
            raise TypeError(reason)
    check_names("dynamically has no option", "has", named, _rows(kind))
    return kind(**positional, **named)


def check_names(refusal: str, can: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for the first name of `given` that is not `known`, and say the nearest one."""
    names = [*known]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"{refusal} {name!r}{meant}; it {can} {', '.join(names)}")


def takes_options(kind: type[Options]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives a function the signature and the docstring of options of `kind`."""
    types = get_type_hints(kind)
    rows = _rows(kind)
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name in POSITIONAL else Parameter.KEYWORD_ONLY,
            default=row.default,
            annotation=types[row.name],
        )
        for name, row in rows.items()
    ]
    return lambda function: _documented(function, Signature([_FUNC, *parameters]), rows)


def takes_changes(kind: type[Options | CallOptions]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives a method the signature and the docstring of the live options of `kind`.

    An option that is left out stays as it is, so the default is `...`.
    """
    types = get_type_hints(kind)
    rows = {row.name: row for row in fields(kind) if row.name in live_options(kind)}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=..., annotation=types[name]) for name in rows
    ]
    return lambda function: _documented(function, Signature([_SELF, *parameters]), rows)


def _rows(kind: type[Options]) -> dict[str, Field[Any]]:
    """Return the rows of the options of `kind` that are taken, under all their names."""
    rows = {row.name: row for row in fields(kind) if row.name not in kind.not_taken}
    return rows | {other: rows[name] for other, name in kind.other_names.items()}


def _text(name: str, row: Field[Any]) -> str:
    text: str = row.metadata["text"]
    return text if name == row.name else f"Another name of `{row.name}`."


def _documented(function: FunctionT, signature: Signature, rows: dict[str, Field[Any]]) -> FunctionT:
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__qualname__ = function.__name__  # as callers know it
    documentation = function.__doc__ or ""  # none with `python -OO`
    indent = documentation[: documentation.find(_ROWS)].rpartition("\n")[2]
    wrapper = TextWrapper(110, indent, f"{indent}    ", break_on_hyphens=False)
    texts = [wrapper.fill(f"{name}: {_text(name, row)}") for name, row in rows.items()]
    function.__doc__ = documentation.replace(indent + _ROWS, "\n".join(texts)) or None
    return function
