"""`group_by`: a list whose items do not belong together is divided, and answered as one all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from batched._core.batch import Collator
from batched._parts.divided import divide
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from batched._core.call import Call, Wrapper

__all__ = ["Groupable", "GroupingCollator", "called"]


class Groupable(Collator, Protocol):
    """A collator whose calls can be divided by item."""

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as the arguments that it was passed as."""
        ...

    def pick(self, inputs: Any, places: list[int]) -> Any:
        """Return the inputs of some of the items of a list call."""
        ...


class GroupingCollator:
    """Another collator whose calls have the key that `group_by` gives, or are divided by it."""

    def __init__(self, collator: Groupable, group_by: Callable[..., Hashable], name: str) -> None:
        self._collator = collator
        self._group_by = group_by
        self._name = name
        self.chunk_size = collator.chunk_size
        self.collate = collator.collate
        self.split = collator.split
        self.place = collator.place

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean, divided by key."""
        return self._grouped(self._collator.read(function, args, named, now))

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, with its key."""
        return self._grouped(self._collator.one(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`, divided by key."""
        return self._grouped(self._collator.chunk(function, items, now))

    def own(self, call: Call) -> None:
        """Copy what of the inputs the caller could still change."""
        for part in call.parts or (call,):
            self._collator.own(part)

    def _grouped(self, call: Call) -> Call:
        return self.divided(call, self.keys(call))

    def keys(self, call: Call) -> list[Hashable]:
        """Return the key of each item, one for all of arrays."""
        return [self._key(args, named) for args, named in self._collator.items(call)]

    def _key(self, args: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
        return called(self._group_by, f"{self._name}: group_by", args, named)

    def divided(self, call: Call, keys: list[Hashable]) -> Call:
        """Return `call` with its key, or divided into parts with their keys."""
        own = getattr(call, "key", None)
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        if len(places) <= 1:
            call.key = (own, *places)
            return call
        parted = divide(call, places.values(), self._collator.pick)
        for key, part in zip(places, parted.parts, strict=True):
            part.key = (own, key)
        return parted


def called(
    callback: Callable[..., Hashable], what: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Hashable:
    """Return the key that a callback of the user's, called `what`, gives for an item."""
    try:
        key = callback(*args, **named)
        hash(key)
    except Exception as error:
        raise BatchError(f"{what} failed: {type(error).__name__}: {error}") from error
    return key
