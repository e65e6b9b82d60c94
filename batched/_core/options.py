"""The options of the decorators and of single calls, checked at the door."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, Signature, iscoroutinefunction
from numbers import Real
from operator import index
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypedDict, TypeVar, cast, get_type_hints

from batched._parts.store import check_cache

__all__ = [
    "ALWAYS_SHOWN",
    "DEFAULT_MAX_PIECES",
    "FUNC",
    "SELF",
    "ArrayOptions",
    "CallChanges",
    "CallOptions",
    "Changes",
    "KeywordOptions",
    "ListKeywordOptions",
    "Options",
    "Priority",
    "check_names",
    "decorate",
    "knows_lengths",
    "takes",
    "with_changes",
]

Priority = Literal["interactive", "bulk"]
OnFull = Literal["raise", "wait"]
PaddingSide = Literal["right", "left"]

DEFAULT_MAX_PIECES = 100_000  # more than any text has


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a batcher is told once."""

    other_names: ClassVar[Mapping[str, str]] = {}
    """Further names of options, each with the name of the option."""
    not_taken: ClassVar[Mapping[str, str]] = {}
    """Options that are refused, each with the reason."""

    batch_size: int = 32
    timeout_ms: float = 5.0
    small_batch_threshold: int = 8
    adaptive: bool = True
    max_concurrent_batches: int = 1
    max_queue_size: int | None = None
    on_full: OnFull = "raise"
    isolate_errors: bool = False
    max_batch_length: int | None = None
    length: Callable[..., Any] | None = None
    group_by: Callable[..., Any] | None = None
    cache: Any = None
    cache_key: Callable[..., Any] | None = None
    max_pieces: int = DEFAULT_MAX_PIECES
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every value; a numpy number is as good as Python's own."""
        _set(
            self,
            "max_concurrent_batches",
            _whole("max_concurrent_batches", self.max_concurrent_batches, at_least=1),
        )
        if self.max_queue_size is not None:
            _set(self, "max_queue_size", _whole("max_queue_size", self.max_queue_size, at_least=1))
        if self.on_full not in {"raise", "wait"}:
            raise ValueError(f"on_full must be 'raise' or 'wait', got {self.on_full!r}")
        if not isinstance(self.isolate_errors, bool):
            raise TypeError(f"isolate_errors must be True or False, got {self.isolate_errors!r}")
        if self.max_batch_length is not None:
            _set(self, "max_batch_length", _whole("max_batch_length", self.max_batch_length, at_least=1))
        _check_callback("length", self.length)
        _check_callback("group_by", self.group_by)
        _check_callback("cache_key", self.cache_key)
        if self.cache_key is not None and self.cache is None:
            raise TypeError("cache_key needs a cache")
        if self.cache is not None:
            check_cache(self.cache)
        _set(self, "max_pieces", _whole("max_pieces", self.max_pieces, at_least=1))
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


ALWAYS_SHOWN = ("batch_size", "timeout_ms", "small_batch_threshold")
"""What `repr` says though it be the default."""


class Changes(TypedDict, total=False):
    """The options that can be changed while calls wait."""

    adaptive: bool
    batch_size: int
    max_batch_length: int | None
    timeout_ms: float
    small_batch_threshold: int
    max_queue_size: int | None
    on_full: OnFull
    isolate_errors: bool
    max_concurrent_batches: int


class Mapped(Protocol):
    """A cache that is a mapping."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> Any: ...


class Client(Protocol):
    """A cache that is asked by `get`, which returns None for what it does not know, and told by `set`."""

    def get(self, key: Any, /) -> Any: ...
    def set(self, key: Any, value: Any, /) -> Any: ...


Cache: TypeAlias = Mapped | Client


class KeywordOptions(TypedDict, total=False):
    """The options of all decorators that are not positional too."""

    adaptive: bool
    max_concurrent_batches: int
    max_queue_size: int | None
    on_full: OnFull
    isolate_errors: bool
    max_batch_length: int | None
    group_by: Callable[..., Hashable] | None
    cache: Cache | None
    cache_key: Callable[..., Hashable] | None
    name: str | None


class ListKeywordOptions(KeywordOptions, total=False):
    """Those of the decorators for lists."""

    length: Callable[..., float] | None
    max_pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions(Options):
    """What a batcher of arrays is told besides."""

    other_names: ClassVar[Mapping[str, str]] = {"pad_tokens": "pad_token"}
    not_taken: ClassVar[Mapping[str, str]] = {
        "length": "length does not go with arrays, which know how long they are",
        "max_pieces": "max_pieces does not go with arrays, which do not stream",
    }

    pad_token: Any = 0
    padding_side: PaddingSide = "right"
    pad_to_multiple_of: int | Mapping[Any, int] | None = None
    unpad_outputs: bool | Mapping[Any, Any] = False
    spread_kwargs: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        Options.__post_init__(self)
        if isinstance(self.pad_token, Mapping):
            _set(self, "pad_token", dict(self.pad_token))
        values = self.pad_token.values() if isinstance(self.pad_token, dict) else [self.pad_token]
        for value in values:
            if value is None or getattr(value, "shape", ()) != () or isinstance(value, list | tuple | set):
                raise TypeError(
                    f"pad_token must be a number, or a dict of a number per feature, got {value!r}"
                )
        if self.padding_side not in {"right", "left"}:
            raise ValueError(f"padding_side must be 'right' or 'left', got {self.padding_side!r}")
        _set(self, "pad_to_multiple_of", _multiples(self.pad_to_multiple_of))
        if not isinstance(self.spread_kwargs, bool):
            raise TypeError(f"spread_kwargs must be True or False, got {self.spread_kwargs!r}")
        _set(self, "unpad_outputs", _outputs(self.unpad_outputs))

    def pad_of(self, key: object) -> Any:
        """Return what the feature `key` is padded with."""
        return self.pad_token.get(key, 0) if isinstance(self.pad_token, dict) else self.pad_token

    def multiple_of(self, key: object) -> int:
        """Return what the lengths of the feature `key` are rounded up to a multiple of, 1 if they are not."""
        multiples = self.pad_to_multiple_of
        return (multiples.get(key) if isinstance(multiples, Mapping) else multiples) or 1


def knows_lengths(options: Options) -> bool:
    """Whether a batcher with these options knows the lengths of items."""
    lists = (options.length, options.max_batch_length)
    return isinstance(options, ArrayOptions) or lists != (None, None)


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
        if self.priority not in (None, "interactive", "bulk"):
            raise ValueError(f"priority must be 'interactive', 'bulk' or None, got {self.priority!r}")
        if not isinstance(self.return_exceptions, bool):
            raise TypeError(f"return_exceptions must be True or False, got {self.return_exceptions!r}")


class CallChanges(TypedDict, total=False):
    """Which of the options of a call a caller can set: all."""

    deadline_ms: float | None
    priority: Priority | None
    return_exceptions: bool


# Callers that say what they want with every call say the same.
@lru_cache(maxsize=128, typed=True)
def with_changes(options: CallOptions, /, **changes: Any) -> CallOptions:
    """Return `options` with `changes`, which must be hashable."""
    check_names("options has no option", "has", changes, CallChanges.__annotations__)
    return replace(options, **changes)


_POSITIONAL = ("batch_size", "timeout_ms", "small_batch_threshold")


def decorate(
    face: Callable[[Any, Any], Any], kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Make a `face` of a function and options of `kind`, or a decorator of the options alone."""
    func: Any = None
    if args and (callable(args[0]) or isinstance(args[0], classmethod | staticmethod)):
        func, *args = args  # type: ignore[assignment]
    options = _checked(kind, args, named)
    if func is not None:
        return face(func, options)

    def decorator(func: Any) -> Any:
        if not callable(func) and not isinstance(func, classmethod | staticmethod):
            raise TypeError(f"dynamically decorates a function, got {func!r}")
        return face(func, options)

    return decorator


