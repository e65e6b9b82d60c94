"""What a batcher asks of a collator: `_collate` has one for each kind of items, `_parts` wraps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from batched._core.batch import Batch, Collates
from batched._core.call import Call, Wrapper


class Collator(Collates, Protocol):
    """How arguments become calls, and what batches ask (`Collates`). Knows no caller, and no queue."""

    chunk_size: int | None
    """How many elements of a `map` travel as one call at most; None for as many as share a batch."""

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean.

        A size of 0 is answered by an empty list at once. Where the answer to nothing is no list, the call has
        size 1, and a key of its own.
        """
        ...

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even a list; `TypeError` if the collator knows no single items."""
        ...

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of `chunk_size` elements of a `map` or fewer; the list is its own from now on.

        What is wrong with one of them is raised.
        """
        ...

    def own(self, call: Call) -> None:
        """Copy what of the inputs the caller could still change, before `call` has run."""
        ...

    def can_repeat(self, batch: Batch) -> bool:
        """Return whether the items of `batch`, which has failed, can be run again.

        Not if one may be used up by now, such as an iterator or an open file.
        """
        ...


class Divisible(Collator, Protocol):
    """A collator that can divide its calls by item."""

    def items(self, call: Call) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each item of `call`, as the arguments that it was passed as; of arrays, one for all."""
        ...

    def pick(self, inputs: Any, places: list[int]) -> Any:
        """Return the inputs of some of the items of a call with `many`; others are never divided."""
        ...


class InFront:
    """A collator in front of an `inner` one, which does what is not a method here."""

    chunk_size: int | None
    items: Any
    pick: Any
    own: Any
    can_repeat: Any
    collate: Any
    split: Any
    place: Any

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        for name in InFront.__annotations__:
            if not hasattr(type(self), name):
                setattr(self, name, getattr(inner, name))

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean."""
        return self._made(self.inner.read, function, args, named, now)

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item."""
        return self._made(self.inner.one, function, args, named, now)

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of some elements of a `map`."""
        return self._made(self.inner.chunk, function, items, now)

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        """Return the call that the inner collator's method `make` returns, or one in its place."""
        raise NotImplementedError
