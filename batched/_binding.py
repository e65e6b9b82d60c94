"""How a decorated function finds its batcher: one for a plain function, one per instance for a method.

Batchers are kept beside the instances, not in them: nothing is added to `vars(instance)`, and no batcher
keeps an instance alive.
"""

from __future__ import annotations

import weakref
from functools import partial, update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Binding", "ThroughClass"]

BatcherT = TypeVar("BatcherT")


class Binding(Generic[BatcherT]):
    """The batchers of one decorated function, each made at first use."""

    def __init__(self, func: Callable[..., Any], make: Callable[[object], BatcherT]) -> None:
        self.func = func
        self._make = make
        self._made: dict[int, tuple[weakref.ref[Any], BatcherT]] = {}

    def bind(self, instance: object, owner: type | None) -> tuple[Callable[..., Any], object] | None:
        """Return `func` bound as Python would, and the object that its batcher belongs to.

        None if `func` does not bind (a callable object, a bound method, a static method), or if it
        binds to instances and there is none.
        """
        func = self.func
        if isinstance(func, classmethod):
            owner = owner or type(instance)
            return func.__get__(None, owner), owner
        if instance is None or isinstance(func, (staticmethod, MethodType)):
            return None
        get = getattr(type(func), "__get__", None)
        return (get(func, instance, owner), instance) if get is not None else None

    @property
    def needs_instance(self) -> bool:
        """Whether `func`, found through a class, still lacks its first argument."""
        never = (staticmethod, classmethod, MethodType)
        return hasattr(type(self.func), "__get__") and not isinstance(self.func, never)

    def batcher(self, key: Any) -> BatcherT:
        """Return the batcher of `key`."""
        made = self._made.get(id(key))
        if made is not None and made[0]() is key:
            return made[1]
        try:
            reference = weakref.ref(key, partial(_forget, self._made, id(key)))
        except TypeError:
            return self._in_dict(key)
        # Of two threads that make one, the first wins; a batcher that is not used is nothing yet.
        return self._made.setdefault(id(key), (reference, self._make(key)))[1]

    def _in_dict(self, key: Any) -> BatcherT:
        """Keep the batcher of an instance without `__weakref__` in its `__dict__`."""
        try:
            attributes = vars(key)
        except TypeError:
            raise TypeError(
                f"{type(key).__qualname__} has batched methods, so its __slots__ must include "
                f"'__weakref__' or '__dict__'; both are missing"
            ) from None
        name = f"_batched_{self.func.__name__}_{id(self)}"
        anchor = attributes.get(name)
        if anchor is not None and anchor.key != id(key):  # came with a copy of another's __dict__
            del attributes[name]
            anchor = None
        if anchor is None:
            anchor = _Anchor(id(key))
            anchor.batcher = self._make(anchor)
            anchor = attributes.setdefault(name, anchor)
        batcher: BatcherT = anchor.batcher
        return batcher


class _Anchor:
    """Stands in an instance's `__dict__`, and dies with it; copied or pickled, it is empty."""

    __slots__ = ("__weakref__", "batcher", "key")

    def __init__(self, key: int = 0) -> None:
        self.key = key
        self.batcher: Any = None

    def __reduce__(self) -> tuple[type[_Anchor], tuple[()]]:
        return _Anchor, ()


def _forget(made: dict[int, tuple[weakref.ref[Any], Any]], key: int, reference: weakref.ref[Any]) -> None:
    entry = made.get(key)
    if entry is not None and entry[0] is reference:
        del made[key]


class ThroughClass:
    """A batched method found through its class: `Cls.embed(instance, x)` is `instance.embed(x)`."""

    def __init__(self, batched: Any, func: Callable[..., Any]) -> None:
        update_wrapper(self, func)
        self._batched = batched

    def __call__(self, instance: object, /, *args: Any, **named: Any) -> Any:
        return self._batched.__get__(instance, type(instance))(*args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(type(self._batched), name):
            raise AttributeError(f"a batched method has no attribute {name!r}")
        if name in self._batched.ways_to_call:
            return partial(self._call, name)
        raise TypeError(f"{self._batched.__qualname__}.{name} belongs to each instance: use an instance")

    def _call(self, name: str, instance: object, /, *args: Any, **named: Any) -> Any:
        return getattr(self._batched.__get__(instance, type(instance)), name)(*args, **named)

    def __repr__(self) -> str:
        return repr(self._batched)
