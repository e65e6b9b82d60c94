"""The checks of options: each takes an option's name and value, and returns the value to keep, or raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from numbers import Real
from operator import index
from typing import Any, TypeAlias, cast

__all__ = [
    "Check",
    "a_bool",
    "a_function",
    "a_string",
    "a_time",
    "an_int",
    "one_of",
    "or_none",
    "outputs",
    "pad_values",
    "round_up",
]

Check: TypeAlias = Callable[[str, Any], Any]

_LONGEST_MS = 7 * 24 * 3600 * 1000.0


def or_none(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def an_int(at_least: int) -> Check:
    """Return a check for whole numbers; a numpy integer becomes Python's own."""

    def check(name: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else index(value)
        except TypeError:
            number = None
        if number is None:
            raise TypeError(f"{name} must be an int, got {value!r}")
        if number < at_least:
            raise ValueError(f"{name} must be at least {at_least}, got {number}")
        return number

    return check


def a_time(*, or_zero: bool) -> Check:
    """Return a check for milliseconds, a week at most; a numpy number becomes Python's own."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number of milliseconds, got {value!r}")
        try:
            number = float(cast("float", value))
        except OverflowError:
            number = math.inf
        if math.isnan(number) or number < 0:
            raise ValueError(f"{name} must be at least 0, got {number:g}")
        if number > _LONGEST_MS:
            raise ValueError(f"{name} must be at most {_LONGEST_MS:g} (a week), got {number:g}")
        if not number and not or_zero:
            raise ValueError(f"{name} must be more than 0, got 0 (None means no deadline)")
        return number

    return check


def one_of(*choices: str | None) -> Check:
    """Return a check for a value that is one of `choices`."""
    *most, last = map(repr, choices)

    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")
        return value

    return check


def a_bool(name: str, value: Any) -> Any:
    """Accept True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def a_string(name: str, value: Any) -> Any:
    """Accept strings."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    return value


def a_function(name: str, value: Any) -> Any:
    """Accept anything callable but a coroutine function."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of one item, got {value!r}")
    if iscoroutinefunction(value):
        raise TypeError(f"{name} must be a plain function, as it is called for every item, got {value!r}")
    return value


def pad_values(name: str, value: Any) -> Any:
    """Accept a number, or a mapping of a number per feature, which is copied."""
    value = dict(value) if isinstance(value, Mapping) else value
    for number in value.values() if isinstance(value, dict) else [value]:
        if number is None or getattr(number, "shape", ()) != () or isinstance(number, list | tuple | set):
            raise TypeError(f"{name} must be a number, or a dict of a number per feature, got {number!r}")
    return value


def round_up(name: str, value: Any) -> Any:
    """Accept a multiple for all features, or a mapping of one for each feature named, which is copied."""
    check = an_int(1)
    if isinstance(value, Mapping):
        return {key: check(f"{name}[{key!r}]", number) for key, number in value.items()}
    return check(name, value)


def outputs(name: str, value: Any) -> bool | dict[Any, Any]:
    """Accept True, False, or a dict of each padded output and the feature that it is padded as."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"{name} must be True, False, or a dict that says for each padded output which feature it is padded "
        f"as, such as {{'logits': 'input_ids'}}, got {value!r}"
    )
