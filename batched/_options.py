"""The options of the decorators and of single calls, checked at the door."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallOptions", "Options", "Priority", "decorate"]

Priority = Literal["interactive", "bulk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a batcher is told once."""

    batch_size: int = 32
    timeout_ms: float = 5.0
    small_batch_threshold: int = 8
    adaptive: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every value; a numpy number is as good as Python's own."""
        _set(self, "batch_size", _whole("batch_size", self.batch_size, at_least=1))
        _set(self, "timeout_ms", _milliseconds("timeout_ms", self.timeout_ms))
        _set(
            self,
            "small_batch_threshold",
            _whole("small_batch_threshold", self.small_batch_threshold, at_least=0),
        )
        if not isinstance(self.adaptive, bool):
            raise TypeError(f"adaptive must be True or False, got {self.adaptive!r}")
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a caller may say of its own calls."""

    deadline_ms: float | None = None
    priority: Priority | None = None
    return_exceptions: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        if self.deadline_ms is not None:
            deadline_ms = _milliseconds("deadline_ms", self.deadline_ms)
            if not deadline_ms:
                raise ValueError("deadline_ms must be more than 0, got 0 (None means no deadline)")
            _set(self, "deadline_ms", deadline_ms)
        if self.priority not in {None, "interactive", "bulk"}:
            raise ValueError(f"priority must be 'interactive', 'bulk' or None, got {self.priority!r}")
        if not isinstance(self.return_exceptions, bool):
            raise TypeError(f"return_exceptions must be True or False, got {self.return_exceptions!r}")


_NAMES = tuple(field.name for field in fields(Options))
_POSITIONAL = ("batch_size", "timeout_ms", "small_batch_threshold")


def decorate(face: Callable[[Any, Options], Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Make a `face` of a function and its options, or a decorator of the options alone."""
    func: Any = None
    if args and (callable(args[0]) or isinstance(args[0], classmethod | staticmethod)):
        func, *args = args  # type: ignore[assignment]
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"dynamically takes {', '.join(_POSITIONAL)} by position, got {args!r}")
    positional = dict(zip(_POSITIONAL, args, strict=False))
    if twice := positional.keys() & named.keys():
        raise TypeError(f"{min(twice)} was given twice, by position and by name")
    if unknown := named.keys() - set(_NAMES):
        raise TypeError(f"dynamically has no option {min(unknown)!r}; it has {', '.join(_NAMES)}")
    options = Options(**positional, **named)
    if func is not None:
        return face(func, options)

    def decorator(func: Any) -> Any:
        if not callable(func) and not isinstance(func, classmethod | staticmethod):
            raise TypeError(f"dynamically decorates a function, got {func!r}")
        return face(func, options)

    return decorator


_LONGEST_MS = 7 * 24 * 3600 * 1000.0


def _set(options: object, name: str, value: object) -> None:
    object.__setattr__(options, name, value)


def _whole(name: str, value: Any, *, at_least: int) -> int:
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int, got {value!r}")
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    return number


def _milliseconds(name: str, value: Any) -> float:
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
    return number
