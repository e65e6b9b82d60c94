"""What a batcher asks of a collator: `_collate` has one for each kind of items, `_parts` wraps them."""

from __future__ import annotations

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
