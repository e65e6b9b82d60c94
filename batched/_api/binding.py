"""How a decorated function finds its driver: one for a plain function, one per instance for a method.

Drivers are kept beside the instances, not in them: nothing is added to `vars(instance)`, and no driver
keeps an instance alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, update_wrapper
from inspect import Signature, getattr_static, iscoroutinefunction, signature
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, SupportsIndex, TypeAlias, TypeVar

from batched._api.absent import Absent
from batched._api.call_signature import LaterSignature, signature_of_calls, signature_of_way
from batched._api.decorate import changed, is_method, name_of, named_by, options_of
from batched._api.pickling import alias_of, check_protocol, rebind, reduced, remake
from batched._api.through_class import ThroughClass
from batched._core.options import (
    NO_OPTIONS,
    POSITIONAL,
    ArrayOptions,
    CallOptions,
    Options,
    options_told,
    where_taken,
)
from batched._core.parameters import annotations_of
from batched._drivers.event_loop import LoopDriver
from batched._drivers.thread import ThreadDriver
from batched._locks import Freed, Guard
from batched._parts.cache import CachingCollator
from batched._parts.stack import join

Driver: TypeAlias = ThreadDriver | LoopDriver
DriverT = TypeVar("DriverT", bound=Driver)

_new: Any = object.__new__

_WITHOUT_WEAK_REFERENCES = (int, tuple, bytes)
"""Their subclasses cannot have weak references, whatever `__slots__` says."""
_WAYS = ("__call__", "acall", "submit", "stream", "astream")  # that take what the function is called with
_MOST_VIEWS = 64  # with other call options, of which the state is kept

# A driver is made by one thread: to read the signature of a builtin in two at once fails in CPython 3.11.
# Reentrant, as the garbage collector may run code that makes another driver.
_making = Guard()


class Binding(Generic[DriverT]):
    """The drivers of one decorated function, each made at first use."""

    def __init__(self, func: Callable[..., Any], make: Callable[[object], DriverT]) -> None:
        self.func: Any = func
        self.make: Callable[[object], DriverT] = make
        """How the driver of an owner is made. A function with a driver of another kind sets it."""
        self._made: dict[int, tuple[weakref.ref[Any], DriverT]] = {}
        self.views: dict[int, Shared[DriverT]] = {}
        """The state that the views of an instance share, by its id, from its first call to its end."""

    def made(self, key: object) -> DriverT | None:
        """Return the driver of `key` if there is one yet."""
        made = self._made.get(id(key))
        return made[1] if made is not None and made[0]() is key else None

    def driver(self, key: Any) -> DriverT:
        """Return the driver of `key`; `TypeError` if `key` is an instance without weak references."""
        made = self.made(key)
        if made is not None:
            return made
        try:
            # `pop` is no Python code, so Ctrl-C cannot interrupt it: no new instance finds this entry.
            reference = weakref.ref(key, partial(self._made.pop, id(key)))
        except TypeError:
            base = next((base for base in _WITHOUT_WEAK_REFERENCES if isinstance(key, base)), None)
            needs = (
                "its __slots__ must include '__weakref__' (of a dataclass: weakref_slot=True; of a "
                "msgspec.Struct: weakref=True)"
            )
            if base is not None:
                needs = (
                    f"it cannot be a subclass of {base.__name__}: keep the {base.__name__} in an attribute"
                )
            raise TypeError(f"{type(key).__qualname__} has batched methods, so {needs}") from None
        with Freed(_making.lock), _making.lock:
            made = self.made(key)
            if made is None:
                made = self.make(key)
                self._made[id(key)] = reference, made
            return made

    def share(self, instance: object, shared: Shared[DriverT]) -> None:
        """Have further views of `instance` use `shared`, which has its driver."""
        shared.reference = weakref.ref(instance, partial(self.views.pop, id(instance)))
        self.views[id(instance)] = shared


@dataclass(slots=True, eq=False)
class Shared(Generic[DriverT]):
    """The state that a decorated function and its views share; it refers to no instance of a user's class."""

    public_class: type[Bindable[Any]]
    function: Callable[..., Any]
    settings: Options
    binding: Binding[DriverT]
    attributes: dict[str, Any]
    """Name, docstring and more of the decorated function."""
    attribute: str
    """The name under which the decorated function stands in its class."""
    callers_ask: bool
    """Whether callers ask the cache themselves, as they may have to await its answer."""
    views: dict[int, Shared[DriverT]]
    """The views of the binding, for the decorated function itself; a view is bound, and has none."""
    is_method: bool = False
    """Whether `function` still takes the instance of its view as its first argument."""
    binds: bool = True
    """Whether this is the decorated function itself, which binds to instances; a view is bound."""
    call_options: CallOptions = NO_OPTIONS
    effective: CallOptions = NO_OPTIONS
    """The same, with the deadline that the decorator gives by default."""
    view_class: Any = None
    reference: object = None
    """The weak reference that takes this out of `views`."""
    driver: DriverT | None = None
    collator: Any = None
    read: Any = None
    of_options: dict[Any, Shared[DriverT]] = field(default_factory=dict)
    """The state of its views with other call options, by what these change."""


