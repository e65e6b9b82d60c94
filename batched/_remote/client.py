"""`batched.connect`: the functions of a server, by name."""

from __future__ import annotations

import os
import sys
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

from batched._core.call import Call
from batched._core.option_checks import a_function_of_no_item, checked_seconds
from batched._drivers.fork_and_exit import live, register
from batched._drivers.private_python import HAS_DAEMONS, call_before_threads_are_joined
from batched._drivers.wakeups import FUTURE
from batched._locks import Freed, InterruptedLock
from batched._remote.addresses import connected, parsed
from batched._remote.driver import RemoteDriver
from batched._remote.function import RemoteFunction
from batched._remote.greeting import Described, ServerGreeting
from batched._remote.link import Link, Terms
from batched._remote.loop_link import LoopLink, can_have_link
from batched._remote.msgpack import codec_named
from batched._remote.requests import Request
from batched._remote.spawn import Spawn
from batched._remote.thread_link import ThreadLink
from batched._remote.tokens import checked_token
from batched.errors import ClosedError

T = TypeVar("T")

_WAIT_S = 1.0
_WAIT_FOR_SPAWN_S = 120.0
"""A model may take long to load; a server that ends meanwhile is noticed at once."""
_STILL_S = 10.0
"""A server greets, and answers a question, in its next turn. One that takes longer stands still."""


def connect(  # noqa: PLR0913  each by name
    address: str | None = None,
    *,
    wait_s: float | None = None,
    fair_by: Callable[[], Any] | None = None,
    token: str | None = None,
    protocol: str = "pickle",
    spawn: str | Sequence[str] | None = None,
) -> Client:
    """Return the functions of a server, as attributes. Nothing is sent before the first call.

    Args:
        address: Where the server listens: `unix:PATH`, or `tcp:127.0.0.1:PORT` with a `token`. With `spawn`
            it may be left out.
        wait_s: The seconds that a call waits for a server that cannot be reached; then it raises
            `DisconnectedError`. By default 1, and 120 with `spawn`. A server that can be reached has at
            least 10 seconds to greet, and to answer `stats` and the like.
        fair_by: A function without parameters that returns the tenant of a call, such as the `get` of a
            context variable. It comes before the `fair_by` of the function in the server, which is asked
            there if it takes an item. Without either, each client is a tenant.
        token: What the server was given as its token.
        protocol: That of the server: `"pickle"`, or `"msgpack"`, which needs
            `pip install msgspec`.
        spawn: `"module:function"`, or several: the first process that calls starts a server of these
            functions, which ends soon after the last process has left. For development, and for jobs of
            several processes on one machine. What the server prints is in a file beside its socket.

    Raises:
        TypeError: There is neither an address nor what to start, or an argument is of the wrong type.
        ValueError: The address, what to start, or the protocol cannot be read; an address of tcp has no
            token; or `wait_s` is less than 0, or more than a week.

    """
    if fair_by is not None:
        fair_by = a_function_of_no_item("fair_by", fair_by)
    started = None if spawn is None else Spawn(spawn, address)
    if started is not None:
        where = started.address
    elif address is not None:
        where = parsed(address)
    else:
        raise TypeError("connect needs the address of a server, or spawn='module:function' to start one")
    if where.kind == "fd":
        raise ValueError(f"a client needs unix:PATH or tcp:127.0.0.1:PORT, got {address!r}")
    token = checked_token(token)
    if where.kind == "tcp" and not token:  # it would read pickles of whatever listens there
        raise ValueError(f"{where} can be reached by all users of this machine: give the token of the server")
    if wait_s is None:
        wait_s = _WAIT_S if spawn is None else _WAIT_FOR_SPAWN_S
    wait_s = checked_seconds("wait_s", wait_s)
    dial = started.dial if started is not None else lambda: partial(connected, where)
    terms = partial(
        Terms,
        address=where,
        codec=codec_named(protocol),
        wait_s=wait_s,
        still_s=max(wait_s, _STILL_S),
        token=token,
        dial=dial,
    )
    connections = Connections(terms, fair_by)
    # The address as it was read: a path may be another one in another folder.
    key = (str(where), wait_s, fair_by, token, protocol, None if started is None else (*started.functions,))
    connections.again = partial(connected_again, *key)
    with suppress(TypeError):  # without a hash
        if _known.setdefault(key, connections).is_closed:
            _known[key] = connections
    return Client(connections)


_known: weakref.WeakValueDictionary[Any, Connections] = weakref.WeakValueDictionary()
"""By how they were made: functions from pickles share the connections of their process."""


def connected_again(*key: Any) -> Client:
    """Return the client that `connect` makes, or one of this process that was made alike: of a pickle."""
    with suppress(TypeError):
        known = _known.get(key)
        if known is not None and not known.is_closed:
            return Client(known)
    address, wait_s, fair_by, token, protocol, spawn = key
    return connect(address, wait_s=wait_s, fair_by=fair_by, token=token, protocol=protocol, spawn=spawn)


