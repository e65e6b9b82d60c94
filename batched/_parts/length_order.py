"""`length`: what each item's caller measures, and lists in order of length, answered in their own order."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from batched._parts.group_by import Family, Member
from batched._policy.lengths import extent
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from batched._core.call import Batch, Call, Slice, Wrapper
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
        if not call.many and not isinstance(call, Family):
            for args, named in self._collator.items(call):
                call.lengths = self._length_of(args, named)
            return call
        for part in call.members if isinstance(call, Family) else [call]:
            self._arrange(part, self.lengths(part))
        return call

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

    def arrange(self, call: Call, lengths: list[float]) -> None:
        """Tell `call`, a list or divided, the lengths of its items."""
        if isinstance(call, Family):
            for member in call.members:
                self._arrange(member, [lengths[place] for place in member.places])
        else:
            self._arrange(call, lengths)

    def _arrange(self, call: Call, lengths: list[float]) -> None:
        if not call.many:
            call.lengths = lengths[0]
            return
        call.lengths = lengths
        if not self._sorts or call.size < 2:  # noqa: PLR2004
            return
        order = sorted(range(call.size), key=lengths.__getitem__, reverse=True)
        call.lengths = [lengths[place] for place in order]
        call.inputs = self._collator.pick(call.inputs, order)
        if isinstance(call, Member):
            call.places = [call.places[place] for place in order]
        else:
            call.order = order

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

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice; that of a whole list in its own order."""
        parts = self._collator.split(outputs, batch)
        if self._sorts and batch.has_lists:
            for index, (call, start, stop) in enumerate(batch.slices):
                if stop - start == call.size and hasattr(call, "order") and isinstance(parts[index], list):
                    parts[index] = _put_back(parts[index], call.order, [None] * call.size)
        return parts

    def place(self, piece: Slice, part: list[Any]) -> object:
        """Write `part` into the call's results, in their own order; return what it overwrites."""
        call, start, stop = piece
        if not hasattr(call, "order"):
            return self._collator.place(piece, part)
        if call.results is None:
            call.results = [None] * call.size
        _put_back(part, call.order[start:stop], call.results)
        return None


def _put_back(rows: Iterable[Any], order: list[int], results: list[Any]) -> list[Any]:
    for place, row in zip(order, rows, strict=True):
        results[place] = row
    return results
