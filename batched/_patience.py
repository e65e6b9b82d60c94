"""How long waiting for company pays."""

from __future__ import annotations

__all__ = ["Window"]


class Window:
    """The plain window: a batch that is not full starts when its oldest item is `timeout_s` old."""

    __slots__ = ("timeout_s",)

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def start(self, oldest: float) -> float:
        """Return when to start a batch that is not full and whose oldest item arrived at `oldest`."""
        return oldest + self.timeout_s
