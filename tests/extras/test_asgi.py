"""The middleware for ASGI, with applications that are written by hand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

import batched
import batched.asgi
from batched.asgi import Batching
from batched.problems import KINDS, problem
from tests.kit.gate import PATIENCE_S, Gate, turns_until, until
from tests.kit.serving import served


class Client:
    """A client of an application: it sends a request, gets an answer, and may leave."""

    def __init__(self, headers: dict[str, str] | None = None, body: tuple[bytes, ...] = (b"",)) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self.sent: list[dict[str, Any]] = []
        self.read = 0
        self.has_been_read = asyncio.Event()
        self._body = list(body)
        self._left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the request, or that the client has left."""
        if self._body:
            part = self._body.pop(0)
            self.read += 1
            self.has_been_read.set()
            return {"type": "http.request", "body": part, "more_body": bool(self._body)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Note a part of the answer."""
        self.sent.append(message)

    def leave(self) -> None:
        """Leave."""
        self._left.set()

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> Any:
        """The body of the answer, from JSON."""
        return json.loads(b"".join(message.get("body", b"") for message in self.sent[1:]))


def answering(handler: Callable[[], Any]) -> Any:
    """Return an application that answers with what a handler returns."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found = await handler()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(found).encode()})

    return app


def ask(app: Any, client: Client) -> Client:
    """Have a client ask an application."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await app(client.scope, client.receive, client.send)

    asyncio.run(main())
    return client


def with_retry(error: Any, seconds: float | None) -> Any:
    """Return an error that says when to come back."""
    error.retry_after_s = seconds
    return error


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (with_retry(batched.QueueFullError("secret"), 0.2), 429, "1"),
        (with_retry(batched.OverloadError("secret"), 2.1), 503, "3"),
        (batched.OverloadError("secret"), 503, None),
        (batched.ClosedError("secret"), 503, None),
        (batched.DisconnectedError("secret"), 503, None),
        (TimeoutError("secret"), 504, None),
        (ExceptionGroup("of a task group", [TimeoutError("secret")]), 504, None),
    ],
)
def test_an_error_of_a_batched_function_is_an_answer(
    error: Exception, status: int, retry_after: str | None
) -> None:
    """With a problem as its body, which says nothing of the error's text."""

    async def fail() -> None:
        raise error

    client = ask(Batching(answering(fail)), Client())
    assert client.status == client.body["status"] == status
    assert client.headers.get("retry-after") == retry_after
    seconds = getattr(error, "retry_after_s", None)
    assert client.headers.get("retry-after-ms") == (seconds and f"{seconds * 1000:.0f}")
    assert client.headers["content-type"] == "application/problem+json"
    assert "secret" not in str(client.body)


def answering_errors(error: Exception, status: int) -> Any:
    """Return an application that answers an error of its handler by itself, as Litestar does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            raise error
        except Exception as raised:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b'"', "more_body": True})
            await send({"type": "http.response.body", "body": f'{type(raised).__name__}"'.encode()})

    return app


@pytest.mark.parametrize(
    ("error", "status", "of_litestar", "answered"),
    [
        (batched.OverloadError(), 500, True, 503),
        (batched.QueueFullError(), 500, True, 429),
        (ExceptionGroup("of a task group", [TimeoutError()]), 500, True, 504),
        (batched.OverloadError(), 418, True, "OverloadError"),
        (ValueError(), 500, True, "ValueError"),
        (batched.OverloadError(), 500, False, "OverloadError"),
    ],
)
def test_the_answer_of_litestar_for_such_an_error_is_replaced(
    error: Exception, status: int, of_litestar: bool, answered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Not one of the application's own, nor one for another error, nor of another framework."""
    client = Client()
    client.scope["path"] = "/embed"
    if of_litestar:
        client.scope["litestar_app"] = None
    ask(Batching(answering_errors(error, status)), client)
    is_replaced = isinstance(answered, int)
    assert (client.body["status"] if is_replaced else client.body) == answered
    assert client.status == (answered if is_replaced else status)
    assert [message["type"] for message in client.sent].count("http.response.start") == 1
    said = str(error) or type(error).__name__
    assert [record.getMessage() for record in caplog.records] == (
        [f"/embed was answered with {answered}: {said}"] if is_replaced else []
    )


@pytest.mark.parametrize("name", ["app", "litestar_app"])
def test_the_answer_of_an_application_inside_is_replaced_too(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of Starlette, which notes itself in the scope, answers an error, and raises it once more."""
    error = batched.OverloadError("late")
    inner = answering_errors(error, 500)

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        scope[name] = mounted
        await inner(scope, receive, send)
        raise error

    client = Client()
    client.scope |= {"path": "/embed", "app": "the outer one"}
    ask(Batching(mounted), client)
    assert client.status == client.body["status"] == 503
    assert [record.getMessage() for record in caplog.records] == ["/embed was answered with 503: late"]


@pytest.mark.libraries
@pytest.mark.parametrize("place", ["in it", "around it", "in one that it is mounted in"])
@pytest.mark.parametrize("debug", [False, True])
def test_starlette_answers_such_an_error_wherever_the_middleware_is(place: str, debug: bool) -> None:
    """Though an application answers what leaves its own middleware, before any other sees it."""
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route

    async def handler(request: Any) -> None:
        raise {"late": TimeoutError, "other": KeyError}[request.path_params["kind"]]

    app: Any = Starlette(routes=[Route("/{kind}", handler)], debug=debug)
    if place == "in it":
        app.add_middleware(Batching)
    elif place == "around it":
        app = Batching(app)
    else:
        app = Starlette(routes=[Mount("/there", app)])
        app.add_middleware(Batching)

    def client(kind: str) -> Client:
        path = f"/there/{kind}" if "mounted" in place else f"/{kind}"
        found = Client({"host": "localhost"})
        found.scope |= {"method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        found.scope |= {"root_path": "", "scheme": "http", "http_version": "1.1", "server": ("localhost", 80)}
        return found

    late, other = client("late"), client("other")
    assert ask(app, late).status == late.body["status"] == 504
    with pytest.raises(KeyError):
        ask(app, other)
    assert other.status == 500


def test_quart_gets_a_handler_for_each_such_error() -> None:
    """As it makes answers of errors before any middleware sees them. What the application has is kept."""

    class App:
        def __init__(self) -> None:
            self.handlers: dict[Any, Any] = {TimeoutError: str}
            self.error_handler_spec = {None: {None: self.handlers}}
            self.register_error_handler = self.handlers.__setitem__

        async def asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
            raise NotImplementedError

    app = App()
    Batching(app.asgi_app)
    assert set(app.handlers) == {*KINDS, ExceptionGroup}
    assert app.handlers[TimeoutError] is str
    assert app.handlers[batched.OverloadError](batched.OverloadError()).status == 503


@pytest.mark.libraries
@pytest.mark.parametrize("has_own", [False, True])
def test_quart_answers_a_group_of_such_errors(has_own: bool) -> None:
    """As of a task group; what the application does with other groups is as without the middleware."""
    import quart

    app = quart.Quart("app")

    @app.get("/<kind>")
    async def handler(kind: str) -> str:
        raise ExceptionGroup(
            "of a task group", [batched.OverloadError(), {"late": TimeoutError}.get(kind, KeyError)()]
        )

    app.asgi_app = Batching(app.asgi_app)  # type: ignore[method-assign]
    if has_own:

        @app.errorhandler(Exception)
        def answer(error: Exception) -> tuple[str, int]:
            return type(error).__name__, 418

    async def main() -> list[Any]:
        client = app.test_client()
        app.config["PROPAGATE_EXCEPTIONS"] = False
        return [await client.get(f"/{kind}") for kind in ("late", "other")]

    late, other = asyncio.run(main())
    assert late.status_code == 504
    assert other.status_code == (418 if has_own else 500)
    if has_own:
        assert asyncio.run(other.get_data()) == b"ExceptionGroup"


def test_what_is_no_application_is_refused_when_the_middleware_is_made() -> None:
    wrong: Any = "service:app"
    with pytest.raises(TypeError, match=r"as in Batching\(app\), not 'service:app'"):
        Batching(wrong)


def test_a_service_may_take_no_deadlines_from_headers() -> None:
    """An empty name is none; what is no name is refused when the middleware is made."""
    fn = batched.dynamically(list, timeout_ms=0)
    asks = answering(lambda: fn.acall("a"))
    for name, expected in (("x-deadline-ms", {503, 504}), ("", {200})):
        client = ask(Batching(asks, deadline_header=name), Client({"x-deadline-ms": "0.000001"}))
        assert client.status in expected
    fn.shutdown()
    wrong: Any = None
    with pytest.raises(TypeError, match=r'name of a header, or "" for none, got None'):
        Batching(asks, deadline_header=wrong)


def test_a_path_with_a_line_of_its_own_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A client cannot write lines that look like those of the service."""

    async def fail() -> None:
        raise TimeoutError

    client = Client()
    client.scope["path"] = "/embed/x\nERROR: all is lost/ü"
    ask(Batching(answering(fail)), client)
    (record,) = caplog.records
    assert (
        record.getMessage()
        == "/embed/x%0AERROR%3A%20all%20is%20lost/%C3%BC was answered with 504: TimeoutError"
    )


@pytest.mark.parametrize("seconds", [(1, 5), (5, 1), (5, None), (None, 5)])
def test_calls_that_are_refused_together_come_back_when_all_can_be_answered(
    seconds: tuple[float | None, ...],
) -> None:
    """Of a task group: with the time of the first, the second would be refused again."""
    errors = [with_retry(batched.OverloadError(), each) for each in seconds]
    found = problem(ExceptionGroup("of a task group", errors))
    assert found is not None
    assert found.headers["retry-after"] == "5"


def test_other_errors_and_answers_that_have_begun_are_left_alone() -> None:
    """The framework answers these; other kinds of connections go by."""

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        ask(Batching(answering(fail)), Client())

    async def begun(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ask(Batching(begun), Client())
    seen = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    client = Client()
    client.scope["type"] = "lifespan"
    ask(Batching(other), client)
    assert seen == ["lifespan"]
    assert problem(KeyError("x")) is None
    assert problem(None) is None


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({}, {"deadline_ms": 30}),
        ({"x-deadline-ms": "30"}, {}),
        ({"x-due": "30"}, {"deadline_header": "X-Due"}),
    ],
)
def test_the_calls_of_a_request_share_a_deadline(
    headers: dict[str, str], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Given by the service, or by a header: a call that is late is 504, or 503 if that is known sooner."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    client = ask(Batching(answering(lambda: fn.acall(1)), **options), Client(headers))
    assert client.status == 504
    assert " ms that its request had left" in caplog.text
    gate.open()
    fn.shutdown()


@pytest.mark.parametrize("asked", ["soon", "-1", "0", "nan", "inf"])
def test_a_deadline_that_cannot_be_read_is_the_clients_fault(asked: str) -> None:
    """It is 400, and the handler does not run."""
    client = ask(Batching(answering(lambda: pytest.fail("it ran"))), Client({"x-deadline-ms": asked}))
    assert client.status == 400


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (["1e-3", "60000"], {}),
        (["60000", "1e-3"], {}),
        (["1e12"], {"deadline_ms": 1e-3}),
    ],
)
def test_the_soonest_deadline_counts(asked: list[str], options: dict[str, Any]) -> None:
    """Of several in headers, as where a gateway adds its own, and of that of the service."""
    fn = batched.dynamically(list)
    client = Client()
    client.scope["headers"] = [(b"x-deadline-ms", each.encode()) for each in asked]
    assert ask(Batching(answering(lambda: fn.acall(1)), **options), client).status in {503, 504}
    fn.shutdown()


