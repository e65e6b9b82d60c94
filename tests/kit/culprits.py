"""Batch functions that fail for some items."""

from __future__ import annotations

from typing import Any


class Bad(Exception):
    """What a batch with a culprit in it raises."""


def picky(bad: Any) -> Any:
    """Return a batch function that raises if any item is in `bad`."""

    def function(items: list[Any]) -> list[Any]:
        culprits = [item for item in items if item in bad]
        if culprits:
            raise Bad(*culprits)
        return [("ok", item) for item in items]

    return function
