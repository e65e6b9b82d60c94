"""What `batched` raises, and how one error reaches many callers."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import MemberDescriptorType
from typing import Any, NoReturn

__all__ = [
    "BatchError",
    "BlockingCallWarning",
    "ClosedError",
    "OverloadError",
    "QueueFullError",
    "SlowConsumerError",
]


class BatchError(ValueError):
    """The outputs of a batch were wrong, or its error could not be raised as it was (see `__cause__`)."""


class QueueFullError(RuntimeError):
    """There is no room for a call: as many items wait as `max_queue_size` or `max_queue_delay_ms` allow."""

    retry_after_s: float | None = None
    """After how many seconds there should be room; None if it is not known how long batches take."""


class OverloadError(TimeoutError):
    """A call cannot be answered within its `deadline_ms`, behind calls that wait: it was refused early."""

    retry_after_s: float | None = None
    """After how many seconds such a call should be answered in time."""


class SlowConsumerError(RuntimeError):
    """The consumer of a stream was further behind than `max_pieces`."""


class ClosedError(RuntimeError):
    """The batcher was shut down before this call."""


class BlockingCallWarning(RuntimeWarning):
    """A call blocks the event loop that runs in its thread, so that no other task can join its batch."""


def copied(error: BaseException) -> BaseException:
    """Return a copy of `error` for one caller; a `BatchError` from the original if it cannot be copied.

    Callers that share an error object would grow its traceback and overwrite its context for each
    other. `copy.copy` calls the class with `args`, which fails or changes the message wherever
    `__init__` takes other arguments; so only the built-in part is rebuilt, by the nearest built-in
    base, and what the class itself stored is copied over.
    """
    cls = type(error)
    try:
        base: Any = next(c for c in cls.__mro__ if c.__module__ == "builtins")
        args = base.__reduce__(error)[1]
        if isinstance(error, BaseExceptionGroup):  # a subclass may have more arguments
            args = (error.message, error.exceptions)
        twin: BaseException = base.__new__(cls, *args)
        base.__init__(twin, *args)
        put = partial(object.__setattr__, twin)  # the class may have a `__setattr__` of its own
        put("args", error.args)
        vars(twin).update(vars(error))
        attributes = [attribute for c in cls.__mro__ for attribute in vars(c).items()]
        for slot in (name for name, value in attributes if isinstance(value, MemberDescriptorType)):
            if getattr(twin, slot, None) is not getattr(error, slot, None):
                with suppress(AttributeError, TypeError):  # read-only, so `__new__` has set it
                    put(slot, getattr(error, slot))
        if notes := getattr(error, "__notes__", None):
            put("__notes__", list(notes))
        put("__cause__", error.__cause__)
        put("__context__", error.__context__)
        put("__suppress_context__", error.__suppress_context__)
        return BaseException.with_traceback(twin, error.__traceback__)
    except Exception:  # noqa: BLE001  of the user's class; the caller gets an answer in any case
        return _wrapped(error)


def raise_as_was(error: BaseException) -> NoReturn:
    """Raise `error` with its own context, where `raise` in an `except` block would replace that."""
    context = error.__context__
    try:
        raise error
    finally:
        if context is not None:
            error.__context__ = context
        # Else the error, its traceback and this frame would keep each other alive until the collector runs.
        del error, context


def for_event_loop(error: BaseException) -> Exception:
    """Return `error`, or a `BatchError` from it if a task that raised it would break its event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return _wrapped(error)


def for_iterator(error: BaseException) -> BaseException:
    """Return `error`, or a `BatchError` from it if an iterator that raised it would seem to have ended."""
    return _wrapped(error) if isinstance(error, StopIteration | StopAsyncIteration) else error


def _wrapped(error: BaseException) -> BatchError:
    wrapped = BatchError(f"the batch function raised {type(error).__qualname__}: see `__cause__`")
    wrapped.__cause__ = error
    return wrapped


def without_own_frames(error: BaseException) -> BaseException:
    """Return `error`, its traceback cut to start in the batch function: our frames keep the batch alive."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__", "").startswith(("batched._", "asyncio.")):
        trace = trace.tb_next
    return BaseException.with_traceback(error, trace)
