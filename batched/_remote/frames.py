"""What travels between two processes: frames of a header, a payload and large buffers beside it.

No frame waits here, and no socket is known: a reader is given bytes, in memory that it lends, and returns
frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Bytes: TypeAlias = "bytes | bytearray | memoryview"
"""A memoryview is one of single bytes."""

MAX_FRAME_BYTES = 1 << 30
"""The most bytes of one frame, unless the server is told another number."""
VERSION = 1
"""Of the frames: both sides must have the same."""

_HEAD = struct.Struct("<IHBBQI")  # bytes of the payload, buffers, kind, flags, number of the call, extra
_NO_HEAD = bytes(_HEAD.size)
_SIZE = struct.Struct("<Q")
MOST_BUFFERS = 8_000
"""Their sizes fit into the memory of a reader."""
_MOST_PAYLOAD = (1 << 32) - 1
_ROOM = 1 << 16
_MORE_ROOM = 1 << 18
"""From the first read on that has filled the room: more than a socket of Linux holds by default."""
_SMALL = 1 << 14
"""Frames of fewer bytes are copied together, as one write takes less time than several."""


class Kind:
    """What a frame is."""

    HELLO: Final = 1
    """The first one from either side; and a later one from a server, of which functions have changed."""
    CALL: Final = 2
    """A call of the function with the number in `extra`."""
    CANCEL: Final = 3
    """The caller has left."""
    RESULT: Final = 4
    """The answer of a call; `extra` is the microseconds that it spent in the server."""
    ERROR: Final = 5
    """The error of a call, likewise."""
    PIECE: Final = 6
    """A piece of a stream; the end is a result."""
    ASK: Final = 7
    """A question about a function: its name is the payload."""
    LATE: Final = 9
    """A call that may be answered after its deadline, if it has started by then: of a future."""
    LEAVE: Final = 8
    """The server ends: further calls are for another one."""
    CALLS: Final = 10
    """Several calls of one function, each with one plain argument: rows, and a list of the arguments."""
    RESULTS: Final = 11
    """Several answers that are plain: rows, and a list of the answers."""


class Flag:
    """How a call is to be read. Plain numbers: an `IntFlag` would take a third of the time of a call."""

    NONE: Final = 0
    ONE: Final = 1
    """The payload is the only argument, not all of them."""
    DEADLINE: Final = 2
    """The seconds left stand before the payload. Of a caller that has left: at its deadline."""
    BULK: Final = 4
    INTERACTIVE: Final = 8
    KEEP_ERRORS: Final = 16
    """Errors are returned in the place of results."""
    ELEMENTS: Final = 32
    """The payload is a list of elements of a `map`."""
    STREAM: Final = 64
    TENANT: Final = 128
    """The payload is the tenant and what else it would be."""


class FrameError(ValueError):
    """What came is no frame, or one that is too long."""


@dataclass(slots=True)
class Frame:
    """One frame, as it was read. The payload is valid until the reader is given more bytes.

    No tuple, as `Request` is none: one with names takes up to twice as long to make.
    """

    kind: int
    flags: int
    number: int
    extra: int
    payload: Bytes
    buffers: list[bytearray]


def frame(  # noqa: PLR0913, PLR0917  flat: it is asked for each call
    kind: int, flags: int, number: int, extra: int, payload: Bytes, buffers: Sequence[Bytes] = ()
) -> list[Bytes]:
    """Return the parts of a frame; `FrameError` if it is one that no reader takes."""
    if len(payload) > _MOST_PAYLOAD:
        raise FrameError(
            f"a call may have at most {_MOST_PAYLOAD} bytes beside its arrays, got {len(payload)}"
        )
    if not buffers:
        return [_HEAD.pack(len(payload), 0, kind, flags, number, extra), payload]
    if len(buffers) > MOST_BUFFERS:
        raise FrameError(f"a call may have at most {MOST_BUFFERS} arrays, got {len(buffers)}")
    sizes = map(len, buffers)
    return [
        _HEAD.pack(len(payload), len(buffers), kind, flags, number, extra),
        *map(_SIZE.pack, sizes),
        payload,
        *buffers,
    ]


def size_of(parts: Sequence[Bytes]) -> int:
    """Return how many bytes the parts have together."""
    return sum(map(len, parts))


def joined(parts: list[Bytes]) -> list[Bytes]:
    """Return the same bytes in fewer parts: small ones are copied together, large ones stay as they are."""
    found: list[Bytes] = []
    small: list[Bytes] = []
    for part in parts:
        if len(part) < _SMALL:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    if small:
        found.append(b"".join(small))
    return found


CALL_ROW = struct.Struct("<QBdd")
"""Of each of several calls: its number, flags, the seconds left, and the seconds that it has in all."""
RESULT_ROW = struct.Struct("<QI")
"""Of each of several answers: the number of its call, and the microseconds that it spent in the server."""
MOST_ROWS = 256
LEAST_TOGETHER = 1 << 23
"""Where frames may have fewer bytes, there are none of several calls or answers: these are never longer."""


def frame_of_rows(kind: int, extra: int, rows: Sequence[bytes], values: Sequence[Any]) -> bytearray:
    """Return a frame of several calls or answers, in one piece: it is one write however long it is."""
    found = bytearray().join([_NO_HEAD, *rows, *values])  # they are copied once
    _HEAD.pack_into(found, 0, len(found) - _HEAD.size, 0, kind, 0, len(rows), extra)
    return found


def rows(row: struct.Struct, found: Frame) -> tuple[list[tuple[Any, ...]], Bytes]:
    """Return the rows of a frame, of which `number` is how many there are, and the rest of its payload."""
    size = row.size * found.number
    if not 0 < found.number <= MOST_ROWS or size > len(found.payload):
        raise FrameError(f"a frame of {len(found.payload)} bytes has no {found.number} rows")
    payload = memoryview(found.payload)
    return [*row.iter_unpack(payload[:size])], payload[size:]


class FrameReader:
    """Bytes as they come, cut into frames.

    `room()` lends memory for the next bytes, and `filled(n)` says how many have come there. Large buffers are
    received where they stay, so that an array is copied by the kernel only.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes: int = max_bytes
        """The most bytes of a frame, without its head. It may be changed between two frames."""
        self._view = memoryview(bytearray(_ROOM))
        self._start = 0
        self._stop = 0
        self._large: _LargeFrame | None = None

    def room(self) -> memoryview:
        """Return where the next bytes go."""
        if self._large is not None:
            return self._large.room()
        return self._view[self._stop :]

    def filled(self, count: int) -> list[Frame]:
        """Return the frames that are complete with `count` more bytes; `FrameError` if they are none."""
        if self._large is not None:
            self._large.filled(count)
            if not self._large.is_complete:
                return []
            done, self._large = self._large.frame(), None
            return [done]
        self._stop += count
        if self._stop == len(self._view) < _MORE_ROOM:
            self._move(self._start, self._stop, memoryview(bytearray(_MORE_ROOM)))
        return self._frames()

    def _frames(self) -> list[Frame]:  # noqa: C901  flat: it is asked for all that comes
        found: list[Frame] = []
        view, start, stop = self._view, self._start, self._stop
        while stop - start >= _HEAD.size:
            size, buffers, kind, flags, number, extra = _HEAD.unpack_from(view, start)
            at = start + _HEAD.size
            end = at + size
            if not buffers and end <= stop and size <= self.max_bytes:
                found.append(Frame(kind, flags, number, extra, view[at:end], []))
                start = end
                continue
            body = at + buffers * _SIZE.size
            if body > stop:
                if body - start > _ROOM:  # the sizes alone are more than there is room for
                    raise FrameError(f"a frame has {buffers} buffers")
                break
            sizes = [_SIZE.unpack_from(view, at + each * _SIZE.size)[0] for each in range(buffers)]
            whole = size + sum(sizes)
            if whole > self.max_bytes:
                raise FrameError(f"a frame of {whole} bytes is longer than the limit of {self.max_bytes}")
            if not buffers and end - start <= len(view):
                break
            large = _LargeFrame(Frame(kind, flags, number, extra, b"", []), size, sizes)
            start = body + large.take(view[body:stop])
            if not large.is_complete:
                self._large = large
                break
            found.append(large.frame())
        if start == stop:
            self._start = self._stop = 0
        elif not found and start:  # else the payloads that were found lie there until the next call
            self._move(start, stop, view)
        else:
            self._start, self._stop = start, stop
            if stop > len(view) // 2 and start:
                for each in found:
                    each.payload = bytes(each.payload)
                self._move(start, stop, view)
        return found

    def _move(self, start: int, stop: int, memory: memoryview) -> None:
        """Move what is left to the beginning of `memory`, which is that of this reader from now on."""
        left = bytes(self._view[start:stop])
        memory[: len(left)] = left
        self._view, self._start, self._stop = memory, 0, len(left)


