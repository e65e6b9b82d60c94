"""Joining the answers of a call that has run in several batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from batched._collate.libraries import Array, Library, library_of
from batched._collate.nested import Leaf, Shape, rebuild
from batched._collate.pad import padded_shape, real_part
from batched._collate.signature import Features
from batched._core.call import Call, Slice
from batched._core.options import ArrayOptions
from batched.errors import BatchError

_Axes: TypeAlias = "set[tuple[int, int]]"
"""Axes of features: the position of a feature, and an axis of its rows."""


class Outputs(NamedTuple):
    """What the function returned for a batch."""

    shape: Shape
    leaves: list[Leaf]
    libraries: list[Library]
    padded: list[tuple[int, ...]]
    """The shapes that the rows of each feature were padded to."""


class Rows(NamedTuple):
    """Some rows of a call, as the function returned them."""

    outputs: Outputs
    arrays: list[Any]
    """The rows of each leaf: a view, or a list of views if the caller's rows differ in length."""


@dataclass(slots=True)
class _Merged:
    """The results of a call, as far as its batches have run."""

    shape: Shape
    arrays: list[Any]
    """The rows of each leaf."""
    kinds: list[Any]
    """The type of the first rows of each leaf: arrays of a subclass are joined as plain ones."""
    like: list[list[_Axes]]
    """For each leaf and each axis of its rows, the axes of features that were as long in all batches."""


class Merger:
    """Puts the parts of a call into one answer, which is as long as it would be after one batch."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._options = options
        self._left = options.padding_side == "left"

    def place(self, piece: Slice, part: Rows) -> None:
        """Copy the rows of `part` into the results of the call, which the first part makes."""
        call, start, stop = piece
        outputs = part.outputs
        if call.results is None:
            leaves = len(outputs.leaves)
            kinds = [None if isinstance(rows, list) else type(rows) for rows in part.arrays]
            call.results = _Merged(outputs.shape, [None] * leaves, kinds, [[] for _ in range(leaves)])
        merged: _Merged = call.results
        if merged.shape != outputs.shape:
            raise BatchError(
                f"{self._name} returned differently structured outputs for the batches of one call"
            )
        for index, rows in enumerate(part.arrays):
            whole = merged.arrays[index]
            if whole is not None and isinstance(whole, list) is not isinstance(rows, list):
                raise BatchError(
                    f"{self._name}: judging by its shape, {outputs.leaves[index]} was padded in one batch "
                    f"but not in another; say which outputs are padded: unpad_outputs={{output: feature}}"
                )
            library = outputs.libraries[index]
            if isinstance(rows, list):
                whole = whole or [None] * call.size
                whole[start:stop] = map(library.copy, rows)
            else:
                kept = rows if whole is None else whole
                with library_of(kept).writing(kept):  # type: ignore[union-attr]  # never None for an array
                    whole, rows = self._alike(merged, index, rows, call, outputs)  # noqa: PLW2901
                    whole[start : start + len(rows)] = rows
            merged.arrays[index] = whole
        if call.missing == stop - start:  # this is the last part
            arrays = map(_in_class, outputs.libraries, merged.arrays, merged.kinds)
            call.results = rebuild(merged.shape, arrays)

    def _alike(
        self, merged: _Merged, index: int, rows: Array, call: Call, outputs: Outputs
    ) -> tuple[Array, Array]:
        """Return the array of all rows of a leaf, and `rows`, in one shape and dtype.

        An axis that was padded to several lengths gets the length that it would have in a batch of this call
        alone.
        """
        leaf, library, whole = outputs.leaves[index], outputs.libraries[index], merged.arrays[index]
        like = _axes_as_long(rows, outputs.padded)
        if whole is None:
            merged.like[index] = like
            return library.full((call.size, *rows.shape[1:]), None, rows), rows
        if library_of(whole) is not library:
            raise self._of_two_kinds(leaf, whole, rows)
        if len(whole.shape) != len(rows.shape):
            raise self._not_merged(leaf, whole, rows)
        merged.like[index] = like = [old & new for old, new in zip(merged.like[index], like, strict=True)]
        for axis, axes in enumerate(like, 1):
            if whole.shape[axis] != rows.shape[axis]:
                if not axes:
                    raise self._not_merged(leaf, whole, rows)
                size = max(self._padded_alone(call.inputs, *each) for each in axes)
                whole = library.copy(self._resized(library, whole, axis, size))
                rows = self._resized(library, rows, axis, size)
        if whole.dtype != rows.dtype:
            try:
                whole = library.widened(whole, rows)
            except TypeError as error:  # numbers and dates, say
                raise self._of_two_kinds(leaf, whole, rows) from error
        return whole, rows

    def _of_two_kinds(self, leaf: Leaf, whole: Array, rows: Array) -> BatchError:
        one, other = (f"{type(each).__qualname__} of {each.dtype}" for each in (whole, rows))
        return BatchError(
            f"{self._name}: {leaf} is a {one} from one batch and a {other} from another, which cannot "
            f"be joined; return one kind for all, or pass at most batch_size={self._options.batch_size} rows"
        )

    def _not_merged(self, leaf: Leaf, whole: Array, rows: Array) -> BatchError:
        return BatchError(
            f"{self._name}: {leaf} has rows of shape {tuple(whole.shape[1:])} from one batch and of "
            f"{tuple(rows.shape[1:])} from another, which cannot be joined because they differ in more than "
            f"padding; return rows of one shape, or pass at most batch_size={self._options.batch_size} rows"
        )

    def _padded_alone(self, features: Features, index: int, axis: int) -> int:
        """Return the length of an axis of a feature in a batch of this call alone."""
        block = features.blocks[index]
        if not isinstance(block, list):
            block = block[:1]
        steps = self._options.steps_of(features.signature.keys[index])
        return padded_shape(block, steps)[axis]

    def _resized(self, library: Library, rows: Array, axis: int, size: int) -> Array:
        """Return `rows` with an axis of this size: some padding is cut off, or zeros are added."""
        before = (slice(None),) * axis
        length = rows.shape[axis]
        if length >= size:
            cut: Array = rows[(*before, real_part(size, length, self._left))]
            return cut
        whole = library.full((*rows.shape[:axis], size, *rows.shape[axis + 1 :]), None, rows)
        whole[(*before, real_part(length, size, self._left))] = rows
        return whole


def _in_class(library: Library, array: Any, kind: Any) -> Any:
    """Return an array in the class of its parts, which it would have after one batch."""
    return array if kind is None or type(array) is kind else library.in_class(array, kind)


def _axes_as_long(rows: Array, padded: list[tuple[int, ...]]) -> list[_Axes]:
    """Return for each axis of the rows of an output the axes of features that are as long."""
    sizes = {(index, axis): size for index, shape in enumerate(padded) for axis, size in enumerate(shape)}
    return [{each for each, size in sizes.items() if size == length} for length in rows.shape[1:]]
