"""The errors that one error leads to, and what is known of an error without running code of its class."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from batched.errors import is_error

# Python's own, whatever the class of an error has in their place.
_args: Any = vars(BaseException)["args"].__get__
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
_traceback: Any = vars(BaseException)["__traceback__"].__get__
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
    return texts_in_args(error) + [each for each in vars(error).values() if issubclass(type(each), str)]


def texts_in_args(error: BaseException) -> list[str]:
    """Return the texts among the arguments of `error`, of which some libraries leave the bytes."""
    args = (each.decode("latin-1") if type(each) is bytes else each for each in _args(error))
    return [each for each in args if issubclass(type(each), str)]


def args_of(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of `error`."""
    args: tuple[Any, ...] = _args(error)
    return args


def forget_variables(error: BaseException) -> None:
    """Have the frames of `error`, and of the errors that led to it, forget their local variables.

    The variables may be arrays on a device that is short of memory. Frames that run, or rest, keep them.
    """
    for each in chain_of(error):
        trace: TracebackType | None = _traceback(each)
        above = None if trace is None else trace.tb_frame.f_back
        while trace is not None:
            _forget(trace.tb_frame)
            trace = trace.tb_next
        while above is not None and above.f_globals.get("__name__", "").startswith("batched._"):
            _forget(above)  # a traceback that does not begin in these frames leads to them, too
            above = above.f_back


def _forget(frame: FrameType) -> None:
    # Before Python 3.13, `clear` ends a generator or coroutine that has caught the error, and rests. Then, as
    # while it runs, the frame does not own what it has, its code among it.
    if sys.version_info >= (3, 13) or any(each is frame.f_code for each in gc.get_referents(frame)):
        with suppress(RuntimeError):
            frame.clear()
