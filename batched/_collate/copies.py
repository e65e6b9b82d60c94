"""Batches that are filled up with copies of one of their items: the function sees one of a few sizes."""

from __future__ import annotations

from typing import Any, Protocol

from batched._collate.signature import Features
from batched._core.batch import Batch
from batched._core.call import Call, Slice, Wrapper
from batched._core.collator import Collator
from batched.errors import BatchError


class Inner(Collator, Protocol):
    """A collator that makes the copies of an item as if it had been passed several times."""

    items: Any
    pick: Any

    def split_first(self, outputs: Any, batch: Batch, given: int) -> list[Any]:
        """Return one part per slice, where the function was given more items than those of `batch`, last."""
        ...

    def elements(self, piece: Slice) -> int:
        """Return how many elements one item has, as `Batch.real` counts them."""
        ...


class CopyingCollator:
    """Another collator, which is given the items of a batch and the copies that the batch is to have.

    No copy is an item: its result, or its error, is dropped before anything looks at it.
    """

    def __init__(self, inner: Inner, name: str, sizes: tuple[int, ...]) -> None:
        self.inner = inner
        self._name = name
        self._sizes = sizes
        self.chunk_size = inner.chunk_size
        self.own, self.items, self.pick = inner.own, inner.items, inner.pick
        self.one = inner.one
        self.place, self.can_repeat = inner.place, inner.can_repeat

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean."""
        return self._checked(self.inner.read(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`."""
        return self._checked(self.inner.chunk(function, items, now))

    def _checked(self, call: Call) -> Call:
        """Return `call`; `ValueError` if it has no rows, of which none could be copied."""
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
            batch.real += filled.real - copies * self.inner.elements(piece)
            batch.padded += filled.padded * batch.size // size
        return found

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice, and drop what belongs to copies."""
        if not hasattr(batch, "copies"):
            return self.inner.split(outputs, batch)
        return self.inner.split_first(outputs, batch, batch.size + batch.copies[0])
