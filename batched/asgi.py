"""For web services on ASGI, such as FastAPI, Starlette, Litestar and Quart: one middleware, `Batching`.

app.add_middleware(batched.asgi.Batching, deadline_ms=2000)
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from concurrent.futures import CancelledError
from functools import partial
from types import coroutine
from typing import Any, Self, TypeAlias
from urllib.parse import quote

from batched._api.deadline import Block, Request, block_of
from batched._core.option_checks import LONGEST_MS, a_time
from batched._logs import log
from batched.problems import KINDS, Problem, problem

__all__ = ["Batching"]

# A message and a scope are of types that each framework has of its own: mappings, or typed dictionaries.
Message: TypeAlias = Any
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]

_check = a_time(or_zero=False)


class Batching:
    """An ASGI middleware for a service that calls batched functions.

    - A handler that ends with `QueueFullError` answers 429, with `OverloadError`, `ClosedError` or
      `DisconnectedError` 503, with another `TimeoutError` 504: with `Retry-After` where that is known, and a
      body of `application/problem+json`, as `batched.problems` says. An answer that has begun is left alone.
      Litestar and Quart make answers of errors before any middleware sees them, and so do applications of
      Starlette and FastAPI that are mounted in another one, or that this is put around. Quart gets
      `batched.problems.problem` as its handler for these errors; of the others, an answer of 500 for such an
      error is replaced.
    - All calls of one request share a deadline, as with `batched.deadline`.
    - A handler is cancelled when its client has left and has sent all of its request; in its first 0.1 s that
      is not looked for. So what it queued never runs. What it then awaits, to clean up, is not cancelled
      again, unless a `BaseHTTPMiddleware` of Starlette is between. A handler that is no coroutine runs in a
      thread, which cannot be cancelled: the call that it waits for raises
      `concurrent.futures.CancelledError`, unless its batch has begun; a stream raises that at its next step.
    - WebSockets are left alone: their handlers use `batched.deadline`, and see errors themselves.

    Args:
        app: The application.
        deadline_ms: The milliseconds that the calls of a request have; None for no deadline.
        deadline_header: The name of a header with which a request may ask for a sooner one, in milliseconds;
            of several the soonest counts. One that cannot be read is answered with 400. "" for no header.
        cancel: Whether handlers are cancelled when their clients leave.

    Raises:
        TypeError: `app` is no application, or `deadline_header` no text.
        ValueError: `deadline_ms` is not above 0, or more than a week.

    """

    def __init__(
        self,
        app: App,
        *,
        deadline_ms: float | None = None,
        deadline_header: str = "x-deadline-ms",
        cancel: bool = True,
    ) -> None:
        if not callable(app):
            raise TypeError(f"Batching goes around an application: pass it, as in Batching(app), not {app!r}")
        if not isinstance(deadline_header, str):
            raise TypeError(
                f'deadline_header must be the name of a header, or "" for none, got {deadline_header!r}'
            )
        self._app = app
        self._deadline_ms = None if deadline_ms is None else _check("deadline_ms", deadline_ms)
        self._header = deadline_header.lower().encode()
        self._cancels = cancel
        quart: Any = getattr(app, "__self__", app)
        if hasattr(quart, "register_error_handler"):
            own = quart.error_handler_spec[None][None]
            for kind in set(KINDS).difference(own):
                quart.register_error_handler(kind, problem)
            if ExceptionGroup not in own:
                quart.register_error_handler(ExceptionGroup, _of_group(quart, own))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Run the application for one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope)
        try:
            allowed_ms = self._allowed_ms(scope)
        except ValueError:
            await answer.problem(_UNREADABLE)
            return
        try:
            if self._cancels and not scope.get(_WATCHES):
                scope[_WATCHES] = True
                with block_of(allowed_ms, Request) as watched:
                    answer.block = watched
                    await _while_client_stays(self._app, scope, receive, answer, watched)
            else:
                with block_of(allowed_ms, Block) as answer.block:
                    await self._app(scope, receive, answer.send)
        except Exception as error:
            if answer.replaced is None and not answer.has_begun and (found := problem(error)) is not None:
                await answer.problem(found)
                answer.replaced = found, error
            elif answer.replaced is None or answer.replaced[1] is not error:  # Starlette raises it once more
                raise
        if answer.replaced is not None:
            _log(scope, *answer.replaced)

    def _allowed_ms(self, scope: MutableMapping[str, Any]) -> float | None:
        """Return the milliseconds that a request has; `ValueError` if its header holds no such number."""
        asked = [float(value) for name, value in scope["headers"] if name == self._header]
        if not all(0 < ms < math.inf for ms in asked):
            raise ValueError(asked)
        most = LONGEST_MS if self._deadline_ms is None else self._deadline_ms
        return min(*asked, most) if asked else self._deadline_ms


def _of_group(quart: Any, own: dict[type[Exception], Any]) -> Callable[[ExceptionGroup], Awaitable[Any]]:
    """Return a handler of Quart for groups of errors. Those without an answer end as they would have."""

    async def handle(group: ExceptionGroup) -> Any:
        found = problem(group)
        if found is not None:
            return found
        if Exception not in own:
            raise group
        return await quart.ensure_async(own[Exception])(group)

    return handle


def _log(scope: MutableMapping[str, Any], found: Problem, error: BaseException) -> None:
    # Quoted, or a line of the client's own would be one of the log.
    path = quote(scope.get("path", ""), errors="replace")
    why = error if error.args else type(error).__name__
    log(logging.WARNING, "%s was answered with %s: %s", path, found.status, why)


_UNREADABLE = Problem(
    b'{"type": "about:blank", "title": "Bad Request", "status": 400, '
    b'"detail": "The deadline in the header must be a number of milliseconds above 0."}',
    400,
    {"content-type": "application/problem+json"},
)


_WATCHES = "batched.asgi.watches"
"""Where a request notes that a middleware watches its client: a second one would cancel its handler twice."""

_LEFT = Problem(b"", 499, {})
_FAILED = 500

_GRACE_S = 1.0
"""What an application has to end by itself if it waits for the message that its client has left. Quart and
Django do, to cancel a task of theirs: they would lose that task if they were cancelled meanwhile."""
_QUICK_S = 0.1
"""An application that has ended by then is not watched: to look for its client's leave costs a task."""
_TURNS = 5
"""How many turns of the loop an application has to ask for that message: a client may leave as it begins."""


