"""What callers ask for, and the batches made of it.

Knows nothing of time, threads or who waits: a driver gives a call its `waiter` and asks a batch which
calls it finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batch", "Call", "Collator", "Slice"]


class Call:
    """One caller's items: the unit of queueing, answering and cancelling, whatever its size."""

    __slots__ = (
        "arrived",
        "bulk",
        "deadline",
        "error",
        "function",
        "inputs",
        "keep_errors",
        "left",
        "loop",
        "many",
        "missing",
        "results",
        "size",
        "waiter",
        "waiting",
    )

    def __init__(  # noqa: PLR0913, PLR0917  flat and positional: it is made once per call, on the caller's time
        self,
        function: Callable[[Any], Any],
        inputs: Any,
        size: int,
        many: bool,  # noqa: FBT001
        arrived: float,
        deadline: float | None = None,
        bulk: bool | None = None,  # noqa: FBT001
        keep_errors: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        # The batch function travels with the call, so that an idle worker keeps no instance alive.
        self.function: Any = function  # None, as `inputs`, once they are no longer needed
        self.inputs = inputs
        self.size = size
        self.many = many
        self.arrived = arrived
        self.deadline = deadline
        self.bulk = bulk
        self.keep_errors = keep_errors
        self.waiting = size  # items not yet chosen for a batch
        self.missing = size  # items not yet answered; 0 means done
        self.results: Any = None
        self.error: BaseException | None = None
        self.left: Literal["cancelled", "expired"] | None = None
        self.waiter: Any  # set, with the loop that it belongs to if any, by the driver
        self.loop: Any

    def fail(self, error: BaseException) -> None:
        """Answer the whole call with `error`; what of it still waits is the scheduler's to drop."""
        self.error = error
        self.missing = 0

    def overdue(self, name: str) -> str:
        """Say that its deadline has passed."""
        allowed_ms = ((self.deadline or self.arrived) - self.arrived) * 1000
        return f"{name} did not answer within deadline_ms={allowed_ms:g}"


Slice: TypeAlias = tuple[Call, int, int]
"""Items `start` to `stop` of a call. Plain, because a named tuple takes ten times as long to make."""


class Collator(Protocol):
    """How many inputs become one, and one output many. Pure; a collator knows no caller."""

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        ...

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice of `batch`, collated before; a part that is an exception fails its call.

        Adds the failed items of lists to `batch.failed`. Raises `TypeError` or `BatchError` if
        `outputs` are not one row per item.
        """
        ...

    def place(self, piece: Slice, part: Any) -> None:
        """Keep `part` as the results of a slice that is not its whole call."""


class Batch:
    """Slices of calls that run together, at most once."""

    __slots__ = ("failed", "has_lists", "reason", "size", "slices")

    def __init__(self, slices: list[Slice], size: int, reason: str) -> None:
        self.slices = slices
        self.size = size
        self.reason = reason  # why it started, as `Stats.closed` names it
        self.failed = 0  # items
        self.has_lists = False  # whether some slice is of a list, as the collator found

    def __len__(self) -> int:
        return self.size

    def run(self, collator: Collator) -> Any:
        """Return what the batch function returns for the batch's items."""
        return self.slices[0][0].function(collator.collate(self))

    def deliver(self, outputs: Any, collator: Collator) -> list[Call]:
        """Hand each call its part of `outputs` and return the calls that are now done.

        Raises, before any call has got anything, if `outputs` are not one row per item.
        """
        done = []
        for piece, part in zip(self.slices, collator.split(outputs, self)):  # noqa: B905  costs a tenth
            call, start, stop = piece
            if isinstance(part, BaseException) and not self._keeps(call):
                if call.missing:
                    call.fail(part)
                    done.append(call)
            elif stop - start == call.size:
                if call.missing:  # else its caller has left
                    call.results = part
                    call.missing = 0
                    done.append(call)
            elif self._place(piece, part, collator):
                done.append(call)
        return done

    def fail(self, error: BaseException, collator: Collator) -> list[Call]:
        """Answer each call with `error` and return the calls that are now done."""
        self.failed = self.size
        done = []
        for piece in self.slices:
            call, start, stop = piece
            if not call.missing:
                continue
            if not call.keep_errors:
                call.fail(error)
            elif not call.many:
                call.results = error
                call.missing = 0
            elif not self._place(piece, [error] * (stop - start), collator):
                continue
            done.append(call)
        return done

    def _keeps(self, call: Call) -> bool:
        """Count a failed item that came as an exception; return whether its caller wants it as a result."""
        if not call.many:
            self.failed += 1
        return call.keep_errors

    def _place(self, piece: Slice, part: Any, collator: Collator) -> bool:
        """Give a call one of its parts; return whether that was the last."""
        call, start, stop = piece
        if not call.missing:  # an earlier part failed, or its caller has left
            return False
        collator.place(piece, part)
        call.missing -= stop - start
        return not call.missing
