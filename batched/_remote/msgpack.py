"""Values as msgpack, for callers that must not send pickles: plain values and arrays; none runs code.

A tuple stays a tuple, as a batch function may tell one item from several by it. What has no bytes here is
refused where it is sent, so that nothing arrives as something else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from batched._core.call import Row
from batched._core.stats import Distribution, Padding, Stats
from batched._policy.window import Learned
from batched._remote.frames import Bytes
from batched._remote.values import Codec, Encoded, Pickles

_TUPLE, _ROW, _ARRAY, _SCALAR, _RECORD = 1, 2, 3, 4, 5
"""The kinds of values that msgpack itself has not got."""
_FLAT = frozenset({str, bytes, int, float, bool, type(None)})
_VIEWS = frozenset({bytearray, memoryview})
_DTYPES = frozenset("biufcSUmM")
"""Kinds of numbers, texts and times; the others may hold objects, or have names for their parts."""
_RECORDS: dict[str, type[Any]] = {each.__name__: each for each in (Stats, Distribution, Padding, Learned)}
_SMALL = 1 << 14
_MOST_NESTED = 64
_LONGEST_DTYPE = 32


class Msgpack(Codec):
    """None, bool, int, float, str, bytes, list, tuple, dict, and arrays and numbers of numpy."""

    name: str = "msgpack"

    def __init__(self) -> None:
        try:
            found: Any = import_module("msgspec")
        except ModuleNotFoundError:
            raise ImportError(
                "the protocol msgpack needs msgspec: pip install msgspec", name="msgspec"
            ) from None
        self._library = found.msgpack
        self._error: type[Exception] = found.MsgspecError
        self._encode: Callable[[Any], bytes] = found.msgpack.Encoder().encode

    def dump(self, value: Any) -> Encoded:
        """Return the bytes of `value`.

        Raises:
            TypeError: There is something in it that msgpack does not send.
            OverflowError: There is an integer of more than 64 bits in it.

        """
        buffers: list[Bytes] = []
        try:
            return self._encode(self._told(value, buffers)), buffers
        except OverflowError:
            raise OverflowError("msgpack sends no integer of more than 64 bits: send text") from None

    def load(self, payload: Bytes, buffers: Sequence[bytearray] = ()) -> Any:
        """Return the value of these bytes; raises `ValueError`, or what numpy raises, if there is none."""
        try:
            return _Loading(self._library, buffers).load(payload)
        except self._error as error:
            raise ValueError(f"these bytes are no msgpack: {error}") from None

    def _told(self, value: Any, buffers: list[Bytes]) -> Any:  # noqa: PLR0911  one for each kind
        """Return `value` in the types that msgpack has."""
        kind = type(value)
        if kind in _FLAT or kind in _VIEWS:
            return value
        if kind is list:
            if _FLAT.issuperset(map(type, value)):
                return value
            return [self._told(each, buffers) for each in value]
        if kind is dict:
            if _FLAT.issuperset(map(type, value)) and _FLAT.issuperset(map(type, value.values())):
                return value
            return {self._key(key): self._told(each, buffers) for key, each in value.items()}
        if kind is tuple or kind is Row:
            inside = [self._told(each, buffers) for each in value]
            return self._marked(_TUPLE if kind is tuple else _ROW, inside)
        numpy: Any = sys.modules.get("numpy")  # another thread may be importing it
        if kind is getattr(numpy, "ndarray", None):
            return self._marked(_ARRAY, _array(numpy, value, buffers))
        if isinstance(value, getattr(numpy, "generic", ())):
            return self._marked(_SCALAR, _array(numpy, numpy.asarray(value), buffers))
        if _RECORDS.get(kind.__name__) is kind:
            told = {each.name: self._told(getattr(value, each.name), buffers) for each in fields(value)}
            return self._marked(_RECORD, [kind.__name__, told])
        raise TypeError(
            f"msgpack does not send {kind.__module__}.{kind.__qualname__}: it sends None, bool, int, float, "
            f"str, bytes, list, tuple, dict and numpy arrays"
        )

    def _key(self, key: Any) -> Any:
        """Return a key of a dict: msgpack has arrays as keys, which arrive as tuples."""
        if type(key) in _FLAT:
            return key
        if type(key) is tuple:
            return tuple(map(self._key, key))
        raise TypeError(f"msgpack sends no dict with a key such as {key!r}: use text, bytes or numbers")

    def _marked(self, kind: int, value: Any) -> Any:
        return self._library.Ext(kind, self._encode(value))


def _array(numpy: Any, array: Any, buffers: list[Bytes]) -> list[Any]:
    """Return what an array is made of; its memory goes to the buffers, unless it is small."""
    if array.dtype.kind not in _DTYPES:
        raise TypeError(
            f"msgpack does not send arrays of dtype {array.dtype}: it sends numbers, texts and times"
        )
    by_columns = bool(array.flags.f_contiguous and not array.flags.c_contiguous)
    rows = numpy.ascontiguousarray(array.T if by_columns else array)
    head = [array.dtype.str, by_columns, list(array.shape)]
    if not array.nbytes:
        return [*head, b""]
    memory = memoryview(rows.reshape(-1).view(numpy.uint8))
    if array.nbytes < _SMALL:
        return [*head, memory]
    buffers.append(memory)
    return [*head, len(buffers) - 1]


PROTOCOLS = ("pickle", "msgpack")


def codec_named(name: str) -> Codec:
    """Return how values become bytes.

    Raises:
        ValueError: There is no such protocol.
        ImportError: It needs a library that is not installed.

    """
    if name == "pickle":
        return Pickles()
    if name == "msgpack":
        return Msgpack()
    raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")


class _Loading:
    """Reads one payload, with the buffers beside it."""

    def __init__(self, library: Any, buffers: Sequence[bytearray]) -> None:
        self._decode: Callable[[Any], Any] = library.Decoder(ext_hook=self._value).decode
        self._buffers = buffers
        self._depth = 0

    def load(self, payload: Bytes) -> Any:
        return self._decode(payload)

    def _value(self, kind: int, payload: memoryview) -> Any:
        if self._depth >= _MOST_NESTED:
            raise ValueError(f"tuples may be nested {_MOST_NESTED} deep")
        self._depth += 1
        told = self._decode(payload)
        self._depth -= 1
        if kind == _TUPLE:
            return tuple(told)
        if kind == _ROW:
            return Row(told)
        if kind == _ARRAY:
            return self._array(*told)
        if kind == _SCALAR:
            return self._array(*told)[()]
        if kind == _RECORD:
            name, values = told
            return _RECORDS[name](**values)
        raise ValueError(f"there is no value of kind {kind}")

    def _array(self, name: str, by_columns: bool, shape: list[int], memory: Any) -> Any:  # noqa: FBT001
        numpy: Any = import_module("numpy")
        dtype = numpy.dtype(name if len(name) <= _LONGEST_DTYPE else "O")
        if dtype.kind not in _DTYPES:
            raise ValueError(f"arrays of dtype {name[:_LONGEST_DTYPE]!r} are not read")
        beside = isinstance(memory, int)
        found = self._buffers[memory] if beside else memory
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(found):
            raise ValueError(f"an array of shape {shape} and dtype {name} has {len(found)} bytes")
        if not found:
            return numpy.empty(shape, dtype)
        array = numpy.frombuffer(found if beside else bytearray(found), dtype)
        return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)
