"""What type checkers make of `batched.asgi.Batching` around applications of frameworks, and of `problem`.

Never run, but read by both type checkers, as `lists.py` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypedDict, assert_type

import batched
from batched.asgi import Batching
from batched.problems import KINDS, Problem, problem


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


Answer = str | tuple[str | bytes, int] | tuple[str | bytes, int, Mapping[str, str | list[str]]]


class App:
    """As of Flask and Quart: a handler of errors returns an answer."""

    def register_error_handler(
        self,
        kind: type[Exception] | int,
        handler: Callable[[Any], Answer] | Callable[[Any], Awaitable[Answer]],
    ) -> None: ...


def handlers(app: App) -> None:
    for kind in KINDS:
        app.register_error_handler(kind, problem)


def problems(
    full: batched.QueueFullError, late: batched.OverloadError | TimeoutError, error: Exception
) -> None:
    assert_type(problem(full), Problem)
    assert_type(problem(late), Problem)
    assert_type(problem(batched.ClosedError()), Problem)
    assert_type(problem(batched.DisconnectedError()), Problem)
    assert_type(problem(error), Problem | None)
    assert_type(problem(None), Problem | None)
