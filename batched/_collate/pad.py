"""Joining the rows of a batch to one array for each feature, padded where rows differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

from batched._collate.libraries import Array, Library
from batched._collate.signature import Feature, Features
from batched._core.options import ArrayOptions


class Padder:
    """Joins blocks of rows: a block is an array of rows, or a list of rows that differ in shape."""

    def __init__(self, options: ArrayOptions) -> None:
        self._left = options.padding_side == "left"
        self._steps_of = options.steps_of

    def join(  # noqa: PLR0913, PLR0917
        self,
        feature: Feature,
        fill: Any,
        blocks: Sequence[Any],
        lengths: Sequence[Any],
        least: tuple[int, ...],
        rows: int,
    ) -> tuple[Array, int]:
        """Return the `rows` of all `blocks` as one new array, and how many of its elements are no padding.

        Its rows have the shape `least` or a larger one. The way of joining depends on what differs:

        - no row needs padding: the blocks are concatenated;
        - only the lengths differ, and each block is one row: the library pads all rows at once;
        - else they are written block by block.
        """
        library, trailing = feature.library, feature.trailing
        if trailing is not None:
            steps = self._steps_of(feature.key)
            if list in map(type, blocks):
                blocks = [part for block in blocks for part in _blocks_of(block)]
                lengths = [block.shape[1] for block in blocks]
            if None in trailing:
                shape = padded_shape([block[0] for block in blocks], steps)
                shape = [*map(max, shape, least)] if least else shape
                return self._written(library, blocks, shape, fill, rows)
            longest = max((rounded(max(lengths), steps), *least[:1]))
            if lengths.count(longest) != len(lengths):
                if len(blocks) == rows:
                    array = library.padded(blocks, lengths, longest, fill, self._left)
                    return array, sum(lengths) * prod(array.shape[2:])
                return self._written(library, blocks, [longest, *blocks[0].shape[2:]], fill, rows)
        # A block that is alone is copied too: it would keep its subclass and its mode otherwise.
        array = library.concatenate(blocks)
        return array, prod(array.shape)

    def _written(
        self, library: Library, blocks: Sequence[Array], shape: Sequence[int], fill: Any, rows: int
    ) -> tuple[Array, int]:
        array = library.full((rows, *shape), fill, blocks[0])
        start = real = 0
        for block in blocks:
            stop = start + len(block)
            places = [
                real_part(own, padded, self._left) for own, padded in zip(block.shape[1:], shape, strict=True)
            ]
            library.write(array, (slice(start, stop), *places), block)
            real += prod(block.shape)
            start = stop
        return array, real


class FixedLengths:
    """Knows the lengths that the rows of each feature may have."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._steps_of = options.steps_of
        self._has_lengths = bool(options.pad_to_lengths)

    def longest(self, inputs: Features) -> int:
        """Return the longest length of the rows of a call, padded; `ValueError` if a row is too long.

        If some features may have some lengths only, it is that of the features that are padded: the others
        need no padding.
        """
        padded = inputs.lengths[:]
        longest = 0
        for index, (key, length) in enumerate(zip(inputs.signature.keys, inputs.lengths, strict=True)):
            steps = self._steps_of(key)
            if steps != 1 and length is not None:
                most = max(length) if isinstance(length, list) else length
                padded[index] = most = self._padded(key, most, steps)
                longest = max(longest, most)
        return (self._has_lengths and longest) or inputs.signature.length(inputs.lengths, padded)

    def _padded(self, key: Hashable, length: int, steps: int | tuple[int, ...]) -> int:
        if not isinstance(steps, int) and length > steps[-1]:
            raise ValueError(
                f"{self._name}: {key!r} has a row of length {length}, but the longest of pad_to_lengths is "
                f"{steps[-1]}"
            )
        return rounded(length, steps)


def real_part(length: int, padded: int, left: bool) -> slice:  # noqa: FBT001
    """Return the part of an axis of size `padded` that is no padding, where a row has this `length`."""
    return slice(padded - length, padded) if left else slice(length)


def padded_shape(rows: Sequence[Array], steps: int | tuple[int, ...]) -> list[int]:
    """Return the shape that rows are padded to; axes after the first are rounded only where they differ."""
    length, *others = zip(*(row.shape for row in rows), strict=True)
    return [
        rounded(max(length), steps),
        *(axis[0] if len(set(axis)) == 1 else rounded(max(axis), steps) for axis in others),
    ]


def rounded(length: int, steps: int | tuple[int, ...]) -> int:
    """Return the next multiple of a number, or the next one of several numbers."""
    if isinstance(steps, int):
        return -(-length // steps) * steps
    return steps[bisect_left(steps, length)] if length <= steps[-1] else length


def _blocks_of(block: Any) -> list[Array]:
    """Return a list of rows as blocks of one row each, and an array as the only block."""
    return [row[None] for row in block] if isinstance(block, list) else [block]
