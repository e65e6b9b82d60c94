"""A log that fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Fails(logging.Handler):
    """A handler of the log that fails, as one does that calls a batched function in its own worker."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError(record)


@contextmanager
def log_fails() -> Iterator[None]:
    """Have each record of the log raise an error."""
    handler = _Fails()
    logging.getLogger("batched").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("batched").removeHandler(handler)