def test_a_request_may_have_time_for_ever() -> None:
    """No deadline is longer than a week, and a client need not know that."""
    fn = batched.dynamically(list)
    assert ask(Batching(answering(lambda: fn.acall(1))), Client({"x-deadline-ms": "1e12"})).status == 200
    fn.shutdown()


WAYS: dict[str, Callable[[Any], Any]] = {
    "a task": lambda fn: fn.acall("queued"),
    "a thread": lambda fn: asyncio.to_thread(fn, "queued"),
    "a thread with a future": lambda fn: asyncio.to_thread(lambda: fn.submit("queued").result(PATIENCE_S)),
    "a thread with a list": lambda fn: asyncio.to_thread(fn, ["queued"]),
    "a thread with a map": lambda fn: asyncio.to_thread(lambda: [*fn.map(["queued"])]),
    "a thread within a deadline of its own": lambda fn: asyncio.to_thread(within_a_deadline, fn),
}
"""How a handler calls a function."""


def within_a_deadline(fn: Any) -> Any:
    with batched.deadline(1000 * PATIENCE_S):
        return fn("queued")


@pytest.mark.parametrize("options", [{}, {"deadline_ms": 1000 * PATIENCE_S}])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["in the queue", "before a full queue"])
def test_what_a_client_that_has_left_queued_never_runs(way: str, options: Any, place: str) -> None:
    """Of eight clients that leave while their calls are in the queue, none is executed."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    if place == "before a full queue":
        fn.configure(max_queue_size=1, on_full="wait")
    app = Batching(answering(lambda: WAYS[way](fn)), **options)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(9))
        first = asyncio.ensure_future(fn.acall("first"))
        await asyncio.to_thread(gate.wait_for_batch)
        clients = [Client() for _ in range(8)]
        asked = [asyncio.ensure_future(app(each.scope, each.receive, each.send)) for each in clients]
        # Before a full queue, calls are in no figure yet.
        batcher: Any = fn._driver.batcher  # noqa: SLF001
        await turns_until(lambda: fn.stats and len(batcher.waiting()) == 8)
        for each in clients:
            each.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*asked)
        gate.open()
        await first
        assert [each.status for each in clients] == [499] * 8  # is not sent, but middleware asks for one

    asyncio.run(main())
    fn.shutdown()
    assert gate.batches == [["first"]]
    assert fn.stats.total_cancelled == 8


def test_a_call_of_a_thread_that_has_begun_is_answered() -> None:
    """Its handler goes on; what it queues after that runs, as it may clean up."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    answers: list[str] = []
    ended = threading.Event()

    def handle() -> None:
        answers.extend([fn("begun"), fn("later")])
        ended.set()

    async def main() -> None:
        client = Client()
        app = Batching(answering(lambda: asyncio.to_thread(handle)))
        asked = asyncio.ensure_future(app(client.scope, client.receive, client.send))
        await asyncio.to_thread(gate.wait_for_batch)
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asked
        gate.open()
        assert await asyncio.to_thread(ended.wait, PATIENCE_S)

    asyncio.run(main())
    fn.shutdown()
    assert answers == ["begun", "later"]


