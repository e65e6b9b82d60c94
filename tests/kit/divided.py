"""Options with which a list runs as other calls: divided by key, or looked up in a cache."""

from __future__ import annotations

from typing import Any

LAYERS = ("plain", "group_by", "cache", "both")


def options_of_lists(layers: str) -> dict[str, Any]:
    """Return the options for one of `LAYERS`, with a cache of its own."""
    options: dict[str, Any] = {"cache": {}, "group_by": lambda item: item % 2}
    wanted = {"plain": (), "both": options}.get(layers, (layers,))
    return {name: options[name] for name in wanted}
