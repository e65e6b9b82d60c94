"""The items that still wait of calls out of the middle of which items were taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from batched._core.call import Call, Slice

__all__ = ["Remainders"]

_Range = tuple[int, int]


class Remainders:
    """The ranges of places that wait, of calls where these are not just the last places."""

    def __init__(self) -> None:
        self._ranges: dict[Call, list[_Range]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def of(self, call: Call) -> list[_Range]:
        """Return from where to where items of `call` wait."""
        return self._ranges.get(call) or [(call.size - call.waiting, call.size)]

    def forget(self, call: Call) -> None:
        """Note that no item of `call` waits any more."""
        self._ranges.pop(call, None)

    def take(self, items: Iterable[tuple[Call, int]]) -> list[Slice]:
        """Take items from their calls, given by call and place; return them as slices, call by call."""
        places: dict[Call, list[int]] = {}
        for call, at in items:
            places.setdefault(call, []).append(at)
        slices: list[Slice] = []
        for call, taken in places.items():
            runs = _runs(sorted(taken))
            slices += [(call, start, stop) for start, stop in runs]
            ranges = self.of(call)
            call.waiting -= len(taken)
            if call.waiting:
                for start, stop in runs:
                    ranges = _without(ranges, start, stop)
            if not call.waiting or ranges == [(call.size - call.waiting, call.size)]:
                self.forget(call)
            else:
                self._ranges[call] = ranges
        return slices


def _runs(places: list[int]) -> list[_Range]:
    """Return the ranges that sorted `places` make up."""
    runs: list[_Range] = []
    for at in places:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def _without(ranges: list[_Range], start: int, stop: int) -> list[_Range]:
    """Return `ranges` less one that is within one of them."""
    left: list[_Range] = []
    for begin, end in ranges:
        left += [part for part in ((begin, min(end, start)), (max(begin, stop), end)) if part[0] < part[1]]
    return left
