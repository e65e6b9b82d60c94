"""A record of each batch that has run, for `on_batch`."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from batched._core.batch import Batch
from batched._core.batch_record import BatchRecord
from batched._core.hooks import Feature, Run
from batched._core.options import Options
from batched._policy.window import StartReason
from batched.errors import is_error


class Tells(Protocol):
    """What is told of batches."""

    @property
    def listens(self) -> bool:
        """Whether it wants to be told."""
        ...

    def tell(self, record: BatchRecord) -> None:
        """Take note of a batch that has run."""
        ...


class Records(Feature):
    """Tells of each batch that has run, while anything listens."""

    def __init__(self, name: str, teller: Tells) -> None:
        self._name = name
        self._teller = teller

    def configure(self, options: Options) -> None:  # noqa: ARG002  as each feature's
        """Find out anew whether anything listens."""
        self.have(*(("ended",) if self._teller.listens else ()))

    def ended(self, run: Run) -> None:
        """Tell of a batch."""
        batch, started = run.batch, run.started
        calls = {id(call.whole): max(started - call.arrived, 0.0) * 1000 for call in batch.calls}
        waits_ms = tuple(calls.values())
        fresh = getattr(batch, "fresh", None)
        if fresh is not None:  # the others have waited before they began, and run
            waits_ms = waits_ms[len(waits_ms) - fresh :]
        record = BatchRecord(
            name=self._name,
            size=batch.size,
            calls=len(calls),
            reason=str(batch.reason),
            waited_ms=max(waits_ms, default=0.0),
            waits_ms=() if batch.reason == StartReason.RETRY else waits_ms,
            took_ms=(run.now - started) * 1000,
            failed=batch.failed,
            item_error=_item_error(batch) if batch.failed and run.error is None else None,
            error=run.error,
            runs_again=run.is_divided,
            padding=1 - batch.real / batch.padded if batch.padded else 0.0,
        )
        self._teller.tell(record)
        if not batch.begun and hasattr(batch, "told"):  # else it is a step of one that is refilled
            self.river.afterwards(partial(batch.told, record))


def _item_error(batch: Batch) -> BaseException | None:
    """Return the first exception that a batch has in the place of a result, if it is still there."""
    for call, start, stop in batch.slices:
        results = (call.results or [])[start:stop] if call.many else [call.results]
        for each in (call.error, *results):
            if is_error(each):
                return each
    return None
