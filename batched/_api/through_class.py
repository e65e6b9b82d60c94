"""A batched method that is found through its class, not through an instance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any


class ThroughClass:
    """A batched method found through its class: `Cls.embed(instance, x)` is `instance.embed(x)`."""

    def __init__(self, batched_function: Any, func: Callable[..., Any], owner: type | None) -> None:
        update_wrapper(self, func)
        self.batched_function = batched_function
        self._owner = owner

    def __call__(self, instance: object, /, *args: Any, **named: Any) -> Any:
        return self._call("__call__", instance, *args, **named)

    def _call(self, name: str, instance: object, /, *args: Any, **named: Any) -> Any:
        return getattr(self.batched_function.__get__(instance, type(instance)), name)(*args, **named)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.batched_function.__get__(instance, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self.batched_function._shared.attribute)  # noqa: SLF001

    def __getattr__(self, name: str) -> Any:
        if name == "plain_function":  # for pickles
            return self.batched_function.plain_function
        if name.startswith("_") or not hasattr(type(self.batched_function), name):
            raise AttributeError(f"a batched method has no attribute {name!r}")
        if name in self.batched_function.ways_to_call:
            return partial(self._call, name)
        belonging = f"{self.batched_function.__qualname__}.{name}"
        raise AttributeError(f"{belonging} belongs to each instance: use an instance")

    def __repr__(self) -> str:
        return repr(self.batched_function)
