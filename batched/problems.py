"""What a web service answers where a batched function could not: a status, headers, and a body in JSON.

`problem(error)` is for Flask, Django and others; `batched.asgi.Batching` uses it for all that speak ASGI. The
body follows RFC 9457, and says nothing of the call or of others.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple, TypeAlias, overload

from batched.errors import ClosedError, DisconnectedError, OverloadError, QueueFullError

__all__ = ["Problem", "problem"]

_KINDS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (QueueFullError, 429, "Too Many Requests", "Too many requests are waiting."),
    (OverloadError, 503, "Service Unavailable", "The answer would come too late."),
    (ClosedError, 503, "Service Unavailable", "The service is about to end."),
    (DisconnectedError, 503, "Service Unavailable", "A part of the service cannot be reached."),
    (TimeoutError, 504, "Gateway Timeout", "There was no answer in time."),
)
"""In this order: an `OverloadError` is a `TimeoutError`, too."""


KINDS: tuple[type[Exception], ...] = tuple(kind for kind, *_ in _KINDS)
"""The errors that have an answer, for frameworks that take a handler for each."""


Known: TypeAlias = QueueFullError | OverloadError | ClosedError | DisconnectedError | TimeoutError
"""The same errors, for type checkers: to Flask, a handler of errors returns an answer, and never None."""


class Problem(NamedTuple):
    """An answer, in the order in which Flask takes it."""

    body: bytes
    """In JSON."""
    status: int
    """The status of the answer."""
    headers: dict[str, str]
    """With the type of the body, and when to come back if that is known."""


@overload
def problem(error: Known) -> Problem: ...
@overload
def problem(error: BaseException | None) -> Problem | None: ...
def problem(error: BaseException | None) -> Problem | None:
    """Return the answer for an error of a batched function, None if a client should not know of the error.

    `QueueFullError` is 429; `OverloadError`, `ClosedError` and `DisconnectedError` are 503; another
    `TimeoutError` is 504, whatever has raised it. Where it is known when to come back, `Retry-After` says so,
    in whole seconds, and `Retry-After-Ms`, which some clients know. A group of errors that all have an answer
    has the one with the highest status, and of several such the one to wait for longest.
    """
    if isinstance(error, BaseExceptionGroup):
        return _problem_of_all(error)
    found = next((each for each in _KINDS if isinstance(error, each[0])), None)
    if found is None:
        return None
    _, status, title, detail = found
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    headers = {"content-type": "application/problem+json", "cache-control": "no-store"}
    retry_after_s = getattr(error, "retry_after_s", None)
    if isinstance(retry_after_s, int | float) and math.isfinite(retry_after_s):
        seconds = max(1, math.ceil(retry_after_s))
        headers["retry-after"] = str(seconds)
        headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
        body["detail"] = f"{detail} Try again in {seconds} s."
    return Problem(json.dumps(body).encode(), status, headers)


def _problem_of_all(group: BaseExceptionGroup[BaseException]) -> Problem | None:
    """Return the worst answer for the errors of a group; None if one of them has none."""
    found = [problem(error) for error in group.exceptions]
    known = [each for each in found if each is not None]
    return max(known, key=_how_bad) if len(known) == len(found) else None


def _how_bad(found: Problem) -> tuple[int, int]:
    """Return the order of an answer: by its status, then by how long to stay away."""
    return found.status, int(found.headers.get("retry-after-ms", 0))
