"""Cutting the outputs of a batch into the rows of its callers, without what padding has added to them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from batched._collate.libraries import Library, library_of
from batched._collate.merge import Outputs, Rows
from batched._collate.nested import Leaf, flatten, rebuild
from batched._collate.pad import real_part
from batched._collate.signature import listed
from batched._core.batch import Batch
from batched._core.call import Slice
from batched._core.options import ArrayOptions
from batched.errors import BatchError, ResultTypeError


class Splitter:
    """Checks that the outputs are one row per row of the batch, and cuts them."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._unpad = options.unpad_outputs
        self._left = options.padding_side == "left"

    def split(self, outputs: Any, batch: Batch, rows: int) -> list[Any]:
        """Return the answer to each slice of a batch of so many `rows`: a copy, a `BatchError`, or a `Rows`.

        It is a `Rows` if the slice is not its whole call.
        """
        leaves: list[Leaf] = []
        try:
            shape = flatten(outputs, leaves)
        except TypeError as error:
            raise ResultTypeError(f"{self._name}: {error}") from None
        if not leaves:
            raise ResultTypeError(f"{self._name} must return at least one array, not {outputs!r}")
        libraries = [self._library(leaf, rows, batch) for leaf in leaves]
        padded = self._padded(outputs, leaves, batch)
        sizes = [call.size for call in batch.calls]
        if shape is True and not padded and sum(sizes) == rows == batch.size:
            return libraries[0].cut(outputs, sizes)  # whole calls: torch cuts all at once, in less time
        returned = Outputs(shape, leaves, libraries, batch.shapes)
        answers: list[Any] = []
        at = 0
        for piece in batch.slices:
            _, start, stop = piece
            places = range(at, at + (stop - start if rows else 0))
            answers.append(self._answer(piece, places, returned, padded))
            at = places.stop
        return answers

    def _answer(self, piece: Slice, places: range, returned: Outputs, padded: dict[int, list[int]]) -> Any:
        """Return the rows of all leaves at `places`, or the error if they cannot be cut."""
        call, first, last = piece
        try:
            arrays = [
                self._unpadded(leaf, padded[index], piece, places, returned)
                if index in padded
                else leaf.array[places.start : places.stop]
                for index, leaf in enumerate(returned.leaves)
            ]
        except BatchError as error:
            return error
        if last - first != call.size:
            return Rows(returned, arrays)
        return rebuild(returned.shape, map(_copied, returned.libraries, arrays))

    def _library(self, leaf: Leaf, rows: int, batch: Batch) -> Library:
        """Return the library of a leaf; `BatchError` if the leaf cannot be cut into so many rows."""
        library: Library = library_of(leaf.array)  # type: ignore[assignment]  # never None for a leaf
        if why := library.unfit(leaf.array):  # first: a nested tensor has no shape
            raise BatchError(f"{self._name}: {leaf} cannot be cut into rows: {why}")
        shape = tuple(leaf.array.shape)
        if not shape or shape[0] != rows:
            batch.returned = shape[0] if shape else None
            raise BatchError(
                f"{self._name} must return one row for each row of the batch: {leaf} has shape {shape}, "
                f"but the batch has {rows} rows"
            )
        return library

    def _padded(self, outputs: Any, leaves: list[Leaf], batch: Batch) -> dict[int, list[int]]:
        """Return the features that each padded leaf, by its position, is padded as."""
        if not self._unpad:
            return {}
        if self._unpad is True:
            found = {index: _features_as_long(leaf, batch) for index, leaf in enumerate(leaves)}
            return {index: features for index, features in found.items() if features}
        self._check_names(self._unpad, outputs)
        names = [leaf.path[0] if leaf.path else 0 for leaf in leaves]
        return {
            index: [self._feature_of(leaves[index], self._unpad[name], batch)]
            for index, name in enumerate(names)
            if name in self._unpad
        }

    def _check_names(self, padded: Iterable[Hashable], outputs: Any) -> None:
        """Raise `BatchError` if one of the `padded` outputs is not there."""
        names = outputs if isinstance(outputs, Mapping) else range(1)
        if isinstance(outputs, list | tuple):
            names = range(len(outputs))
        for name in padded:
            if name not in names:
                raise BatchError(
                    f"{self._name}: unpad_outputs names the output {name!r}, but the function returned "
                    f"{listed(map(repr, names))}"
                )

    def _feature_of(self, leaf: Leaf, key: Hashable, batch: Batch) -> int:
        """Return the position of the feature `key`; `BatchError` if `leaf` is not as long as that."""
        keys = batch.slices[0][0].inputs.signature.keys
        says = f"{self._name}: unpad_outputs says that {leaf} is padded like the feature {key!r}"
        if key not in keys:
            raise BatchError(f"{says}, but the features are {listed(map(repr, keys))}")
        feature: int = keys.index(key)
        shape = tuple(leaf.array.shape)
        padded: tuple[int, ...] = batch.shapes[feature]
        if not padded or shape[1:2] != tuple(padded[:1]):
            raise BatchError(f"{says}, but its shape is {shape} and the feature's is {(shape[0], *padded)}")
        return feature

    def _unpadded(
        self, leaf: Leaf, features: list[int], piece: Slice, places: range, returned: Outputs
    ) -> Any:
        """Return the rows at `places` without the padding of `features`: a list, if they differ in shape."""
        call, first, last = piece
        array = leaf.array
        length = self._length(leaf, features, piece)
        block = call.inputs.blocks[features[0]]
        if not isinstance(block, list):
            real = real_part(length, array.shape[1], self._left)
            return array[places.start : places.stop, real]
        padded = returned.padded[features[0]]
        return [
            array[(at, *self._real_parts(array, row.shape, padded))]
            for at, row in zip(places, block[first:last], strict=True)
        ]

    def _length(self, leaf: Leaf, features: list[int], piece: Slice) -> Any:
        """Return the length or lengths of the rows of `piece`; `BatchError` if features differ in them."""
        call, first, last = piece
        lengths, *others = (
            length if isinstance(length, int) else length[first:last]
            for length in (call.inputs.lengths[feature] for feature in features)
        )
        if any(other != lengths for other in others):
            keys = call.inputs.signature.keys
            raise BatchError(
                f"{self._name}: {leaf} is as long as several features with different row lengths, "
                f"{listed(repr(keys[feature]) for feature in features)}; say which one it is padded like: "
                f"unpad_outputs={{output: feature}}"
            )
        return lengths

    def _real_parts(self, array: Any, own: tuple[int, ...], padded: tuple[int, ...]) -> list[slice]:
        """Return where in a row of `array` a row of shape `own` is, on the axes that were padded like it."""
        return [
            real_part(length, full, self._left) if size == full else slice(None)
            for size, length, full in zip(array.shape[1:], own, padded, strict=False)
        ]


def _features_as_long(leaf: Leaf, batch: Batch) -> list[int]:
    """Return the features with a second axis as long as that of `leaf`."""
    length = leaf.array.shape[1:2]
    return [index for index, shape in enumerate(batch.shapes) if length and shape[:1] == length]


def _copied(library: Library, rows: Any) -> Any:
    return [library.copy(row) for row in rows] if isinstance(rows, list) else library.copy(rows)
