"""Cutting the outputs of a batch into the rows of its callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batched._collate.libraries import library_of
from batched._collate.merge import Outputs, Part
from batched._collate.nested import flatten, rebuild
from batched._collate.unpad import Unpadder
from batched.errors import BatchError

if TYPE_CHECKING:
    from batched._collate.libraries import Library
    from batched._collate.nested import Leaf
    from batched._collate.unpad import Padding
    from batched._core.batch import Batch
    from batched._core.call import Slice
    from batched._core.options import ArrayOptions

__all__ = ["Splitter"]


class Splitter:
    """Checks that the outputs are one row per row of the batch, and cuts them."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._unpadder = Unpadder(name, options)

    def split(self, outputs: Any, batch: Batch, rows: int) -> list[Any]:
        """Return the answer to each slice of a batch of so many `rows`.

        That is a copy, nested as `outputs` are; a `Part` if the slice is not its whole call; or a
        `BatchError`.
        """
        leaves: list[Leaf] = []
        try:
            shape = flatten(outputs, leaves)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        if not leaves:
            raise TypeError(f"{self._name} returned no array, but {outputs!r}")
        libraries = [self._library(leaf, rows) for leaf in leaves]
        paddings = self._unpadder.paddings(outputs, leaves, batch)
        sizes = [call.size for call in batch.calls]
        if shape is True and not paddings and sum(sizes) == rows:
            return libraries[0].cut(outputs, sizes)  # whole calls: torch cuts all at once, in less time
        returned = Outputs(shape, leaves, libraries, batch.shapes)
        answers: list[Any] = []
        at = 0
        for piece in batch.slices:
            _, start, stop = piece
            to = at + (stop - start if rows else 0)
            answers.append(self._answer(piece, at, to, returned, paddings))
            at = to
        return answers

    def _answer(
        self, piece: Slice, start: int, stop: int, returned: Outputs, paddings: dict[int, Padding]
    ) -> Any:
        """Return the rows from `start` to `stop` of all leaves, or the error if they cannot be cut."""
        call, first, last = piece
        try:
            arrays = [
                self._unpadder.cut(leaf, paddings[index], start, stop, piece)
                if index in paddings
                else leaf.array[start:stop]
                for index, leaf in enumerate(returned.leaves)
            ]
        except BatchError as error:
            return error
        if last - first != call.size:
            return Part(returned, arrays)
        return rebuild(returned.shape, map(_copied, returned.libraries, arrays))

    def _library(self, leaf: Leaf, rows: int) -> Library:
        """Return the library of a leaf; `BatchError` if the leaf cannot be cut into so many rows."""
        library: Library = library_of(leaf.array)  # type: ignore[assignment]  # never None for a leaf
        shape = tuple(leaf.array.shape)
        if not shape or shape[0] != rows:
            raise BatchError(
                f"{self._name} must return one row per row of the batch: {leaf} has shape {shape}, "
                f"and the batch has {rows} rows"
            )
        if why := library.unfit(leaf.array):
            raise BatchError(f"{self._name}: {leaf} cannot be cut into rows: {why}")
        return library


def _copied(library: Library, rows: Any) -> Any:
    return [library.copy(row) for row in rows] if isinstance(rows, list) else library.copy(rows)
