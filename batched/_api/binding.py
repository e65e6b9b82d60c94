"""How a decorated function finds its batcher: one for a plain function, one per instance for a method.

Batchers are kept beside the instances, not in them: nothing is added to `vars(instance)`, and no batcher
keeps an instance alive.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field, fields, replace
from functools import partial, update_wrapper
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from batched._core.options import ALWAYS_SHOWN, CallOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._core.options import Options

__all__ = ["NO_OPTIONS", "Bindable", "Binding", "ThroughClass", "name_of"]

NO_OPTIONS = CallOptions()

_new: Any = object.__new__

_HIDDEN = ("__annotations__", "__doc__", "__module__")


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
        self.views: dict[int, Shared[BatcherT]] = {}
        """What the views of an instance share, by its id, from its first call to its end."""

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
        return made[1] if made is not None and made[0]() is key else None

    def batcher(self, key: Any) -> BatcherT:
        """Return the batcher of `key`; `TypeError` if `key` is an instance without weak references."""
        made = self.made(key)
        if made is not None:
            return made
        try:
            reference = weakref.ref(key, partial(_forget, self._made, id(key)))
        except TypeError:
            raise TypeError(
                f"{type(key).__qualname__} has batched methods, so its __slots__ must include '__weakref__'"
            ) from None
        # Of two threads that make one, the first wins; a batcher that is not used is nothing yet.
        return self._made.setdefault(id(key), (reference, self._make(key)))[1]


def _forget(made: dict[int, tuple[weakref.ref[Any], Any]], key: int, reference: weakref.ref[Any]) -> None:
    entry = made.get(key)
    if entry is not None and entry[0] is reference:
        del made[key]


@dataclass(slots=True, eq=False)
class Shared(Generic[BatcherT]):
    """What a decorated function and its views have in common; it refers to no instance of a user's class."""

    face: type[Bindable[Any]]
    function: Callable[..., Any]
    is_method: bool
    """Whether `function` is yet to be bound to the instance that its view belongs to."""
    binds: bool
    """Whether this is the decorated function itself, which binds to instances; a view is bound."""
    settings: Options
    binding: Binding[BatcherT]
    attributes: dict[str, Any]
    """Name, docstring and more of the decorated function."""
    call_options: CallOptions = NO_OPTIONS
    attribute: str = ""
    """The name under which the decorated function stands in its class."""
    views: dict[int, Shared[BatcherT]] = field(default_factory=dict)
    """Those of the binding, for the decorated function itself: a view has none, as it is bound."""
    view_class: Any = None
    reference: object = None
    """The weak reference that takes this out of `views`."""
    streams: bool = False
    callers_ask: bool = False
    """Whether callers ask the cache themselves, as they may have to await its answer."""
    batcher: BatcherT | None = None
    collator: Any = None
    read: Any = None


class _Wrapped:
    """The plain function of a bound view, found as its `__wrapped__`; a class has none."""

    def __get__(self, view: Bindable[Any] | None, owner: type) -> Callable[..., Any]:
        if view is None:
            raise AttributeError("__wrapped__")
        shared = view._shared  # noqa: SLF001
        return MethodType(shared.function, view._key) if shared.is_method else shared.function  # noqa: SLF001


