"""What a batcher asks of a collator: `_collate` has one for each kind of items, `_parts` wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from batched._core.call import Call, Slice, Wrapper

if TYPE_CHECKING:
    from batched._core.batch import Batch


class Collator(Protocol):
    """How arguments become calls, many inputs one, and one output many. Knows no caller, and no queue."""

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

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        ...

    def can_repeat(self, batch: Batch) -> bool:
        """Return whether the items of `batch`, which has failed, can be run again.

        Not if one may be used up by now, such as an iterator or an open file.
        """
        ...

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice of `batch`, collated before; a part that is an exception fails its call.

        Adds the failed items of lists to `batch.failed`. Raises `TypeError` or `BatchError` if
        `outputs` are not one row per item, after it has set `batch.returned` if their number is wrong.
        """
        ...

    def place(self, piece: Slice, part: Any) -> None:
        """Keep `part` as the results of a slice that is not its whole call.

        Parts come in any order, the first to a call whose `results` are None; the last one is as large as
        `call.missing`. With the lock held, but for lists, which are also given the error of a part.
        """
