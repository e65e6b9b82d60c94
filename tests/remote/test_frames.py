"""Frames: what was written is read again, however the bytes come; and what is no frame is refused."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batched._remote.frames import (
    MOST_BUFFERS,
    Frame,
    FrameError,
    FrameReader,
    frame,
    frame_of_rows,
    joined,
    size_of,
)
from batched._remote.greeting import ClientGreeting, Described, ServerGreeting

sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from([16_000, 16_384, 65_515, 65_516, 65_517, 70_000, 200_000, 262_125, 262_126, 262_127]),
)
frames = st.tuples(
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**64 - 1), sizes, st.lists(sizes, max_size=4)
)


def written(drawn: list[Any]) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Return the bytes of frames, and what is to be read of each."""
    data, expected = b"", []
    for at, (kind, flags, number, size, buffers) in enumerate(drawn):
        payload = bytes([at % 256]) * size
        parts = [bytes([(at + each) % 256]) * each for each in buffers]
        data += b"".join(joined(frame(kind, flags, number, at, payload, parts)))
        expected.append((kind, flags, number, at, payload, parts))
    return data, expected


def read(reader: FrameReader, data: bytes, steps: list[int]) -> list[tuple[Any, ...]]:
    """Give `data` to `reader` in pieces; return the frames."""
    found = []
    at = turn = 0
    while at < len(data):
        room = reader.room()
        assert len(room), "no room: a transport takes that for a fault, and a thread for the end"
        count = min(len(room), max(1, steps[turn % len(steps)]), len(data) - at)
        room[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        found += [
            (
                each.kind,
                each.flags,
                each.number,
                each.extra,
                bytes(each.payload),
                [bytes(part) for part in each.buffers],
            )
            for each in reader.filled(count)
        ]
    return found


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 300_000), min_size=1, max_size=5))
def test_what_is_written_is_read_however_it_comes(drawn: list[Any], steps: list[int]) -> None:
    """In pieces of any size, with payloads and buffers of any size."""
    data, expected = written(drawn)
    reader = FrameReader()
    assert read(reader, data, steps) == expected


@given(st.binary(max_size=5000), st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes, steps: list[int]) -> None:
    """Rubbish raises nothing else, and takes no more memory than the limit allows."""
    reader = FrameReader(max_bytes=100_000)
    with suppress(FrameError):
        for each in read(reader, data, steps):
            assert len(each[4]) + sum(map(len, each[5])) <= 100_000


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_flipped_byte_is_a_frame_or_a_frame_error(drawn: list[Any], data: st.DataObject) -> None:
    """Whatever it makes of the sizes."""
    bytes_, _ = written(drawn)
    broken = bytearray(bytes_)
    at = data.draw(st.integers(0, len(broken) - 1))
    broken[at] ^= data.draw(st.integers(1, 255))
    with suppress(FrameError):
        read(FrameReader(max_bytes=1 << 20), bytes(broken), [50_000])


@pytest.mark.parametrize(
    ("payload", "buffers"), [(1001, []), (0, [1001]), (500, [501]), (70_000, []), (5, [70_000])]
)
def test_a_frame_longer_than_the_limit_is_refused(payload: int, buffers: list[int]) -> None:
    """Also one that fits into the memory of the reader; one as long as the limit is read."""
    parts = frame(2, 0, 1, 0, bytes(payload), [bytes(each) for each in buffers])
    data = b"".join(parts)
    with pytest.raises(FrameError, match="limit"):
        read(FrameReader(max_bytes=payload + sum(buffers) - 1), data, [1 << 20])
    assert len(read(FrameReader(max_bytes=payload + sum(buffers)), data, [1 << 20])) == 1


