"""Which errors are of the surroundings, so that no item is to blame."""

from __future__ import annotations

from http import HTTPStatus
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from batched import ClosedError, QueueFullError
from batched._policy.out_of_memory import is_out_of_memory
from batched._policy.surroundings import is_of_surroundings
from tests.kit.proxy import Proxy


def raised_during(inner: BaseException, outer: BaseException, *, hidden: bool = False) -> BaseException:
    """Return `outer` as raised while `inner` was handled."""
    outer.__context__ = inner
    outer.__suppress_context__ = hidden
    return outer


def named(name: str, *args: Any, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """Return an error of a class of this name, as a library might have it."""
    error = type(name, (base,), {"__module__": "library"})(*args)
    vars(error).update(attributes)
    return error


class Answer:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


def loop() -> BaseException:
    """Return an error of a group that the error leads back to."""
    leaf = ValueError()
    leaf.__context__ = ExceptionGroup("", [leaf])
    return leaf


def left_group() -> BaseException:
    """Return a group as a task group raises it: its body's error is its context too."""
    lost = ConnectionError()
    return raised_during(lost, ExceptionGroup("", [lost, ValueError()]), hidden=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (raised_during(ConnectionError(), RuntimeError()), True),
        (raised_during(TimeoutError(), RuntimeError(), hidden=True), True),
        (raised_during(FileNotFoundError(2, "no file", "cat.png"), ValueError("no image")), False),
        (raised_during(PermissionError(13, "denied", "cat.png"), KeyError()), False),
        (raised_during(KeyError(), ValueError()), False),
        (RuntimeError("unpickled", ConnectionRefusedError(111, "refused")), True),
        *(
            (named(name), True)
            for name in ("ReadTimeout", "APITimeoutError", "TimeoutException", "TimeoutExpired")
        ),
        *((named(name), True) for name in ("ConnectError", "APIConnectionError", "ConnectionClosed")),
        *(
            (named(name), True)
            for name in (
                "NetworkError",
                "ServerDisconnectedError",
                "SMTPServerDisconnected",
                "NoServersError",
                "NoRespondersError",
                "SessionExpired",
                "LDAPSocketOpenError",
                "ServiceUnavailable",
            )
        ),
        *((named(name), True) for name in ("RateLimitError", "RemoteProtocolError", "AutoReconnect")),
        *(
            (named(name), True)
            for name in (
                "ModelRateLimitError",  # of LangChain, where no provider's error is its cause
                "EngineOverloadedError",
                "ConnectionFailed",  # of AnyIO
                "WebSocketClosedError",  # of Tornado
                "SessionExpiredError",  # of Kazoo
                "TelegramNetworkError",
            )
        ),
        *((named(name), False) for name in ("NeuralNetworkError", "DisconnectedGraphError", "InvalidURL")),
        *((named(name), False) for name in ("UnsupportedProtocol", "LocalProtocolError", "ValidationError")),
        (named("OperationalError", "could not connect to server"), True),
        (named("OperationalError", "no such table: t"), False),
        *((named("APIStatusError", status_code=status), status != 400) for status in (400, 429, 503)),
        *((named("HTTPStatusError", response=Answer(status)), status != 422) for status in (422, 429)),
        (named("Exit", code=503), False),
        *(
            (named(name), True)
            for name in (
                "BadGateway",
                "TooManyConnections",
                "ConnectionDoesNotExist",
                "ClusterDownError",
                "AdminShutdown",
                "CircuitBreakerError",
                "ThrottlingException",
            )
        ),
        (named("OperationalError", 'could not translate host name "db" to address: not known'), True),
        (named("OperationalError", "FATAL:  sorry, too many clients already"), True),
        # What a statement says is not what the server says: the words may be those of one item.
        (named("OperationalError", "no such column: connection"), False),
        (named("OperationalError", 'fts5: syntax error near "timeout"'), False),
        (named("OperationalError", "unknown special query: timeout"), False),
        (named("OperationalError", 1054, "Unknown column 'timeout' in 'field list'"), False),
        (named("OperationalError", "disk is full", statement="insert into connections"), False),
        *((named("ResponseError", f"too many {code} error responses"), code == 503) for code in (500, 503)),
        (named("ResponseError", "too many redirects"), False),
        *(
            (named("ClientError", response={"Error": {"Code": code}, "ResponseMetadata": answer}), expected)
            for code, answer, expected in (
                ("ThrottlingException", {"HTTPStatusCode": 400}, True),
                ("ProvisionedThroughputExceededException", {"HTTPStatusCode": 400}, True),
                ("ValidationException", {"HTTPStatusCode": 400}, False),
                ("ModelNotReadyException", {"HTTPStatusCode": 429}, True),
            )
        ),
        # The status is where each library has it.
        *(
            (named(name, *args, **attributes), is_away)
            for is_away, status in ((True, 503), (False, 400))
            for name, args, attributes in (
                ("ResponseError", ("overloaded",), {"status_code": status}),  # Ollama's
                ("ApiError", ("rejected",), {"meta": SimpleNamespace(status=status)}),  # Elasticsearch's
                ("TransportError", (status, "unavailable", {}), {}),  # OpenSearch's
                ("ApiException", (), {"status": status, "reason": "", "body": None}),  # made from OpenAPI
                ("HttpError", (), {"resp": SimpleNamespace(status=status), "content": b""}),  # Google's
                ("StripeError", (), {"http_status": status}),
                ("S3Error", (), {"response": SimpleNamespace(status=status), "code": ""}),  # MinIO's
                ("HTTPClientError", (), {"code": status, "response": None}),  # Tornado's
                ("TransportError", ("503 is the text",), {"code": status}),  # of `gql`
                ("ProtocolError", (), {"errcode": status}),  # of `xmlrpc`
            )
        ),
        (named("ApiException", status=0, response=SimpleNamespace(status_code=503)), True),
        (named("ApiException", status=HTTPStatus.BAD_GATEWAY), True),
        (named("RowError", errcode=504), False),
        (named("GRPCError", status=SimpleNamespace(name="UNAVAILABLE")), True),
        (named("GRPCError", status=SimpleNamespace(name="NOT_FOUND")), False),
        *(
            (named(name), True)
            for name in (
                "BadStatusLine",  # of `http.client`, and of what stands between: half an answer
                "TooSlowError",
                "TIMEOUT",
                "ConnectionFailedError",
                "ConnectionLoss",
                "ConnectionRefused",
                "HostUnreachable",
                "HTTPStreamClosedError",
                "TTransportException",
                "ClientPayloadError",
                "ServiceRequestError",
                "ActorUnavailableError",
                "NodeNotReadyError",
                "SERVER_DOWN",
            )
        ),
        *(
            (named("OperationalError", *args), True)
            for args in (
                ("SSL SYSCALL error: EOF detected\n",),
                ("FATAL:  the database system is starting up\n",),
                (1053, "Server shutdown in progress"),
                ("08S01", "[08S01] [Microsoft][ODBC Driver 18 for SQL Server]Communication link failure (0)"),
                (20009, b"DB-Lib error message 20009, severity 9:\nUnable to connect: server is unavailable"),
            )
        ),
        (named("InterfaceError", 0, ""), True),
        (named("OperationalError", "database or disk is full"), False),
        (named("InvalidMessage", base=type("InvalidHandshake", (Exception,), {})), True),  # of websockets
        (named("Empty", "no text"), False),
        (Empty(), True),  # a time is over: of a queue of another process, which may be gone
        (ExceptionGroup("", [ConnectionError(), TimeoutError()]), True),
        (ExceptionGroup("", [ExceptionGroup("", [named("ReadTimeout")]), TimeoutError()]), True),
        (ExceptionGroup("", [raised_during(ConnectionError(), RuntimeError())] * 2), True),
        (raised_during(ExceptionGroup("", [ConnectionError()]), RuntimeError()), True),
        (ExceptionGroup("", [ConnectionError(), ValueError()]), False),
        (left_group(), False),
        (loop(), False),
        (QueueFullError(), True),
        (ClosedError(), True),
    ],
    ids=repr,
)
def test_errors_of_the_surroundings_are_known(error: BaseException, expected: bool) -> None:
    """Through what hides them, by the names of classes, and in groups; errors of items are not."""
    assert is_of_surroundings(error) is expected


def test_attributes_that_raise_do_no_harm() -> None:
    """The error is of no known library then."""

    class Odd(OSError):
        @property
        def errno(self) -> int:  # type: ignore[override]
            raise RuntimeError

    assert not is_of_surroundings(Odd())


class Own(Exception):
    """An error with attributes of its own in the place of Python's."""

    args = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __cause__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __context__ = None


def test_no_code_of_the_error_or_of_its_arguments_runs() -> None:
    """It would run in the midst of the batcher's own work, and fail all calls of the batch."""
    assert not is_of_surroundings(Own("text"))
    assert not is_out_of_memory(Own("text"))
    assert is_of_surroundings(Own("lost", ConnectionError()))
    assert not is_of_surroundings(ValueError("bad item", Proxy()))
    assert is_of_surroundings(ValueError(Proxy(), ConnectionError()))
