"""Cutting off the outputs what padding has added to the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from batched._collate.pad import real_part
from batched._collate.signature import listed
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from batched._collate.libraries import Array
    from batched._collate.nested import Leaf
    from batched._core.batch import Batch
    from batched._core.call import Slice
    from batched._core.options import ArrayOptions

__all__ = ["Padding", "Unpadder"]


class Padding(NamedTuple):
    """The padding of an output."""

    features: list[int]
    """The features that have the same padding: one that the option names, or all of that length."""
    shape: tuple[int, ...]
    """The shape that the rows of these features were padded to."""


class Unpadder:
    """Finds the outputs that are padded as `unpad_outputs` says, and cuts a caller's rows out of them."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._unpad = options.unpad_outputs
        self._left = options.padding_side == "left"

    def paddings(self, outputs: Any, leaves: list[Leaf], batch: Batch) -> dict[int, Padding]:
        """Return the padding of each leaf that has one, by the position of the leaf."""
        if not self._unpad:
            return {}
        if self._unpad is True:
            found = ((index, self._features_as_long(leaf, batch)) for index, leaf in enumerate(leaves))
            return {index: Padding(like, batch.shapes[like[0]]) for index, like in found if like}
        self._check_names(self._unpad, outputs)
        paddings = {}
        for index, leaf in enumerate(leaves):
            name = leaf.path[0] if leaf.path else 0
            if name in self._unpad:
                feature = self._feature_of(leaf, self._unpad[name], batch)
                paddings[index] = Padding([feature], batch.shapes[feature])
        return paddings

    def _features_as_long(self, leaf: Leaf, batch: Batch) -> list[int]:
        """Return the features with a second axis as long as that of `leaf`."""
        length = leaf.array.shape[1:2]
        return [index for index, shape in enumerate(batch.shapes) if length and shape[:1] == length]

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
        says = f"{self._name}: unpad_outputs says that {leaf} is padded as the feature {key!r}"
        if key not in keys:
            raise BatchError(f"{says}, but the features are {listed(map(repr, keys))}")
        feature: int = keys.index(key)
        shape = tuple(leaf.array.shape)
        padded: tuple[int, ...] = batch.shapes[feature]
        if not padded or shape[1:2] != tuple(padded[:1]):
            raise BatchError(
                f"{says}, but its shape is {shape}, and that of the feature {(shape[0], *padded)}"
            )
        return feature

    def cut(self, leaf: Leaf, padding: Padding, start: int, stop: int, piece: Slice) -> Any:
        """Return the rows from `start` to `stop`, which answer `piece`, without their padding.

        A list of rows, where the caller's rows differ in shape.
        """
        call, first, last = piece
        inputs = call.inputs
        array = leaf.array
        lengths = self._lengths(leaf, padding, piece)
        feature = padding.features[0]
        if None in (inputs.signature.features[feature].trailing or ()):
            shapes = [row.shape for row in inputs.blocks[feature][first:last]]
            return [
                array[(at, *self._real_parts(array, shape, padding.shape))]
                for at, shape in zip(range(start, stop), shapes, strict=True)
            ]
        full = array.shape[1]
        if isinstance(lengths, int):
            return array[start:stop, real_part(lengths, full, self._left)]
        return [
            array[at, real_part(length, full, self._left)]
            for at, length in zip(range(start, stop), lengths, strict=True)
        ]

    def _lengths(self, leaf: Leaf, padding: Padding, piece: Slice) -> int | list[int]:
        """Return the lengths of the rows of `piece`; `BatchError` if the features differ in them."""
        call, first, last = piece
        lengths, *others = (
            length if isinstance(length, int) else length[first:last]
            for length in (call.inputs.lengths[feature] for feature in padding.features)
        )
        if any(other != lengths for other in others):
            keys = call.inputs.signature.keys
            raise BatchError(
                f"{self._name}: {leaf} is as long as several features, which differ in the lengths of their "
                f"rows, {listed(repr(keys[feature]) for feature in padding.features)}; say which of them it "
                f"is padded as: unpad_outputs={{output: feature}}"
            )
        return lengths

    def _real_parts(self, array: Array, own: tuple[int, ...], padded: tuple[int, ...]) -> list[slice]:
        """Return where in a row of `array` a row of shape `own` is, on the axes that were padded like it."""
        return [
            real_part(length, full, self._left) if size == full else slice(None)
            for size, length, full in zip(array.shape[1:], own, padded, strict=False)
        ]
