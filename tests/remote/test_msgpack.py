"""Values as msgpack: what crosses as it was, what is refused, and that nothing is unpickled."""

from __future__ import annotations

import math
import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batched
from batched._core.call import Row
from batched._remote.addresses import connected, parsed
from batched._remote.frames import Flag, Frame, FrameReader, Kind, frame
from batched._remote.greeting import ClientGreeting, ServerGreeting
from batched._remote.tokens import proof
from tests.kit.gate import PATIENCE_S
from tests.kit.serving import Served, folder, served

pytest.importorskip("msgspec", exc_type=ImportError)

from batched._remote.msgpack import Msgpack, codec_named

CODEC = Msgpack()
FLAT = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)
KEYS = FLAT | st.tuples(FLAT, st.tuples(FLAT))
VALUES = st.recursive(
    FLAT,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.lists(inner).map(Row) | st.dictionaries(KEYS, inner)
    ),
)


def crossed(value: Any) -> Any:
    """Return `value` as it arrives."""
    payload, buffers = CODEC.dump(value)
    return CODEC.load(memoryview(bytearray(payload)), [bytearray(each) for each in buffers])


def types_in(value: Any) -> Any:
    """Return the types of a value and of all that is in it."""
    if isinstance(value, dict):
        return dict, [(types_in(key), types_in(each)) for key, each in value.items()]
    return type(value), [types_in(each) for each in value] if isinstance(value, list | tuple) else None


@given(VALUES)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    """Of the same types too: a tuple is no list, 1 is neither True nor 1.0."""
    found = crossed(value)
    assert (found, types_in(found)) == (value, types_in(value))


def test_records_are_sent_while_another_thread_imports_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the import is at its end there are no arrays, and other values are what they are."""
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    stats = batched.dynamically(lambda xs: xs).stats
    assert crossed(stats) == stats


def test_odd_numbers_and_views() -> None:
    """Not-a-number and infinities cross; bytes that can change arrive as bytes."""
    assert math.isnan(crossed(math.nan))
    assert crossed([math.inf, -0.0]) == [math.inf, -0.0]
    assert crossed([bytearray(b"a"), memoryview(b"b")]) == [b"a", b"b"]


ARRAYS = {
    "numbers": np.arange(6.0),
    "half": np.ones((2, 3), "f2"),
    "other order of bytes": np.arange(5, dtype=">i4"),
    "complex": np.ones(2, "c8"),
    "booleans": np.array([True, False]),
    "texts": np.array(["a", "longer"]),
    "bytes": np.array([b"a", b"longer"]),
    "times": np.array(["2020-01-01", "NaT"], "M8[s]"),
    "no rows": np.ones((0, 3)),
    "one number": np.array(3),
    "empty texts": np.array(["", ""], "<U0") if np.dtype("<U0").itemsize == 0 else np.array([""]),
    "by columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "every other": np.arange(20).reshape(4, 5)[::2, ::-2],
    "large": np.arange(10_000, dtype="i8"),
    "large by columns": np.asfortranarray(np.arange(10_000).reshape(100, 100)),
    "read-only": np.frombuffer(b"abcdefgh", "i4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_with_dtype_shape_and_order(name: str) -> None:
    """The receiver may write to them."""
    array = ARRAYS[name]
    for found in (crossed(array), crossed({"x": [array]})["x"][0]):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array, equal_nan=array.dtype.kind == "M")
        assert found.flags.writeable
        if array.flags.forc:
            assert found.flags.f_contiguous == array.flags.f_contiguous


def test_large_arrays_are_copied_on_neither_side() -> None:
    """They are sent from their memory, and are the memory into which they were received."""
    array = np.arange(100_000.0)
    payload, buffers = CODEC.dump(["text", array])
    assert len(payload) < 100
    assert np.shares_memory(np.frombuffer(buffers[0], "u1"), array)
    received = bytearray(buffers[0])
    _, found = CODEC.load(payload, [received])
    assert np.shares_memory(np.frombuffer(received, "u1"), found)


@pytest.mark.parametrize(
    "number", [np.float32(0.1), np.float64(0.1), np.int8(-3), np.bool_(True), np.str_("a")]
)
def test_numbers_of_numpy_stay_what_they_are(number: Any) -> None:
    """A model's score is a float32 on both sides."""
    found = crossed([number])[0]
    assert (found, type(found)) == (number, type(number))


@dataclass
class Point:
    x: int


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "builtins.set"),
        (Point(1), "Point"),
        (Text("a"), "Text"),
        (len, "builtin_function_or_method"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, "i4,f4"), "dtype"),
        (np.ma.masked_array([1], [True]), "MaskedArray"),
        ({Point: 1}, "key such as"),
        (2**64, "64 bits"),
        (-(2**63) - 1, "64 bits"),
    ],
)
def test_what_cannot_cross_is_refused_where_it_is_sent(value: Any, message: str) -> None:
    """Also deep inside; nothing arrives as something else."""
    for each in (value, [1, ("a", {"b": value})]):
        with pytest.raises((TypeError, OverflowError), match=message):
            CODEC.dump(each)


