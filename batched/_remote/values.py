"""Values as bytes: pickles, with the memory of arrays beside them, so that only the kernel copies it."""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import sys
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Self, TypeAlias

from batched._remote.frames import MOST_BUFFERS, Bytes, FrameError

Encoded: TypeAlias = "tuple[Bytes, list[Bytes]]"
"""A payload, and the buffers beside it."""


class Unreadable:
    """Stands for an object of a class that this process cannot import, and takes all that belongs to it."""

    error: BaseException

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...

    def append(self, _: Any) -> None:
        """Leave an item of a list."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise _Met(self)


class _Met(Exception):  # noqa: N818  it is caught
    """There is an `Unreadable` in an object."""


def _unreadable(error: BaseException) -> type[Unreadable]:
    return type("Unreadable", (Unreadable,), {"error": error})


def apart(rows: list[Any], error: BaseException) -> list[Any]:
    """Return rows that were loaded apart, as `error` came: an `Unreadable` for each that has one inside."""
    found: list[Any] = []
    for row in rows:
        try:
            pickle.dumps(row, 5, buffer_callback=bool)
        except _Met as met:
            found.append(met.args[0])
        except Exception:  # noqa: BLE001  such as a class that stands for one
            found.append(_unreadable(error)())
        else:
            found.append(row)
    return found


def plain_values(codec: Codec, payload: Bytes, count: int) -> tuple[list[Any], bool]:
    """Return so many plain values, and whether all can be read here: else some are `Unreadable`.

    Raises:
        FrameError: There are none, or not so many.

    """
    try:
        try:
            values, are_read = codec.load_plain(payload), True
        except Exception:
            values, are_read = codec.load_apart(payload), False
            if type(values) is tuple:  # of arrays that are alike
                if not isinstance(values[0], Unreadable):
                    raise
                values = [values[0]] * count
        found = len(values)
    except Exception as broken:
        raise FrameError(f"{count} values cannot be read: {broken}") from broken
    if found != count:
        raise FrameError(f"a frame of {count} calls has {found} values")
    return values, are_read


class Codec(ABC):
    """How values become bytes, and bytes values."""

    name: str
    plain: frozenset[type] = frozenset()
    """Classes of which each object has bytes that can be read, so that several can share a frame."""

    @abstractmethod
    def dump(self, value: Any) -> Encoded:
        """Return the bytes of `value`; raise if there are none."""

    @abstractmethod
    def load(self, payload: Bytes, buffers: Sequence[bytearray] = ()) -> Any:
        """Return the value of these bytes."""

    def load_apart(self, payload: Bytes, buffers: Sequence[bytearray] = ()) -> Any:
        """Return the value, with an `Unreadable` for each object of a class that cannot be imported here."""
        return self.load(payload, buffers)

    def dump_plain(self, values: list[Any]) -> list[Any]:
        """Return the bytes of plain values together, in parts: objects that can be joined as bytes."""
        raise NotImplementedError

    def load_plain(self, payload: Bytes) -> list[Any]:
        """Return the plain values of these bytes."""
        raise NotImplementedError


class Pickles(Codec):
    """Values of any class that the other side can import, for processes of one user that trust each other.

    torch's own pickles of a tensor take a file in memory and two copies; these take the numpy array that
    shares its memory.
    """

    name: str = "pickle"
    plain: frozenset[type] = frozenset({str, bytes, int, float, bool, type(None)})

    def dump_plain(self, values: list[Any]) -> list[Any]:
        """Return the bytes of plain values together: one pickle of many takes a fifth of the time.

        Of arrays that are alike it is their memory: a pickle of an array takes as long as that of 20 texts.
        """
        first = values[0]
        if (
            type(first) not in self.plain
            and 0 < first.ndim < _MOST_DIMENSIONS
            and {*map(type, values)} == {type(first)}
            and _are_alike(values)
            and all(map(_IS_IN_ORDER, values))
        ):
            count = len(values)
            return [pickle.dumps((first.dtype, (count, *first.shape), count * first.nbytes), 5), *values]
        return [pickle.dumps(values, 5)]

    def load_plain(self, payload: Bytes) -> list[Any]:
        """Return the plain values of these bytes."""
        found = pickle.loads(payload)  # noqa: S301
        if type(found) is list:
            return found
        dtype, shape, size = found
        numbers = sys.modules["numpy"].frombuffer(memoryview(payload)[len(payload) - size :], dtype)
        # Copies: a row that is kept would keep all others.
        return [row.copy() for row in numbers.reshape(shape)]

    def load_apart(self, payload: Bytes, buffers: Sequence[bytearray] = ()) -> Any:
        """Return the value, with an `Unreadable` for each object of a class that cannot be imported here."""
        return _Apart(io.BytesIO(payload), buffers=buffers).load()

    def dump(self, value: Any) -> Encoded:
        """Return the bytes of `value`; raise if there are none."""
        if type(value) in self.plain:
            return pickle.dumps(value, 5), []
        buffers: list[Bytes] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            """Whether a buffer goes into the pickle: a copy takes less time than a part of its own."""
            memory = buffer.raw()
            if len(memory) < _SMALL or len(buffers) == MOST_BUFFERS:
                return True
            buffers.append(memory)
            return False

        table = _dispatch_table()
        if table is None:
            return pickle.dumps(value, 5, buffer_callback=is_small), buffers
        file = io.BytesIO()
        pickler = pickle.Pickler(file, 5, buffer_callback=is_small)
        pickler.dispatch_table = table
        pickler.dump(value)
        return file.getvalue(), buffers

    def load(self, payload: Bytes, buffers: Sequence[bytearray] = ()) -> Any:
        """Return the value of these bytes."""
        return pickle.loads(payload, buffers=buffers) if buffers else pickle.loads(payload)  # noqa: S301


class _Apart(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return super().find_class(module, name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever the import raises
            return _unreadable(error)


_SMALL = 1 << 14
_MOST_PLAIN = 1 << 12
_MOST_DIMENSIONS = 16
_NUMBERS = "biufc"
_IS_IN_ORDER = attrgetter("flags.c_contiguous")
_tables: list[Any] = []


def is_plain(codec: Codec, value: Any) -> bool:
    """Whether `value` is small, and certain to have bytes that can be read: a text, numbers, an array."""
    kind = type(value)  # what it says of its class itself may be an error
    if kind in codec.plain:
        if kind is int:
            bits: int = value.bit_length()
            return bits <= 8 * _MOST_PLAIN
        return (kind is not str and kind is not bytes) or len(value) <= _MOST_PLAIN
    if kind.__name__ != "ndarray" or kind.__module__ != "numpy" or not codec.plain:
        return False
    return value.dtype.kind in _NUMBERS and value.nbytes <= _MOST_PLAIN


def are_plain(codec: Codec, values: list[Any]) -> bool:
    """Whether all of `values` are plain; arrays that are alike are looked at once."""
    kinds = {*map(type, values)}
    if kinds == {str} and str in codec.plain:
        return max(map(len, values)) <= _MOST_PLAIN
    if not is_plain(codec, values[0]):
        return False
    are_arrays = len(kinds) == 1 and codec.plain.isdisjoint(kinds)
    return (are_arrays and _are_alike(values)) or all(is_plain(codec, each) for each in values)


def _are_alike(arrays: list[Any]) -> bool:
    first = arrays[0]
    return [each.shape for each in arrays].count(first.shape) == len(arrays) and [
        each.dtype for each in arrays
    ].count(first.dtype) == len(arrays)


def _dispatch_table() -> Any:
    """Return how to pickle objects of classes with another way than their own: tensors.

    None while torch is not imported, or not to its end, as another thread imports it: then there are none.
    """
    if not _tables:
        torch = sys.modules.get("torch")
        if not isinstance(getattr(torch, "Tensor", None), type):
            return None
        _tables.append(_with_tensors(torch))
    return _tables[0]


def _with_tensors(torch: Any) -> Any:
    """Return `copyreg.dispatch_table`, and a way to pickle tensors."""

    def reduced(tensor: Any) -> Any:
        is_strided = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
        if tensor.device.type == "meta" or not is_strided:
            return tensor.__reduce_ex__(5)
        # From a GPU to the CPU: the other process need not have one, and would take half a GiB of it.
        plain = tensor.detach().resolve_conj().resolve_neg().cpu()
        try:
            return _tensor, (plain.numpy(), None, tensor.requires_grad)
        except (
            TypeError,
            RuntimeError,
        ):  # numpy has no such numbers, as bfloat16; or it is a tensor in name only
            kind = str(tensor.dtype).removeprefix("torch.")
            flat = plain.reshape(-1).contiguous()
            # `view` refuses an axis of one number, or of none, which may have any step to the next.
            memory = flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy()
            return _tensor, (memory, kind, tensor.requires_grad, tuple(plain.shape))

    tensors: dict[Any, Any] = {torch.Tensor: reduced}
    others: Any = copyreg.dispatch_table
    return ChainMap[Any, Any](tensors, others)


def _tensor(array: Any, kind: str | None, requires_grad: bool, shape: tuple[int, ...] = ()) -> Any:  # noqa: FBT001
    """Return the tensor that shares the memory of `array`; of a kind of numbers that numpy has not got."""
    torch: Any = importlib.import_module("torch")
    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    if kind is not None:
        tensor = tensor.view(getattr(torch, kind)).reshape(shape)
    return tensor.requires_grad_(requires_grad)
