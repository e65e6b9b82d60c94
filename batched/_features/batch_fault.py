"""Errors that a function raises for items together, though each of these items works: they are logged."""

from __future__ import annotations

import logging

from batched._core.counters import Counters
from batched._logs import log

_MOST_LETTERS = 200


class BatchFault:
    """An error of a batch that ran again in parts until each of its items had worked."""

    def __init__(self, name: str, error: BaseException, counters: Counters) -> None:
        self._name = name
        self._error = error
        self._counters = counters
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        self._is_new = kind not in counters.told
        counters.told.add(kind)

    def log(self) -> None:
        """Have the stats name the error, and the log if it is the first of its type. Not under a lock."""
        error = self._error
        self._counters.batch_error = in_words(error)
        if self._is_new:
            log(
                logging.WARNING,
                "%s: a batch raised %s, but each of its items succeeded when retried alone or with fewer "
                "others. So no single item is at fault: the function fails on these items together, and "
                "until that is fixed, batching gains little or nothing. Make the function accept any items "
                "together (for example, pad them to one shape), let only compatible items share a batch "
                "(group_by), or set batch_size=1. If the error was transient, there is nothing to do.",
                self._name,
                type(error).__qualname__,
                error=error,
            )


def in_words(error: BaseException) -> str:
    """Return the type of `error` and the first line of its message."""
    try:
        line = str(error).strip().partition("\n")[0][:_MOST_LETTERS]
    except Exception:  # noqa: BLE001  of the error's class
        line = ""
    kind = type(error).__qualname__
    return f"{kind}: {line}" if line else kind