def test_a_stream_of_a_thread_ends_when_its_client_has_left() -> None:
    """Such as that of a plain generator, which Starlette runs in threads, and leaves to the collector."""
    first_is_taken, goes_on, ended = (threading.Event() for _ in range(3))
    errors: list[BaseException] = []

    @batched.dynamically(max_pieces=1_000_000)
    def endless(items: list[str]) -> Iterator[list[str]]:
        try:
            yield items
            while goes_on.wait(PATIENCE_S):
                yield items
        finally:
            ended.set()

    def handle() -> None:
        stream = endless.stream("a")
        assert next(stream) == "a"
        first_is_taken.set()
        with pytest.raises(CancelledError, match=r"the client that \S+ was called for has left") as raised:
            next(stream)
        errors.append(raised.value)

    async def main() -> None:
        client = Client()
        app = Batching(answering(lambda: asyncio.to_thread(handle)))
        asked = asyncio.ensure_future(app(client.scope, client.receive, client.send))
        assert await asyncio.to_thread(first_is_taken.wait, PATIENCE_S)
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asked
        await asyncio.to_thread(until, lambda: errors)

    asyncio.run(main())
    goes_on.set()
    assert ended.wait(PATIENCE_S)
    endless.shutdown()


def test_a_thread_of_a_mounted_application_and_of_another_process_is_told_too() -> None:
    """Its calls raise `CancelledError`, in whichever process they wait."""
    gate = Gate(shut=True)
    errors: list[BaseException] = []

    def handle() -> None:
        with pytest.raises(CancelledError, match=r"the client that \S+ was called for has left") as raised:
            remote("queued")
        errors.append(raised.value)

    async def main() -> None:
        client = Client()
        app = Batching(Batching(answering(lambda: asyncio.to_thread(handle))))
        first = remote.submit("first")
        await asyncio.to_thread(gate.wait_for_batch)
        asked = asyncio.ensure_future(app(client.scope, client.receive, client.send))
        await asyncio.to_thread(until, lambda: remote.stats.queue_size == 1)
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asked
        await asyncio.to_thread(until, lambda: errors and remote.stats.queue_size == 0)
        gate.open()
        assert await asyncio.to_thread(first.result, PATIENCE_S) == "first"

    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, name="held")
    with served(fn) as server:
        remote = server.connect().held
        asyncio.run(main())
    assert gate.batches == [["first"]]


