"""A batched method that is found through its class, not through an instance."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import Signature
from typing import Any, ClassVar

from batched._api.call_signature import LaterSignature, signature_of_calls
from batched._core.options import where_taken


class ThroughClass:
    """A batched method found through its class: `Cls.embed(instance, x)` is `instance.embed(x)`."""

    ways_to_call: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, batched_function: Any, func: Callable[..., Any], owner: type | None) -> None:
        update_wrapper(self, batched_function)
        vars(self).update(__wrapped__=func, batched_function=batched_function, _owner=owner)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        return self._call("__call__", *args, **named)

    @property
    def __signature__(self) -> Signature:
        shared = self.batched_function._shared  # noqa: SLF001
        has = self.batched_function.ways_to_call.__contains__
        return signature_of_calls(shared.function, shared.settings, has, self._owner)

    @property
    def _attribute(self) -> str:
        return self.batched_function._shared.attribute  # type: ignore[no-any-return]  # noqa: SLF001

    async def _acall(self, instance: object = None, /, *args: Any, **named: Any) -> Any:
        return await self._call("acall", instance, *args, **named)

    def _call(self, name: str, instance: object = None, /, *args: Any, **named: Any) -> Any:
        if self._owner is not None and not isinstance(instance, self._owner.__mro__[:-1]):
            raise TypeError(
                f"{self.batched_function.__qualname__} is a method: call it on an instance, as in "
                f"{self._owner.__name__}(...).{self._attribute}(...); called on the class, its first "
                f"argument must be an instance, got {reprlib.repr(instance)}"
            )
        return getattr(self.batched_function.__get__(instance, type(instance)), name)(*args, **named)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.batched_function.__get__(instance, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._attribute)

    def __getattr__(self, name: str) -> Any:
        if name == "plain_function":  # for pickles
            return self.batched_function.plain_function
        if name.startswith("_") or not hasattr(type(vars(self).get("batched_function")), name):
            raise AttributeError(f"a batched method has no attribute {name!r}{where_taken(name)}")
        if name in self.batched_function.ways_to_call:
            way = partial(self._acall) if name == "acall" else partial(self._call, name)
            update_wrapper(way, getattr(self.batched_function, name))
            if not name.endswith("map"):
                vars(way)["__signature__"] = LaterSignature(lambda: self.__signature__)
            return way
        belonging = f"{self.batched_function.__qualname__}.{name}"
        raise AttributeError(f"each instance has its own {belonging}: use it on an instance")

    def __setattr__(self, name: str, value: object) -> None:
        """Set it on the decorated function: this object is made anew each time."""
        if "batched_function" in vars(self):
            setattr(self.batched_function, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.batched_function, name)

    def __dir__(self) -> list[str]:
        """Return the ways to call, too: an automatic mock of a class has what this names."""
        return [*super().__dir__(), *self.batched_function.ways_to_call]

    def __repr__(self) -> str:
        return repr(self.batched_function)
