"""The user's cache: asked for results, and told of them, key by key.

A cache is a mapping, or an object with `get` and `set`. What these return is awaited if it is awaitable.
The code of a cache may be slow, and may call the batcher: it never runs while a lock of a batcher is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any
from weakref import WeakValueDictionary, ref

from batched._core.option_checks import is_mapping
from batched._locks import Freed, Guard, InterruptedLock
from batched._logs import log
from batched._policy.chains import chain_of
from batched._policy.surroundings import is_of_surroundings

UNKNOWN: Any = object()
"""Stands for the result of a key that the cache does not know."""


class AsynchronousCacheError(TypeError):
    """Raised for a cache that can only be awaited, where callers are threads."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: a cache with asynchronous get and set needs batched.aio, where callers can await it"
        )


# By the id of the cache, however many batchers use that: mappings of `cachetools` bear one thread only. The
# same thread may take a lock again: a mapping may call other code, and so may the garbage collector.
_guards: WeakValueDictionary[int, Guard] = WeakValueDictionary()
_making = Guard()

# By the id of the cache: the store of a function of which the items are its keys.
_claims: WeakValueDictionary[int, Store] = WeakValueDictionary()


class Store:
    """One cache, as the library uses it.

    One thread at a time uses a mapping: many mappings are not thread-safe, and `[]` is taken to be quick.
    An object with `get` and `set` is used without a lock: it may wait for a server, and all callers would
    wait with it.

    Both methods are coroutines, so that there is one way to ask. They wait only for what `get` or `set` has
    returned, if that is awaitable; unless `awaits` is set they raise `AsynchronousCacheError` instead.
    """

    def __init__(self, cache: Any, name: str) -> None:
        self._cache = cache
        with Freed(_making.lock), _making.lock:
            self._guard = _guards.setdefault(id(cache), Guard())
        self.name: str = name
        self.function: Any = None
        self.decorated: Callable[[], Any]
        """Returns the decorated function that has claimed the cache, None if that is gone."""
        self.is_mapping = is_mapping(cache)
        self.awaits = False  # whether the callers are tasks, which can await

    def claim(self, function: Any, decorated: Any) -> None:
        """Note that the items of `function` are the keys; `TypeError` if those of another function are, too.

        Equal items would get each other's results, without a word. A function that was dropped claims
        nothing, though the threads of its workers may go on.
        """
        self.function = function
        self.decorated = ref(decorated)
        with Freed(_making.lock), _making.lock:
            other = _claims.setdefault(id(self._cache), self)
            if other.decorated() is None:
                _claims[id(self._cache)] = other = self
        if not _are_same(function, other.function):
            own = self.name if self.name != other.name else f"{self.name} 2"
            raise TypeError(
                f"{self.name} and {other.name} have one cache and no cache_key, so equal items would get "
                f"each other's results: give each a cache of its own, or this one a cache_key that tells "
                f"their items apart, `cache_key=lambda item: ({own!r}, item)`; or "
                f"`cache_key=lambda item: item` if both have the same results"
            )

    @property
    def lock(self) -> InterruptedLock:
        """What a thread holds while it uses a mapping."""
        return self._guard.lock

    async def get(self, key: Hashable) -> Any:
        """Return the result that the cache has for `key`, or `UNKNOWN`."""
        if self.is_mapping:
            with Freed(self.lock), self.lock:
                try:
                    return self._cache[key]
                except KeyError:
                    return UNKNOWN
        answer = self._cache.get(key)
        if hasattr(type(answer), "__await__"):
            answer = await self._waited_for(answer)
        return UNKNOWN if answer is None else answer

    async def set(self, key: Hashable, result: Any) -> None:
        """Store `result` under `key`."""
        if self.is_mapping:
            with Freed(self.lock), self.lock:
                self._cache[key] = result
            return
        answer = self._cache.set(key, result)
        if hasattr(type(answer), "__await__"):
            await self._waited_for(answer)

    async def _waited_for(self, answer: Any) -> Any:
        if not self.awaits:
            if hasattr(answer, "close"):
                answer.close()  # a coroutine would warn that it was never awaited
            raise AsynchronousCacheError(self.name)
        return await answer


def _are_same(one: Any, other: Any) -> bool:
    """Whether two functions give the same results, as far as can be seen.

    One that was defined again, by a cell of a notebook or a module that was reloaded, is another object.
    """
    if isinstance(one, MethodType | BuiltinMethodType):
        return bool(one == other)  # of the same instance
    one, other = (each.__func__ if isinstance(each, staticmethod) else each for each in (one, other))
    if one is other or not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return one is other
    if (one.__module__, one.__qualname__) != (other.__module__, other.__qualname__):
        return False
    if "<" not in one.__qualname__:
        return True
    return one.__code__ == other.__code__ and not (_holds_values(one) or _holds_values(other))


def _holds_values(function: FunctionType) -> bool:
    """Whether a closure or a lambda has values of its own, so that others of the same code may differ."""
    return bool(function.__closure__ or function.__defaults__ or function.__kwdefaults__)


class Faults:
    """The errors that a cache raises for the items of one call or batch: one line is logged for all."""

    def __init__(self, name: str) -> None:
        self.interrupt: KeyboardInterrupt | None = None
        self._name = name
        self._first: BaseException | None = None
        self._count = 0
        self._is_down = False

    def add(self, error: BaseException) -> bool:
        """Count `error`; return whether the cache may still take the next item.

        An error of the system, of a connection or of a time limit, also as a cause, means that the cache
        cannot be reached. Any other may come from this key or this result alone.
        """
        if self._first is None:
            self._first = error
        if isinstance(error, KeyboardInterrupt):
            self.interrupt = error
        self._count += 1
        is_of_system = any(issubclass(type(each), OSError) for each in chain_of(error))
        self._is_down = is_of_system or is_of_surroundings(error)
        return not self._is_down

    def log(self, what: str) -> None:
        """Log how many of `what` (keys, results) the cache has failed for, if it has."""
        if self._is_down:
            log(logging.ERROR, "%s: the cache failed and is bypassed", self._name, error=self._first)
        elif self._first is not None:
            refused = "%s: the cache failed for %s %s"
            log(logging.ERROR, refused, self._name, self._count, what, error=self._first)


def at_once(work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    """Run `work`, a coroutine function that never waits, to its end."""
    # Made here: one that is not begun, as an error comes between, is a warning of Python's.
    running = work(*args)
    try:
        running.send(None)
    except StopIteration:
        return
    running.close()
    raise AssertionError("a coroutine that must not wait has waited")
