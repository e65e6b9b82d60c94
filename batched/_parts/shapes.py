"""The shapes that a function is given, where these are few, and an example of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from batched._collate.signature import Features
from batched._core.batch import Batch
from batched._core.call import Call, Slice, Wrapper
from batched._core.options import ArrayOptions, Options
from batched._parts.layers import LayeredCollator


def shapes_of(
    options: Options, name: str
) -> list[int] | list[tuple[int, int]] | dict[Any, list[tuple[int, int]]]:
    """Return the sizes of batches; for arrays, sizes and lengths, of all features or of each.

    Raises `ValueError` if an option leaves them open.
    """
    sizes = _sizes(options, name)
    if not isinstance(options, ArrayOptions):
        return [*sizes]
    lengths: Any = options.pad_to_lengths
    if lengths is None:
        multiple = options.pad_to_multiple_of
        why = "" if multiple is None else f" (pad_to_multiple_of={multiple} has no longest one)"
        raise ValueError(
            f"{name} can be given rows of any length{why}: set pad_to_lengths, as in "
            f"pad_to_lengths=(32, 64, 128); if no feature needs padding, pad_to_lengths={{}}"
        )
    if not lengths:
        return [*sizes]
    if isinstance(lengths, dict):
        return {key: _pairs(sizes, steps, options) for key, steps in lengths.items()}
    return _pairs(sizes, lengths, options)


def _sizes(options: Options, name: str) -> Sequence[int]:
    if options.continuous:
        raise ValueError(
            f"{name} has continuous=True, so it can be given any number of items up to "
            f"batch_size={options.batch_size}: to warm it up, call it"
        )
    if options.batch_sizes is None:
        raise ValueError(
            f"{name} can be given batches of any size up to batch_size={options.batch_size}: set "
            f"batch_sizes, as in batch_sizes=(1, 2, 4, 8)"
        )
    return options.batch_sizes


def _pairs(sizes: Sequence[int], lengths: Sequence[int], options: Options) -> list[tuple[int, int]]:
    return [(size, length) for size in sizes for length in lengths if _can_be(size, length, options)]


def _can_be(size: int, longest: int, options: Options) -> bool:
    """Whether the budget allows batches of this shape; a single row may be over it."""
    budget, sizes = options.max_batch_length, options.batch_sizes
    return budget is None or sizes is None or size * longest <= budget or size == sizes[0]


class Example:
    """One item, or the features of one call, of which batches of each shape are made."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        collator: Any,
        options: Options,
        name: str,
        function: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        while isinstance(collator, LayeredCollator):  # caches too
            collator = collator.inner
        shapes_of(options, name)  # raises if they are not finite
        self._collator = collator
        self._options = options
        self._function: Wrapper = function
        self._args = args
        self._named = named
        self._inputs: Features | None = None
        if isinstance(options, ArrayOptions):
            inputs: Features = collator.read(function, args, named, 0.0).inputs
            self._inputs = inputs
        else:
            call = collator.one(function, args, named, 0.0)
            if not collator.can_repeat(Batch([(call, 0, 1)], 1)):
                raise TypeError(
                    f"{name}: one run would use up the example of a warm-up (an iterator, an open file)"
                )

    def batches(self) -> list[tuple[int, dict[int, int]]]:
        """Return the shape of each batch: its size, and the lengths of features, by their places."""
        sizes = self._options.batch_sizes or ()
        ways: list[dict[int, int]] = [{}]
        if self._inputs is not None:
            groups = self._groups(self._inputs)
            choices = [[dict.fromkeys(places, step) for step in steps] for places, steps in groups]
            ways = [{at: step for part in way for at, step in part.items()} for way in product(*choices)]
        return [
            (size, way)
            for size in sizes
            for way in ways
            if _can_be(size, max(way.values(), default=0), self._options)
        ]

    def _groups(self, inputs: Features) -> Iterator[tuple[list[int], Sequence[int]]]:
        """Return features that are as long as each other in the example, and so in all calls."""
        options: Any = self._options
        groups: dict[tuple[int, Sequence[int]], list[int]] = {}
        for at, key in enumerate(inputs.signature.keys):
            steps, length = options.lengths_of(key), inputs.lengths[at]
            if steps is not None and length is not None:
                first = length[0] if isinstance(length, list) else length
                groups.setdefault((first, steps), []).append(at)
        return ((places, steps) for (_, steps), places in groups.items())

    def slices(self, size: int, lengths: dict[int, int], now: float) -> list[Slice]:
        """Return the slices of a batch of this shape, of calls that are in no queue."""
        if self._inputs is not None:
            call = self._arrays(self._inputs, size, lengths, now)
            return [(call, 0, size)]
        calls = [self._collator.one(self._function, self._args, self._named, now) for _ in range(size)]
        for call in calls:
            call.lengths = 0.0
            call.results = deque(maxlen=0)  # of a function that streams: no caller wants the pieces
        return [(call, 0, 1) for call in calls]

    def _arrays(self, inputs: Features, size: int, lengths: dict[int, int], now: float) -> Call:
        features = {}
        signature = inputs.signature
        for at, (feature, fill) in enumerate(zip(signature.features, signature.fills, strict=True)):
            block = inputs.blocks[at]
            row = block[0][None] if isinstance(block, list) else block[:1]
            if at in lengths:
                length = row.shape[1]
                if length:
                    row = row[:, [place % length for place in range(lengths[at])]]
                else:
                    row = feature.library.full((1, lengths[at], *row.shape[2:]), fill, row)
            features[feature.key] = row[[0] * size]
        call: Call = self._collator.read(self._function, (features,), {}, now)
        return call
