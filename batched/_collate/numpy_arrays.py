"""What batching needs of numpy."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from batched._collate.library import checked_fill, is_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    from batched._collate.library import Array

__all__ = ["NumpyArrays"]


class NumpyArrays:
    """numpy as a `Library`."""

    name = "numpy"

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self.always_fit = numpy.ndarray
        self._masked = numpy.ma.MaskedArray
        self._no_context = nullcontext()
        self.kind: Callable[[Array], Hashable] = attrgetter("dtype")  # in C: it runs for every feature

    def unfit(self, array: Array) -> str:
        return "masked arrays would lose their mask" if isinstance(array, self._masked) else ""

    def fill(self, array: Array, value: Any) -> Any:
        dtype = array.dtype
        if is_zero(value):
            return None
        if dtype.kind == "O":
            return value
        info = None
        if dtype.kind in "iu":
            info = self._numpy.iinfo(dtype)
        elif dtype.kind in "fc":
            info = self._numpy.finfo(dtype)
        if dtype.kind in "biufc":
            return checked_fill(value, dtype.kind, info, str(dtype))
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
        # Into a buffer: numpy's own choice would turn foreign byte orders into the machine's.
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
        # One index for each row: with two, an assignment takes a third more time.
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
