"""One line in the log for each batch: `@batched.dynamically(on_batch=batched.logging.log_batch)`."""

from __future__ import annotations

import json
import logging
from typing import Any

from batched._core.batch_record import BatchRecord

__all__ = ["fields", "log_batch"]

_logger = logging.getLogger("batched.batches")
_TO_QUOTE = frozenset(' "=')


def log_batch(record: BatchRecord) -> None:
    """Log a batch at the level DEBUG, or WARNING if its function has raised, to the logger `batched.batches`.

    The fields are attributes of the log's record, too, so formatters that write JSON show each by its name.
    In the text, a value with a space in it is in quotes.
    """
    level = logging.DEBUG if record.error is None else logging.WARNING
    if _logger.isEnabledFor(level):
        told = fields(record)
        _logger.log(level, " ".join(f"{name}={_written(value)}" for name, value in told.items()), extra=told)


def _written(value: object) -> str:
    """Return a value as text: in quotes if it would otherwise not end where it does."""
    text = str(value)
    return text if text.isprintable() and not _TO_QUOTE.intersection(text) else json.dumps(text)


def fields(record: BatchRecord) -> dict[str, Any]:
    """Return a batch as plain values, for logs and metrics; all names begin with `batch_`."""
    error = record.error
    return {
        "batch_function": record.name,
        "batch_size": record.size,
        "batch_calls": record.calls,
        "batch_reason": record.reason,
        "batch_waited_ms": round(record.waited_ms, 3),
        "batch_took_ms": round(record.took_ms, 3),
        "batch_failed": record.failed,
        "batch_item_error": None if record.item_error is None else type(record.item_error).__qualname__,
        "batch_padding": round(record.padding, 4),
        "batch_runs_again": record.runs_again,
        "batch_error": None if error is None else type(error).__qualname__,
    }
