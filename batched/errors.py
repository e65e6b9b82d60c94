"""What `batched` raises, and how one error reaches many callers."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import partial
from types import BuiltinMethodType, MemberDescriptorType
from typing import Any, NoReturn, TypeGuard

__all__ = [
    "BatchError",
    "BlockingCallWarning",
    "ClosedError",
    "DisconnectedError",
    "OverloadError",
    "QueueFullError",
    "RestartWorker",
    "SlowConsumerError",
]


_UNSET = object()


class BatchError(ValueError):
    """A batch returned wrong outputs, or raised an error that could not be passed on; or a callback failed.

    Callbacks are `group_by` and the like. The error that was raised is its `__cause__`.
    """


class ResultTypeError(BatchError, TypeError):
    """A batch function returned something that cannot hold one result per item."""


class QueueFullError(RuntimeError):
    """The queue has no room for a call: it holds as many items as `max_queue_size` allows."""

    retry_after_s: float | None = None
    """The number of seconds until there should be room; None if it is not known how long batches take."""


class RestartWorker(Exception):  # noqa: N818  it is an order
    """Raised by a batch function of which the worker is broken: `raise batched.RestartWorker from error`.

    The `initializer` of `batched.Workers` makes the state of that worker anew before its next batch. The
    batch runs once more, perhaps on another worker; with `isolate_errors=False`, and where its items cannot
    be used twice, its callers get `error`.
    """


def error_behind(restart: RestartWorker) -> BaseException:
    """Return the error from which a `RestartWorker` was raised, or else itself; an error may be false."""
    return restart if restart.__cause__ is None else restart.__cause__


class OverloadError(TimeoutError):
    """A call could not be answered within its `deadline_ms`, given the queue ahead of it: refused early."""

    retry_after_s: float | None = None
    """The number of seconds after which such a call should be answered in time.

    None if it takes longer than its deadline even if nothing else runs.
    """


class SlowConsumerError(RuntimeError):
    """The consumer of a stream fell more than `max_pieces` behind."""


def too_slow(name: str, most: int, where: str = "") -> SlowConsumerError:
    """Return the error of a consumer that is `most` pieces behind; `where` to raise that, if not here."""
    return SlowConsumerError(
        f"{name}: the consumer of this stream fell max_pieces={most} pieces behind, so the stream has ended; "
        f"consume faster, or raise max_pieces{where}"
    )


class ClosedError(RuntimeError):
    """The batcher was shut down before this call."""


class DisconnectedError(ConnectionError):
    """The server of a function of another process ended before it answered a call, or cannot be reached.

    A call that was sent may have run.
    """


class BlockingCallWarning(RuntimeWarning):
    """A call blocks the event loop of its thread, so no other task can join its batch."""


def is_error(value: object) -> TypeGuard[BaseException]:
    """Whether a result is an exception. By its type: a proxy may fail, or lie, when asked for its class."""
    return issubclass(type(value), BaseException)


def copied(error: BaseException, *, is_own: bool = False) -> BaseException:
    """Return a copy of `error` for one caller; if it cannot be copied, a `BatchError` from the original.

    Callers that share an error object would grow its traceback and overwrite its context for each
    other. `is_own` says that no other caller has it: then it is the original that cannot be copied.
    """
    try:
        twin = _twin(error)
        put = partial(object.__setattr__, twin)  # the class may have a `__setattr__` of its own
        _args.__set__(twin, _args.__get__(error))
        for name, value in vars(error).items():  # a caller may add to a list, but to that of no other caller
            vars(twin)[name] = copy.copy(value) if type(value) in _CHANGEABLE else value
        _copy_members(error, twin)
        put("__cause__", error.__cause__)
        put("__context__", error.__context__)
        put("__suppress_context__", error.__suppress_context__)
        return BaseException.with_traceback(twin, error.__traceback__)
    except Exception:  # noqa: BLE001  of the user's class; the caller gets an answer in any case
        return error if is_own else _wrapped(error)


def _twin(error: BaseException) -> BaseException:
    """Return a new error of the class of `error`, with what its built-in part was made of.

    `copy.copy` calls the class with `args`, which fails or changes the message wherever `__init__` takes
    other arguments; so only the built-in part is rebuilt. But a class of an extension module may have
    state that its own copy alone can reach.
    """
    cls: Any = type(error)
    builtin, native = _layout(cls)
    if native is not builtin:
        with suppress(Exception):
            twin = copy.copy(error)
            if twin is not error and type(twin) is cls and str(twin) == str(error):
                return twin
    given = _given(error, builtin)
    if isinstance(error, BaseExceptionGroup):  # callers may raise these too
        given = error.message, [copied(each, is_own=True) for each in error.exceptions]
    made = _made(cls, given)
    if native is not builtin and str(made) != str(error):
        raise TypeError(cls)
    return made


_CHANGEABLE = frozenset({list, dict, set})
_args: Any = vars(BaseException)["args"]  # Python's own, whatever the class has in its place
_errno: Any = vars(OSError)["errno"].__get__
_strerror: Any = vars(OSError)["strerror"].__get__


def _given(error: BaseException, builtin: Any) -> tuple[Any, ...]:
    """Return the arguments that the built-in part of `error` was made of.

    A class such as `smtplib.SMTPDataError` sets `args`, and never calls the `__init__` of `OSError`, which
    would take them for an `errno` and its text. A class of groups may have arguments of its own.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.message, error.exceptions
    args: tuple[Any, ...] = builtin.__reduce__(error)[1]
    is_unset = OSError in builtin.__mro__ and _errno(error) is None and _strerror(error) is None
    return () if is_unset and args[:2] != (None, None) else args


