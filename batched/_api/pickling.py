"""How decorated functions are copied and pickled, by pickle and by cloudpickle.

A decorated function becomes the plain function and its options, from which another one is made; a bound one
becomes its instance and the name of its attribute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import index
from pickle import PicklingError
from types import FunctionType
from typing import Any, SupportsIndex

from batched._core.options import CallOptions, Options

_WITH_DOTS = 4


def check_protocol(protocol: SupportsIndex, name: str) -> None:
    """Raise if a pickle of this protocol has no names with dots, by which the plain function is found."""
    if index(protocol) < _WITH_DOTS:
        raise PicklingError(
            f"{name} can be pickled with protocol {_WITH_DOTS} or later, as is the default, got {protocol}"
        )


def reduced(
    root: object, public_class: type[Any], func: Any, options: Options, call_options: CallOptions
) -> tuple[Any, ...]:
    """Return what a decorated function of `func` is made of again; `root` is the one without call options."""
    is_static = isinstance(func, staticmethod)
    if is_static:  # pickle does not know its class
        func = func.__func__
    if isinstance(func, FunctionType) and _found_by_name(func) == root:
        func = alias_of(func, root)
    return remake, (public_class, func, options, call_options, is_static)


def alias_of(func: FunctionType, root: object) -> FunctionType:
    """Return the alias of `func` under a name by which it can be found, which its `root` keeps.

    Where a module's `f` is the decorated function, pickle cannot save the plain one as `f`, but finds the
    alias as `f.plain_function`. Pickles by value (cloudpickle, in `__main__`) take the function along.
    """
    alias: FunctionType | None = vars(root).get("_alias")
    if alias is None:
        alias = FunctionType(func.__code__, func.__globals__, "plain_function", None, func.__closure__)
        alias.__module__ = func.__module__
        alias.__qualname__ = f"{func.__qualname__}.plain_function"
        alias.__wrapped__ = func  # type: ignore[attr-defined]
        return vars(root).setdefault("_alias", alias)  # type: ignore[no-any-return]  # of the first thread
    return alias


def remake(
    public_class: type[Any],
    func: Callable[..., Any],
    options: Options,
    call_options: CallOptions,
    is_static: bool,  # noqa: FBT001
) -> Any:
    """Return the decorated function of `func`."""
    if getattr(func, "__name__", None) == "plain_function":
        func = func.__wrapped__  # type: ignore[attr-defined]
    if is_static:
        func = staticmethod(func)
    return public_class(func, options).with_call_options(call_options)


def rebind(key: object, name: str, call_options: CallOptions) -> Any:
    """Return a view of `key` again, which is found by the name of its attribute."""
    return getattr(key, name).with_call_options(call_options)


def _found_by_name(func: FunctionType) -> object:
    """Return the object that stands under the name of `func` in its module."""
    found: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        found = getattr(found, name, None)
    return getattr(found, "batched_function", found)  # of a method that is found through its class
