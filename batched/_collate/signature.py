"""What callers pass: features, and which calls are alike enough to share a batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from batched._collate.libraries import LIBRARIES, library_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from batched._collate.libraries import Library
    from batched._core.options import ArrayOptions

__all__ = ["Feature", "Features", "Layout", "Layouts", "listed"]

_REMEMBERED = 1024  # layouts


class Feature(NamedTuple):
    """What the blocks of one feature must have in common to share a batch."""

    key: Hashable
    library: Library
    kind: Hashable
    """dtype and device"""
    trailing: tuple[int | None, ...] | None
    """The axes after the first two, None for one along which rows differ; None if there is no second axis."""


class Layout:
    """The signature of calls that may share a batch: one object for all of them, so cheap to compare."""

    __slots__ = ("__weakref__", "_are_plain", "_kinds", "_lengths", "_ragged", "features", "fills", "keys")

    def __init__(self, features: tuple[Feature, ...], fills: list[Any]) -> None:
        self.features = features
        self.keys = [feature.key for feature in features]
        self.fills = fills  # what each is padded with, None for zero
        self._lengths: list[Any] | None = None  # of the first call's features
        self._ragged: set[int] = set()  # the features that have come in several lengths
        self._are_plain = all(feature.trailing == () for feature in features)
        self._kinds = [(feature.key, feature.library, feature.kind) for feature in features]

    def blocks(self, features: dict[Any, Any]) -> tuple[list[Any], list[int], int] | None:
        """Return the blocks, lengths and rows of `features` if they are plainly of this layout, else None.

        Only for those of two axes, as a tokenizer's: comparing takes less time than describing them anew.
        """
        try:
            alike = self._are_plain and list(features) == self.keys  # their order is for the function to see
        except Exception:  # noqa: BLE001  a key that cannot be compared with strangers
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
        return (blocks, lengths, rows) if rows else None

    def length(self, lengths: list[Any]) -> int:
        """Return how long rows are where they are padded; until any have been, along any second axis."""
        ragged = self._ragged
        if len(ragged) < len(lengths):
            self._lengths = first = lengths if self._lengths is None else self._lengths
            if lengths != first:
                ragged.update([index for index, length in enumerate(lengths) if length != first[index]])
        longest: int = 0 if type(lengths[0]) is list else lengths[0] or 0
        if lengths.count(longest) == len(lengths):  # as a tokenizer's features
            return longest
        longest = 0
        for index in ragged or range(len(lengths)):
            length = lengths[index]
            if type(length) is list:
                length = max(length)
            if length is not None and length > longest:
                longest = length
        return longest


class Features:
    """One call's features: a block for each, an array or a list of rows that differ in shape."""

    __slots__ = ("blocks", "layout", "lengths", "rows")

    def __init__(self, layout: Layout, blocks: list[Any], lengths: list[Any], rows: int) -> None:
        self.layout = layout
        self.blocks = blocks
        self.lengths = lengths  # of the rows of each block: one for all, or a list; None for no second axis
        self.rows = rows


