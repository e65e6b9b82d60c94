"""numpy and torch behind one face. Neither is imported: an array can only come from a library that has been.

Nothing here looks at the values of an array, so that one on an accelerator is never waited for.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext, suppress
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["LIBRARIES", "Array", "Library", "library_of"]

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


class Library(Protocol):
    """What batching needs of a library of arrays."""

    name: str

    always_fit: type | None
    """Arrays of just this type, none of its subclasses, need not be asked whether they are `unfit`."""

    def kind(self, array: Array, /) -> Hashable:
        """Return what arrays must have in common to be parts of one: dtype, device, grad or not."""
        ...

    def unfit(self, array: Array) -> str:
        """Say why `array` cannot be cut and joined by rows; "" if it can."""
        ...

    def fill(self, array: Array, value: Any) -> Any:
        """Return `value` as `full` takes it, None for zero. `ValueError` if the dtype cannot hold it."""
        ...

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        """Return a new array of the dtype and device of `like`; a `fill` of None means zero."""
        ...

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return a new array of the dtype and device of `like` whose values are still to be set."""
        ...

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Return a new array of the rows of all `parts`."""
        ...

    def stack(self, rows: Sequence[Array]) -> Array:
        """Return a new array whose rows are `rows`, of one shape."""
        ...

    def padded(
        self,
        rows: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        left: bool,  # noqa: FBT001
    ) -> Array:
        """Return a new array of `rows`, blocks of one row each and of `lengths`, padded to `longest`."""
        ...

    def copy(self, array: Array) -> Array:
        """Return a copy that owns its memory."""
        ...

    def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        """Return copies of the rows of `array`, so many of them together as each of `sizes` says."""
        ...

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        """Return `rows` of one kind, if they differ in nothing but the length of strings, or in grad."""
        ...

    def widened(self, array: Array, other: Array) -> Array:
        """Return `array` in a dtype that holds the values of `other` too."""
        ...

    def writing(self, array: Array) -> AbstractContextManager[Any]:
        """Return the context in which a copy of `array` may be made and written to, and is as `array` was."""
        ...


class _Numpy:
    name = "numpy"

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self.always_fit = numpy.ndarray
        self._masked = numpy.ma.MaskedArray
        self._no_context = nullcontext()
        self.kind: Callable[[Array], Hashable] = attrgetter("dtype")  # asked for each feature of each call

    def unfit(self, array: Array) -> str:
        return "masked arrays would lose their mask" if isinstance(array, self._masked) else ""

    def fill(self, array: Array, value: Any) -> Any:
        dtype = array.dtype
        if _is_zero(value):
            return None
        if dtype.kind == "O":
            return value
        info = None
        if dtype.kind in "iu":
            info = self._numpy.iinfo(dtype)
        elif dtype.kind in "fc":
            info = self._numpy.finfo(dtype)
        if dtype.kind in "biufc":
            return _held(value, dtype.kind, info, str(dtype))
        try:
            filled = self._numpy.full((), value, dtype)
            held = dtype.kind not in "SU" or (isinstance(value, str | bytes) and filled[()] == value)
        except (TypeError, ValueError, OverflowError):
            held = False
        if not held:
            raise ValueError(f"{value!r} does not fit into {dtype}")
        return value

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        if fill is None:
            return self._numpy.zeros(shape, like.dtype)
        return self._numpy.full(shape, fill, like.dtype)

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return self._numpy.empty_like(like, shape=shape, order="C")

    def concatenate(self, parts: Sequence[Array]) -> Array:
        # Into a buffer: left alone it would turn foreign byte orders into the machine's.
        rows = sum(map(len, parts))
        whole = self._numpy.empty((rows, *parts[0].shape[1:]), parts[0].dtype)
        return self._numpy.concatenate(parts, out=whole)

    def stack(self, rows: Sequence[Array]) -> Array:
        return self._numpy.stack(rows, out=self._numpy.empty((len(rows), *rows[0].shape), rows[0].dtype))

    def padded(
        self,
        rows: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        left: bool,  # noqa: FBT001
    ) -> Array:
        shape = (len(rows), longest, *rows[0].shape[2:])
        array = self.full(shape, fill, rows[0])
        # One index for each row: a second one takes a third more time.
        joined = array.reshape((len(rows) * longest, *shape[2:]))
        if left:
            for end, row, length in zip(range(longest, len(joined) + 1, longest), rows, lengths, strict=True):
                joined[end - length : end] = row
        else:
            for start, row, length in zip(range(0, len(joined), longest), rows, lengths, strict=True):
                joined[start : start + length] = row
        return array

    def copy(self, array: Array) -> Array:
        return array.copy()

    def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        ends = accumulate(sizes)
        return [array[end - size : end].copy() for end, size in zip(ends, sizes, strict=True)]

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        dtypes = {row.dtype for row in rows}
        if len(dtypes) == 1 or len({dtype.kind for dtype in dtypes}) > 1 or rows[0].dtype.kind not in "SU":
            return rows
        dtype = self._numpy.result_type(*dtypes)
        return [row.astype(dtype) for row in rows]

    def widened(self, array: Array, other: Array) -> Array:
        return array.astype(self._numpy.result_type(array.dtype, other.dtype), copy=False)

    def writing(self, array: Array) -> AbstractContextManager[Any]:  # noqa: ARG002  for the protocol
        return self._no_context


class _Torch:
    name = "torch"
    always_fit: type | None = None

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._no_context = nullcontext()
        self.kind: Callable[[Array], Hashable] = attrgetter("dtype", "device", "requires_grad")

    def unfit(self, array: Array) -> str:
        if array.layout is not self._torch.strided or array.is_nested:
            return "sparse and nested tensors are not dense"
        return "quantized tensors have scales of their own" if array.is_quantized else ""

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
        return _held(value, kind, info, str(dtype))

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        if fill is None:
            return self._torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._torch.full(shape, fill, dtype=like.dtype, device=like.device)

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return self._torch.empty(shape, dtype=like.dtype, device=like.device)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        return self._torch.cat(tuple(parts))

    def stack(self, rows: Sequence[Array]) -> Array:
        return self._torch.stack(tuple(rows))

    def padded(
        self,
        rows: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        left: bool,  # noqa: FBT001
    ) -> Array:
        # Rows and padding in turn, joined at once: to write row by row takes nearly twice as long on a CPU,
        # and one kernel each on an accelerator.
        trailing = rows[0].shape[2:]
        missing = [longest - length for length in lengths]
        padding = self.full((1, sum(missing), *trailing), fill, rows[0]).split(missing, 1)
        pairs = zip(padding, rows, strict=True) if left else zip(rows, padding, strict=True)
        joined = self._torch.cat([part for pair in pairs for part in pair], 1)
        return joined.reshape((len(rows), longest, *trailing))

    def copy(self, array: Array) -> Array:
        if array.is_inference():
            with self._torch.inference_mode():
                return array.clone()
        return array.clone()

    def cut(self, array: Array, sizes: Sequence[int]) -> list[Array]:
        with self.writing(array):
            return [rows.clone() for rows in array.split(sizes)]

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        if len({row.requires_grad for row in rows}) == 1:
            return rows
        return [row if row.requires_grad else row.detach().requires_grad_() for row in rows]

    def widened(self, array: Array, other: Array) -> Array:
        return array.to(self._torch.promote_types(array.dtype, other.dtype))

    def writing(self, array: Array) -> AbstractContextManager[Any]:
        if array.is_inference():
            context: AbstractContextManager[Any] = self._torch.inference_mode()
            return context
        return self._no_context


_MAKERS: dict[str, tuple[str, Callable[[Any], Library]]] = {
    "numpy": ("ndarray", _Numpy),
    "torch": ("Tensor", _Torch),
}
_libraries: dict[str, Library] = {}
LIBRARIES: dict[type, Library] = {}
"""By the type of array, as far as `library_of` has seen any."""


def library_of(value: object) -> Library | None:
    """Return the library that `value` is an array of, None if it is not an array."""
    found = LIBRARIES.get(type(value))
    if found is not None:
        return found
    for module_name, (array_name, make) in _MAKERS.items():
        module = sys.modules.get(module_name)
        array_type = getattr(module, array_name, None)  # a module that is still being imported has none
        if array_type is not None and isinstance(value, array_type):
            library = _libraries.setdefault(module_name, make(module))
            LIBRARIES[type(value)] = library
            return library
    return None


def _is_zero(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and bool(value == 0)
    except (TypeError, ValueError):
        return False


def _held(value: Any, kind: str, info: Any, dtype: str) -> Any:
    """Return `value` if a number of this kind and range can be it, else raise `ValueError`."""
    item = getattr(value, "item", None)
    number = value if item is None else item()
    held = False
    if isinstance(number, complex):
        held = kind == "c"
    elif not isinstance(number, str | bytes) and hasattr(number, "__float__"):
        with suppress(OverflowError):  # an int that no float can be
            size = abs(float(number))
            if kind in "iu":
                held = size.is_integer() and info.min <= int(number) <= info.max
            elif kind == "b":
                held = number == 1
            else:
                held = not math.isfinite(size) or size <= float(info.max)
    if not held:
        raise ValueError(f"{value!r} does not fit into {dtype}")
    return number