class _LargeFrame:
    """A frame with buffers, or longer than the memory of its reader: each part has memory of its own."""

    def __init__(self, head: Frame, size: int, sizes: list[int]) -> None:
        self._head = head
        self._parts = [bytearray(each) for each in (size, *sizes)]
        self._at = 0
        self._filled = 0
        self.filled(0)  # the first part may have no bytes

    def room(self) -> memoryview:
        """Return where the next bytes go."""
        return memoryview(self._parts[self._at])[self._filled :]

    @property
    def is_complete(self) -> bool:
        """Whether all has come."""
        return self._at == len(self._parts)

    def filled(self, count: int) -> None:
        """Note that so many bytes have come."""
        self._filled += count
        while self._at < len(self._parts) and self._filled == len(self._parts[self._at]):
            self._at += 1
            self._filled = 0

    def take(self, come: memoryview) -> int:
        """Take the first bytes, which have come elsewhere; return how many of them are of this frame."""
        taken = 0
        while taken < len(come) and not self.is_complete:
            room = self.room()
            count = min(len(room), len(come) - taken)
            room[:count] = come[taken : taken + count]
            self.filled(count)
            taken += count
        return taken

    def frame(self) -> Frame:
        """Return the frame, which is complete."""
        found = self._head
        found.payload, found.buffers = self._parts[0], self._parts[1:]
        return found
