"""What batching needs of numpy and of torch.

Imports neither: while a library is not imported, no value can be one of its arrays. Nothing here looks at the
values of an array: on an accelerator that would wait for the device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""

_NO_CONTEXT = nullcontext()
_letter = attrgetter("dtype.char")


class NumpyArrays:
    """The operations on the arrays of numpy."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self._plain = frozenset({numpy.ndarray})
        # Arrays of this very type are never `unfit`. Not to ask for them saves a tenth of reading a call.
        self.always_fit: type | None = numpy.ndarray
        self._masked = numpy.ma.MaskedArray
        # What two arrays must have in common to be joined. In C: it runs for every feature.
        self.kind: Callable[[Array], Hashable] = attrgetter("dtype")

    def unfit(self, array: Array) -> str:
        """Return the reason why `array` cannot be cut and joined by rows, "" if it can."""
        return "masked arrays would lose their mask" if isinstance(array, self._masked) else ""

    def fill(self, array: Array, value: Any) -> Any:
        """Return `value` as `full` takes it, None for zero. `ValueError` if the dtype cannot hold it."""
        dtype = array.dtype
        if _is_zero(value):
            return None
        if dtype.kind == "O":
            return value
        if dtype.kind in "biu":
            return _number(value, dtype.kind, None if dtype.kind == "b" else self._numpy.iinfo(dtype), dtype)
        if dtype.kind in "fc":
            return _number(value, dtype.kind, self._numpy.finfo(dtype), dtype)
        try:
            if dtype.kind in "SU":  # of any width: `full` is as wide as it needs to be
                own = self._numpy.array(value) if isinstance(value, str | bytes) else None
                held = own is not None and own.dtype.kind == dtype.kind and own[()] == value
            else:
                self._numpy.full((), value, dtype)
                held = True
        except (TypeError, ValueError, OverflowError):
            held = False
        if not held:
            raise ValueError(f"{value!r} does not fit in {dtype}")
        return value

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        """Return a new array of the dtype and device of `like`; a `fill` of None means zero."""
        if fill is None:
            return self._numpy.zeros(shape, like.dtype)
        dtype = like.dtype
        if dtype.kind in "SU":
            own = self._numpy.array(fill).dtype
            if own.itemsize > dtype.itemsize:
                dtype = own.newbyteorder(dtype.byteorder)
        return self._numpy.full(shape, fill, dtype)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Return a new array of the rows of all `parts`."""
        if not self._plain.issuperset(map(type, parts)):
            # A class of arrays may join in a way of its own, such as one that refuses arrays without a unit.
            parts = [part.view(self._numpy.ndarray) for part in parts]
        # Into a buffer: numpy's own choice would turn foreign byte orders into the machine's.
        rows = sum(map(len, parts))
        whole = self._numpy.empty((rows, *parts[0].shape[1:]), parts[0].dtype)
        return self._numpy.concatenate(parts, out=whole)

    def padded(
        self,
        rows: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        left: bool,  # noqa: FBT001
    ) -> Array:
        """Return a new array of `rows`, blocks of one row each and of `lengths`, padded to `longest`."""
        shape = (len(rows), longest, *rows[0].shape[2:])
        array = self.full(shape, fill, rows[0])
        # One index for each row: with two, an assignment takes a third more time.
        joined = array.reshape((len(rows) * longest, *shape[2:]))
        for at, row, length in zip(range(0, len(joined), longest), rows, lengths, strict=True):
            start = at + longest - length if left else at
            joined[start : start + length] = row
        return array

    def write(self, array: Array, places: tuple[slice, ...], block: Array) -> None:
        """Write `block` to these places of `array`."""
        array[places] = block

    def in_class(self, array: Array, kind: type) -> Array:
        """Return a new array as one of a subclass."""
        return array.view(kind)

    def copy(self, array: Array) -> Array:
        """Return a copy that owns its memory."""
        return array.copy()

    def is_view(self, array: Array) -> bool:
        """Whether the memory of `array` may belong to another array too."""
        return array.base is not None

    def may_be_view(self, array: Array) -> bool:
        """Whether it may be a view of an array that has no more memory than its own."""
        return self.is_view(array)

    def memory(self, array: Array) -> int:
        """Return a number that arrays which are no views have in common if they share their memory."""
        return id(array)

    def hold_objects(self, rows: Sequence[Array]) -> bool:
        """Whether some of `rows` are arrays of objects, which may be arrays themselves."""
        return "O" in map(_letter, rows)

    def own(self, rows: Sequence[Array]) -> list[Array]:
        """Return `rows`, with copies in the place of views."""
        # Not by `is_view`: to ask it takes as long again.
        return [row if row.base is None else row.copy() for row in rows]

    def rows(self, array: Array, size: int) -> list[Array] | None:  # noqa: ARG002  as of torch
        """Return a copy of each row; None if these are not `size`, or if `list` and `own` do as well."""
        return None

    def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        """Return copies of consecutive parts of `array`, one part for each number of rows in `sizes`."""
        ends = accumulate(sizes)
        return [array[end - size : end].copy() for end, size in zip(ends, sizes, strict=True)]

    def joint(self, kind: Any) -> Hashable:
        """Return what kinds that can be joined have in common: strings may differ in width."""
        return ("strings", str(kind.kind)) if kind.kind in "SU" else kind

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        """Return `rows` in one kind, if only the width of their strings or their grad differs."""
        dtypes = {row.dtype for row in rows}
        if len(dtypes) == 1 or len(set(map(self.joint, dtypes))) > 1:
            return rows
        dtype = self._numpy.result_type(*dtypes)
        return [row.astype(dtype, copy=False) for row in rows]

    def widened(self, array: Array, other: Array) -> Array:
        """Return `array` in a dtype that holds the values of `other` too."""
        return array.astype(self._numpy.result_type(array.dtype, other.dtype), copy=False)

    def writing(self, array: Array) -> AbstractContextManager[Any]:  # noqa: ARG002  torch needs it
        """Return the context in which a copy of `array` is what `array` is, as torch's inference mode."""
        return _NO_CONTEXT


