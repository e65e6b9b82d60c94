"""Features in, arrays out: the collator of functions over arrays.

A feature is a key and an array, or a list of rows. The work is done by other modules: `signature` reads
features, `pad` joins them for the batch, `split` cuts the outputs, `merge` joins the answers of a call that
ran in several batches. Rows are copied in blocks; only rows in a list are copied one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from inspect import ismethod
from math import prod
from types import FunctionType
from typing import Any

from batched._collate.libraries import Array
from batched._collate.merge import Merger
from batched._collate.pad import FixedLengths, Padder
from batched._collate.signature import Feature, Signature, Signatures
from batched._collate.split import Splitter
from batched._core.batch import Batch
from batched._core.call import Call, Row, Wrapper
from batched._core.options import ArrayOptions, last_stage, told_of_options
from batched._core.parameters import signature_of


def check_takes_features(func: Any, *, bound: bool) -> None:
    """Raise `TypeError` if `func` needs several arguments, where it is given one mapping of features."""
    plain = getattr(func, "__func__", func)
    if type(plain) is not FunctionType or hasattr(plain, "__signature__"):  # that may be another function's
        return
    parameters = [*signature_of(plain, follow_wrapped=False).parameters.values()]
    needed = [
        each.name
        for each in parameters[bound or ismethod(func) :]
        if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    if len(needed) > 1:
        raise TypeError(
            f"{plain.__qualname__} takes {', '.join(needed)}, but a function over arrays is given one dict "
            f"of features: have it take that, or set spread_kwargs=True to get each feature by its name"
        )


class FeatureCollator:
    """Pads and joins features to one array each; cuts every output into the callers' rows."""

    chunk_size: int | None = 1

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._spreads = options.spread_kwargs
        self._signatures = Signatures(name, options)
        rounds = options.pad_to_lengths or options.pad_to_multiple_of
        self._lengths = FixedLengths(name, options) if rounds else None
        self._padder = Padder(options)
        self._splitter = Splitter(last_stage(name, options), options)
        self.place = Merger(name, options).place

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one mapping of features, or for features passed by name."""
        features = args[0] if len(args) == 1 and not named else self._argument(function, args, named)
        if type(features) is not dict and not isinstance(features, Mapping):
            raise TypeError(
                f"{self._name} takes a mapping of features, such as a dict of arrays, "
                f"not {type(features).__qualname__}"
            )
        if self._spreads:
            for key in features:
                if not isinstance(key, str):
                    raise TypeError(f"{self._name}: spread_kwargs=True needs string keys, got {key!r}")
            function = _Spread(function)
        inputs = self._signatures.read(features)
        # A call of no rows counts as one item.
        call = Call().begin(function, inputs, inputs.rows or 1, False, now)  # noqa: FBT003
        signature = inputs.signature
        lengths, fixed = inputs.lengths, self._lengths
        call.lengths = signature.length(lengths, lengths) if fixed is None else fixed.longest(inputs)
        # A call of no rows runs alone, so it gets a key of its own.
        call.key = signature if inputs.rows else Signature(signature.features, signature.fills)
        return call

    def one(self, *_: Any, **__: Any) -> Call:
        """Raise `TypeError`: a function over arrays does not stream."""
        raise TypeError(f"{self._name} takes arrays, which cannot be streamed")

    def _argument(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the features of a call that does not pass them as its only argument."""
        if args or not named:
            parameters = named if self._spreads else signature_of(function.__wrapped__).parameters
            raise TypeError(
                f"{self._name} takes one mapping of features, or features by name, got {len(args)} "
                f"positional arguments and {len(named)} by name{told_of_options(named, parameters)}"
            )
        if len(named) == 1 and not self._spreads:
            name, value = next(iter(named.items()))
            if isinstance(value, Mapping) and name == next(
                iter(signature_of(function.__wrapped__).parameters), None
            ):
                return value
        return named

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the features of `call`, as the only argument."""
        return [((dict(zip(call.inputs.signature.keys, call.inputs.blocks, strict=True)),), {})]

    def pick(self, inputs: Any, places: list[int]) -> Any:  # noqa: ARG002  for the protocol
        """Return the inputs: a call of features is never divided."""
        return inputs

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call for one mapping of features."""
        if isinstance(items[0], Row):
            raise TypeError(f"{self._name} takes one mapping of features, so `map` takes one iterable")
        return self.read(function, (items[0],), {}, now)

    def own(self, call: Call) -> None:
        """Copy the blocks: the caller may change its arrays before the call has run."""
        inputs = call.inputs
        inputs.blocks = [
            [feature.library.copy(row) for row in block]
            if isinstance(block, list)
            else feature.library.copy(block)
            for feature, block in zip(inputs.signature.features, inputs.blocks, strict=True)
        ]

    def collate(self, batch: Batch) -> dict[Hashable, Array]:
        """Return a new array for each feature, padded where rows differ."""
        slices = batch.slices
        signature = slices[0][0].inputs.signature
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
        rows = _rows(batch)
        collated: dict[Hashable, Array] = {}
        least = batch.least_shapes or [()] * len(signature.features)
        for feature, fill, theirs, long, shape in zip(
            signature.features, signature.fills, blocks, lengths, least, strict=True
        ):
            if signature.is_mixed:
                theirs = _alike(feature, theirs)  # noqa: PLW2901
            array, real = self._padder.join(feature, fill, theirs, long, shape, rows)
            collated[feature.key] = array
            batch.real += real
            batch.padded += prod(array.shape)
        batch.shapes = [array.shape[1:] for array in collated.values()]
        return collated

    def can_repeat(self, batch: Batch) -> bool:  # noqa: ARG002  for the protocol
        """Return True: the function is given copies of the features."""
        return True

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return the rows that answer each slice: copies, or a part that `place` joins to others."""
        return self._splitter.split(outputs, batch, _rows(batch))

    def split_first(self, outputs: Any, batch: Batch, given: int) -> list[Any]:
        """Return the rows of each slice, where the function was `given` more than those of `batch`, last."""
        return self._splitter.split(outputs, batch, given)


def _alike(feature: Feature, blocks: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the blocks of a feature, arrays or lists of rows, in one kind."""
    arrays = [block[0] if isinstance(block, list) else block for block in blocks]
    alike = feature.library.common(arrays)
    if alike is arrays:
        return blocks
    like = alike[0]
    return tuple(
        [feature.library.widened(row, like) for row in block] if isinstance(block, list) else array
        for block, array in zip(blocks, alike, strict=True)
    )


def _rows(batch: Batch) -> int:
    """Return the number of rows of a batch: that of its items, or none for a call of no rows."""
    return batch.size if batch.slices[0][0].inputs.rows else 0


class _Spread:
    """A batch function that takes its features as a dict, and passes them by name."""

    __slots__ = ("_function",)

    def __init__(self, function: Wrapper) -> None:
        self._function = function

    def __wrapped__(self, features: dict[str, Array]) -> Any:
        return self._function.__wrapped__(**features)
