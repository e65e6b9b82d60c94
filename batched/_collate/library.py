"""What batching needs of a library of arrays.

No implementation may look at the values of an array: on an accelerator that would wait for the device.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Array", "Library", "checked_fill", "is_zero"]

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


class Library(Protocol):
    """The operations on the arrays of one library."""

    name: str

    always_fit: type | None
    """The type of arrays that are never `unfit`, though a subclass may be: a call is read in a tenth less."""

    def kind(self, array: Array, /) -> Hashable:
        """Return what two arrays must have in common to be joined: dtype, device, grad or not."""
        ...

    def unfit(self, array: Array) -> str:
        """Return the reason why `array` cannot be cut and joined by rows, "" if it can."""
        ...

    def fill(self, array: Array, value: Any) -> Any:
        """Return `value` as `full` takes it, None for zero. `ValueError` if the dtype cannot hold it."""
        ...

    def full(self, shape: tuple[int, ...], fill: Any, like: Array) -> Array:
        """Return a new array of the dtype and device of `like`; a `fill` of None means zero."""
        ...

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return a new array of the dtype and device of `like`, its values not set."""
        ...

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """Return a new array of the rows of all `parts`."""
        ...

    def stack(self, rows: Sequence[Array]) -> Array:
        """Return a new array of `rows`, which have one shape."""
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
        """Return copies of consecutive parts of `array`, one part for each number of rows in `sizes`."""
        ...

    def common(self, rows: Sequence[Array]) -> Sequence[Array]:
        """Return `rows` in one kind, if only the length of their strings or their grad differs."""
        ...

    def widened(self, array: Array, other: Array) -> Array:
        """Return `array` in a dtype that holds the values of `other` too."""
        ...

    def writing(self, array: Array) -> AbstractContextManager[Any]:
        """Return the context for copying `array` and writing to the copy, as torch's inference mode."""
        ...


def is_zero(value: Any) -> bool:
    """Return whether padding with `value` is padding with zeros."""
    try:
        return not isinstance(value, str | bytes) and bool(value == 0)
    except (TypeError, ValueError):
        return False


def checked_fill(value: Any, kind: str, info: Any, dtype: str) -> Any:
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
        raise ValueError(f"{value!r} does not fit into {dtype}")
    return number
