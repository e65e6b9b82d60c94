"""`length`: callers measure their items, and the items of a list are queued in order of length."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from batched._parts.divided import divide
from batched._policy.lengths import extent
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from batched._core.batch import Batch
    from batched._core.call import Call, Wrapper
    from batched._parts.group_by import Groupable, GroupingCollator

__all__ = ["MeasuringCollator", "length_of"]


def length_of(first: Any, /, *_: Any, **__: Any) -> int:
    """Return the `len` of an item, of its first column if it has several."""
    return len(first)


class MeasuringCollator:
    """Another collator whose calls know the lengths of their items.

    The items of a list are in order of length, the longest first, so that however it is divided each part
    has like ones; what comes back for them is put in the order of the list.
    """

    def __init__(
        self,
        collator: Groupable,
        grouping: GroupingCollator | None,
        length: Callable[..., Any] | None,
        name: str,
    ) -> None:
        self._collator = collator
        self._source: Groupable | GroupingCollator = grouping or collator
        self._length = length_of if length is None else length
        self._sorts = length is not None
        self._name = name
        self.chunk_size = collator.chunk_size
        self.own = self._source.own
        self.split = collator.split
        self.place = collator.place

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean, measured."""
        return self._measured(self._source.read(function, args, named, now))

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, measured."""
        return self._measured(self._source.one(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`, measured."""
        return self._measured(self._source.chunk(function, items, now))

    def _measured(self, call: Call) -> Call:
        for part in call.parts or (call,):
            lengths = self.lengths(part)
            part.lengths = lengths if part.many else lengths[0]
        return self._in_order(call)

    def lengths(self, call: Call) -> list[float]:
        """Return the length of each item of `call`."""
        return [self._length_of(args, named) for args, named in self._collator.items(call)]

    def _length_of(self, args: tuple[Any, ...], named: dict[str, Any]) -> float:
        try:
            length: Any = self._length(*args, **named)
        except Exception as error:
            what = "length" if self._sorts else "length, which is len where none is given,"
            raise BatchError(f"{self._name}: {what} failed: {type(error).__name__}: {error}") from error
        if type(length) is int and length >= 0:
            return length
        if not isinstance(length, Real) or not isfinite(length) or length < 0:
            raise BatchError(
                f"{self._name}: length must return a number that is not negative, got {length!r}"
            )
        return float(length)

    def arranged(self, call: Call, lengths: list[float]) -> Call:
        """Return `call`, a list or divided, with the lengths of its items, and in order of length."""
        if call.parts:
            for part in call.parts:
                part.lengths = [lengths[place] for place in part.places]  # type: ignore[attr-defined]
        else:
            call.lengths = lengths if call.many else lengths[0]
        return self._in_order(call)

    def _in_order(self, call: Call) -> Call:
        """Return `call` with the items of each part in order of length, the longest first."""
        if not self._sorts or not call.many or call.size < 2:  # noqa: PLR2004  one item is in order
            return call
        if not call.parts:
            unordered = call
            call = divide(call, [list(range(call.size))], self._collator.pick)
            call.parts[0].lengths = unordered.lengths
        for part in call.parts:
            lengths: Any = part.lengths
            order = sorted(range(part.size), key=lengths.__getitem__, reverse=True)
            part.lengths = [lengths[place] for place in order]
            part.inputs = self._collator.pick(part.inputs, order)
            part.places = [part.places[place] for place in order]  # type: ignore[attr-defined]
        return call

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument, and count what padding it would follow."""
        longest = real = 0.0
        for call, start, stop in batch.slices:
            length, total = extent(call, start, stop)
            real += total
            if length > longest:  # noqa: PLR1730  a call of max costs more
                longest = length
        batch.real += round(real)
        batch.padded += round(longest * batch.size)
        return self._collator.collate(batch)
