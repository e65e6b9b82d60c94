"""The errors that one error leads to, and what is known of an error without running code of its class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batched.errors import is_error

# Python's own, whatever the class of an error has in their place.
_args: Any = vars(BaseException)["args"].__get__
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
_errors: Any = vars(BaseExceptionGroup)["exceptions"].__get__


def chain_of(error: BaseException, *, into_groups: bool = False) -> Iterator[BaseException]:
    """Yield `error`, what it was raised from, what was handled meanwhile, hidden or not, and its arguments.

    Libraries hide what they translate behind `from None`, so that a traceback is short; an error that comes
    from another process has its arguments only. No error comes twice: a chain may lead back into itself. The
    errors of a group come `into_groups` only.
    """
    seen = {id(error)}
    ahead = [error]
    while ahead:
        each = ahead.pop()
        yield each
        links = [_cause(each), _context(each), *_args(each)]
        if issubclass(type(each), BaseExceptionGroup):
            if into_groups:
                links += _errors(each)
            else:  # the one that a task group was left with is its context too
                seen.update(map(id, _errors(each)))
        for link in links:
            if is_error(link) and id(link) not in seen:
                seen.add(id(link))
                ahead.append(link)


def names_of(error: BaseException) -> list[str]:
    """Return the names of the classes of `error`, the nearest first, without those that all errors have."""
    return [cls.__name__ for cls in type(error).__mro__ if cls not in {Exception, BaseException, object}]


def texts_of(error: BaseException) -> list[str]:
    """Return the texts that `error` stores: not `str(error)`, which runs code of its class."""
    return [each for each in (*_args(error), *vars(error).values()) if issubclass(type(each), str)]
