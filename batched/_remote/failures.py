"""Errors that cross to another process: type, message, attributes, notes, causes, and the traceback's text.

The type is looked for among the modules that the process of the caller has imported already: an error is no
reason to import a module, which may load a model. What has not been imported there cannot be caught there.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

from batched import errors
from batched._remote.frames import Bytes, Flag
from batched._remote.values import Codec, Encoded
from batched.errors import BatchError, has_native_state, reduced, remade

Told: TypeAlias = "dict[str, Any]"
"""An error as plain values."""

_MOST_CAUSES = 8
_MOST_ERRORS = 1000
"""Of a group, with the groups in it: further ones are left out."""
# A class may have attributes of these names.
_CAUSE, _CONTEXT, _HIDES = (
    vars(BaseException)[name] for name in ("__cause__", "__context__", "__suppress_context__")
)
_OWN = {name: getattr(errors, name) for name in (*errors.__all__, "ResultTypeError")}


class RemoteTraceback(Exception):  # noqa: N818  it is none; `multiprocessing` has the name, too
    """The traceback of an error in the server, as text: the `__cause__` of the error, or of its first one."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def unsent(error: BaseException) -> TypeError:
    """Return the error of a call of which the result has no bytes, because of `error`."""
    found = TypeError(f"the result cannot be sent to another process: {error}")
    found.__cause__ = error
    return found


def encoded_rows(codec: Codec, answer: Any, *, many: bool) -> tuple[int, Bytes, list[Bytes]]:
    """Return the flags and the bytes of results that may have errors in their places.

    A result without bytes is one more error: the others are not its own.
    """
    rows = answer if many else [answer]
    failed: dict[int, BaseException] = {
        at: row for at, row in enumerate(rows) if isinstance(row, BaseException)
    }
    with contextlib.suppress(BaseException):  # of a result
        return _with_failed(codec, rows, failed, many=many) if failed else (0, *codec.dump(answer))
    for at, row in enumerate(rows):
        if at not in failed and (error := _error_of(codec, row)) is not None:
            failed[at] = error
    return _with_failed(codec, rows, failed, many=many)


def _with_failed(
    codec: Codec, rows: list[Any], failed: Mapping[int, BaseException], *, many: bool
) -> tuple[int, Bytes, list[Bytes]]:
    plain = [None if at in failed else row for at, row in enumerate(rows)]
    told = [(at, told_error(codec, error)) for at, error in failed.items()]
    return (int(Flag.KEEP_ERRORS), *codec.dump((plain, told, many)))


def _error_of(codec: Codec, row: Any) -> TypeError | None:
    """Return the error of a result that has no bytes."""
    try:
        codec.dump(row)
    except BaseException as error:  # noqa: BLE001  whatever its class raises
        return unsent(error)
    return None


def decoded_rows(codec: Codec, told: Any) -> Any:
    """Return results, with errors in their places."""
    rows, failed, many = told
    for at, each in failed:
        rows[at] = decoded_error(codec, each)
    return rows if many else rows[0]


def encoded_error(codec: Codec, error: BaseException, left: str | None = None) -> Encoded:
    """Return the bytes of `error`; if its call has `left` the queue without running, that is said too."""
    return codec.dump({**told_error(codec, error), "left": left})


def told_error(codec: Codec, error: BaseException) -> Told:
    """Return `error` as values that have bytes, whatever it holds and whatever its class raises."""
    text = ""
    with contextlib.suppress(BaseException):  # of the user's class
        text = "".join(traceback.format_exception(error))
    return {"chain": _chain(codec, error, [_MOST_ERRORS]), "text": _printable(text)}


def _chain(codec: Codec, error: BaseException, left: list[int]) -> list[Told]:
    """Return `error` and what it came from, by `__cause__` or else `__context__`; no more than are `left`."""
    chain: list[Told] = []
    link: BaseException | None = error
    while link is not None and len(chain) < _MOST_CAUSES:
        told = _told(codec, link, left)
        chain.append(told)
        told["cause"] = (cause := _CAUSE.__get__(link)) is not None
        told["hides"] = hides = _HIDES.__get__(link)
        link = cause if cause is not None or hides else _CONTEXT.__get__(link)
    return chain


