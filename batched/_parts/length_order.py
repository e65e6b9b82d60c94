"""`length`: the items of a call are measured, and those of a list are queued in order of length."""

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
    from batched._core.call import Call
    from batched._parts.layers import Divisible

__all__ = ["Measuring"]


class Measuring:
    """A layer: calls know the lengths of their items.

    The items of a list are in order of length, the longest first, so that however it is divided each part
    has like ones; what comes back for them is put in the order of the list.
    """

    def __init__(self, collator: Divisible, length: Callable[..., Any] | None, name: str) -> None:
        self._collator = collator
        self._length = _len_of_first if length is None else length
        self._sorts = length is not None
        self._name = name

    def values(self, call: Call) -> list[Any]:
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

    def applied(self, call: Call, values: list[Any]) -> Call:
        """Return `call` with the lengths of its items, and the items of each part in order of length."""
        if call.parts:
            for part in call.parts:
                part.lengths = [values[place] for place in part.places]  # type: ignore[attr-defined]
        else:
            call.lengths = values if call.many else values[0]
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

    def note(self, batch: Batch) -> None:
        """Count what padding to the longest item would follow."""
        longest = real = 0.0
        for call, start, stop in batch.slices:
            length, total = extent(call, start, stop)
            real += total
            longest = max(longest, length)
        batch.real += round(real)
        batch.padded += round(longest * batch.size)


def _len_of_first(first: Any, /, *_: Any, **__: Any) -> int:
    """Return the `len` of an item, of its first column if it has several."""
    return len(first)
