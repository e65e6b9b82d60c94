"""A batched method found through its class, where there is no instance yet: `Cls.embed(instance, x)`."""

from __future__ import annotations

from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

__all__ = ["ThroughClass"]


class ThroughClass:
    """A batched method found through its class: `Cls.embed(instance, x)` is `instance.embed(x)`."""

    def __init__(self, batched: Any, func: Callable[..., Any], owner: type | None) -> None:
        update_wrapper(self, func)
        self._batched = batched
        self._owner = owner

    @property
    def batched_function(self) -> Any:
        """The decorated function itself."""
        return self._batched

    @property
    def plain_function(self) -> FunctionType:
        """See `Bindable.plain_function`."""
        alias: FunctionType = self._batched.plain_function
        return alias

    def __call__(self, instance: object, /, *args: Any, **named: Any) -> Any:
        return self._batched.__get__(instance, type(instance))(*args, **named)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self._batched.__get__(instance, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._batched._shared.attribute)  # noqa: SLF001

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(type(self._batched), name):
            raise AttributeError(f"a batched method has no attribute {name!r}")
        if name in self._batched.ways_to_call:
            return partial(self._call, name)
        raise AttributeError(f"{self._batched.__qualname__}.{name} belongs to each instance: use an instance")

    def _call(self, name: str, instance: object, /, *args: Any, **named: Any) -> Any:
        return getattr(self._batched.__get__(instance, type(instance)), name)(*args, **named)

    def __repr__(self) -> str:
        return repr(self._batched)