class _Answer:
    """What is sent to a client.

    Of an application that makes answers of errors by itself, a problem is sent instead of an answer of 500
    for an error that has one.
    """

    def __init__(self, send: Send, scope: MutableMapping[str, Any]) -> None:
        self._send = send
        self._scope = scope
        self._app = scope.get("app")
        self.replaced: tuple[Problem, BaseException] | None = None
        self.block: Block | None = None
        self.has_begun = False
        self.has_ended = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer of the application."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            error = sys.exception() if message["status"] == _FAILED and self._is_by_itself() else None
            if error is not None and (found := problem(error)) is not None:
                self.replaced = found, error
                await self.problem(found)
        is_body = message["type"] in {"http.response.body", "http.response.zerocopysend"}
        if message["type"] == "http.response.pathsend" or (is_body and not message.get("more_body", False)):
            self.has_ended = True
            if self.block is not None:
                self.block.lift()  # the background tasks of a request have none
        if self.replaced is None:
            await self._send(message)

    def _is_by_itself(self) -> bool:
        """Whether the application makes answers of errors: Litestar, or one inside of that of Starlette."""
        return "litestar_app" in self._scope or self._scope.get("app") is not self._app

    async def problem(self, found: Problem) -> None:
        """Answer with a problem."""
        headers = [(name.encode(), value.encode()) for name, value in found.headers.items()]
        headers.append((b"content-length", str(len(found.body)).encode()))
        await self._send({"type": "http.response.start", "status": found.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": found.body})


async def _while_client_stays(
    app: App, scope: MutableMapping[str, Any], receive: Receive, answer: _Answer, block: Request
) -> None:
    """Run the application, and cancel it when the client leaves before all of its answer has been sent."""
    waits = _waits_for_continue(scope)
    client = _Client(receive, answer, block, reads_ahead=waits)

    async def run() -> None:
        await app(scope, client.receive, answer.send)

    timer = None if waits else asyncio.get_running_loop().call_later(_QUICK_S, client.watch)
    anyio = sys.modules.get("anyio")
    try:
        if anyio is None:
            with _CancelScope() as whole:
                client.cancel = whole.cancel
                await run()
        else:
            # Threads of anyio, in which plain handlers run, are shielded from its own cancels only: that of a
            # task would end the request, its dependencies and its place among the threads while the handler
            # still runs.
            with anyio.CancelScope() as whole, anyio.CancelScope() as inside:
                client.cancel = whole.cancel
                await _cancelled_once(run(), inside)
    except CancelledError:  # of a thread
        if not client.has_left:
            raise
    finally:
        if timer is not None:
            timer.cancel()
        client.stop()
    if client.has_left and not answer.has_begun:  # middleware around this one asks for an answer
        await answer.problem(_LEFT)


class _CancelScope:
    """Work of the running task that may be cancelled by itself, as a scope of anyio and a timeout can."""

    def __enter__(self) -> Self:
        self._task: Any = asyncio.current_task()
        self._others: int | None = None  # other cancels that there were when it was cancelled
        return self

    def cancel(self) -> None:
        """Cancel the work, which waits for something."""
        # Not before: up to Python 3.12 a `TaskGroup` that has failed leaves one behind.
        self._others = self._task.cancelling()
        self._task.cancel()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        is_own = self._others is not None and self._task.uncancel() <= self._others
        return is_own and isinstance(error, asyncio.CancelledError)


@coroutine
def _cancelled_once(work: Coroutine[Any, Any, None], inside: Any) -> Generator[Any, Any, None]:
    """Do `work` inside of a scope of anyio that is shielded while the work is being cancelled.

    The scope around it would cancel each further `await`, too: of a handler that gives a connection back to
    its pool, the pool would lose that. What the work has met by itself, as a timeout of its own, is over by
    then: it can still be cancelled.
    """
    task: Any = asyncio.current_task()
    others: int = task.cancelling()
    is_shielded = False
    step = partial(work.send, None)
    try:
        while True:
            awaited = step()
            if is_shielded:
                inside.shield = is_shielded = task.cancelling() > others
            try:
                step = partial(work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001  for the work
                inside.shield = is_shielded = task.cancelling() > others
                step = partial(work.throw, error)
    except StopIteration:
        return
    finally:
        del step  # or an error, its traceback and this frame would keep each other alive


def _waits_for_continue(scope: MutableMapping[str, Any]) -> bool:
    """Whether a client sends its body once it is asked for; servers ask for it when it is read."""
    asked: bytes = next((value for name, value in scope["headers"] if name == b"expect"), b"")
    return asked.lower() == b"100-continue"


class _Client:
    """The messages of a client. One is read ahead: after all of a request, the next is that it has left.

    If the client waits to be asked for its body, nothing is read before the application asks for that.
    """

    cancel: Callable[[], object]
    """Cancels the application."""

    def __init__(self, receive: Receive, answer: _Answer, block: Request, *, reads_ahead: bool) -> None:
        self._receive = receive
        self._answer = answer
        self._block = block
        self._next: Message | None = None
        self._last: Message | None = None
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._waiting = 0
        self._is_read = False  # by the application itself
        self._reads_ahead = reads_ahead  # once the application has read
        self._is_over = False
        self._watching: asyncio.Task[None] | None = None
        self.has_left = False
        self._is_told = False  # whether the application waits for that, or knows

    def watch(self) -> None:
        """Read ahead from now on; where the application is reading itself, after that."""
        self._reads_ahead = True
        if self._watching is None and not (self._is_read or self._is_over):
            self._watching = asyncio.ensure_future(self._leave())

    def stop(self) -> None:
        """Read no more: the application has ended."""
        self._is_over = True
        if self._watching is not None:
            self._watching.cancel()

    async def _leave(self) -> None:
        """Cancel the application when the client has left."""
        while not self.has_left:
            while self._next is not None and self._next.get("more_body", False):
                self._changed.clear()
                await self._changed.wait()
            try:
                self._note(await self._receive())
            except Exception as error:  # noqa: BLE001  of the server, for the application
                self._error = error
                self._changed.set()
                return
        for _ in range(_TURNS):
            if not self._is_told:
                await asyncio.sleep(0)
        if self._answer.has_ended:  # it has work to do in the background
            return
        if self._is_told:
            self._block.withdraw()
            await asyncio.sleep(_GRACE_S)
        self.cancel()
        self._block.withdraw()

    def _note(self, message: Message) -> None:
        if message["type"] == "http.disconnect":  # what came before it can still be read
            self._last = message
            self.has_left = True
            self._is_told = self._waiting > 0
        else:
            self._next = message
        self._changed.set()

    async def receive(self) -> Message:
        """Return the next message, for the application."""
        while self._next is None:
            if self._error is not None:
                raise self._error
            if self._last is not None:
                self._is_told = True
                return self._last
            if self._watching is None and not self._is_read:
                await self._read()
                continue
            self._changed.clear()
            self._waiting += 1
            try:
                await self._changed.wait()
            finally:
                self._waiting -= 1
        message, self._next = self._next, None
        self._changed.set()
        return message

    async def _read(self) -> None:
        """Read the next message."""
        self._is_read = True
        try:
            self._note(await self._receive())
        finally:
            self._is_read = False
            self._changed.set()  # another task of the application may wait, and this one be cancelled
            if self.has_left or self._reads_ahead:
                self.watch()
