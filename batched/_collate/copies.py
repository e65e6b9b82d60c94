"""Batches that are filled up with copies of one of their items: the function sees one of a few sizes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from batched._collate.signature import Features
from batched._core.batch import Batch
from batched._core.call import Call, Slice, Wrapper
from batched._core.collator import Divisible, InFront
from batched.errors import BatchError


class CopyingCollator(InFront):
    """Another collator, which is given the items of a batch and the copies that the batch is to have.

    No copy is an item: its result, or its error, is dropped before anything looks at it.
    """

    def __init__(self, inner: Divisible, name: str, sizes: tuple[int, ...]) -> None:
        super().__init__(inner)
        self._name = name
        self._sizes = sizes

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        """Return the call that `make` returns; `ValueError` if it has no rows, so none to copy."""
        call = make(function, *args)
        if type(call.inputs) is Features and not call.inputs.rows:
            raise ValueError(
                f"{self._name}: a call of no rows cannot be filled up to one of batch_sizes={self._sizes}: "
                f"there is no row to copy"
            )
        return call

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument, with the copies behind the items."""
        if not hasattr(batch, "copies"):
            return self.inner.collate(batch)
        copies, place = batch.copies
        size = batch.size + copies
        if place is None:
            raise BatchError(
                f"{self._name}: a batch of {batch.size} cannot be filled up to {size}, one of batch_sizes="
                f"{self._sizes}: one run would use up each of its items (an iterator, an open file), so none "
                f"of them has a copy; add 1 to batch_sizes"
            )
        call, at = batch.slices[place[0]][0], place[1]
        piece = call, at, at + 1
        filled = Batch([*batch.slices, *[piece] * copies], size)
        filled.least_shapes = batch.least_shapes
        found = self.inner.collate(filled)
        batch.has_lists = any(call.many for call in batch.calls)
        batch.shapes = filled.shapes
        if filled.padded:  # of arrays: padding is what is between the items; copies are counted apart
            batch.real += filled.real - copies * _elements(piece)
            batch.padded += filled.padded * batch.size // size
        return found

    def split(self, outputs: Any, batch: Batch) -> Any:
        """Return one part per slice, and drop what belongs to copies."""
        if not hasattr(batch, "copies"):
            return self.inner.split(outputs, batch)
        return self.inner.split_first(outputs, batch, batch.size + batch.copies[0])


def _elements(piece: Slice) -> int:
    """Return how many elements one row of arrays has, of all features."""
    call, at, _ = piece
    # Not the shape of a row of an array: an object, or a text, has none.
    return sum(
        prod(block[at].shape if isinstance(block, list) else block.shape[1:]) for block in call.inputs.blocks
    )
