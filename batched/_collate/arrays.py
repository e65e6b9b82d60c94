"""Features in, arrays out: how callers' rows become one padded block per feature, and outputs their rows.

A call's block is copied into the batch's in one operation; no row is touched on its own, unless a caller
passes rows of several lengths as a list.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from batched._collate.libraries import library_of
from batched._collate.nested import flatten, rebuild
from batched._collate.signature import Features, Layout, Layouts, listed
from batched._core.call import Call
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from batched._collate.libraries import Array, Library
    from batched._collate.nested import Leaf, Shape
    from batched._collate.signature import Feature
    from batched._core.call import Batch, Slice, Wrapper
    from batched._core.options import ArrayOptions

__all__ = ["FeatureCollator"]


class _Cut(NamedTuple):
    """How the padding of an output comes off."""

    features: list[int]
    """Those that it is as long as."""
    padded: tuple[int, ...]
    """The shape that their rows were padded to."""


_Axes: TypeAlias = "set[tuple[int, int]]"
"""Axes of features: which feature, and which axis of its rows."""


class _Outputs(NamedTuple):
    """What the function returned for a batch."""

    shape: Shape
    leaves: list[Leaf]
    libraries: list[Library]
    padded: list[tuple[int, ...]]
    """The shapes that the rows of each feature were padded to."""


class _Part(NamedTuple):
    """Some rows of a call, as the function returned them."""

    outputs: _Outputs
    arrays: list[Any]
    """The caller's rows of each leaf: a view, or a list of views if rows differ in length."""


class _Joined:
    """The results of a call whose rows come from several batches, as far as they are there."""

    __slots__ = ("arrays", "like", "shape")

    def __init__(self, shape: Shape, leaves: int) -> None:
        self.shape = shape
        self.arrays: list[Any] = [None] * leaves
        # By leaf, for each axis of its rows: the axes of features that it has been as long as in all batches.
        self.like: list[list[_Axes]] = [[] for _ in range(leaves)]


