"""A call as the client sends it, and as the server reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from batched._core.call import Call
from batched._drivers.wakeups import FUTURE
from batched._parts.layers import key_from
from batched._remote.frames import Bytes, Flag, Frame, FrameError, Kind, frame, size_of
from batched._remote.values import Codec, is_plain

NO_VALUE = object()
NO_TENANT = object()
"""The tenant of a call of which the client says none."""
_SECONDS = struct.Struct("<dd")  # left, and allowed in all


@dataclass(slots=True)
class Asked:
    """The inputs of a call, as its caller gave them."""

    flags: int
    value: Any
    """By the flags: the only argument, elements of a map, or all arguments."""
    is_kept: bool = False
    """Whether the caller goes on before the call has been sent, and may change its arrays."""


@dataclass(slots=True)
class Request:
    """A call, or a question, without its number: bytes."""

    kind: int
    flags: int
    deadline: float | None
    payload: Bytes
    buffers: list[Bytes]
    allowed_s: float = inf
    value: Any = NO_VALUE
    """The only argument, where it is plain: then there is no payload yet, as it may be sent with others."""

    def head(self, now: float) -> bytes:
        """Return what stands before the payload, if the frame is sent `now`."""
        return b"" if self.deadline is None else _SECONDS.pack(self.deadline - now, self.allowed_s)


@dataclass(slots=True)
class Wanted:
    """A call as the server has read it, without its arguments."""

    kind: int
    flags: int
    left_s: float | None = None
    """Infinite for no deadline; None leaves it to the function."""
    allowed_s: float = inf
    tenant: Any = NO_TENANT


PLAIN = Wanted(Kind.CALL, Flag.ONE)
"""A call of one argument, without options: made once, as it would take as long as to queue the call."""


def request(codec: Codec, call: Call, tenant: Any, most_bytes: float) -> Request:
    """Return `call` as bytes, of which the server takes so many at once.

    Raises:
        TypeError: An item has none.
        FrameError: Elements of a map have more than the server takes: the map sends them one by one.

    """
    asked: Asked = call.inputs
    flags = asked.flags | _flags(call, asked.flags)
    deadline, allowed_s = call.deadline, inf
    kind = Kind.CALL
    if deadline is not None:
        flags |= Flag.DEADLINE
        allowed_s = deadline - call.arrived
        if call.waits_at is FUTURE:
            kind = Kind.LATE
    elif call.function._shared.call_options.deadline_ms is None:  # noqa: SLF001  by default it is "default"
        flags |= Flag.DEADLINE
        deadline = inf
    value = asked.value
    if tenant is not NO_TENANT:
        flags |= Flag.TENANT
        value = (tenant, value)
    elif asked.flags == Flag.ONE and kind == Kind.CALL and not asked.is_kept and is_plain(codec, value):
        return Request(kind, flags, deadline, b"", [], allowed_s, value)
    try:
        payload, buffers = codec.dump(value)
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(f"an argument cannot be sent to another process: {error}") from error
    if asked.is_kept:
        if asked.flags & Flag.ELEMENTS:
            _check_size(call, most_bytes, payload, buffers)
        kept: list[Bytes] = [bytes(each) for each in buffers]
        buffers = kept
    return Request(kind, flags, deadline, payload, buffers, allowed_s)


def _check_size(call: Call, most_bytes: float, payload: Bytes, buffers: list[Bytes]) -> None:
    """Raise if elements of a map have more bytes together than the server takes."""
    size = size_of(frame(Kind.CALL, 0, 0, 0, payload, buffers)) + _SECONDS.size
    if size > most_bytes:
        raise too_long(call.function._name, size, most_bytes)  # noqa: SLF001


def too_long(name: str, size: int, most_bytes: float) -> FrameError:
    """Return what is wrong with a call that has more bytes than the server takes."""
    return FrameError(
        f"a call of {name} has {size} bytes, and the server takes {most_bytes} at most: "
        f"pass fewer items at once, or start the server with larger max_frame_bytes"
    )


def _flags(call: Call, asked: int) -> int:
    """Return what the options of `call` add to the flags of what is asked."""
    flags = Flag.KEEP_ERRORS if call.keep_errors else Flag.NONE
    if call.bulk is not None and not (call.bulk and asked & Flag.ELEMENTS):
        flags |= Flag.BULK if call.bulk else Flag.INTERACTIVE
    return flags


def tenant_from(fair_by: Callable[[], Any], name: str) -> Any:
    """Return what tells the tenant of a call of the function `name` from others, in any process."""
    return key_from(lambda: _plain(fair_by()), f"{name}: fair_by", (), {})


def _plain(tenant: Any) -> Any:
    if type(tenant) in _SIMPLE:
        return tenant
    hash(tenant)  # else it could not be a key in one process either
    return repr(tenant)


_SIMPLE = frozenset({str, int, bytes, bool, float, type(None)})


def wanted(load: Callable[[Bytes, list[bytearray]], Any], found: Frame) -> tuple[Wanted, Any]:
    """Return the call in a frame, and its arguments; raises what reading its items raises."""
    payload = found.payload
    kind, flags = found.kind, found.flags
    left_s, allowed_s, tenant = None, inf, NO_TENANT
    if flags & Flag.DEADLINE:
        left_s, allowed_s = _SECONDS.unpack_from(payload)
        payload = memoryview(payload)[_SECONDS.size :]
    value = load(payload, found.buffers)
    if flags & Flag.TENANT:
        tenant, value = value
    return Wanted(kind, flags, left_s, allowed_s, tenant), value


class RemoteCollator:
    """Reads arguments only as far as a client must: as one thing, of which the server says what it is.

    A list may be many items, or one feature of arrays.
    """

    def __init__(self) -> None:
        self.chunk_size: int | None = 1
        """None lets a map put several elements into a call; until the server has said so, each is one."""
        self.default_deadline_ms: float | None = None
        """That of the function, once the server has said it: it holds while the server stands still, too."""

    def read(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean."""
        asked = Asked(Flag.ONE, args[0]) if len(args) == 1 and not named else Asked(Flag.NONE, (args, named))
        return self._call(function, asked, 1, now)

    def one(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even a list: a stream."""
        return self._call(function, Asked(Flag.STREAM, (args, named)), 1, now)

    def chunk(self, function: Any, items: list[Any], now: float) -> Call:
        """Return a call of elements of a `map`."""
        return self._call(function, Asked(Flag.ELEMENTS, items), len(items), now)

    def _call(self, function: Any, asked: Asked, size: int, now: float) -> Call:
        call = Call().begin(function, asked, size, bool(asked.flags & Flag.ELEMENTS), now)
        default_ms = self.default_deadline_ms
        if default_ms is not None and function._shared.call_options.deadline_ms == "default":  # noqa: SLF001
            call.deadline = now + default_ms / 1000
        return call

    def own(self, call: Call) -> None:
        """Have the memory of large arrays copied: all else of a call is bytes when `submit` returns."""
        call.inputs.is_kept = True