def _told(codec: Codec, error: BaseException, left: list[int]) -> Told:
    """Return `error` alone as values that have bytes."""
    left[0] -= 1
    cls = type(error)
    message = "(no message: its `__str__` raises)"
    with contextlib.suppress(BaseException):
        message = _printable(str(error))
    told: Told = {"module": _printable(cls.__module__), "name": _printable(cls.__qualname__)}
    told |= {"message": message, "notes": [], "args": None, "state": {}}
    with contextlib.suppress(BaseException):
        notes = getattr(error, "__notes__", ())
        told["notes"] = [_printable(note) for note in notes if isinstance(note, str)]
    with contextlib.suppress(BaseException):  # such as a `__dict__` that is none
        args, state = reduced(error)
        if isinstance(error, BaseExceptionGroup):
            told["members"] = [_chain(codec, each, left) for each in error.exceptions if left[0] > 0]
            args = (error.message,)
        elif has_native_state(error):
            told["whole"] = _bytes_of(codec, error)
        told["args"] = _bytes_of(codec, args)
        told["state"] = {
            _printable(name): found for name, value in state.items() if (found := _bytes_of(codec, value))
        }
    return told


def _bytes_of(codec: Codec, value: Any) -> list[Any] | None:
    """Return the bytes of `value`, None if it has none."""
    try:
        payload, buffers = codec.dump(value)
    except BaseException:  # noqa: BLE001  whatever `__reduce__` of the user's class raises
        return None
    return [bytes(payload), [bytearray(each) for each in buffers]]


def _printable(text: str) -> str:
    """Return text that has bytes: half of a surrogate pair has none."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def decoded_error(codec: Codec, told: Any) -> BaseException:
    """Return the error that the other side has told of; a `BatchError` if its type is not known here."""
    first = last = None
    is_cause = False
    for each in told["chain"]:
        error = _error(codec, each)
        if last is None:
            first = error
        else:
            (_CAUSE if is_cause else _CONTEXT).__set__(last, error)
        _HIDES.__set__(error, each["hides"])
        last, is_cause = error, each["cause"]
    if first is None or last is None:
        return BatchError("the server told of an error without saying which")
    if told.get("text"):
        _CAUSE.__set__(last, RemoteTraceback(told["text"]))
    return first


def _error(codec: Codec, told: Told) -> BaseException:
    error = _own_kind(codec, told)
    if error is None:
        name = told["name"] if told["module"] == "builtins" else f"{told['module']}.{told['name']}"
        error = BatchError(f"{name} in the server: {told['message']}")
    for note in told["notes"]:
        with contextlib.suppress(Exception):  # a class may refuse attributes
            error.add_note(note)
    return error


def _own_kind(codec: Codec, told: Told) -> BaseException | None:
    """Return the error as one of its own class, None if that cannot be made here."""
    try:
        cls = class_of(told["module"], told["name"])
        if cls is None or not issubclass(cls, BaseException):
            return None
        state = {}
        for name, value in told["state"].items():
            with contextlib.suppress(Exception):  # of a class that is not there
                state[name] = _load(codec, value)
        if "members" in told:
            members = [decoded_error(codec, {"chain": chain}) for chain in told["members"]]
            return remade(cls, (_load(codec, told["args"])[0], members), state)
    except Exception:  # noqa: BLE001  another class than in the server
        return None
    rest = {name: value for name, value in state.items() if name != "args"}
    ways: list[Callable[[], BaseException]] = [
        lambda: _with_args(_load(codec, told["whole"]), tuple(_load(codec, told["args"]))),
        lambda: remade(cls, tuple(_load(codec, told["args"])), state),
        # Its arguments may be errors that lose their own text on the way, such as those of urllib3.
        lambda: remade(cls, (told["message"],), rest),
    ]
    for way in ways:
        with contextlib.suppress(
            Exception, SystemExit
        ):  # arguments of a class that is not there, or another class here
            error = way()
            if type(error) is cls and _printable(str(error)) == told["message"]:
                return error
    return None


def _with_args(error: BaseException, args: tuple[Any, ...]) -> BaseException:
    error.args = args
    return error


def _load(codec: Codec, found: list[Any]) -> Any:
    return codec.load(found[0], found[1])


def class_of(module: str, name: str) -> Any:
    """Return the class of an error, None if this process has not imported it."""
    if module == "builtins":
        return getattr(builtins, name, None)
    if module == errors.__name__:
        return _OWN.get(name)
    there = sys.modules.get(module)
    if there is None or "<" in name:  # local to a function
        return None
    # Not by `getattr`: a `__getattr__` may import.
    return reduce(lambda found, each: vars(found)[each], name.split("."), there)
