"""A record of each batch that has run, for `on_batch`."""

from __future__ import annotations

from collections.abc import Callable

from batched._core.batch_record import BatchRecord
from batched._core.hooks import Feature, Run


class Records(Feature):
    """Tells of each batch that has run."""

    hooks = ("ended",)

    def __init__(self, name: str, tell: Callable[[BatchRecord], None]) -> None:
        self._name = name
        self._tell = tell

    def ended(self, run: Run) -> None:
        """Tell of a batch."""
        batch, started = run.batch, run.started
        oldest = min((call.arrived for call in batch.calls), default=started)
        self._tell(
            BatchRecord(
                name=self._name,
                size=run.size,
                calls=len({id(call.whole) for call in batch.calls}),
                reason=str(batch.reason),
                waited_ms=max(started - oldest, 0.0) * 1000,
                took_ms=(run.now - started) * 1000,
                failed=batch.failed,
                error=run.error,
                runs_again=run.is_divided,
                padding=1 - batch.real / batch.padded if batch.padded else 0.0,
            )
        )