class FeatureCollator:
    """Pads and joins features to one array each; cuts every output into the callers' rows."""

    chunk_size: int | None = 1

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._options = options
        self._left = options.padding_side == "left"
        self._layouts = Layouts(name, options)

    # -- arguments to calls -----------------------------------------------------------------------------

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one mapping of features, or for features passed by name."""
        features = args[0] if len(args) == 1 and not named else self._argument(function, args, named)
        if type(features) is not dict and not isinstance(features, Mapping):
            raise TypeError(
                f"{self._name} takes a mapping of features, such as a dict of arrays, "
                f"not {type(features).__qualname__}"
            )
        if self._options.spread_kwargs:
            for key in features:
                if not isinstance(key, str):
                    raise TypeError(
                        f"{self._name}: spread_kwargs=True needs keys that are strings, got {key!r}"
                    )
            function = _Spread(function)
        return self._call(function, features, now)

    def one(
        self,
        function: Wrapper,  # noqa: ARG002  for the protocol
        args: tuple[Any, ...],  # noqa: ARG002
        named: dict[str, Any],  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> Call:
        """Raise: what has rows does not stream."""
        raise TypeError(f"{self._name} takes arrays, which do not stream")

    def _argument(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the features, however they were passed."""
        if args or not named:
            raise TypeError(
                f"{self._name} takes one mapping of features, or features by name, "
                f"got {len(args)} positional arguments and {len(named)} by name"
            )
        if len(named) == 1 and not self._options.spread_kwargs:
            name, value = next(iter(named.items()))
            if isinstance(value, Mapping) and name == next(
                iter(inspect.signature(function.__wrapped__).parameters), None
            ):
                return value
        return named

    def _call(self, function: Wrapper, features: Mapping[Any, Any], now: float) -> Call:
        layout = self._layouts.recent
        if layout is None or type(features) is not dict or (alike := layout.blocks(features)) is None:
            layout, blocks, lengths, rows = self._layouts.describe(features)
            self._layouts.recent = layout
        else:
            blocks, lengths, rows = alike
        # A call of no rows can share with nobody: what the function makes of it is its own affair.
        inputs = Features(layout, blocks, lengths, rows)
        call = Call().begin(function, inputs, rows or 1, False, now)  # noqa: FBT003
        call.lengths = layout.length(lengths)
        call.key = layout if rows else Layout(layout.features, layout.fills)
        return call

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the features of `call`, as the one argument."""
        return [((dict(zip(call.inputs.layout.keys, call.inputs.blocks, strict=True)),), {})]

    def pick(self, inputs: Any, places: list[int]) -> Any:  # noqa: ARG002  for the protocol
        """Return the inputs: a call of features is never divided."""
        return inputs

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call for one mapping of features."""
        return self.read(function, (items[0],), {}, now)

    def own(self, call: Call) -> None:
        """Copy the blocks: their caller may use its arrays again before the call has run."""
        features = call.inputs
        features.blocks = [
            [feature.library.copy(row) for row in block]
            if isinstance(block, list)
            else feature.library.copy(block)
            for feature, block in zip(features.layout.features, features.blocks, strict=True)
        ]

    # -- calls to the function's argument ---------------------------------------------------------------

    def collate(self, batch: Batch) -> dict[Hashable, Array]:
        """Return a new array for each feature, padded where rows differ."""
        slices = batch.slices
        layout = slices[0][0].inputs.layout
        blocks = zip(
            *[
                call.inputs.blocks
                if stop - start == call.size
                else [block[start:stop] for block in call.inputs.blocks]
                for call, start, stop in slices
            ],
            strict=True,
        )
        lengths = zip(*[call.inputs.lengths for call, _, _ in slices], strict=True)
        collated: dict[Hashable, Array] = {}
        least = batch.least or [()] * len(layout.features)
        for feature, fill, theirs, long, shape in zip(
            layout.features, layout.fills, blocks, lengths, least, strict=True
        ):
            collated[feature.key] = self._joined(feature, fill, theirs, long, shape, batch)
        batch.shapes = [array.shape[1:] for array in collated.values()]
        return collated

    def _joined(  # noqa: PLR0913, PLR0917
        self,
        feature: Feature,
        fill: Any,
        blocks: Sequence[Any],
        lengths: Sequence[Any],
        least: tuple[int, ...],
        batch: Batch,
    ) -> Array:
        """Return `blocks` as one new array, whose rows are of the shape `least` or larger."""
        library = feature.library
        trailing = feature.trailing
        if trailing is not None:
            multiple = self._options.multiple_of(feature.key)
            if None in trailing:
                return self._padded_rows(library, blocks, multiple, fill, least, batch)
            if list in map(type, blocks):
                blocks = [part for block in blocks for part in _parts(block)]
                lengths = [block.shape[1] for block in blocks]
            longest = max((_rounded(max(lengths), multiple), *least[:1]))
            if lengths.count(longest) != len(lengths):
                rows = batch.size if len(blocks[0]) else 0
                array, real = self._padded(library, blocks, lengths, longest, fill, rows)
                width = prod(trailing)  # type: ignore[arg-type]  # there is no None
                batch.real += real * width
                batch.padded += rows * longest * width
                return array
        array = library.concatenate(blocks)  # one alone too: it would else keep its subclass and mode
        elements = prod(array.shape)
        batch.real += elements
        batch.padded += elements
        return array

    def _padded(  # noqa: PLR0913, PLR0917
        self,
        library: Library,
        blocks: Sequence[Array],
        lengths: Sequence[int],
        longest: int,
        fill: Any,
        rows: int,
    ) -> tuple[Array, int]:
        """Join blocks, padded to `longest`; return how long their rows are in all, too."""
        left = self._left
        if len(blocks) == rows:
            return library.padded(blocks, lengths, longest, fill, left), sum(lengths)
        array = library.full((rows, longest, *blocks[0].shape[2:]), fill, blocks[0])
        at = real = 0
        for block, length in zip(blocks, lengths, strict=True):
            to = at + len(block)
            if left:
                array[at:to, longest - length :] = block
            else:
                array[at:to, :length] = block
            real += (to - at) * length
            at = to
        return array, real

    def _padded_rows(  # noqa: PLR0913, PLR0917
        self,
        library: Library,
        blocks: Sequence[Any],
        multiple: int,
        fill: Any,
        least: tuple[int, ...],
        batch: Batch,
    ) -> Array:
        """Join lists of rows that differ in more than their length: pad along every axis that differs."""
        rows = [row for block in blocks for row in block]
        shape = _padded_shape(rows, multiple)
        if least:
            shape = [*map(max, shape, least)]
        array = library.full((len(rows), *shape), fill, rows[0])
        for at, row in enumerate(rows):
            array[(at, *map(self._place_of, row.shape, shape))] = row
            batch.real += prod(row.shape)
        batch.padded += prod(array.shape)
        return array

    def _place_of(self, own: int, padded: int) -> slice:
        """Return where on a padded axis the row itself is."""
        return slice(padded - own, padded) if self._left else slice(own)

    # -- the function's outputs to results --------------------------------------------------------------

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return each slice's rows: a copy nested as `outputs` is, or a part that `place` joins to others."""
        leaves: list[Leaf] = []
        try:
            shape = flatten(outputs, leaves)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        if not leaves:
            raise TypeError(f"{self._name} returned no array, but {outputs!r}")
        slices = batch.slices
        rows = batch.size if slices[0][0].inputs.rows else 0
        libraries = [self._library(leaf, rows) for leaf in leaves]
        cuts = self._cuts(outputs, leaves, batch)
        sizes = [call.size for call, _, _ in slices]
        if shape is True and not cuts and sum(sizes) == rows:
            return libraries[0].cut(outputs, sizes)  # whole calls, and nothing but rows: the way of most
        returned = _Outputs(shape, leaves, libraries, batch.shapes)
        parts: list[Any] = []
        at = 0
        for piece in slices:
            _, start, stop = piece
            to = at + (stop - start if rows else 0)
            parts.append(self._part(piece, at, to, returned, cuts))
            at = to
        return parts

    def _part(self, piece: Slice, at: int, to: int, returned: _Outputs, cuts: dict[int, _Cut]) -> Any:
        """Return the rows from `at` to `to` of all leaves, or why there can be none."""
        call, start, stop = piece
        try:
            arrays = [
                self._cut(leaf, cuts[index], at, to, piece) if index in cuts else leaf.array[at:to]
                for index, leaf in enumerate(returned.leaves)
            ]
        except BatchError as error:
            return error
        if stop - start != call.size:
            return _Part(returned, arrays)
        return rebuild(returned.shape, map(_owned, returned.libraries, arrays))

    def _library(self, leaf: Leaf, rows: int) -> Library:
        library: Library = library_of(leaf.array)  # type: ignore[assignment]  # else it were no leaf
        shape = tuple(leaf.array.shape)
        if not shape or shape[0] != rows:
            raise BatchError(
                f"{self._name} must return one row per row of the batch: {leaf} has shape {shape}, "
                f"and the batch has {rows} rows"
            )
        if why := library.unfit(leaf.array):
            raise BatchError(f"{self._name}: {leaf} cannot be cut into rows: {why}")
        return library

    # -- padding, cut off again -------------------------------------------------------------------------

    def _cuts(self, outputs: Any, leaves: list[Leaf], batch: Batch) -> dict[int, _Cut]:
        """Return which leaves are to be cut, and for each the features whose padding it has."""
        unpad = self._options.unpad_outputs
        if not unpad:
            return {}
        if unpad is not True:
            there = outputs if isinstance(outputs, Mapping) else range(max(len(leaves), 1))
            if isinstance(outputs, list | tuple):
                there = range(len(outputs))
            for name in unpad:
                if name not in there:
                    raise BatchError(
                        f"{self._name}: unpad_outputs names the output {name!r}, but the function returned "
                        f"{listed(map(repr, there))}"
                    )
        cuts = {}
        for index, leaf in enumerate(leaves):
            name = leaf.path[0] if leaf.path else 0
            if unpad is True or name in unpad:
                features = self._padded_like(leaf, None if unpad is True else unpad[name], batch)
                if features:
                    cuts[index] = _Cut(features, batch.shapes[features[0]])
                elif unpad is not True:
                    raise BatchError(
                        f"{self._name}: unpad_outputs names {leaf} of shape {tuple(leaf.array.shape)}, whose "
                        f"second axis is as long as none of the padded features"
                    )
        return cuts

    def _padded_like(self, leaf: Leaf, feature: Hashable, batch: Batch) -> list[int]:
        """Return the features that are as long as `leaf`, or whether `feature` is."""
        shape = leaf.array.shape
        if len(shape) < 2:  # noqa: PLR2004
            return []
        keys = batch.slices[0][0].inputs.layout.keys
        if feature is not None and feature not in keys:
            raise BatchError(
                f"{self._name}: unpad_outputs cuts {leaf} as {feature!r} was padded, but the features "
                f"are {listed(map(repr, keys))}"
            )
        return [
            index
            for index, padded in enumerate(batch.shapes)
            if padded and padded[0] == shape[1] and (feature is None or keys[index] == feature)
        ]

    def _cut(self, leaf: Leaf, cut: _Cut, at: int, to: int, piece: Slice) -> Any:
        """Return a caller's rows without their padding: a list of rows if the caller's differ in shape."""
        call, start, stop = piece
        features = cut.features
        lengths = call.inputs.lengths[features[0]]
        own = lengths if isinstance(lengths, int) else lengths[start:stop]
        for other in features[1:]:
            others = call.inputs.lengths[other]
            if own != (others if isinstance(others, int) else others[start:stop]):
                raise BatchError(
                    f"{self._name}: {leaf} is as long as features whose rows differ in length, "
                    f"{listed(repr(call.inputs.layout.keys[index]) for index in features)}; "
                    f"say whose padding it has: unpad_outputs={{output: feature}}"
                )
        array = leaf.array
        full = array.shape[1]
        if None in (call.inputs.layout.features[features[0]].trailing or ()):
            shapes = [row.shape for row in call.inputs.blocks[features[0]][start:stop]]
            return [
                array[(at + row, *self._within(array, shapes[row], cut.padded))] for row in range(to - at)
            ]
        if isinstance(own, int):
            return array[at:to, self._place_of(own, full)]
        return [
            array[row, self._place_of(length, full)] for row, length in zip(range(at, to), own, strict=True)
        ]

    def _within(self, array: Array, own: tuple[int, ...], padded: tuple[int, ...]) -> list[slice]:
        """Return where in a row of `array` a row of shape `own` is, on the axes that were padded like it."""
        return [
            self._place_of(length, full) if size == full else slice(None)
            for size, length, full in zip(array.shape[1:], own, padded, strict=False)
        ]

    # -- rows from several batches ----------------------------------------------------------------------

    def place(self, piece: Slice, part: _Part) -> None:
        """Copy some of a call's rows into its results, which are made with the first."""
        call, start, stop = piece
        outputs = part.outputs
        if call.results is None:
            call.results = _Joined(outputs.shape, len(outputs.leaves))
        joined: _Joined = call.results
        if joined.shape != outputs.shape:
            raise BatchError(
                f"{self._name} returned outputs of different structure for the batches of one call"
            )
        for index, rows in enumerate(part.arrays):
            whole = joined.arrays[index]
            if whole is not None and isinstance(whole, list) is not isinstance(rows, list):
                raise BatchError(
                    f"{self._name}: by its shape {outputs.leaves[index]} was padded in one batch and not in "
                    f"another; say which outputs are: unpad_outputs=[names or positions]"
                )
            library = outputs.libraries[index]
            if isinstance(rows, list):
                whole = whole or [None] * call.size
                whole[start:stop] = map(library.copy, rows)
            else:
                with library.writing(rows):
                    whole, rows = self._alike(joined, index, rows, call, outputs)  # noqa: PLW2901
                    whole[start : start + len(rows)] = rows
            joined.arrays[index] = whole
        if call.missing == stop - start:  # this is the last part
            call.results = rebuild(joined.shape, iter(joined.arrays))

    def _alike(
        self, joined: _Joined, index: int, rows: Array, call: Call, outputs: _Outputs
    ) -> tuple[Array, Array]:
        """Return the array of all rows of an output, and some of them, in one shape.

        Axes that were padded to several lengths get the length that they would have had in one batch, alone.
        """
        leaf, library, whole = outputs.leaves[index], outputs.libraries[index], joined.arrays[index]
        like = _like(rows, outputs.padded)
        if whole is None:
            joined.like[index] = like
            return library.empty((call.size, *rows.shape[1:]), rows), rows
        if library_of(whole) is not library or len(whole.shape) != len(rows.shape):
            raise self._not_joined(leaf, whole, rows)
        joined.like[index] = like = [old & new for old, new in zip(joined.like[index], like, strict=True)]
        for axis, axes in enumerate(like, 1):
            if whole.shape[axis] != rows.shape[axis]:
                if not axes:
                    raise self._not_joined(leaf, whole, rows)
                size = max(self._own_length(call.inputs, *each) for each in axes)
                whole = library.copy(self._resized(library, whole, axis, size))
                rows = self._resized(library, rows, axis, size)
        if library.kind(whole) != library.kind(rows):
            whole = library.widened(whole, rows)
        return whole, rows

    def _not_joined(self, leaf: Leaf, whole: Array, rows: Array) -> BatchError:
        return BatchError(
            f"{self._name}: {leaf} has rows of shape {tuple(whole.shape[1:])} from one batch and of "
            f"{tuple(rows.shape[1:])} from another, which cannot be joined, as they differ in more than "
            f"padding; return rows of one shape, or pass at most batch_size={self._options.batch_size} rows"
        )

    def _own_length(self, features: Features, index: int, axis: int) -> int:
        """Return how long an axis would be if the call had run in one batch, alone."""
        block = features.blocks[index]
        if not isinstance(block, list):
            block = block[:1]
        multiple = self._options.multiple_of(features.layout.keys[index])
        return _padded_shape(block, multiple)[axis]

    def _resized(self, library: Library, rows: Array, axis: int, size: int) -> Array:
        """Return `rows` without padding beyond `size`, or with zeros up to it."""
        before = (slice(None),) * axis
        length = rows.shape[axis]
        if length >= size:
            cut: Array = rows[(*before, self._place_of(size, length))]
            return cut
        whole = library.full((*rows.shape[:axis], size, *rows.shape[axis + 1 :]), None, rows)
        whole[(*before, self._place_of(length, size))] = rows
        return whole


