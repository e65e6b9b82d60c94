"""Layers in front of a collator: calls are changed by what options such as `group_by` know of their items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from batched._core.batch import Collator
from batched.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from batched._core.batch import Batch
    from batched._core.call import Call, Wrapper
    from batched._parts.group_by import Grouping
    from batched._parts.length_order import Measuring

    Layer: TypeAlias = Grouping | Measuring
    """It knows the `values` of a call's items; the call is changed or divided when they are `applied`."""

__all__ = ["Divisible", "LayeredCollator", "key_from"]


class Divisible(Collator, Protocol):
    """A collator whose calls can be divided by item."""

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as the arguments that it was passed as; of arrays, one for all."""
        ...

    def pick(self, inputs: Any, places: list[int]) -> Any:
        """Return the inputs of some of the items of a list call."""
        ...


class LayeredCollator:
    """Another collator whose calls go through layers."""

    def __init__(self, collator: Divisible, layers: Sequence[Layer]) -> None:
        self._collator = collator
        self._layers = layers
        self.chunk_size = collator.chunk_size
        self.split = collator.split
        self.place = collator.place

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean."""
        return self._layered(self._collator.read(function, args, named, now))

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item."""
        return self._layered(self._collator.one(function, args, named, now))

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`."""
        return self._layered(self._collator.chunk(function, items, now))

    def own(self, call: Call) -> None:
        """Copy what of the inputs the caller could still change."""
        for part in call.parts or (call,):
            self._collator.own(part)

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        for layer in self._layers:
            layer.note(batch)
        return self._collator.collate(batch)

    def _layered(self, call: Call) -> Call:
        return self._applied(call, self._values(call))

    def _values(self, call: Call) -> list[list[Any]]:
        """Return what each layer knows of each item of `call`."""
        return [layer.values(call) for layer in self._layers]

    def _applied(self, call: Call, values: list[list[Any]]) -> Call:
        for layer, its_values in zip(self._layers, values, strict=True):
            call = layer.applied(call, its_values)
        return call


def key_from(
    callback: Callable[..., Hashable], what: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Hashable:
    """Return the key that a callback of the user's, called `what`, gives for an item."""
    try:
        key = callback(*args, **named)
        hash(key)
    except Exception as error:
        raise BatchError(f"{what} failed: {type(error).__name__}: {error}") from error
    return key
