"""Errors that tests raise."""

from __future__ import annotations


class OwnError(Exception):
    """Its arguments are not its message, so `copy.copy` would make a different error of it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code