def _like(rows: Array, padded: list[tuple[int, ...]]) -> list[_Axes]:
    """Return for each axis of the rows of an output the axes of features that it is as long as."""
    return [
        {
            (index, axis)
            for index, shape in enumerate(padded)
            for axis, size in enumerate(shape)
            if size == length
        }
        for length in rows.shape[1:]
    ]


def _padded_shape(rows: Sequence[Array], multiple: int) -> list[int]:
    """Return the shape that rows are padded to; along axes after the first only where they differ."""
    length, *others = zip(*(row.shape for row in rows), strict=True)
    return [
        _rounded(max(length), multiple),
        *(axis[0] if len(set(axis)) == 1 else _rounded(max(axis), multiple) for axis in others),
    ]


def _rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


class _Spread:
    """A batch function that takes its features as a dict, and passes them by name."""

    __slots__ = ("_function",)

    def __init__(self, function: Wrapper) -> None:
        self._function = function

    def __wrapped__(self, features: dict[str, Array]) -> Any:
        return self._function.__wrapped__(**features)


def _parts(block: Any) -> list[Array]:
    """Return a block, or each row of a list as a block."""
    return [row[None] for row in block] if isinstance(block, list) else [block]


def _owned(library: Library, rows: Any) -> Any:
    return [library.copy(row) for row in rows] if isinstance(rows, list) else library.copy(rows)
