"""The checks of options: each takes an option's name and value, and returns the value to keep, or raises."""

from __future__ import annotations

import math
import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from inspect import iscoroutinefunction
from itertools import pairwise
from numbers import Real
from operator import index
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from batched._core.parameters import is_async_def, signature_of

Check: TypeAlias = Callable[[str, Any], Any]


class MappingCache(Protocol):
    """A cache that is a mapping."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> Any: ...


class ClientCache(Protocol):
    """A cache that is an object with `set`, and with a `get` that returns None for an unknown key."""

    def get(self, key: Any, /) -> Any: ...
    def set(self, key: Any, value: Any, /) -> Any: ...


Cache: TypeAlias = MappingCache | ClientCache
"""What a `cache` may be: a mapping, or an object with `set`, and `get`, which returns None for no result."""


@runtime_checkable
class SharedByFunctions(Protocol):
    """What `workers` may be: a `batched.Workers`."""

    names: tuple[str, ...]
    pool: Any
    weight: float | None


LONGEST_MS = 7 * 24 * 3600 * 1000.0


def or_none(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def an_int(at_least: int) -> Check:
    """Return a check for whole numbers; a numpy integer becomes Python's own.

    None is larger than any list, so that each can be counted with, also as a float.
    """

    def check(name: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else index(value)
        except TypeError:
            number = None
        if number is None:
            raise TypeError(f"{name} must be an int, got {value!r}")
        if number < at_least:
            raise ValueError(f"{name} must be at least {at_least}, got {number}")
        if number > sys.maxsize:
            bits = number.bit_length()
            raise ValueError(f"{name} must be at most {sys.maxsize}, got an integer of {bits} bits")
        return number

    return check


def as_float(name: str, value: Any, meant: str = "a number") -> float:
    """Return a number as Python's own, also one of numpy; infinity if it is larger than those."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {meant}, got {value!r}")
    try:
        return float(cast("float", value))
    except OverflowError:
        return math.inf


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds, a week at most: the system takes no time that is endless."""
    number = as_float(name, value, "a number of seconds")
    if not 0 <= number <= LONGEST_MS / 1000:
        most = f"{LONGEST_MS / 1000:g} (a week)"
        raise ValueError(f"{name} must be a number of seconds from 0 to {most}, got {value!r}")
    return number


def a_time(*, or_zero: bool, or_none: bool = True, or_else: str = "") -> Check:
    """Return a check for milliseconds, a week at most; a numpy number becomes Python's own.

    Messages say `or_else` of what else is accepted.
    """

    def check(name: str, value: Any) -> float:
        number = as_float(name, value, f"a number of milliseconds{or_else}")
        why = " (None means no deadline)" * (or_none and not or_zero)
        if not (number > 0 or (or_zero and not number)):
            least = "at least" if or_zero else "more than"
            raise ValueError(f"{name} must be {least} 0, got {number:g}{why}")
        if number > LONGEST_MS:
            raise ValueError(f"{name} must be at most {LONGEST_MS:.0f} (a week), got {number:.12g}{why}")
        return number

    return check


def or_word(word: str, check: Check, meant: str) -> Check:
    """Return a check that also accepts a word; the message for another one says what is `meant`."""

    def check_word(name: str, value: Any) -> Any:
        if isinstance(value, str) and value != word:
            raise ValueError(f"{name} must be {meant}, got {value!r}")
        return value if isinstance(value, str) else check(name, value)

    return check_word


a_deadline = or_word("default", a_time(or_zero=False), 'a number of milliseconds, "default", or None')
_AUTO = 'a number of milliseconds, or "auto"'
a_timeout = or_word("auto", a_time(or_zero=True, or_else=', or "auto"'), _AUTO)


def _an_instance(kind: type, meant: str) -> Check:
    """Return a check for values of `kind`, which the message calls `meant`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {meant}, got {value!r}")
        return value

    return check


a_bool = _an_instance(bool, "True or False")
a_string = _an_instance(str, "a string")


def one_of(*choices: str | None) -> Check:
    """Return a check for a value that is one of `choices`."""
    *most, last = map(repr, choices)

    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")
        return value

    return check


def a_callable(name: str, value: Any, of: str, takes: int | None = None) -> Any:
    """Accept anything callable; with so many arguments, if it is known how many there are."""
    if not callable(value) or (takes is not None and not _takes(value, takes)):
        raise TypeError(f"{name} must be a function of {of}, got {value!r}")
    return value


def a_function(name: str, value: Any, of: str = "one item", takes: int | None = None) -> Any:
    """Accept such a callable, but no coroutine function."""
    a_callable(name, value, of, takes)
    if is_async_def(value):
        raise TypeError(f"{name} must be a plain function, not `async def`, got {value!r}")
    return value


a_length = or_word("auto", a_function, '"auto", a function of one item, or None')


def a_function_of_no_item(name: str, value: Any) -> Any:
    """Accept what can be called without an argument, but no coroutine function."""
    if not callable(value) or not _takes(value, 0):
        raise TypeError(
            f"{name} must be a function without parameters, such as the get of a context variable, "
            f"got {value!r}"
        )
    return a_function(name, value)