def _layout(cls: Any) -> tuple[Any, Any]:
    """Return the built-in class of a class of errors, and the class that its memory is laid out after."""
    layouts = []
    while cls is not object:
        layouts.append(cls)
        cls = cls.__base__
    builtin = next(c for c in layouts if c.__module__ == "builtins")
    native = next(c for c in layouts if c is builtin or isinstance(vars(c).get("__new__"), BuiltinMethodType))
    return builtin, native


def _made(cls: Any, args: tuple[Any, ...]) -> BaseException:
    """Return a new error of a class, from the arguments of its built-in part, without calling `__init__`."""
    builtin, native = _layout(cls)
    made: BaseException = native.__new__(cls, *args)
    builtin.__init__(made, *args)
    return made


_UNTOLD = frozenset({"obj", "message", "exceptions"})
"""The object that lacks an attribute, which may be large; and arguments of groups, which are read-only."""


def reduced(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what `remade` makes an error like this of: arguments, and attributes."""
    args = _given(error, _layout(type(error))[0])
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    if not args and (own := _args.__get__(error)):
        state["args"] = own
    fresh = error if has_native_state(error) else _made(type(error), args)
    members = {
        name: _member(member, error)
        for c in type(error).__mro__
        for name, member in vars(c).items()
        if isinstance(member, MemberDescriptorType)
        and (c.__module__ != "builtins" or _was_set(name, member, error, fresh))
    }
    return args, {**{name: value for name, value in members.items() if value is not _UNSET}, **state}


def _was_set(name: str, member: MemberDescriptorType, error: BaseException, fresh: BaseException) -> bool:
    """Whether an attribute of a built-in class, such as a line or a reason, is not what the arguments say."""
    is_told = name not in _UNTOLD and getattr(type(error), name) is member
    return is_told and _member(member, error) is not _member(member, fresh)


def has_native_state(error: BaseException) -> bool:
    """Whether an extension module has laid out the class of `error`: only its own pickle knows all of it."""
    builtin, native = _layout(type(error))
    return native is not builtin


def remade(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Return an error of a class, with the arguments of its built-in part and these attributes."""
    made = _made(cls, args)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made


def _copy_members(error: BaseException, twin: BaseException) -> None:
    """Give `twin` what `error` has in slots, also None: a slot that is not set is another thing."""
    cls = type(error)
    for member in (value for c in cls.__mro__ for value in vars(c).values()):
        if isinstance(member, MemberDescriptorType):
            value = _member(member, error)
            if value is not _UNSET and value is not _member(member, twin):
                with suppress(AttributeError, TypeError):  # read-only, so `__new__` has set it
                    member.__set__(twin, value)


def _member(member: MemberDescriptorType, error: BaseException) -> Any:
    """Return what `error` has in a slot, or `_UNSET`."""
    try:
        return member.__get__(error)
    except AttributeError:
        return _UNSET


def raise_as_was(error: BaseException) -> NoReturn:
    """Raise `error` with its own context, where `raise` in an `except` block would replace that."""
    context = error.__context__
    try:
        raise error
    finally:
        if context is not None:
            object.__setattr__(error, "__context__", context)  # the class may be frozen
        # Else the error, its traceback and this frame would keep each other alive until the collector runs.
        del error, context


def for_event_loop(error: BaseException) -> Exception:
    """Return `error`, or a `BatchError` from it if a task that raised it would break its event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return _wrapped(error)


def for_future(error: BaseException) -> BaseException:
    """Return `error`, or a `BatchError` from it if a future would take it for none: it may ask `if error`."""
    try:
        return error if bool(error) else _wrapped(error)
    except Exception:  # noqa: BLE001  of the error's class
        return _wrapped(error)


def for_iterator(error: BaseException) -> BaseException:
    """Return `error`, or a `BatchError` from it if an iterator that raised it would seem to have ended."""
    return _wrapped(error) if isinstance(error, StopIteration | StopAsyncIteration) else error


def for_async_iterator(error: BaseException) -> Exception:
    """Return `error`, or a `BatchError` from it if an asynchronous iterator cannot raise it."""
    return for_event_loop(for_iterator(error))


def _wrapped(error: BaseException) -> BatchError:
    # Perhaps not by the batch function: an initializer of workers, or a stage, may have raised it.
    wrapped = BatchError(f"{type(error).__qualname__} was raised where batches run: see `__cause__`")
    wrapped.__cause__ = error
    return wrapped


def without_own_frames(error: BaseException) -> BaseException:
    """Return `error`, its traceback cut to start in the batch function: our frames keep the batch alive."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__name__", "").startswith(("batched._", "asyncio.")):
        trace = trace.tb_next
    return BaseException.with_traceback(error, trace)
