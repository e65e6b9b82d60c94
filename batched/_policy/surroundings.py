"""Errors of the surroundings, for which no item is to blame."""

from __future__ import annotations

import re
from contextlib import suppress
from queue import Empty, Full
from typing import Any

from batched._policy.chains import args_of, chain_of, names_of, texts_in_args
from batched.errors import ClosedError, QueueFullError

# By the names of classes, as a library may hide the system's error, and nothing is imported to know its own.
_NAMES = re.compile(
    r"""
    # a time
    \w*(Timeout|TimedOut|DeadlineExceeded)(Error|Exception|Expired|Failure)? | Again |
    TIMEOUT | TooSlowError |
    # a connection
    \w*(Connect|Connections?|Connection(Reset|Refused|Aborted|Failed))(Error|Exception|Failure|Lost|Loss) |
    Connection(Refused|Aborted|Failed) | (Host|Network|Server)(Unreachable|Down)(Error)? |
    \w*ConnectionClosed(Error|Exception|OK)? | CannotConnectNow(Error)? | ConnectionDoesNotExist(Error)? |
    TooManyConnections(Error)? |
    \w*(Disconnected|Disconnection|Disconnect)(Error|Exception)? | NotConnected(Error)? |
    (API|Telegram)?NetworkError | NameResolutionError | ProxyError | RemoteProtocolError |
    IncompleteRead(Error)? | \w*(Stream|Comm|WebSocket)ClosedError | StreamLostError |
    (Broken|Closed)ResourceError | AutoReconnect |
    NoServersError | NoRespondersError | SessionExpired(Error)? | \w*Socket(Open|Receive|Send)Error |
    InvalidHandshake | BadStatusLine |
    TTransportException | ClientPayloadError | Service(Request|Response)Error |
    # a server
    (Service|Server|Actor)?Unavailable(Error|Exception)? | NoHostAvailable | NoBrokersAvailable |
    NodeNotReady(Error)? | VaultDown | SERVER_DOWN |
    BadGateway(Error|Exception)? | (Cluster|Master)DownError | (Admin|Crash)Shutdown(Error)? |
    Circuit(Breaker)?(Open)?(Error|Exception) | CircuitBreakerOpen | \w*Throttl(ed|ing)(Error|Exception)? |
    \w*(TooManyRequests|RateLimit(ed|Exceeded)?|Overloaded)(Error|Exception)?
    """,
    re.VERBOSE,
)
# An answer of HTTP that would be the same for any item: too many requests, or a server that is away.
_STATUSES = frozenset({408, 429, 502, 503, 504, 521, 522, 523, 524, 529, 599})
_OF_HTTP = re.compile("HTTP|Http|ClientResponseError|TransportError")
# What urllib3 says after the retries that it was told to do.
_TOO_MANY = re.compile(r"too many (\d+) error responses")
# AWS may refuse to be asked so often with status 400.
_THROTTLED = re.compile(
    r"\w*Throttl\w+|TooManyRequests\w*|ProvisionedThroughputExceeded\w*|(Request|Bandwidth)LimitExceeded|SlowDown"
)
_GRPC_CODES = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE"})
# Databases have one class for a server that is away and for some faults of a statement.
_DATABASE_ERRORS = frozenset({"InterfaceError", "OperationalError"})
_DATABASE_IS_AWAY = re.compile(
    r"""connect|gone\ away|time(d\ out|out)|is\ locked|(translate|resolve)\ host|too\ many\ clients|
    SSL\ SYSCALL|database\ system\ is\ (starting|shutting|in\ recovery)|shutdown\ in\ progress|
    communication\ link|TCP\ Provider|server\ is\ unavailable|
    \A\Z  # PyMySQL says no more of a connection that is closed
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Such a text quotes the statement, which may be about connections: a user's search for "connection: lost".
_OF_A_STATEMENT = re.compile(
    r"no such \w+: |near \"|syntax error|(unknown|ambiguous|duplicate) (column|special query)|malformed",
    re.IGNORECASE,
)
_MOST_GROUPS = 100


def is_of_surroundings(error: BaseException) -> bool:
    """Whether `error` is about a connection, a time or the system, so that no item is to blame.

    An error about a file, or about what is in one, is not: the item may name that file. Libraries raise
    errors of their own for such a one, so all that `error` leads to counts too. A group is of the
    surroundings if all of its errors are.
    """
    return _is_known(error, {})


def _is_known(error: BaseException, groups: dict[int, bool]) -> bool:
    return any(_is_one(each, groups) for each in chain_of(error))


def _is_one(error: BaseException, groups: dict[int, bool]) -> bool:  # noqa: PLR0911  one kind after another
    """Whether `error` itself is of the surroundings; `groups` are the verdicts on groups so far."""
    if isinstance(error, BaseExceptionGroup):
        if id(error) not in groups and len(groups) < _MOST_GROUPS:
            groups[id(error)] = False  # meanwhile: one of its errors may lead back to it
            groups[id(error)] = all(_is_known(each, groups) for each in error.exceptions)
        return groups.get(id(error), False)
    if isinstance(error, ConnectionError | TimeoutError | Empty | Full | QueueFullError | ClosedError):
        return True
    with suppress(Exception):  # of a class with attributes that are not what they are in Python's
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            return True
        names = names_of(error)
        if any(map(_NAMES.fullmatch, names)):
            return True
        if not _DATABASE_ERRORS.isdisjoint(names):
            texts = texts_in_args(error)  # not attributes: SQLAlchemy has the statement in one
            return any(map(_DATABASE_IS_AWAY.search, texts)) and not any(map(_OF_A_STATEMENT.search, texts))
        if "ResponseError" in names:
            found = filter(None, map(_TOO_MANY.fullmatch, texts_in_args(error)))
            if any(int(each[1]) in _STATUSES for each in found):
                return True
        if "RpcError" in names:
            return error.code().name in _GRPC_CODES  # type: ignore[attr-defined]
        return _status_of(error, names) in _STATUSES
    return False


def _status_of(error: BaseException, names: list[str]) -> Any:
    """Return the status of HTTP that `error` is about, None if it is about none."""
    own = vars(error)
    keys = ["status_code", "http_status", "status"]
    if any(_OF_HTTP.search(name) for name in names):
        keys.append("code")
    if "ProtocolError" in names:  # of xmlrpc
        keys.append("errcode")
    for key in keys:  # 0 may stand for no status; then its response may have one
        if isinstance(own.get(key), int) and own[key] in _STATUSES:
            return own[key]
    if getattr(own.get("status"), "name", "") in _GRPC_CODES:  # of grpclib
        return 503
    if "TransportError" in names:  # of Elasticsearch and OpenSearch
        return next(iter(args_of(error)), None)
    answer = next((own[key] for key in ("response", "resp", "meta") if own.get(key) is not None), None)
    if type(answer) is dict:  # of botocore
        if _THROTTLED.fullmatch(answer.get("Error", {}).get("Code", "")):
            return 429
        return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(answer, "status_code", getattr(answer, "status", None))
