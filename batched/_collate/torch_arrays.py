"""What batching needs of torch."""

from __future__ import annotations

from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from batched._collate.library import checked_fill, is_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    from batched._collate.library import Array

__all__ = ["TorchArrays"]


class TorchArrays:
    """torch as a `Library`."""

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
        if is_zero(value):
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
        return checked_fill(value, kind, info, str(dtype))

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
        # Rows and padding in turn, joined at once: writing row by row takes nearly twice as long on a CPU,
        # and one kernel for each row on an accelerator.
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
