"""The arguments of decorators and of `options`: a batch function, and options, which are checked.

The functions that take options get their signatures and docstrings from the table of options.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, Signature
from textwrap import TextWrapper
from types import CodeType, FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from batched._api.yields import drops_what_yield_returns
from batched._core.option_checks import ascending
from batched._core.options import (
    DEFAULT_MAX_PIECES,
    OF_OTHERS,
    POSITIONAL,
    ArrayOptions,
    CallOptions,
    Options,
    StreamOptions,
    live_options,
    where_taken,
)
from batched._core.parameters import signature_of
from batched._drivers.blocking import level_of_user

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_FUNC = Parameter("func", Parameter.POSITIONAL_ONLY, default=None, annotation=Callable[..., Any] | None)
_SELF = Parameter("self", Parameter.POSITIONAL_ONLY)

_ONE_ITEM = [bool, int, float, complex, str, bytes, bytearray, dict, set, frozenset]
"""Types of a parameter for which a list is wrong."""

_OF_LISTS = {"__len__", "__getitem__", "__next__", "_is_protocol"}
"""What a class may have that stands for a list, or for what it is made of."""

_NOT_OF_STREAMS = {
    "cache": "it stores results, not pieces",
    "cache_key": "it can have no cache",
    **dict.fromkeys(("prepare", "finish"), "do that in the function, before its first yield or around each"),
}
"""Options that a function which streams cannot have, and why."""

_ROWS = re.compile(r"^( +)\w+: Each one says in an editor what it means.*$", re.MULTILINE)
"""The line of a docstring that the rows of the table replace. Editors show the line."""


def decorate(
    make: Callable[[Any, Any], Any], kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Return `make(function, options)`, or a decorator that returns it if the function is still to come."""
    given = args[:1] if args and (callable(args[0]) or not hasattr(args[0], "__float__")) else ()
    if given:
        _check_function(*given)
    options = _checked(kind, args[len(given) :], named)

    def decorator(func: Any) -> Any:
        _check_function(func)
        if not isinstance(options, ArrayOptions):
            # What is prepared is no list.
            _warn_of_one_item(func if options.prepare is None else options.prepare)
        return make(func, options)

    return decorator(*given) if given else decorator


def _check_function(func: Any) -> None:
    """Raise `TypeError` if `func` is nothing that runs batches."""
    plain, call = _code_of(func)
    if hasattr(type(plain), "ways_to_call"):
        name = _named(plain)
        raise TypeError(f"{name} is already decorated: decorate its plain function, {name}.__wrapped__")
    if isinstance(func, type) and not (hasattr(func, "__len__") and hasattr(func, "__iter__")):
        raise TypeError(
            f"dynamically decorates a function, got the class {func.__qualname__}: decorate one of its "
            f"methods, or a callable instance"
        )
    if not callable(func) and not isinstance(func, classmethod | staticmethod):
        raise TypeError(
            f"dynamically decorates a function, got {func!r}: pass a function, and options by name, "
            f"as in dynamically(function, batch_size=64)"
        )
    if isinstance(plain, FunctionType) and not isinstance(getattr(plain, "__code__", None), CodeType):
        raise TypeError(
            f"dynamically decorates a function, got a {type(plain).__qualname__} that says it is one but has "
            f"no code: of a mock, leave out the spec, or write `create_autospec(function, side_effect=...)`"
        )
    # Of no callable in C: some have no signature, and two threads cannot read one at once in CPython 3.11.
    if isinstance(plain, FunctionType) or isinstance(call, FunctionType):
        names = _parameters_of(func)
        if not names or names in (["self"], ["cls"]):
            beside = f" beside {names[0]}" if names else ""
            raise TypeError(
                f"{_named(plain)} takes no parameters{beside}: a batch function takes a list of items"
            )


def _parameters_of(func: Any) -> list[str]:
    """Return the names of the parameters that `func` is called with."""
    is_unbound = isinstance(func, classmethod | staticmethod)
    own = signature_of(func.__func__ if is_unbound else func, follow_wrapped=False)
    return [*own.parameters][isinstance(func, classmethod) :]


