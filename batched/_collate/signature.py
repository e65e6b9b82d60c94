"""The signature of a call of features: calls of one signature may share a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from batched._collate.libraries import LIBRARIES, Library, library_of
from batched._core.options import ArrayOptions

_REMEMBERED = 1024  # signatures


class Feature(NamedTuple):
    """What the blocks of one feature must have in common to share a batch."""

    key: Hashable
    library: Library
    kind: Hashable
    """Dtype, device, grad or not, as the library compares them; of the first call, where they may differ."""
    trailing: tuple[int | None, ...] | None
    """The sizes of the axes after the first two, None where rows differ; None if there is no second axis."""


class Signature:
    """The key of calls that may share a batch: one object for all of them, so it is cheap to compare."""

    __slots__ = (
        "__weakref__",
        "_kinds",
        "_lengths",
        "_of_two_axes",
        "_ragged",
        "features",
        "fills",
        "is_mixed",
        "keys",
    )

    def __init__(self, features: tuple[Feature, ...], fills: list[Any]) -> None:
        self.features = features
        self.keys = [feature.key for feature in features]
        self.fills = fills  # what each feature is padded with, None for zero
        self.is_mixed = False  # whether calls may be of other kinds, which can be joined
        self._lengths: list[Any] | None = None  # of the features of the first call
        # Positions of the features that have come in several lengths. Replaced, not changed: callers in other
        # threads go through it.
        self._ragged: frozenset[int] = frozenset()
        self._of_two_axes = all(feature.trailing == () for feature in features)
        self._kinds = [(feature.key, feature.library, feature.kind) for feature in features]

    def match(self, features: dict[Any, Any]) -> Features | None:
        """Return what a call passes if it is plainly of this signature, else None.

        Only for arrays of two axes, as tokenizers return them. Read this way, a call of three features takes
        a fifth less time than with its signature made anew.
        """
        try:
            alike = self._of_two_axes and list(features) == self.keys  # the function sees their order
        except Exception:  # noqa: BLE001  a key of a caller that cannot be compared with others
            alike = False
        if not alike:
            return None
        blocks: list[Any] = []
        lengths: list[int] = []
        rows = None
        for key, library, kind in self._kinds:
            value: Any = features.get(key)
            array_type = type(value)
            if LIBRARIES.get(array_type) is not library or (
                array_type is not library.always_fit and library.unfit(value)
            ):
                return None
            shape = value.shape
            if len(shape) != 2 or library.kind(value) != kind:  # noqa: PLR2004
                return None
            size, length = shape
            if size != rows:
                if rows is not None:
                    return None
                rows = size
            blocks.append(value)
            lengths.append(length)
        return Features(self, blocks, lengths, rows) if rows else None

    def length(self, lengths: list[Any], padded: list[Any]) -> int:
        """Return the length of the longest row of a call, along the second axis, as `padded` says.

        Only features that have come in several lengths count, or are padded to another one: the others need
        no padding. All count while there are none.
        """
        ragged = self._ragged
        if len(ragged) < len(lengths):
            self._lengths = first = lengths if self._lengths is None else self._lengths
            if lengths != first or padded != lengths:
                found = {
                    index
                    for index, length in enumerate(lengths)
                    if length != first[index] or length != padded[index]
                }
                if not found <= ragged:
                    self._ragged = ragged = ragged | found
        longest = 0
        for index in ragged or range(len(lengths)):
            length = padded[index]
            if type(length) is list:
                length = max(length)
            if length is not None and length > longest:
                longest = length
        return longest


@dataclass(slots=True, eq=False)
class Features:
    """What a call passes: for each feature a block, an array or a list of rows that differ in shape.

    The length of a row is the size of its first axis, which is the second of the block; None if it has none.
    """

    signature: Signature
    blocks: list[Any]
    lengths: list[Any]
    """Of the rows of each block: an int for all, a list, or None."""
    rows: int


class Signatures:
    """Reads the features of one batcher's calls."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._pad_of = options.pad_of
        self._last: Signature | None = None  # of the last call
        # Of the calls that wait, and the newest ones: equal calls must get the same object.
        self.known: WeakValueDictionary[tuple[tuple[Any, ...], ...], Signature] = WeakValueDictionary()
        self._newest: deque[Signature] = deque(maxlen=_REMEMBERED)
        self._new: dict[tuple[tuple[Any, ...], ...], Signature] = {}  # on their way to `known`

    def read(self, features: Mapping[Any, Any]) -> Features:
        """Return what a call passes; `TypeError` or `ValueError` if it cannot be batched."""
        if self._last is not None and type(features) is dict:
            matched = self._last.match(features)
            if matched is not None:
                return matched
        described = self._described(features)
        self._last = described.signature
        return described

    def _described(self, features: Mapping[Any, Any]) -> Features:
        blocks: list[Any] = []
        lengths: list[Any] = []
        trailing: tuple[int | None, ...] | None
        entries: list[tuple[Any, ...]] = []  # plain: a `Feature` takes ten times as long to make
        rows = None
        even = True
        for key, value in features.items():
            kind = type(value)
            library = LIBRARIES.get(kind) or library_of(value)
            if library is not None:
                array = value
                unfit = kind is not library.always_fit and library.unfit(value)
                if unfit or not (shape := value.shape):  # a nested tensor has no shape
                    raise self._unusable(key, value, library)
                size = shape[0]
                length, trailing = (None, None) if len(shape) == 1 else (shape[1], tuple(shape[2:]))
            else:
                library, value, length, trailing = self._rows(key, value)  # noqa: PLW2901
                array = value[0] if isinstance(value, list) else value
                size = len(value)
            blocks.append(value)
            lengths.append(length)
            entries.append((key, library, library.kind(array), trailing))
            if size != rows:
                even = rows is None
                rows = size
        if rows is None or not even:
            raise self._uneven(features)
        return Features(self._signature(tuple(entries), blocks), blocks, lengths, rows)

    def _rows(
        self, key: Hashable, value: Any
    ) -> tuple[Library, Any, int | list[int] | None, tuple[int | None, ...] | None]:
        """Return for a list of rows its library, its block, its lengths and its trailing axes."""
        library = library_of(value[0]) if isinstance(value, list) and value else None
        if library is None or any(library_of(row) is not library or library.unfit(row) for row in value):
            raise self._unusable(key, value, None)
        rows = library.common(value)
        if len({library.kind(row) for row in rows}) > 1 or len({len(row.shape) for row in rows}) > 1:
            raise ValueError(
                f"{self._name}: the rows of {key!r} must have the same dtype, device and rank, "
                f"got {listed(_description(row) for row in value)}"
            )
        shapes = {tuple(row.shape) for row in rows}
        if len(shapes) == 1:
            with library.writing(rows[0]):
                block = library.concatenate([row[None] for row in rows])
            (shape,) = shapes
            if not shape:
                return library, block, None, None
            return library, block, shape[0], shape[1:]
        _, *trailing = (
            axis.pop() if len(axis) == 1 else None for axis in map(set, zip(*shapes, strict=True))
        )
        lengths = [row.shape[0] for row in rows]
        alike = len(set(lengths)) == 1
        return library, list(rows), lengths[0] if alike else lengths, tuple(trailing)

    def _signature(self, entries: tuple[tuple[Any, ...], ...], blocks: list[Any]) -> Signature:
        """Return the signature of these entries, the same object as for the calls before.

        Entries that differ only in the width of strings have the same one, and each finds it.
        """
        signature = self.known.get(entries)
        if signature is None:
            features = tuple(Feature(*entry) for entry in entries)
            fills = [self._fill(feature, block) for feature, block in zip(features, blocks, strict=True)]
            joint = tuple((key, lib, lib.joint(kind), shape) for key, lib, kind, shape in entries)
            # Of callers that come at once, all get the same: the first one is in `_new` until it is known.
            first = self._new.setdefault(joint, Signature(features, fills))
            signature = self.known.setdefault(joint, first)
            self._new.pop(joint, None)
            if joint != entries:
                signature.is_mixed = True
                self.known[entries] = signature
            self._newest.append(signature)
        return signature

    def _fill(self, feature: Feature, block: Any) -> Any:
        """Return what a feature is padded with, None for zero; `ValueError` if its dtype cannot hold that."""
        if feature.trailing is None:
            return None
        like = block[0] if isinstance(block, list) else block
        try:
            return feature.library.fill(like, self._pad_of(feature.key))
        except ValueError as error:
            raise ValueError(f"{self._name}: pad_token for {feature.key!r}: {error}") from None

    def _unusable(self, key: Hashable, value: Any, library: Library | None) -> TypeError:
        if library is not None:
            why = library.unfit(value) or "it has no axis for the rows"
        elif isinstance(value, list):
            reasons = [library.unfit(row) for row in value if (library := library_of(row)) is not None]
            why = next(filter(None, reasons), "a list must hold arrays of one library, one per row")
            if value and all(isinstance(row, list | int | float) for row in value):
                why += '; numpy.asarray makes one of a row, and a tokenizer does with return_tensors="np"'
        elif value is None or isinstance(value, str | bytes | int | float):
            why = "it has no rows, so leave it out"
        else:
            why = "convert it first, for example with numpy.asarray"
        return TypeError(
            f"{self._name}: {key!r} must be a numpy array, a torch tensor or a list of either, "
            f"got {_description(value)}: {why}"
        )

    def _uneven(self, features: Mapping[Any, Any]) -> ValueError:
        if not features:
            return ValueError(f"{self._name} needs at least one feature, got none")
        shapes = ", ".join(f"{key!r}: {_description(value)}" for key, value in features.items())
        return ValueError(
            f"{self._name}: all features of a call must have the same number of rows, got {shapes}"
        )


def _description(value: Any) -> str:
    """Return the shape and dtype of an array, the rows of a list, or the type of anything else."""
    if library_of(value) is not None:
        with suppress(RuntimeError):  # a nested tensor has no shape
            return f"{tuple(value.shape)} {value.dtype}"
    if isinstance(value, list):
        return f"a list of {listed(map(_description, value))}" if value else "an empty list"
    return type(value).__qualname__


def listed(names: Iterable[str]) -> str:
    """Return the names, joined by commas; of many, only the first five and how many there are."""
    every = list(names)
    return ", ".join([*every[:5], f"... ({len(every)} in all)"] if len(every) > 6 else every)  # noqa: PLR2004