def workers(name: str, value: Any) -> Any:
    """Accept a `batched.Workers`."""
    if not isinstance(value, SharedByFunctions):
        raise TypeError(
            f"{name} must be a batched.Workers, as in workers=batched.Workers(2), got {value!r}; for threads "
            f"of the function's own, use max_concurrent_batches"
        )
    return value


def a_stage(name: str, value: Any) -> Any:
    """Accept anything callable, also a coroutine function, and the name of a method."""
    if isinstance(value, str):
        if value.isidentifier():
            return value
        raise ValueError(f"{name} must be a function or the name of a method, got {value!r}")
    if isinstance(value, classmethod) or not callable(value):
        advice = ": name it instead" if isinstance(value, classmethod) else ""
        raise TypeError(f"{name} must be a function or the name of a method, got {value!r}{advice}")
    return value


def pad_values(name: str, value: Any) -> Any:
    """Accept a number, or a mapping of a number per feature, which is copied."""
    value = dict(value) if isinstance(value, Mapping) else value
    for number in value.values() if isinstance(value, dict) else [value]:
        if number is None or getattr(number, "shape", ()) != () or isinstance(number, list | tuple | set):
            raise TypeError(f"{name} must be a number, or a dict with a number per feature, got {number!r}")
    return value


def ascending(name: str, value: Any) -> tuple[int, ...]:
    """Accept whole numbers from 1 on, each larger than the one before."""
    unordered = isinstance(value, str | bytes | Mapping | AbstractSet)
    if unordered or not hasattr(type(value), "__iter__"):
        raise TypeError(f"{name} must be a tuple of ints, such as (1, 2, 4, 8), got {value!r}")
    numbers = tuple(map(partial(an_int(1), f"each of {name}"), value))
    if not numbers:
        raise ValueError(f"{name} must not be empty")
    if any(former >= latter for former, latter in pairwise(numbers)):
        raise ValueError(f"{name} must be in ascending order, each number once, got {numbers}")
    return numbers


def for_each(check: Check) -> Check:
    """Return a check that also accepts a mapping of such a value for each feature named, which is copied."""

    def check_each(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: check(f"{name}[{key!r}]", each) for key, each in value.items()}
        return check(name, value)

    return check_each


def outputs(name: str, value: Any) -> bool | dict[Any, Any]:
    """Accept True, False, or a dict of each padded output and the feature that it is padded as."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"{name} must be True, False, or a dict of each padded output and the feature that it is padded "
        f"like, such as {{'logits': 'input_ids'}}, got {value!r}"
    )


def a_cache(name: str, value: Any, others: str = ", or an object with get and set") -> Any:
    """Accept a mapping, or an object with `get` and `set`, but none that answers for unknown keys."""
    kind = type(value).__name__
    if isinstance(value, type):
        raise TypeError(
            f"{name} must be an object, got the class {value.__name__}: write {value.__name__}(...)"
        )
    if not is_mapping(value):
        if _takes(value.get, 1) and _takes(value.set, 2):
            return value
        raise TypeError(
            f"{name} must have a get that takes a key, and a set that takes a key and a value; those of "
            f"{kind} take other arguments"
        )
    item = [getattr(type(value), method, None) for method in ("__getitem__", "__setitem__")]
    if None in item or isinstance(value, Sequence | memoryview) or hasattr(value, "__array__"):
        raise TypeError(f"{name} must be a mapping such as a dict{others}, got {value!r:.100} of type {kind}")
    if any(map(iscoroutinefunction, item)):
        raise TypeError(f"an asynchronous cache needs get and set, but {kind} has only []")
    if isinstance(value, dict | UserDict) and hasattr(value, "__missing__"):
        raise TypeError(
            f"{name} must not make up values for missing keys, as {kind} does with __missing__: use a dict"
        )
    return value


def a_request_cache(name: str, value: Any) -> Any:
    """Accept a mapping that `a_cache` accepts."""
    if isinstance(value, type) or is_mapping(value):
        return a_cache(name, value, "")
    raise TypeError(
        f"{name} must be a mapping such as a dict, got {value!r:.100}, which has get and set: such an object "
        f"can be the cache of the decorator"
    )


def is_mapping(cache: Any) -> bool:
    """Whether a cache is asked by `cache[key]`, not by `get` and `set`.

    Clients of Redis have both, but are no mappings: they have no length, and `[]` of the asynchronous one
    raises.
    """
    if not all(callable(getattr(cache, name, None)) for name in ("get", "set")):
        return True
    is_sized = all(hasattr(type(cache), name) for name in ("__getitem__", "__setitem__", "__len__"))
    return is_sized and not is_async_cache(cache)


def is_async_cache(cache: Any) -> bool:
    """Whether a cache says that its `get` or `set` is asynchronous."""
    return any(iscoroutinefunction(getattr(cache, name, None)) for name in ("get", "set"))


def _takes(function: Any, count: int) -> bool:
    """Whether `function` can be called with `count` arguments, as far as its signature says.

    Its own: it may give more to one that it wraps.
    """
    try:
        known = signature_of(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001  some callables in C have none, and a proxy may raise anything
        return True
    try:
        known.bind(*range(count))
    except TypeError:
        return False
    return True