def test_a_reader_that_is_filled_takes_more_at_once() -> None:
    """As much as a socket holds; one on which little comes keeps its memory small, as there may be many."""
    reader = FrameReader()
    small = len(reader.room())
    part = b"".join(frame(2, 0, 1, 0, bytes(3_000)))
    assert len(read(reader, part * 10, [1 << 20])) == 10
    assert len(reader.room()) == small
    assert len(read(reader, part * 100, [1 << 20])) == 100
    assert len(reader.room()) > 200_000


def test_a_frame_of_rows_is_one_piece() -> None:
    """And so one write, however long it is."""
    parts = joined([frame_of_rows(10, 3, [b"ab", b"cd"], [bytes(100_000)])])
    assert len(parts) == 1
    (found,) = read(FrameReader(), bytes(parts[0]), [1 << 20])
    assert found == (10, 0, 2, 3, b"abcd" + bytes(100_000), [])


def test_the_limit_holds_from_the_next_frame_on() -> None:
    """A server takes long frames only once it knows the client."""
    data = b"".join(frame(2, 0, 1, 0, bytes(5000)))
    reader = FrameReader(max_bytes=1000)
    reader.max_bytes = 10_000
    assert len(read(reader, data, [100])) == 1


def test_a_frame_may_have_as_many_buffers_as_a_reader_takes() -> None:
    """And no more: that would cost the connection, with the calls of others."""
    parts = frame(2, 0, 1, 0, b"x", [b"y"] * MOST_BUFFERS)
    assert len(read(FrameReader(), b"".join(parts), [1000])[0][5]) == MOST_BUFFERS
    with pytest.raises(FrameError, match="at most 8000 arrays"):
        frame(2, 0, 1, 0, b"x", [b"y"] * (MOST_BUFFERS + 1))


def test_more_bytes_than_the_head_can_tell_are_refused() -> None:
    """A payload of four gigabytes, which no test has the memory for."""

    class Long(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(FrameError, match="at most 4294967295 bytes"):
        frame(2, 0, 1, 0, Long())


def test_joined_keeps_large_parts_as_they_are() -> None:
    """And makes one of the small ones between them."""
    large = bytes(20_000)
    parts = joined([b"a", b"b", large, b"c"])
    assert parts == [b"ab", large, b"c"]
    assert parts[1] is large
    assert size_of(parts) == 20_003


def hello(payload: bytes, kind: int = 1) -> Frame:
    """Return the frame of a greeting."""
    return Frame(kind, 0, 0, 0, payload, [])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[1]",
        b"1",
        b"null",
        b"[" * 10_000,
        b'{"version": "1"}',
        b'{"client": [1]}',
        b'{"nonce": 5}',
        b'{"version": null}',
    ],
)
def test_a_greeting_that_is_none_is_a_frame_error(payload: bytes) -> None:
    """Of whatever JSON, or none."""
    with pytest.raises(FrameError):
        ClientGreeting.read(hello(payload))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_greeting_or_a_frame_error(payload: bytes) -> None:
    """Of either side."""
    for kind in (ClientGreeting, ServerGreeting):
        with suppress(FrameError):
            kind.read(hello(payload))


KNOWN = Described(
    name="f", streams=False, maps_singly=False, batch_size=64, max_queue_size=None, max_pieces=9
)


def test_a_greeting_is_read_as_it_was_written() -> None:
    """What a later version adds is left out."""
    said = ClientGreeting(client="7", proof="é")
    parts = said.frame()
    size = struct.unpack_from("<I", parts[0])[0]
    assert size == len(parts[1])
    assert ClientGreeting.read(hello(bytes(parts[1]))) == said
    assert ClientGreeting.read(hello(b'{"client": "7", "colour": "red"}')).client == "7"
    functions = [{**asdict(KNOWN), "colour": "red"}]
    later = hello(json.dumps({"functions": functions, "colour": "red"}).encode())
    assert ServerGreeting.read(later).described() == {"f": KNOWN}
    with pytest.raises(FrameError, match="must be a greeting, got one of kind 2"):
        ClientGreeting.read(hello(b"{}", kind=2))