def with_fastapi(handle: Callable[[], str], ended: list[str]) -> Any:
    """Return an application, in which the handler has a dependency that ends with it."""
    import fastapi

    app = fastapi.FastAPI()
    app.add_middleware(Batching)

    def place() -> Iterator[str]:
        try:
            yield "place"
        finally:
            ended.append("place")

    @app.get("/")
    def handler(_: str = fastapi.Depends(place)) -> str:  # noqa: FAST002  a local name
        return handle()

    return app


def with_starlette(handle: Callable[[], str], ended: list[str]) -> Any:
    """Return an application."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def handler(_: Any) -> PlainTextResponse:
        try:
            return PlainTextResponse(handle())
        finally:
            ended.append("place")

    return Starlette(routes=[Route("/", handler)], middleware=[Middleware(Batching)])


def with_litestar(handle: Callable[[], str], ended: list[str]) -> Any:
    """Return an application."""
    import litestar
    from litestar.middleware import DefineMiddleware

    @litestar.get("/", sync_to_thread=True)
    def handler() -> str:
        try:
            return handle()
        finally:
            ended.append("place")

    return litestar.Litestar([handler], middleware=[DefineMiddleware(Batching)])


def with_quart(handle: Callable[[], str], ended: list[str]) -> Any:
    """Return an application."""
    import quart

    app = quart.Quart("app")

    @app.get("/")
    def handler() -> str:
        try:
            return handle()
        finally:
            ended.append("place")

    app.asgi_app = Batching(app.asgi_app)  # type: ignore[method-assign]
    return app


def with_django(handle: Callable[[], str], ended: list[str]) -> Any:
    """Return an application."""
    from types import ModuleType

    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    def handler(_: Any) -> HttpResponse:
        try:
            return HttpResponse(handle())
        finally:
            ended.append("place")

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)
        django.setup()
    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path("", handler)]
    settings.ROOT_URLCONF = urls
    return Batching(get_asgi_application())


@pytest.mark.libraries
@pytest.mark.parametrize("framework", [with_fastapi, with_starlette, with_litestar, with_quart, with_django])
def test_a_handler_in_a_thread_whose_client_has_left_ends(
    framework: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its call in the queue never runs, it can clean up, and nothing is logged as an error."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    ended: list[str] = []
    app = framework(lambda: str(fn("queued")), ended)

    async def main() -> None:
        first = asyncio.ensure_future(fn.acall("first"))
        await asyncio.to_thread(gate.wait_for_batch)
        client = Client({"host": "localhost"})
        client.scope |= {"method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": ""}
        client.scope |= {"scheme": "http", "http_version": "1.1", "server": ("localhost", 80)}
        asked = asyncio.ensure_future(app(client.scope, client.receive, client.send))
        await turns_until(lambda: fn.stats.queue_size == 1)
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asked
        await turns_until(lambda: ended)
        gate.open()
        assert await first == "first"

    asyncio.run(main())
    fn.shutdown()
    assert gate.batches == [["first"]]
    assert ended == ["place"]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_handler_held_ends_with_it(leaves: bool) -> None:
    """Though it raised, or was cancelled: that waits for no collection of garbage."""
    held: list[weakref.ref[Any]] = []

    async def handle() -> None:
        upload = Gate()
        held.append(weakref.ref(upload))
        await (asyncio.Event().wait() if leaves else asyncio.sleep(0))
        raise KeyError

    async def main() -> None:
        client = Client()
        if leaves:
            client.leave()
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(KeyError):
                await Batching(answering(handle))(client.scope, client.receive, client.send)

    gc.disable()
    try:
        asyncio.run(main())
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.libraries
@pytest.mark.parametrize("waits", ["for its answer", "for a thread", "for nothing"])
def test_a_handler_whose_client_has_left_can_clean_up(waits: str) -> None:
    """It is cancelled once: a place in a pool comes back although that takes an `await`, or several."""
    import anyio.to_thread

    done = threading.Event()
    taken: list[str] = ["place"]

    async def handle() -> None:
        try:
            if waits == "for a thread":
                await anyio.to_thread.run_sync(done.wait, PATIENCE_S)
            if waits == "for nothing":
                for _ in range(100_000):
                    await asyncio.sleep(0)
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(int)
            await anyio.to_thread.run_sync(int)
            await asyncio.sleep(0)
            taken.clear()

    async def main() -> None:
        client = Client()
        asked = asyncio.ensure_future(Batching(answering(handle))(client.scope, client.receive, client.send))
        for _ in range(5):
            await asyncio.sleep(0)
        client.leave()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not (waits == "for a thread" and asked.done())  # it ends when its thread does
        done.set()
        async with asyncio.timeout(PATIENCE_S):
            await asked
        assert client.status == 499

    asyncio.run(main())
    assert not taken


async def leave_while(handle: Callable[[], Awaitable[Any]], waiting: asyncio.Event) -> None:
    """Have a client leave while its handler, which says so, waits: that is cancelled."""
    client = Client()
    asked = asyncio.ensure_future(Batching(answering(handle))(client.scope, client.receive, client.send))
    async with asyncio.timeout(PATIENCE_S):
        await waiting.wait()
        client.leave()
        await asked
    assert client.status == 499


@pytest.mark.libraries
@pytest.mark.parametrize("met", ["an error", "a timeout", "a cancel of its own"])
def test_a_handler_is_cancelled_whatever_it_has_met_before(met: str) -> None:
    """What it has got over, as an error that it awaited, is no sign that it is being cancelled."""
    import anyio

    waiting = asyncio.Event()

    async def handle() -> None:
        if met == "an error":
            failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(failing.set_exception, ValueError())
            with contextlib.suppress(ValueError):
                await failing
        elif met == "a timeout":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
        else:  # as `request.is_disconnected` of Starlette does
            with anyio.CancelScope() as inside:
                inside.cancel()
                await asyncio.Event().wait()
        waiting.set()
        await asyncio.Event().wait()

    asyncio.run(leave_while(handle, waiting))


def test_a_handler_is_cancelled_after_a_task_group_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to Python 3.12 such a group leaves a cancel behind that no caller has asked for."""
    monkeypatch.delitem(sys.modules, "anyio", raising=False)
    waiting = asyncio.Event()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def handle() -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        waiting.set()
        await asyncio.Event().wait()

    asyncio.run(leave_while(handle, waiting))


