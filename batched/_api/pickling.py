"""How decorated functions are copied and pickled, by pickle and by cloudpickle.

A decorated function becomes the plain function and its options, from which another one is made; a bound one
becomes its instance and the name of its attribute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from batched._core.options import CallOptions, Options

if TYPE_CHECKING:
    from batched._api.binding import Shared


class Picklable:
    """The part of a decorated function that copies and pickles it."""

    __slots__ = ()

    _shared: Shared[Any]
    _key: object

    def __reduce__(self) -> tuple[Any, ...]:
        shared = self._shared
        if not shared.binds:
            return _rebind, (self._key, shared.attribute, shared.call_options)
        func = shared.binding.func
        if isinstance(func, FunctionType) and _found_by_name(func) == self._owner():
            func = self.plain_function
        return _remake, (shared.public_class, func, shared.settings, shared.call_options)

    @property
    def plain_function(self) -> FunctionType:
        """An alias of the function under a name by which it can be found, for pickles.

        Where a module's `f` is the decorated function, pickle cannot save the plain one as `f`, but finds the
        alias as `f.plain_function`. Pickles by value (cloudpickle, in `__main__`) take the function along.
        """
        root = self._owner()
        alias: FunctionType | None = vars(root).get("_alias")
        if alias is None:
            func = self._shared.binding.func
            alias = FunctionType(func.__code__, func.__globals__, "plain_function", None, func.__closure__)
            alias.__module__ = func.__module__
            alias.__qualname__ = f"{func.__qualname__}.plain_function"
            alias.__wrapped__ = func  # type: ignore[attr-defined]
            vars(root)["_alias"] = alias
        return alias

    def _owner(self) -> object:
        """Return the object that the driver belongs to."""
        return self if self._key is None else self._key


def _remake(
    public_class: type[Any], func: Callable[..., Any], options: Options, call_options: CallOptions
) -> Any:
    if getattr(func, "__name__", None) == "plain_function":
        func = func.__wrapped__  # type: ignore[attr-defined]
    return public_class(func, options).with_call_options(call_options)


def _rebind(key: object, name: str, call_options: CallOptions) -> Any:
    return getattr(key, name).with_call_options(call_options)


def _found_by_name(func: FunctionType) -> object:
    """Return the object that stands under the name of `func` in its module."""
    found: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        found = getattr(found, name, None)
    return getattr(found, "batched_function", found)  # of a method that is found through its class