if TYPE_CHECKING:
    _OfViews = property
else:

    class _OfViews:
        """A property that the class has not: `inspect` would take it for that of a call of the class."""

        def __init__(self, read: Callable[[Any], Any]) -> None:
            self._read = read

        def __get__(self, view: object, owner: type) -> Any:
            if view is None:
                raise AttributeError(self._read.__name__)
            return self._read(view)


class _Documentation:
    """The docstring of a view: that of its function; of the class of the view, that of all such classes.

    Were they the same, `help` would take it for that of the class, and not show it.
    """

    def __init__(self, of_function: str | None, of_class: str | None) -> None:
        self._of_function = of_function
        self._of_class = of_class

    def __get__(self, view: object, owner: type) -> str | None:
        return self._of_class if view is None else self._of_function


def _signature_of_way(way: FunctionType, of: weakref.ref[Bindable[Any]], through: type | None) -> Signature:
    """Return the signature of a way to call a decorated function."""
    decorated = of()
    if decorated is None:
        return signature(way)
    shared = decorated._shared  # noqa: SLF001  of this module
    return signature_of_way(way, shared.function, shared.settings, through)


def _ways_of(
    public_class: type[Any], name: str, decorated: Bindable[Any], through: type | None = None
) -> dict[str, Any]:
    """Return methods of a class, each a copy with the name of a decorated function and its signature.

    A coroutine has the name of its function: so Python's warning says which call has not been awaited.
    A class lives until a garbage collection, so it holds no function, which may be a method of a model.
    """
    of = weakref.ref(decorated)
    copies: dict[str, Any] = {}
    for way in (*_WAYS, "aclose", "awarm_up"):
        method = getattr(public_class, way, None)
        if isinstance(method, FunctionType) and (way != "__call__" or iscoroutinefunction(method)):
            copy = FunctionType(method.__code__, method.__globals__, way, method.__defaults__)
            copy.__kwdefaults__ = method.__kwdefaults__
            copies[way] = update_wrapper(copy, method, ("__module__", "__doc__", "__annotations__"), ())
            del copy.__wrapped__  # type: ignore[attr-defined]
            copy.__qualname__ = name if way == "__call__" else f"{name}.{way}"
            if way in _WAYS:
                read = partial(_signature_of_way, method, of, through)
                copy.__signature__ = LaterSignature(read)  # type: ignore[attr-defined]
    return copies


