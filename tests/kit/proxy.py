"""A proxy as web frameworks have them, outside of what it stands for."""

from __future__ import annotations

from typing import Any


class Proxy:
    """An object that stands for one of its caller's context: asked for its class anywhere else, it fails."""

    @property
    def __class__(self) -> Any:
        raise LookupError("outside of the context")

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise NotImplementedError