class Client:
    """The functions of a server, as attributes: `batched.connect("unix:/run/embed.sock").embed`.

    A function may be kept without the client. `client["close"]` is a function with the name of a method.

    A pickle of it holds how to connect, the token included: other processes that unpickle it connect
    themselves. A copy is the client itself.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._functions: dict[str, RemoteFunction] = {}

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> RemoteFunction:
        found = self._functions.get(name)
        if found is None:
            made = RemoteFunction(self._connections.driver(name), self._connections.again)
            found = self._functions.setdefault(name, made)
        return found

    def close(self) -> None:
        """End the connections.

        Calls without an answer raise `DisconnectedError`, and later ones `ClosedError`.
        """
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._connections.again, ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<functions of the server at {self._connections.terms.address}>"


class Connections:
    """The connections of a client: one for the threads of this process, and one for each event loop."""

    def __init__(self, make_terms: Callable[..., Terms], fair_by: Callable[[], Any] | None) -> None:
        self.fair_by: Callable[[], Any] | None = fair_by
        self.make_terms: Callable[..., Terms] = make_terms
        """Makes the terms of this process, with what only that knows."""
        self.again: Callable[[], Client]
        """What connects in another process; `connect` says it."""
        self.is_closed: bool = False
        """Whether there are no calls any more."""
        self._described: dict[str, Described] = {}
        self.most_bytes: float = inf
        """The most bytes that the server takes at once, when it has said so."""
        self._drivers: weakref.WeakValueDictionary[str, RemoteDriver] = weakref.WeakValueDictionary()
        self._begin()
        register(self)

    def _begin(self) -> None:
        # Reentrant: the garbage collector may run a finalizer that calls.
        self._lock = InterruptedLock()
        self._by_loop: dict[int, LoopLink] = {}
        self._of_threads: ThreadLink | None = None
        self._links: weakref.WeakValueDictionary[int, Link] = weakref.WeakValueDictionary()
        """All of them: also those to a server that ends, which has calls to answer, but takes no others."""
        client = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.terms: Terms = self.make_terms(client=client, told=weakref.WeakMethod(self.told))

    def after_fork(self) -> None:
        """Start afresh in the child: with its sockets open here, the server would not see the parent end."""
        links = _all_of(self._links)
        self._begin()
        for link in links:
            link.forget()

    def driver(self, name: str) -> RemoteDriver:
        """Return the driver of a function."""
        with Freed(self._lock), self._lock:
            made = self._drivers.get(name)
            if made is None:
                made = self._drivers[name] = RemoteDriver(name, self)
                self._describe(made)
            return made

    def told(self, said: ServerGreeting) -> None:
        """Note what the server says of its functions."""
        self.most_bytes, self._described = said.max_frame_bytes, said.described()
        for driver in _all_of(self._drivers):
            self._describe(driver)

    def _describe(self, driver: RemoteDriver) -> None:
        known = self._described.get(driver.name)
        if known is not None:
            driver.describe(known)

    def pending(self, driver: RemoteDriver) -> list[Call]:
        """Return the calls of `driver` that have no answer yet."""
        calls = [call for link in _all_of(self._links) for call in link.pending(driver)]
        return [call for call in calls if call.function is not None]  # else it is a question

    def reads_here(self) -> bool:
        """Whether this is a thread that reads the answers of threads."""
        return any(isinstance(link, ThreadLink) and link.reads_here for link in _all_of(self._links))

    def send(self, call: Call, driver: RemoteDriver, request: Request) -> Link:
        """Send `call` on the connection of its caller; return that."""
        loop = call.waits_at
        if loop is None or loop is FUTURE or not can_have_link(loop):
            of_threads = self._of_threads
            while of_threads is None or not of_threads.send(call, driver, request):
                of_threads = self._new_of_threads(of_threads)
            return of_threads
        link = self._by_loop.get(id(loop))
        while link is None or link.loop() is not loop or not link.send(call, driver, request):
            link = self._new_of_loop(loop)
        return link

    def _new_of_threads(self, last: ThreadLink | None) -> ThreadLink:
        with Freed(self._lock), self._lock:
            self._check()
            if self._of_threads is last or self._of_threads is None:
                self._of_threads = fresh = ThreadLink(self.terms)
                self._links[id(fresh)] = fresh
            return self._of_threads

    def _new_of_loop(self, loop: Any) -> LoopLink:
        self._check()
        for key, link in list(self._by_loop.items()):
            of_link = link.loop()
            if (of_link is None or of_link.is_closed()) and self._by_loop.get(key) is link:
                link.forget()
                self._by_loop.pop(key, None)
        fresh = self._by_loop[id(loop)] = LoopLink(self.terms, loop)
        self._links[id(fresh)] = fresh
        return fresh

    def _check(self) -> None:
        if self.is_closed:
            raise ClosedError(f"the client of {self.terms.address} was closed and takes no more calls")

    def close(self) -> None:
        """End the connections, and take no more calls."""
        self.is_closed = True
        for link in _all_of(self._links):
            link.close()
        for driver in _all_of(self._drivers):
            driver.deadline_watch.stop()

    def __del__(self, _is_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "terms") and not _is_exit():  # then modules are half gone
            self.close()


def _all_of(known: weakref.WeakValueDictionary[Any, T]) -> list[T]:
    """Return what is there: `valuerefs` returns a list, whatever other threads add meanwhile."""
    return [each for reference in known.valuerefs() if (each := reference()) is not None]


def _at_exit() -> None:
    for each in live():
        if isinstance(each, Connections):
            each.close()


if not HAS_DAEMONS:  # the threads that read would be waited for
    call_before_threads_are_joined(_at_exit)