class Bindable(Generic[BatcherT]):
    """A decorated function: binds to instances as functions do, looks like one, is copied and pickled.

    What callers hold is this object or a view of it, bound to an instance or with call options of its own;
    all views of one instance share its batcher. A copy, or what comes out of a pickle, has its own.
    """

    # A view has no `__dict__`: it is made at each access of a method, and that would take half as long again.
    __slots__ = ("__dict__", "__weakref__", "_key", "_shared")

    ways_to_call: ClassVar[frozenset[str]] = frozenset()
    __wrapped__ = _Wrapped()

    _shared: Shared[BatcherT]
    _key: object
    """What the batcher belongs to: an instance, or a class; None means this very object."""

    def __init__(
        self, func: Callable[..., Any], options: Options, make: Callable[[object], BatcherT]
    ) -> None:
        wrapper: Any = self
        update_wrapper(wrapper, func)
        self._key = None
        binding = Binding(func, make)
        self._shared = Shared(
            face=type(self),
            function=func,
            is_method=False,
            binds=True,
            settings=options,
            binding=binding,
            attributes=vars(self),
            attribute=getattr(func, "__name__", ""),
            views=binding.views,
        )

    if not TYPE_CHECKING:  # for type checkers there is no attribute but those that are written down

        def __getattr__(self, name: str) -> Any:
            try:
                return self._shared.attributes[name]
            except KeyError:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                ) from None

    def __set_name__(self, owner: type, name: str) -> None:
        self._shared.attribute = name

    @property
    def _batcher(self) -> BatcherT | None:
        """The batcher, if it has been found."""
        return self._shared.batcher

    def _owner(self) -> object:
        return self if self._key is None else self._key

    def _view(self, key: object, shared: Shared[BatcherT]) -> Self:
        view: Self = object.__new__(shared.view_class)
        view._key = key
        view._shared = shared
        return view

    def _make_view_class(self) -> None:
        """Make the class of this function's views: its attributes stand before those of the public class."""
        shared = self._shared
        if shared.view_class is None:
            hidden = {name: shared.attributes[name] for name in _HIDDEN if name in shared.attributes}
            shared.view_class = type(shared.face.__name__, (shared.face,), {"__slots__": (), **hidden})

    def with_call_options(self, options: CallOptions) -> Self:
        """Return a view of this object, for calls with `options`."""
        self._make_view_class()
        return self._view(self._owner(), replace(self._shared, call_options=options, views={}))

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        try:
            shared = self._shared.views[id(instance)]
        except KeyError:
            return self._bind(instance, owner)
        # As `_view`, on the caller's time.
        view: Self = _new(shared.view_class)
        view._shared = shared
        view._key = instance
        return view

    def _bind(self, instance: object, owner: type | None) -> Self:
        """Return what `__get__` does, of an instance that has no batcher yet."""
        shared = self._shared
        if not shared.binds:
            return self
        if instance is owner:  # `classmethod.__get__` asks so, up to Python 3.12
            raise self._misplaced()
        bound = shared.binding.bind(instance, owner)
        if bound is not None:
            function, key = bound
            is_method = type(shared.binding.func) is FunctionType
            self._make_view_class()
            theirs = replace(
                shared,
                function=shared.function if is_method else function,
                is_method=is_method,
                binds=False,
                batcher=None,
                views={},
            )
            return self._view(key, theirs)
        if shared.binding.needs_instance:
            return ThroughClass(self, shared.function, owner)  # type: ignore[return-value]  # its public face is the same
        return self

    def _find(self) -> BatcherT:
        """Return the batcher."""
        shared = self._shared
        if shared.binds and _is_of_class(shared.binding.func):
            raise self._misplaced()
        return shared.binding.batcher(self._owner())

    def _share(self) -> None:
        """Have further views of the same instance be as this one, which has found its batcher."""
        shared = self._shared
        if shared.is_method and shared.call_options is NO_OPTIONS:
            key, views = id(self._key), shared.binding.views
            # Taken out of `views` by no code of Python's that Ctrl-C could interrupt: an instance that comes
            # in the place of a dead one must not find it.
            shared.reference = weakref.ref(self._key, partial(views.pop, key))
            views[key] = shared

    def _misplaced(self) -> TypeError:
        name = name_of(self._shared.function, self._shared.settings)
        return TypeError(
            f"{name}: write @dynamically above @classmethod; below it, the class would be taken for an item"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bindable):
            return NotImplemented
        return (
            self._shared.binding is other._shared.binding
            and self._owner() is other._owner()
            and self._shared.call_options == other._shared.call_options
        )

    def __hash__(self) -> int:
        return hash((id(self._shared.binding), id(self._owner())))

    def __repr__(self) -> str:
        shared = self._shared
        batcher = shared.batcher or shared.binding.made(self._owner())
        options = shared.settings if batcher is None else batcher.options
        bound = "" if shared.binds else " (bound)"
        told = [
            f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value!r}"
            for field in fields(options)
            if (value := getattr(options, field.name)) != field.default or field.name in ALWAYS_SHOWN
        ]
        return f"<batched {name_of(shared.function, options)}{bound}, {', '.join(told)}>"

    # -- copies and pickles -----------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        shared = self._shared
        if not shared.binds:
            return _rebound, (self._key, shared.attribute, shared.call_options)
        func = shared.binding.func
        if isinstance(func, FunctionType) and _named(func) == self._owner():
            func = self.plain_function
        return _remade, (shared.face, func, shared.settings, shared.call_options)

    @property
    def plain_function(self) -> FunctionType:
        """An alias of the function under a name by which it can be found, for pickles.

        Where a module's `f` is the decorated function, pickle cannot save the plain one as `f`; its alias
        it finds as `f.plain_function`. Pickles by value (cloudpickle, in `__main__`) take the function along.
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