def _checked(kind: type[Options], args: tuple[Any, ...], named: dict[str, Any]) -> Options:
    """Return options of `kind`, or raise for those that there are not, or that are given twice."""
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"dynamically takes {', '.join(_POSITIONAL)} by position, got {args!r}")
    positional = dict(zip(_POSITIONAL, args, strict=False))
    if twice := positional.keys() & named.keys():
        raise TypeError(f"{min(twice)} was given twice, by position and by name")
    for other, name in kind.other_names.items():
        if other in named:
            if name in named:
                raise TypeError(f"{name} was given twice, as {other} too")
            named[name] = named.pop(other)
    for name, reason in kind.not_taken.items():
        if named.pop(name, None) is not None:
            raise TypeError(reason)
    check_names("dynamically has no option", "has", named, _defaults(kind))
    return kind(**positional, **named)


def check_names(refusal: str, can: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for the first name of `given` that is not `known`, and say which may be meant."""
    names = [*known]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"{refusal} {name!r}{meant}; it {can} {', '.join(names)}")


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the options of `kind`, under all their names, and their defaults.

    Of a `TypedDict`, what is left out stays as it is.
    """
    if not issubclass(kind, Options):
        return dict.fromkeys(kind.__annotations__, ...)
    defaults = {field.name: field.default for field in fields(kind) if field.name not in kind.not_taken}
    return defaults | {other: defaults[name] for other, name in kind.other_names.items()}


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


FUNC = Parameter("func", Parameter.POSITIONAL_ONLY, default=None, annotation=Callable[..., Any] | None)
SELF = Parameter("self", Parameter.POSITIONAL_ONLY)


def takes(first: Parameter, kind: type[Any]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives a function the signature `first`, and the options of `kind` by name."""
    types = get_type_hints(kind)
    by_position, other_names = (_POSITIONAL, kind.other_names) if issubclass(kind, Options) else ((), {})
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name in by_position else Parameter.KEYWORD_ONLY,
            default=default,
            annotation=types[other_names.get(name, name)],
        )
        for name, default in _defaults(kind).items()
    ]

    def decorator(function: FunctionT) -> FunctionT:
        function.__signature__ = Signature([first, *parameters])  # type: ignore[attr-defined]
        function.__qualname__ = function.__name__  # as callers know it
        return function

    return decorator


_LONGEST_MS = 7 * 24 * 3600 * 1000.0


def _set(options: object, name: str, value: object) -> None:
    object.__setattr__(options, name, value)


def _check_callback(name: str, value: Any) -> None:
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{name} must be a function of one item, got {value!r}")
    if iscoroutinefunction(value):
        raise TypeError(f"{name} must be a plain function, as it is called for every item, got {value!r}")


def _multiples(value: Any) -> int | dict[Any, int] | None:
    """Return the multiple of all features, or of each that is named."""
    if isinstance(value, Mapping):
        return {
            key: _whole(f"pad_to_multiple_of[{key!r}]", number, at_least=1) for key, number in value.items()
        }
    return None if value is None else _whole("pad_to_multiple_of", value, at_least=1)


def _outputs(value: Any) -> bool | dict[Any, Any]:
    """Return True, False, or a dict of each padded output and the feature that it is padded as."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"unpad_outputs must be True, False, or a dict that says for each padded output which feature it is "
        f"padded as, such as {{'logits': 'input_ids'}}, got {value!r}"
    )


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
