"""A cache as a client of some server."""

from __future__ import annotations

from typing import Any


class Client:
    """An object with `get` and `set`, as a client of some server; it notes the keys that it is asked for."""

    def __init__(self, known: dict[Any, Any] | None = None) -> None:
        self.kept: dict[Any, Any] = dict(known or {})
        self.asked: list[Any] = []

    def get(self, key: Any) -> Any:
        self.asked.append(key)
        return self.kept.get(key)

    def set(self, key: Any, value: Any) -> Any:
        self.kept[key] = value
