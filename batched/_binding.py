"""How a decorated function finds its batcher: one for a plain function, one per instance for a method.

Batchers are kept beside the instances, not in them: nothing is added to `vars(instance)`, and no batcher
keeps an instance alive.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from dataclasses import fields
from functools import partial, update_wrapper
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from batched._options import ALWAYS_SHOWN, CallOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._options import Options

__all__ = ["NO_OPTIONS", "Bindable", "Binding", "ThroughClass", "name_of"]

NO_OPTIONS = CallOptions()

_new = object.__new__


class HasOptions(Protocol):
    """What a decorated function asks of its batcher."""

    @property
    def options(self) -> Options:
        """What it has been told, last."""
        ...


BatcherT = TypeVar("BatcherT", bound=HasOptions)


class Binding(Generic[BatcherT]):
    """The batchers of one decorated function, each made at first use."""

    def __init__(self, func: Callable[..., Any], make: Callable[[object], BatcherT]) -> None:
        self.func = func
        self._make = make
        self._made: dict[int, tuple[weakref.ref[Any], BatcherT]] = {}
        self.views: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}
        """What all views of an instance share, once it has a batcher: as that, nothing of it leads back."""

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

    def made(self, key: object) -> BatcherT | None:
        """Return the batcher of `key` if there is one yet."""
        made = self._made.get(id(key))
        if made is not None and made[0]() is key:
            return made[1]
        anchor = getattr(key, "__dict__", {}).get(self._name_in_dict())
        return anchor.batcher if anchor is not None and anchor.key == id(key) else None

    def _name_in_dict(self) -> str:
        return f"_batched_{getattr(self.func, '__name__', '')}_{id(self)}"

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

    def share(self, key: Any, attributes: dict[str, Any]) -> None:
        """Have all views of the instance `key` share `attributes`, if it can be referred to weakly."""
        with suppress(TypeError):
            self.views[id(key)] = weakref.ref(key, partial(_forget, self.views, id(key))), attributes

    def _in_dict(self, key: Any) -> BatcherT:
        """Keep the batcher of an instance without `__weakref__` in its `__dict__`."""
        try:
            attributes = vars(key)
        except TypeError:
            raise TypeError(
                f"{type(key).__qualname__} has batched methods, so its __slots__ must include "
                f"'__weakref__' or '__dict__'; both are missing"
            ) from None
        name = self._name_in_dict()
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


class _Wrapped:
    """The plain function of a bound view, found as its `__wrapped__`; a class has none."""

    def __get__(self, view: Bindable[Any] | None, owner: type) -> Callable[..., Any]:
        if view is None:
            raise AttributeError("__wrapped__")
        return view._function  # noqa: SLF001


class Bindable(Generic[BatcherT]):
    """A decorated function: binds to instances as functions do, looks like one, is copied and pickled.

    What callers hold is this object or a view of it, bound to an instance or with call options of its own;
    all views of one instance share its batcher. A copy, or what comes out of a pickle, has its own.
    """

    # Of a view its own; all else is in its `__dict__`, which all views of an instance share.
    __slots__ = ("__dict__", "__weakref__", "_function", "_key")

    ways_to_call: ClassVar[frozenset[str]] = frozenset()
    __wrapped__ = _Wrapped()  # not in the `__dict__` of a view, which would keep the instance

    def __init__(
        self, func: Callable[..., Any], options: Options, make: Callable[[object], BatcherT]
    ) -> None:
        wrapper: Any = self
        update_wrapper(wrapper, func)
        self._function = func  # bound as this object is
        self._attribute = getattr(func, "__name__", "")
        self._settings = options
        self._call_options = NO_OPTIONS
        self._binding = Binding(func, make)
        self._views = self._binding.views
        self._binds = True  # False once bound
        self._key: object = None  # what the batcher belongs to; None means this very object
        self._batcher: BatcherT | None = None
        # As views have one. That of `update_wrapper` shares its keys with others, which CPython 3.11 is slow
        # to look into.
        self.__dict__ = {**self.__dict__}

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def _owner(self) -> object:
        return self if self._key is None else self._key

    def _view(self, key: object, function: Callable[..., Any], attributes: dict[str, Any]) -> Self:
        view = object.__new__(type(self))
        view.__dict__ = attributes
        view._key = key
        view._function = function
        return view

    def with_call_options(self, options: CallOptions) -> Self:
        """Return a view of this object, for calls with `options`."""
        return self._view(self._owner(), self._function, {**self.__dict__, "_call_options": options})

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        known = self._views.get(id(instance))
        if known is not None and known[0]() is instance:
            # As `_view`, on the caller's time.
            view = _new(type(self))
            view.__dict__ = known[1]
            view._key = instance  # noqa: SLF001
            view._function = MethodType(self._function, instance)  # noqa: SLF001
            return view
        if not self._binds:
            return self
        if instance is owner:  # `classmethod.__get__` asks so, up to Python 3.12
            raise self._misplaced()
        bound = self._binding.bind(instance, owner)
        if bound is not None:
            function, key = bound
            attributes = {**self.__dict__, "_binds": False, "_batcher": None, "_views": {}}
            del attributes["__wrapped__"]
            return self._view(key, function, attributes)
        if self._binding.needs_instance:
            return ThroughClass(self, self._function, owner)  # type: ignore[return-value]  # its public face is the same
        return self

    def _find(self) -> BatcherT:
        """Return the batcher."""
        if self._binds and _is_of_class(self._binding.func):
            raise self._misplaced()
        return self._binding.batcher(self._owner())

    def _share(self) -> None:
        """Have further views of the same instance be as this one, which has found its batcher."""
        if not self._binds and type(self._binding.func) is FunctionType and self._call_options is NO_OPTIONS:
            self._binding.share(self._key, self.__dict__)

    def _misplaced(self) -> TypeError:
        name = name_of(self._function, self._settings)
        return TypeError(
            f"{name}: write @dynamically above @classmethod; below it, the class would be taken for an item"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bindable):
            return NotImplemented
        return (
            self._binding is other._binding
            and self._owner() is other._owner()
            and self._call_options == other._call_options
        )

    def __hash__(self) -> int:
        return hash((id(self._binding), id(self._owner())))

    def __repr__(self) -> str:
        batcher = self._batcher or self._binding.made(self._owner())
        options = self._settings if batcher is None else batcher.options
        bound = "" if self._binds else " (bound)"
        told = [
            f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value!r}"
            for field in fields(options)
            if (value := getattr(options, field.name)) != field.default or field.name in ALWAYS_SHOWN
        ]
        return f"<batched {name_of(self._function, options)}{bound}, {', '.join(told)}>"

    # -- copies and pickles -----------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._binds:
            return _rebound, (self._key, self._attribute, self._call_options)
        func = self._binding.func
        if isinstance(func, FunctionType) and _named(func) == self._owner():
            func = self.plain_function
        return _remade, (type(self), func, self._settings, self._call_options)

    @property
    def plain_function(self) -> FunctionType:
        """An alias of the function under a name by which it can be found, for pickles.

        Where a module's `f` is the decorated function, pickle cannot save the plain one as `f`; its alias
        it finds as `f.plain_function`. Pickles by value (cloudpickle, in `__main__`) take the function along.
        """
        root = self._owner()
        alias: FunctionType | None = vars(root).get("_alias")
        if alias is None:
            func = self._binding.func
            alias = FunctionType(func.__code__, func.__globals__, "plain_function", None, func.__closure__)
            alias.__module__ = func.__module__
            alias.__qualname__ = f"{func.__qualname__}.plain_function"
            alias.__wrapped__ = func  # type: ignore[attr-defined]
            vars(root)["_alias"] = alias
        return alias


def _remade(face: type[Any], func: Callable[..., Any], options: Options, call_options: CallOptions) -> Any:
    if getattr(func, "__name__", None) == "plain_function":
        func = func.__wrapped__  # type: ignore[attr-defined]
    made = face(func, options)
    return made if call_options == NO_OPTIONS else made.with_call_options(call_options)


def _rebound(key: object, name: str, call_options: CallOptions) -> Any:
    bound = getattr(key, name)
    return bound if call_options == NO_OPTIONS else bound.with_call_options(call_options)


def _named(func: FunctionType) -> object:
    """Return what the name of `func` leads to in its module."""
    found: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        found = getattr(found, name, None)
    return found.batched_function if isinstance(found, ThroughClass) else found


def _is_of_class(func: Any) -> bool:
    """Whether `func` was written as a class method: from Python 3.13 on nothing but its code tells."""
    if not isinstance(func, FunctionType):
        return False
    place = func.__qualname__.rpartition(".")[0]
    return bool(place) and not place.endswith("<locals>") and func.__code__.co_varnames[:1] == ("cls",)


def name_of(func: Any, options: Options) -> str:
    """Return the name for threads, logs and errors."""
    name = options.name or getattr(func, "__qualname__", None) or type(func).__qualname__
    return str(name).rpartition("<locals>.")[2]


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
        return getattr, (self._owner, self._batched._attribute)  # noqa: SLF001

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