class Bindable(Generic[DriverT]):
    """A decorated function: binds to instances as functions do, and looks like one.

    Callers hold this object or a view of it, bound to an instance or with call options of its own. All views
    of one instance share its batcher; a copy, also one from a pickle, has a batcher of its own.
    """

    # A view is made at each access of a method. It has no `__dict__` yet: that would take half as long again.
    __slots__ = ("__dict__", "__weakref__", "_key", "_shared")

    ways_to_call: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:  # those of the function
        __name__: str
        __qualname__: str

    @_OfViews
    def __wrapped__(self) -> Any:
        shared = self._shared
        return MethodType(shared.function, self._key) if shared.is_method else shared.function

    @_OfViews
    def __signature__(self) -> Signature:
        shared = self._shared
        has = partial(hasattr, self)
        return signature_of_calls(self.__wrapped__, shared.settings, has)

    _shared: Shared[DriverT]
    _key: object
    """The object that the driver belongs to: an instance or a class; None for this object itself."""

    def __init__(
        self,
        func: Callable[..., Any],
        options: Options,
        new_driver: Callable[..., DriverT],
        *,
        callers_ask: bool = False,
    ) -> None:
        name = name_of(func, options)
        options = options_of(func, options)

        def make(owner: object) -> DriverT:
            bound = not isinstance(owner, Bindable)
            collator, queue = join(func, options, name, bound=bound, owner=owner)
            if isinstance(collator, CachingCollator) and callers_ask:
                collator.let_callers_ask()
            return new_driver(options, queue, collator, name, owner)

        wrapper: Any = self
        plain = named_by(func)
        update_wrapper(wrapper, plain)
        # From Python 3.14 on `update_wrapper` leaves them to be found: those of this class would come first.
        # (An object that is called has annotations of its attributes.)
        called = plain if hasattr(plain, "__name__") else type(plain).__call__
        wrapper.__annotations__ = annotations_of(called)
        wrapper.__wrapped__ = func
        vars(self).setdefault("__name__", name)  # an object that is called has none
        vars(self).setdefault("__qualname__", name)
        for attribute in [*vars(self)]:  # an attribute of a callable object must hide no method of this class
            if not attribute.startswith("__") and hasattr(type(self), attribute):
                del vars(self)[attribute]
        self._key = None
        public_class = type(self)
        wrapper.__class__ = type(
            public_class.__name__,
            (public_class,),
            {
                "__slots__": (),
                "__module__": public_class.__module__,
                "__doc__": public_class.__doc__,
                **_ways_of(public_class, name, self),
            },
        )
        binding = Binding(func, make)
        self._shared = Shared(
            public_class=public_class,
            function=func,
            settings=options,
            binding=binding,
            attributes=vars(self),
            attribute=getattr(func, "__name__", ""),
            callers_ask=callers_ask,
            views=binding.views,
        )

    def __set_name__(self, owner: type, name: str) -> None:
        self._shared.attribute = name

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        try:
            shared = self._shared.views[id(instance)]
        except KeyError:
            return self._bind(instance, owner)
        # `_view`, spelled out: the benchmark `method` says 1.23 with this, and 1.29 with a call of `_view`.
        view: Self = _new(shared.view_class)
        view._shared = shared
        view._key = instance
        return view

    def _bind(self, instance: object, owner: type | None) -> Self:
        """Return a view of an instance that has no driver yet."""
        shared = self._shared
        func = shared.binding.func
        if not shared.binds:
            return self
        if instance is owner:  # `classmethod.__get__` passes the class twice, up to Python 3.12
            raise self._misplaced("cls")
        if isinstance(func, classmethod):
            key = owner or type(instance)
            return self._view(key, function=func.__get__(None, key), binds=False)
        if isinstance(func, staticmethod | MethodType) or not hasattr(type(func), "__get__"):
            return self
        if instance is None:
            # The public face of a `ThroughClass` is the same.
            return ThroughClass(self, shared.function, owner) if is_method(func) else self  # type: ignore[return-value]
        if type(func) is FunctionType:
            return self._view(instance, is_method=True, binds=False)
        return self._view(instance, function=func.__get__(instance, owner), binds=False)

    def _view(self, key: object, **changes: Any) -> Self:
        """Return a view that belongs to `key`: its state is that of this object, with `changes`."""
        shared = self._shared
        if shared.view_class is None:  # its docstring, for instance, is that of the function
            names = ("__annotations__", "__module__")
            hidden = {name: shared.attributes[name] for name in names if name in shared.attributes}
            base = shared.public_class
            through = None if isinstance(key, Bindable) else key if isinstance(key, type) else type(key)
            members = {
                "__slots__": (),
                "__getattr__": _attribute_of_function,
                "__doc__": _Documentation(shared.attributes.get("__doc__"), base.__doc__),
                **_ways_of(base, self._name, self, through),
                **hidden,
            }
            shared.view_class = type(base.__name__, (base,), members)
        view: Self = _new(shared.view_class)
        # It finds its driver when called.
        view._shared = replace(shared, views={}, driver=None, of_options={}, **changes)
        view._key = key
        return view

    def _with(self, changes: Mapping[str, Any]) -> Self:
        """Return a view of this object with changed call options; it may be made for each call."""
        if "request_cache" in changes:  # which is new for each request
            return self.with_call_options(changed(self._shared.call_options, changes))
        shared = self._shared
        key = tuple([(name, value, type(value)) for name, value in changes.items()])
        try:
            found = shared.of_options.get(key)
        except TypeError:  # a value that is refused
            found = None
        if found is not None:
            known: Self = _new(shared.view_class)
            known._shared = found
            known._key = self._owner()
            return known
        view: Self = self.with_call_options(changed(shared.call_options, changes))
        if view is not self:
            if len(shared.of_options) >= _MOST_VIEWS:  # perhaps a deadline that differs each time
                shared.of_options.clear()
            shared.of_options[key] = view._shared
        return view

    def with_call_options(self, options: CallOptions) -> Self:
        """Return a view of this object, for calls with `options`; this object if they are its own."""
        if options == self._shared.call_options:
            return self
        if options.request_cache is not None:
            self._check_request_cache()
        return self._view(self._owner(), call_options=options)

    def _for_block(self, begin: str) -> Self:
        """Return this object, which a block is to shut down; `TypeError` if it has call options.

        `begin` is what the block begins with, `with` or `async with`.
        """
        if self._shared.call_options != NO_OPTIONS:
            raise TypeError(
                f"`{begin} fn.options(...):` would shut down {self._name} for all callers: "
                f"write `{begin} fn:` for that, and `with batched.deadline(ms):` for a block of calls with a "
                f"deadline"
            )
        return self

    def _check_request_cache(self) -> None:
        """Raise if calls of this function cannot have a cache for their request."""
        settings = self._shared.settings
        if settings.streams:
            raise TypeError(
                f"request_cache cannot be used with {self._name}, which streams: it stores results, not "
                f"pieces"
            )
        if isinstance(settings, ArrayOptions) and settings.cache_key is None:
            raise TypeError(
                f"request_cache needs a cache_key, because arrays cannot be keys: give one to the decorator "
                f"of {self._name}"
            )

    def _owner(self) -> object:
        """Return the object that the driver belongs to."""
        return self if self._key is None else self._key

    @property
    def _name(self) -> str:
        return name_of(self._shared.function, self._shared.settings)

    def _misplaced(self, first: str) -> TypeError:
        """Return the error of a decorator that passes an owner, the `first` parameter, for an item."""
        above, owner = ("@classmethod", "class") if first == "cls" else ("its other decorators", "instance")
        return TypeError(
            f"{self._name}: write @dynamically above {above}; below, the {owner} would be treated as an item"
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        made: Any = self.__reduce__()
        if made[0] is remake:
            check_protocol(protocol, self._name)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        shared = self._shared
        if not shared.binds:
            return rebind, (self._key, shared.attribute, shared.call_options)
        return reduced(
            self._owner(), shared.public_class, shared.binding.func, shared.settings, shared.call_options
        )

    @property
    def __closure__(self) -> Any:
        """The closure of the function: `attrs` makes a class with slots anew, and tells it to `super()`."""
        return getattr(self._shared.function, "__closure__", None)

    @property
    def plain_function(self) -> FunctionType:
        """The alias of the function, by which pickle finds it; what is bound has none."""
        if not self._shared.binds:
            raise AttributeError("plain_function", name="plain_function", obj=self)
        func: Any = self._shared.binding.func
        plain: Any = func.__func__ if isinstance(func, staticmethod) else func
        return alias_of(plain, self._owner())

    def __dir__(self) -> list[str]:
        """Return what there is: of options, and of what blocks, there may be only a message."""
        return [
            name
            for name in super().__dir__()
            if name in vars(self) or not isinstance(getattr_static(type(self), name, None), Absent)
        ]

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
        driver = shared.driver or shared.binding.made(self._owner())
        options = shared.settings if driver is None else driver.options
        bound = "" if shared.binds else " (bound)"
        told = [*options_told(options, POSITIONAL), *options_told(shared.call_options)]
        return f"<batched {self._name}{bound}, {', '.join(told)}>"


for _name in [each.name for each in (*fields(ArrayOptions), *fields(CallOptions))]:
    _why = f"a decorated function has no attribute {_name!r}{where_taken(_name)}"
    setattr(Bindable, _name, Absent(_name, _why))


def _attribute_of_function(view: Bindable[Any], name: str) -> Any:
    """Return an attribute of the decorated function, which a view of it has not itself.

    Only of views: a class with a `__getattr__` takes twice as long for any attribute.
    """
    # Its own are missing in a view without a state, as `torch.compile` makes to look at it.
    attributes = vars(view) if name in Bindable.__slots__ else view._shared.attributes  # noqa: SLF001
    if name in attributes:
        return attributes[name]
    return object.__getattribute__(view, name)  # raises the error, with what it has to say
