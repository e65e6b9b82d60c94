"""What type checkers make of `batched.asgi.Batching` around applications of frameworks.

Never run, but read by both type checkers, as `lists.py` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypedDict

from batched.asgi import Batching


class Scope(TypedDict):
    """As of Litestar and Quart: no mapping of any texts."""

    type: str


class Event(TypedDict):
    type: str


Typed = Callable[[Scope, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]]
Message = MutableMapping[str, Any]
Plain = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


def of_typed(middleware: Callable[..., Typed]) -> None: ...
def of_plain(middleware: Callable[[Plain], Plain]) -> None: ...


def applications(typed: Typed, plain: Plain) -> None:
    around: list[Typed] = [Batching(typed), Batching(typed, deadline_ms=10_000)]
    around_plain: list[Plain] = [Batching(plain)]
    of_typed(Batching)
    of_plain(Batching)
    assert around
    assert around_plain