class TorchArrays:
    """The same operations on the tensors of torch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.always_fit: type | None = None
        self._rows: Any = getattr(torch, "unbind_copy", None)  # older ones have none
        # Joined in this context, tensors of a subclass are plain ones. The subclass would make its own of all
        # rows, those of other callers too, or fail them.
        self._as_plain: Any = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001  it has no other name
        self.kind: Callable[[Array], Hashable] = attrgetter("dtype", "device", "requires_grad")

    def unfit(self, array: Array) -> str:
        if array.layout is not self._torch.strided or array.is_nested:
            return "sparse and nested tensors are not supported"
        return "quantized tensors are not supported" if array.is_quantized else ""

    def fill(self, array: Array, value: Any) -> Any:
        if _is_zero(value):
            return None
        dtype = array.dtype
        if dtype is self._torch.bool:
            kind, info = "b", None
        elif dtype.is_complex:
            kind, info = "c", self._torch.finfo(dtype)
        elif dtype.is_floating_point:
            kind, info = "f", self._torch.finfo(dtype)
        else:
            kind, info = "i", self._torch.iinfo(dtype)
        return _number(value, kind, info, dtype)

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        if fill is None:
            return self._torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._torch.full(shape, fill, dtype=like.dtype, device=like.device)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        with self._as_plain():
            return self._torch.cat(tuple(parts))

    def padded(
        self,
        rows: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        left: bool,  # noqa: FBT001
    ) -> Array:
        # Rows and padding in turn, joined at once: writing row by row takes nearly twice as long on a CPU,
        # and one kernel for each row on an accelerator.
        trailing = rows[0].shape[2:]
        missing = [longest - length for length in lengths]
        padding = self.full((1, sum(missing), *trailing), fill, rows[0]).split(missing, 1)
        pairs = zip(padding, rows, strict=True) if left else zip(rows, padding, strict=True)
        with self._as_plain():
            joined = self._torch.cat([part for pair in pairs for part in pair], 1)
        return joined.reshape((len(rows), longest, *trailing))

    def write(self, array: Array, places: tuple[slice, ...], block: Array) -> None:
        with self._as_plain():
            array[places] = block

    def in_class(self, array: Array, kind: type) -> Array:
        return array.as_subclass(kind)

    def copy(self, array: Array) -> Array:
        with self.writing(array):
            return array.clone()

    def is_view(self, array: Array) -> bool:
        if array._is_view():  # noqa: SLF001  the only way to ask
            return True
        if array.layout is not self._torch.strided or array.is_nested:
            return False
        # In inference mode views are not noted, but have the storage of the whole. One that cannot be resized
        # is memory of another library, such as a row of an array of numpy.
        storage = array.untyped_storage()
        return bool(storage.nbytes() != array.nbytes or not storage.resizable())

    def may_be_view(self, array: Array) -> bool:
        return bool(array.is_inference()) or self.is_view(array)

    def memory(self, array: Array) -> int:
        if array.layout is not self._torch.strided or array.is_nested:
            return id(array)
        # `detach`, `data` and parameters are no views, though they share the storage of another tensor.
        return int(array.untyped_storage()._cdata)  # noqa: SLF001  its address could not be asked of each kind

    def hold_objects(self, rows: Sequence[Array]) -> bool:  # noqa: ARG002  as of numpy
        return False

    def own(self, rows: Sequence[Array]) -> list[Array]:
        if len({row.is_inference() for row in rows}) > 1:
            return [self.copy(row) if self.is_view(row) else row for row in rows]
        with self.writing(rows[0]):
            return [row.clone() if self.is_view(row) else row for row in rows]

    def rows(self, array: Array, size: int) -> list[Array] | None:
        if array.is_nested:  # it may have no length
            return list(map(self.copy, array.unbind()))
        # In one step of torch's: row by row takes two to four times as long.
        if self._rows is None or self.unfit(array) or not array.dim() or len(array) != size:
            return None
        with self.writing(array):
            return list(self._rows(array))

    def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        with self.writing(array):
            return [rows.clone() for rows in array.split(sizes)]

    def joint(self, kind: Hashable) -> Hashable:
        return kind

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        if len({row.requires_grad for row in rows}) == 1:
            return rows
        return [row if row.requires_grad else row.detach().requires_grad_() for row in rows]

    def widened(self, array: Array, other: Array) -> Array:
        return array.to(self._torch.promote_types(array.dtype, other.dtype))

    def writing(self, array: Array) -> AbstractContextManager[Any]:
        is_inference = array.is_inference()
        # Not in the mode of a caller: under `no_grad`, the copy of a tensor that needs a gradient has none.
        return (
            self._torch.inference_mode(is_inference) if is_inference or array.requires_grad else _NO_CONTEXT
        )


Library: TypeAlias = NumpyArrays | TorchArrays

_TABLE: dict[str, tuple[str, Callable[[Any], Library]]] = {
    # module: the name of its type of arrays, and what is made of the module
    "numpy": ("ndarray", NumpyArrays),
    "torch": ("Tensor", TorchArrays),
}
LIBRARIES: dict[type, Library] = {}
"""The library of each type of array that `library_of` has been asked about."""


def library_of(value: object) -> Library | None:
    """Return the library that `value` is an array of, None if it is none, or its type has no hash."""
    try:
        return LIBRARIES.get(type(value)) or library_of_type(type(value))
    except Exception:  # noqa: BLE001  of a metaclass: a class has no hash if that defines `__eq__` alone
        return None


def library_of_type(kind: type) -> Library | None:
    """Return the library of which `kind` is a type of arrays, None if it is not.

    Asked by type, as a mock says of itself that it is an instance of what it stands for.
    """
    found = LIBRARIES.get(kind)
    if found is not None:
        return found
    for module_name, (array_name, make) in _TABLE.items():
        array_type = type_named(module_name, array_name)
        if array_type is not None and issubclass(kind, array_type):
            LIBRARIES[kind] = library = LIBRARIES.setdefault(array_type, make(sys.modules[module_name]))
            return library
    return None


def is_plain_array(kind: type) -> bool:
    """Whether a type of arrays is one of numpy or of torch itself, not a subclass with code of its own."""
    return kind.__module__ in _TABLE


def type_named(module_name: str, name: str) -> type | None:
    """Return a type of a module, None while the module is not imported, or not to its end."""
    found = getattr(sys.modules.get(module_name), name, None)
    return found if isinstance(found, type) else None


def is_one_of(kind: type, named: Iterable[tuple[str, str]]) -> bool:
    """Whether `kind` is one of these types, or a class of one: each has a module, which may be missing."""
    others = (type_named(*each) for each in named)
    return any(other is not None and issubclass(kind, other) for other in others)


def _is_zero(value: Any) -> bool:
    """Whether padding with `value` is padding with zeros."""
    try:
        return not isinstance(value, str | bytes) and bool(value == 0)
    except (TypeError, ValueError):
        return False


def _number(value: Any, kind: str, info: Any, dtype: Any) -> Any:
    """Return `value` as a Python number; `ValueError` if the dtype of this kind and range cannot hold it."""
    item = getattr(value, "item", None)
    number = value if item is None else item()
    held = False
    if isinstance(number, complex):
        held = kind == "c"
    elif not isinstance(number, str | bytes) and hasattr(number, "__float__"):
        with suppress(OverflowError):  # an int that is larger than any float
            size = abs(float(number))
            if kind in "iu":
                held = size.is_integer() and info.min <= int(number) <= info.max
            elif kind == "b":
                held = number == 1
            else:
                held = not math.isfinite(size) or size <= float(info.max)
    if not held:
        raise ValueError(f"{value!r} does not fit in {dtype}")
    return number