def ext(kind: int, value: Any) -> bytes:
    """Return the bytes of a value of such a kind."""
    from msgspec import msgpack

    return bytes(msgpack.encode(msgpack.Ext(kind, msgpack.encode(value))))


def nested(depth: int) -> bytes:
    """Return the bytes of tuples in tuples."""
    from msgspec import msgpack

    found: Any = b"\xc0"
    for _ in range(depth):
        found = msgpack.encode(msgpack.Ext(1, b"\x91" + found))
    return bytes(found)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        pickle.dumps([1, "a"], 5),
        nested(300),
        ext(99, []),
        ext(1, 5),
        ext(3, ["O", False, [1], b"12345678"]),
        ext(3, ["i4,O", False, [1], b"12345678"]),
        ext(3, ["f4" * 1000, False, [1], b"1234"]),
        ext(3, ["f4", False, [2**40], b""]),
        ext(3, ["f4", False, [-1], b"1234"]),
        ext(3, ["f4", False, [2, -2], b"1234"]),
        ext(3, ["f4", False, [1], 7]),
        ext(3, ["f4", False]),
        ext(6, 5),
        ext(5, ["Popen", {"args": "true"}]),
        ext(5, ["Stats", {"no_such_field": 1}]),
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_bytes_that_are_no_value_raise_an_error(payload: bytes) -> None:
    """And take no memory for what they claim to be."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  of several libraries
        CODEC.load(payload, [])
    assert isinstance(caught.value, ValueError | TypeError | LookupError | RecursionError)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_an_error(payload: bytes) -> None:
    """Never the end of the process, and never more memory than there is."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        CODEC.load(payload, [bytearray(8)])


def test_stats_cross() -> None:
    """With all that is in them."""
    fn = batched.dynamically(list, timeout_ms=0)
    for _ in range(30):
        fn([1, 2])
    stats = fn.stats
    assert crossed(stats) == stats
    assert str(crossed(stats)) == str(stats)
    fn.shutdown()


# -- a server -------------------------------------------------------------------------------


@batched.dynamically(timeout_ms=0)
def same(items: list[Any]) -> list[Any]:
    return items


@batched.dynamically(timeout_ms=0)
def kinds(items: list[Any]) -> list[str]:
    return [type(item).__name__ for item in items]


@batched.dynamically(timeout_ms=0)
def add(first: list[int], second: list[int]) -> list[int]:
    return [a + b for a, b in zip(first, second, strict=True)]


@batched.dynamically(batch_size=1, timeout_ms=0)
def fails(items: list[str]) -> list[Any]:
    raise RAISED[items[0]]("why")


@batched.dynamically(batch_size=1, timeout_ms=0)
def odd(items: list[str]) -> list[Any]:
    return [{"set": {1}, "big": 2**70}[items[0]]]


@batched.dynamically(timeout_ms=0)
def counts(items: list[int]) -> Iterator[list[Any]]:
    for number in range(3):
        yield [(number, item) if number < item else batched.DONE for item in items]


class OwnError(Exception):
    pass


RAISED = {"own": OwnError, "builtin": KeyError, "batched": batched.OverloadError}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server that speaks msgpack."""
    with served(same, kinds, add, fails, odd, counts, protocol="msgpack") as found:
        yield found


def test_calls_of_all_kinds_cross(server: Served) -> None:
    """One item, lists, several arguments, maps of one and of several iterables, streams, figures."""
    client = server.connect(protocol="msgpack")
    assert client.same(("a", [1.5, None])) == ("a", [1.5, None])
    assert client.same([b"x", {"k": 1}]) == [b"x", {"k": 1}]
    assert client.kinds([("a", "b"), ["a"], np.float32(1)]) == ["tuple", "list", "float32"]
    assert client.kinds(("a", "b")) == "tuple"
    assert (client.add(1, 2), client.add([1, 2], second=[3, 4])) == (3, [4, 6])
    assert list(client.add.map(range(100), range(100))) == [2 * number for number in range(100)]
    assert list(client.counts.stream(2)) == [(0, 2), (1, 2)]
    large = client.same(np.arange(50_000))
    assert np.array_equal(large, np.arange(50_000))
    assert client.same.stats.total_accepted >= 4
    assert isinstance(client.same.explain(), str)
    client.close()


def test_a_tenant_may_be_a_tuple(server: Served) -> None:
    """It must be hashable where it arrives."""
    client = server.connect(protocol="msgpack", fair_by=lambda: ("a", 1))
    assert client.same(1) == 1
    assert list(client.same.map([1, 2])) == [1, 2]
    client.close()


def test_errors_are_of_classes_that_the_client_has_imported(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported or called for others: they are a `BatchError`. Each has its traceback as text."""
    client = server.connect(protocol="msgpack")
    with pytest.raises(KeyError, match="why") as builtin:
        client.fails("builtin")
    assert "in fails" in str(builtin.value.__cause__)
    with pytest.raises(batched.OverloadError, match="why"):
        client.fails("batched")
    with pytest.raises(OwnError, match="why"):
        client.fails("own")
    monkeypatch.delitem(globals(), "OwnError")
    monkeypatch.setitem(globals(), "__getattr__", pytest.fail)
    with pytest.raises(batched.BatchError, match=r"OwnError in the server: why"):
        client.fails("own")
    found = client.fails.options(return_exceptions=True)(["own", "builtin"])
    assert [type(each) for each in found] == [batched.BatchError, KeyError]
    client.close()