class Layouts:
    """The layouts of one batcher's calls."""

    def __init__(self, name: str, options: ArrayOptions) -> None:
        self._name = name
        self._pad_of = options.pad_of
        self.recent: Layout | None = None
        """Of the last call."""
        self.known: dict[tuple[tuple[Any, ...], ...], Layout] = {}
        # Those of waiting calls, so that however many there are, calls that are alike find each other.
        self._in_use: WeakValueDictionary[tuple[tuple[Any, ...], ...], Layout] = WeakValueDictionary()

    def describe(self, features: Mapping[Any, Any]) -> tuple[Layout, list[Any], list[Any], int]:
        """Return the layout of `features`, their blocks, lengths and rows."""
        blocks: list[Any] = []
        lengths: list[Any] = []
        trailing: tuple[int | None, ...] | None
        signature: list[tuple[Any, ...]] = []  # plain, because a named tuple takes ten times as long to make
        rows = None
        even = True
        for key, value in features.items():
            kind = type(value)
            library = LIBRARIES.get(kind) or library_of(value)
            if library is not None:
                array = value
                unfit = kind is not library.always_fit and library.unfit(value)
                if unfit or not (shape := value.shape):  # which nested tensors do not have
                    raise self._unusable(key, value, library)
                rank = len(shape)
                if rank == 2:  # noqa: PLR2004  the way of most
                    size, length = shape
                    trailing = ()
                else:
                    size = shape[0]
                    length, trailing = (None, None) if rank == 1 else (shape[1], tuple(shape[2:]))
            else:
                library, value, length, trailing = self._rows(key, value)  # noqa: PLW2901
                array = value[0] if isinstance(value, list) else value
                size = len(value)
            blocks.append(value)
            lengths.append(length)
            signature.append((key, library, library.kind(array), trailing))
            if size != rows:
                even = rows is None
                rows = size
        if rows is None or not even:
            raise self._uneven(features)
        return self._layout(tuple(signature), blocks), blocks, lengths, rows

    def _rows(
        self, key: Hashable, value: Any
    ) -> tuple[Library, Any, int | list[int] | None, tuple[int | None, ...] | None]:
        """Return the library of a list of rows, the block that it is, its lengths and its trailing axes."""
        library = library_of(value[0]) if isinstance(value, list) and value else None
        if library is None or any(library_of(row) is not library or library.unfit(row) for row in value):
            raise self._unusable(key, value, None)
        rows = library.common(value)
        if len({library.kind(row) for row in rows}) > 1 or len({len(row.shape) for row in rows}) > 1:
            raise ValueError(
                f"{self._name}: the rows of {key!r} must be alike in dtype, device and rank, "
                f"got {listed(_described(row) for row in value)}"
            )
        shapes = {tuple(row.shape) for row in rows}
        if len(shapes) == 1:
            block = library.stack(rows)
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

    def _layout(self, signature: tuple[tuple[Any, ...], ...], blocks: list[Any]) -> Layout:
        layout = self.known.get(signature) or self._in_use.get(signature)
        if layout is None:
            features = tuple(Feature(*entry) for entry in signature)
            fills = []
            for feature, block in zip(features, blocks, strict=True):
                like = block[0] if isinstance(block, list) else block
                value = self._pad_of(feature.key)
                try:
                    fills.append(None if feature.trailing is None else feature.library.fill(like, value))
                except ValueError as error:
                    raise ValueError(f"{self._name}: pad_token for {feature.key!r}: {error}") from None
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            layout = self.known.setdefault(signature, Layout(features, fills))
            self._in_use[signature] = layout
        return layout

    def _unusable(self, key: Hashable, value: Any, library: Library | None) -> TypeError:
        if library is not None:
            what = library.unfit(value) or "it has no axis of rows"
        elif isinstance(value, list):
            what = "a list must hold arrays of one library, one per row"
        elif value is None or isinstance(value, str | bytes | int | float):
            what = "it has no rows, so leave it out"
        else:
            what = "convert it first, with numpy.asarray say"
        return TypeError(
            f"{self._name}: {key!r} must be a numpy array, a torch tensor or a list of either, "
            f"got {_described(value)}: {what}"
        )

    def _uneven(self, features: Mapping[Any, Any]) -> ValueError:
        if not features:
            return ValueError(f"{self._name} needs at least one feature, got none")
        shapes = ", ".join(f"{key!r}: {_described(value)}" for key, value in features.items())
        return ValueError(f"{self._name}: all features of a call must have as many rows, got {shapes}")


def _described(value: Any) -> str:
    if library_of(value) is not None:
        with suppress(RuntimeError):  # a nested tensor has none
            return f"{tuple(value.shape)} {value.dtype}"
    if isinstance(value, list):
        return f"a list of {listed(map(_described, value))}" if value else "an empty list"
    return type(value).__qualname__


def listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join([*listed[:5], f"... ({len(listed)} in all)"] if len(listed) > 6 else listed)  # noqa: PLR2004
