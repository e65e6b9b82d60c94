"""`group_by`: a list whose items do not belong together is divided, and answered as one all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batched._parts.divided import divide
from batched._parts.layers import key_from

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from batched._core.batch import Batch
    from batched._core.call import Call
    from batched._parts.layers import Divisible

__all__ = ["Grouping"]


class Grouping:
    """A layer: calls have the key that `group_by` gives, or are divided by it."""

    def __init__(self, collator: Divisible, group_by: Callable[..., Hashable], name: str) -> None:
        self._collator = collator
        self._group_by = group_by
        self._what = f"{name}: group_by"

    def values(self, call: Call) -> list[Any]:
        """Return the key of each item."""
        return [
            key_from(self._group_by, self._what, args, named) for args, named in self._collator.items(call)
        ]

    def applied(self, call: Call, values: list[Any]) -> Call:
        """Return `call` with its key, or divided into parts with their keys."""
        own = getattr(call, "key", None)
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(values):
            places.setdefault(key, []).append(place)
        if len(places) <= 1:
            call.key = (own, *places)
            return call
        parted = divide(call, places.values(), self._collator.pick)
        for key, part in zip(places, parted.parts, strict=True):
            part.key = (own, key)
        return parted

    def note(self, batch: Batch) -> None:
        """Do nothing: a batch has items of one key."""