def test_a_value_that_cannot_cross_fails_its_call_only(server: Served) -> None:
    """An argument in the client, before it is sent; a result in the server."""
    client = server.connect(protocol="msgpack")
    with pytest.raises(TypeError, match="64 bits"):
        client.same(2**70)
    with pytest.raises(TypeError, match="does not send builtins.set"):
        client.same([{1}])
    with pytest.raises(TypeError, match="cannot be sent to another process: .*builtins.set"):
        client.odd("set")
    with pytest.raises(TypeError, match="64 bits"):
        client.odd("big")
    assert client.same(1) == 1
    client.close()


@pytest.mark.parametrize(("mine", "theirs"), [("msgpack", "pickle"), ("pickle", "msgpack")])
def test_sides_that_differ_are_told_what_to_do(mine: str, theirs: str) -> None:
    """At the first call, and at once."""
    with served(same, protocol=mine) as server:
        client = server.connect(protocol=theirs, wait_s=PATIENCE_S)
        with pytest.raises(batched.DisconnectedError, match=f'connect with protocol="{mine}"'):
            client.same(1)


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


class Conversation:
    """A client that sends what it likes."""

    def __init__(self, server: Served) -> None:
        self.socket: socket.socket = connected(parsed(server.address))
        self.socket.settimeout(PATIENCE_S)
        self.port: object = server.address.rpartition(":")[2]
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def greet(self, token: str | None) -> None:
        """Come to where calls are taken."""
        said = ClientGreeting(protocol="msgpack", client="1", nonce="2")
        self.say(*said.frame())
        answer = ServerGreeting.read(self.hear())
        if token is not None:
            shown = proof(token, "client", self.port, "2", answer.nonce)
            self.say(*replace(said, proof=shown).frame())
            answer = ServerGreeting.read(self.hear())
        assert (answer.refusal, bool(answer.functions)) == ("", True)

    def say(self, *parts: Any) -> None:
        self.socket.sendall(b"".join(parts))

    def hear(self) -> Frame | None:
        """Return the next frame, None at the end."""
        while not self._frames:
            try:
                count = self.socket.recv_into(self._reader.room())
            except ConnectionResetError:
                return None
            if not count:
                return None
            self._frames = self._reader.filled(count)
            for each in self._frames:
                each.payload = bytes(each.payload)
        return self._frames.pop(0)


@pytest.mark.parametrize("flags", [Flag.ONE, Flag.NONE, Flag.ELEMENTS, Flag.STREAM, Flag.TENANT | Flag.ONE])
def test_a_server_with_msgpack_unpickles_nothing(server: Served, flags: int) -> None:
    """A pickle is no value: the call fails, the connection and all others go on, and nothing has run."""
    with folder() as found:
        payload = pickle.dumps(Touches(found / "ran"), 5)
        mallory = Conversation(server)
        mallory.greet(server.token)
        mallory.say(*frame(Kind.CALL, flags, 1, 0, payload))
        assert mallory.hear().kind == Kind.ERROR
        mallory.say(*frame(Kind.CALL, Flag.ONE, 2, 0, b"\x05"))
        answer = mallory.hear()
        assert (answer.kind, CODEC.load(answer.payload, [])) == (Kind.RESULT, 5)
        mallory.socket.close()
        assert list(found.iterdir()) == []


def test_a_client_that_claims_to_speak_pickle_is_not_read(server: Served) -> None:
    """Its greeting is answered with the reason, and the connection ends: its calls are never looked at."""
    with folder() as found:
        mallory = Conversation(server)
        greeting = ClientGreeting(protocol="pickle", client="1")
        mallory.say(
            *greeting.frame(), *frame(Kind.CALL, Flag.ONE, 1, 0, pickle.dumps(Touches(found / "ran"), 5))
        )
        assert "msgpack" in str(ServerGreeting.read(mallory.hear()).refusal)
        assert mallory.hear() is None
        mallory.socket.close()
        assert list(found.iterdir()) == []


def test_without_msgspec_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides, before anything is sent."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ImportError, match=r"pip install msgspec"):
        batched.connect("unix:/tmp/never.sock" if os.name != "nt" else "tcp:127.0.0.1:1", protocol="msgpack")
    with pytest.raises(ImportError, match=r"pip install msgspec"):
        batched.serve(same, bind="tcp:127.0.0.1:0", token="a", protocol="msgpack")
    with pytest.raises(ValueError, match="pickle, msgpack, got 'json'"):
        codec_named("json")


def test_threads_may_use_one_codec_at_once() -> None:
    """It keeps nothing of a value."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(200):
                value = [(number, np.full(3000, number)), {"a": (number,)}]
                found = crossed(value)
                assert (found[0][0], found[1], found[0][1].sum()) == (number, {"a": (number,)}, 3000 * number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    assert failed == []