def test_a_handler_of_a_mounted_application_can_clean_up_too() -> None:
    """It is cancelled once, though the middleware is around that application and around the outer one."""
    began: list[int] = []
    cleaned: list[int] = []

    async def ask(turns: int) -> None:
        client = Client(body=(b"a", b"b"))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            began.append(turns)
            try:
                while (await receive())["more_body"]:
                    pass
                await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                cleaned.append(turns)

        both = Batching(Batching(app))
        asked = asyncio.ensure_future(both(client.scope, client.receive, client.send))
        for _ in range(turns):  # of the loop, until the client leaves
            await asyncio.sleep(0)
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await asked

    async def main() -> None:
        await asyncio.gather(*map(ask, range(40)))  # at once: some wait until they are cancelled

    asyncio.run(main())
    assert began
    assert sorted(cleaned) == sorted(began)


def test_an_application_that_waits_for_its_client_to_leave_ends_by_itself() -> None:
    """As Quart and Django do, which would lose their handler; one that goes on is cancelled later."""
    ended: list[str] = []

    async def wait(which: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(which)

    async def told(scope: Any, receive: Any, send: Any) -> None:
        tasks = [asyncio.ensure_future(receive()), asyncio.ensure_future(wait("task"))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        ended.append("told")

    async def goes_on(scope: Any, receive: Any, send: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(receive())
            tasks.create_task(wait("goes on"))

    async def main() -> None:
        for app in (told, goes_on):
            client = Client(body=())
            asked = asyncio.ensure_future(Batching(app)(client.scope, client.receive, client.send))
            for _ in range(5):
                await asyncio.sleep(0)
            client.leave()
            async with asyncio.timeout(PATIENCE_S):
                await asked
            assert client.status == 499

    asyncio.run(main())
    assert ended == ["task", "told", "goes on"]


@pytest.mark.parametrize("turns", range(4))
def test_such_an_application_ends_by_itself_though_its_client_left_at_once(turns: int) -> None:
    """All has come before it could ask, as from Hypercorn while its loop is busy: its handler is not lost."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

        async def read() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        ended.append("told")

    async def main() -> None:
        client = Client()
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await Batching(app)(client.scope, client.receive, client.send)
        assert ended == ["task", "told"]

    asyncio.run(main())


def test_work_after_the_answer_has_no_deadline() -> None:
    """Also if middleware sends the answer from another task, as that of Starlette for functions does."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answered = asyncio.Event()

        async def work() -> None:
            await answered.wait()
            later = asyncio.ensure_future(fn.acall("later"))
            await asyncio.wait([later], timeout=0.05)  # it waits beyond the deadline of the request
            gate.open()
            found.append(await later)

        background = asyncio.ensure_future(work())
        await answering(lambda: asyncio.sleep(0, "x"))(scope, receive, send)
        answered.set()
        await background

    assert ask(Batching(app, deadline_ms=20), Client()).status == 200
    fn.shutdown()
    assert found == ["later"]


def test_work_after_the_answer_is_not_cancelled() -> None:
    """A client leaves when it has its answer, and the application may still have something to do."""
    done = []

    async def main() -> None:
        client = Client()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answering(lambda: asyncio.sleep(0, "x"))(scope, receive, send)
            client.leave()
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(True)

        async with asyncio.timeout(PATIENCE_S):
            await Batching(app)(client.scope, client.receive, client.send)

    asyncio.run(main())
    assert done == [True]


def test_a_long_body_is_read_as_the_application_asks_for_it() -> None:
    """One part ahead, no more; all of it arrives in order."""
    client: list[Client] = []
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await client[0].has_been_read.wait()  # soon
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(client[0].read)
        while True:
            message = await receive()
            seen.append(message["body"])
            if not message["more_body"]:
                break

    async def main() -> None:
        client.append(Client(body=(b"a", b"b", b"c")))
        async with asyncio.timeout(PATIENCE_S):
            await Batching(app)(client[0].scope, client[0].receive, client[0].send)

    asyncio.run(main())
    assert seen == [1, b"a", b"b", b"c"]


def test_a_task_that_reads_no_more_leaves_that_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message does not wait until the middleware reads ahead."""
    monkeypatch.setattr(batched.asgi, "_QUICK_S", 2 * PATIENCE_S)
    come = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        first, second = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        come.set()
        assert (await second)["body"] == b"x"

    async def receive() -> Any:
        await come.wait()
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def main() -> None:
        client = Client()
        async with asyncio.timeout(PATIENCE_S):
            await Batching(app)(client.scope, receive, client.send)

    asyncio.run(main())


def test_a_body_is_not_asked_for_before_the_application_asks() -> None:
    """A client that waits for that keeps it if the answer is that it is too large, or of another user."""
    headers = {"expect": "100-Continue"}

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = ask(Batching(refuse), Client(headers, body=(b"x",)))
    assert (client.status, client.read) == (413, 0)

    async def main() -> None:
        left = Client(headers, body=(b"x", b"y"))
        read = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive())["more_body"]:
                read.append(message["body"])
            left.leave()
            await asyncio.Event().wait()

        async with asyncio.timeout(PATIENCE_S):
            await Batching(app)(left.scope, left.receive, left.send)
        assert (read, left.status) == ([b"x"], 499)

    asyncio.run(main())


@pytest.mark.libraries
def test_a_server_that_is_not_asked_for_a_body_does_not_ask_its_client() -> None:
    """The server uvicorn says `100 Continue` when the body is read."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/read":
            await receive()
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Batching(app), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        for path, first in (("/refused", b"HTTP/1.1 413"), ("/read", b"HTTP/1.1 100")):
            with socket.create_connection(listening.getsockname(), timeout=PATIENCE_S) as client:
                head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n"
                client.sendall(head.encode())
                assert client.recv(len(first)) == first
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()


def test_a_cancelled_service_cancels_its_handlers() -> None:
    """As servers do that end at once; and with `cancel=False` a client that leaves changes nothing."""

    async def main() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        client = Client()
        task = asyncio.ensure_future(Batching(answering(wait))(client.scope, client.receive, client.send))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        stays = Client()
        stays.leave()
        patient = Batching(answering(lambda: asyncio.sleep(0, "x")), cancel=False)
        await patient(stays.scope, stays.receive, stays.send)
        assert stays.status == 200

    asyncio.run(main())


def test_a_body_that_has_come_is_read_though_the_client_has_left() -> None:
    """And two calls that are late together in a task group are 504, as one is."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await receive())
        seen.append(await receive())

    async def main() -> None:
        client = Client(body=(b"hi",))
        client.leave()
        async with asyncio.timeout(PATIENCE_S):
            await Batching(app, cancel=False)(client.scope, client.receive, client.send)

    asyncio.run(main())
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect"]
    both = problem(ExceptionGroup("two", [TimeoutError(), batched.QueueFullError()]))
    assert both is not None
    assert both.status == 504
    assert problem(ExceptionGroup("two", [TimeoutError(), KeyError()])) is None