def _named(func: Any) -> str:
    """Return the name of a function, or of an object that can be called, for messages."""
    name = getattr(func, "__qualname__", None) or type(func).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _warn_of_one_item(func: Any) -> None:
    """Warn if the first parameter of `func`, as it is annotated, takes one item and no list."""
    plain, _ = _code_of(func)
    if not isinstance(plain, FunctionType) or isinstance(getattr(func, "__func__", func), partial):
        return
    if hasattr(plain, "__wrapped__"):  # what wraps a function may make one item of a list for it
        return
    try:
        parameters = [*signature_of(plain).parameters.values()]
    except Exception:  # noqa: BLE001  it wraps a callable in C, or is a mock that says it is a function
        return
    if parameters and parameters[0].name in {"self", "cls"}:
        del parameters[0]
    if parameters and (note := _of_one_item(parameters[0].annotation, plain)):
        name = parameters[0].name
        warnings.warn(
            f"{_named(plain)} takes {name}: {note}, which is one item; a batch function takes a list of "
            f"items, as in {name}: list[{note}], and returns a list of results",
            stacklevel=level_of_user(),
        )


def _of_one_item(annotation: Any, func: FunctionType) -> str | None:
    """Return how `annotation` is written if it stands for one item, whatever the function does; else None."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, func.__globals__)  # noqa: S307  as `get_type_hints` does
        except Exception:  # noqa: BLE001  a name that is there for type checkers only
            return None
    is_union = get_origin(annotation) in {Union, UnionType}
    kinds = [kind for kind in (get_args(annotation) if is_union else (annotation,)) if kind is not NoneType]
    try:
        is_of_one = bool(kinds) and all(map(_is_of_one_item, kinds))
    except Exception:  # noqa: BLE001  of a metaclass
        return None
    return inspect.formatannotation(annotation) if is_of_one else None


def _is_of_one_item(kind: Any) -> bool:
    """Whether a type stands for one item, as no list is of it."""
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return _is_of_one_item(get_args(kind)[0])
    if isinstance(kind, NewType):
        return _is_of_one_item(kind.__supertype__)
    if origin is tuple:  # of so many parts; `tuple[int, ...]` may stand for any number of items
        return bool(get_args(kind)) and Ellipsis not in get_args(kind)
    if not isinstance(origin, type) or any(origin is each for each in (object, type, Any, Parameter.empty)):
        return origin is Literal
    bases = origin.__mro__
    if any(base in bases for base in (*_ONE_ITEM, tuple)):
        return True
    # Any other class that a list is not of, nor what may be used as one; of a protocol, a list may be.
    known = {name for base in bases for name in vars(base)}
    return known.isdisjoint(_OF_LISTS) and not isinstance([], origin)


def _checked(kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]) -> Options:
    """Return options of `kind`; raise for names that are unknown or given twice."""
    if len(args) > len(POSITIONAL):
        raise TypeError(f"dynamically takes only {', '.join(POSITIONAL)} by position, got {args!r}")
    positional = dict(zip(POSITIONAL, args, strict=False))
    if twice := positional.keys() & named.keys():
        raise TypeError(f"{min(twice)} was given twice, by position and by name")
    for other, name in kind.other_names.items():
        if other in named:
            if name in named:
                raise TypeError(f"{name} was given twice: {other} is another name for it")
            named[name] = named.pop(other)
    for name, reason in kind.not_taken.items():
        if named.pop(name, None) is not None:
            raise TypeError(reason)
    check_names("dynamically has no option", "has", named, _rows(kind))
    if named.get("batch_sizes") is not None and "batch_size" not in {*positional, *named}:
        named["batch_sizes"] = sizes = ascending("batch_sizes", named["batch_sizes"])
        named["batch_size"] = sizes[-1]
    return kind(**positional, **named)


def check_names(refusal: str, can: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for the first name of `given` that is not `known`, and say the nearest one."""
    names = [*known]
    for name in given:
        if name not in names:
            near = (OF_OTHERS.get(name), *get_close_matches(name, names, 1))
            meant = next((f" (did you mean {each!r}?)" for each in near if each in names), "")
            raise TypeError(f"{refusal} {name!r}{where_taken(name)}{meant}; it {can} {', '.join(names)}")


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
    """Return a decorator that gives a method the signature and docstring of the live options of `kind`."""
    types = get_type_hints(kind)
    rows = {row.name: row for row in fields(kind) if row.name in live_options(kind)}
    # The default is `...`: an option that is left out stays as it is.
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=..., annotation=types[name]) for name in rows
    ]
    return lambda function: _documented(function, Signature([_SELF, *parameters]), rows)


