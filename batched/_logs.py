"""What workers say in the log."""

from __future__ import annotations

import contextlib
import logging
import sys

_logger = logging.getLogger("batched")


def log(level: int, text: str, *args: object, error: BaseException | None = None) -> None:
    """Log `text`, with the traceback of `error`. A handler that fails is not to end a worker."""
    with contextlib.suppress(Exception):
        _logger.log(level, text, *args, exc_info=error)


def log_error(text: str, *args: object) -> None:
    """Log the error that is handled. A handler of the log may fail too, which is not to end a worker."""
    log(logging.ERROR, text, *args, error=sys.exception())
