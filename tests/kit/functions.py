"""The smallest batch functions."""

from __future__ import annotations

from typing import Any


async def echo(items: list[Any]) -> list[Any]:
    """Answer each item by itself, on an event loop."""
    return items


def plain_echo(items: list[Any]) -> list[Any]:
    """Answer each item by itself."""
    return items