def _rows(kind: type[Options]) -> dict[str, Field[Any]]:
    """Return the rows of the options of `kind` that are taken, under all their names."""
    rows = {row.name: row for row in fields(kind) if row.name not in kind.not_taken}
    return rows | {other: rows[name] for other, name in kind.other_names.items()}


def _documented(function: FunctionT, signature: Signature, rows: dict[str, Field[Any]]) -> FunctionT:
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__qualname__ = function.__name__  # the name that callers see
    documentation = function.__doc__ or ""  # none with `python -OO`
    line = _ROWS.search(documentation)
    indent = line[1] if line else ""
    wrapper = TextWrapper(110, indent, f"{indent}    ", break_on_hyphens=False)
    texts = []
    for name, row in rows.items():
        text = row.metadata["text"] if name == row.name else f"Another name of `{row.name}`."
        texts.append(wrapper.fill(f"{name}: {text}"))
    function.__doc__ = _ROWS.sub(lambda _: "\n".join(texts), documentation) or None
    return function


def is_async(func: Any) -> bool:
    """Whether only an event loop can run what `func` returns, also if `func` is wrapped."""
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in _code_of(func))


def options_of(func: Any, options: Options) -> Options:
    """Return `options` as those of `func`, which may stream; `TypeError` if they do not go with that."""
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in _code_of(func)):
        if isinstance(options, ArrayOptions):
            raise TypeError("a function over arrays cannot stream: its outputs are rows")
        for name, why in _NOT_OF_STREAMS.items():
            if getattr(options, name) is not None:
                raise TypeError(f"{name} cannot be used with a function that streams: {why}")
        codes = [code for f in _code_of(func) if isinstance(code := getattr(f, "__code__", None), CodeType)]
        if options.continuous and any(map(drops_what_yield_returns, codes)):
            raise TypeError(
                f"{name_of(func, options)} does not use what `yield` returns, so with continuous=True "
                f"callers would get pieces of other items: write `change = yield pieces`, and follow "
                f"`change.left` and `change.joined`"
            )
        return StreamOptions(**{row.name: getattr(options, row.name) for row in fields(options)})
    only = "is only for a function that streams: make it a generator"
    if options.continuous:
        raise TypeError(f"continuous=True {only} with `change = yield pieces`, or leave continuous out")
    if options.max_pieces != DEFAULT_MAX_PIECES:
        raise TypeError(f"max_pieces={options.max_pieces} {only}, or leave max_pieces out")
    return options


def is_of_class_body(func: Any) -> bool:
    """Whether `func` was written in the body of a class, as a function of the module has no such name."""
    place = func.__qualname__.rpartition(".")[0]
    return bool(place) and not place.endswith("<locals>")


def owner_in(func: Any) -> str | None:
    """Return "self" or "cls" if `func` was written in a class, as a method that takes that first."""
    if not isinstance(func, FunctionType) or not is_of_class_body(func):
        return None
    return next((name for name in func.__code__.co_varnames[:1] if name in {"self", "cls"}), None)


def is_method(func: Any) -> bool:
    """Whether a function that a class has takes an instance first.

    One that was written elsewhere, or takes nothing else, may be the default of a field, which is read
    through the class.
    """
    if not isinstance(func, FunctionType) or func.__code__.co_varnames[:1] == ("self",):
        return True
    return is_of_class_body(func) and func.__code__.co_argcount != 1


def name_of(func: Any, options: Options) -> str:
    """Return the name for threads, logs and errors."""
    named = named_by(func)
    name = options.name or getattr(named, "__qualname__", None) or type(named).__qualname__
    return str(name).rpartition("<locals>.")[2]


def named_by(func: Any) -> Any:
    """Return what has a name and a docstring: the function in a partial one, else `func`."""
    while isinstance(func, partial):
        func = func.func
    return func


def _code_of(func: Any) -> tuple[Any, Any]:
    """Return the function that `func` wraps, and the `__call__` of its class: one of them is the code."""
    func = named_by(getattr(func, "__func__", func))  # class and static methods
    return func, getattr(type(func), "__call__", None)  # noqa: B004  the method itself is needed


def changed(options: CallOptions, changes: Mapping[str, Any]) -> CallOptions:
    """Return `options` with `changes`."""
    check_names("options has no option", "has", changes, live_options(CallOptions))
    return replace(options, **changes)
