"""`batched.serve`: functions of this process, for other processes, until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from batched._api.function import DecoratedFunction
from batched._api.through_class import ThroughClass
from batched._clock import monotonic
from batched._drivers.private_python import running_loop_or_none
from batched._logs import log
from batched._remote.addresses import host_and_port, shown
from batched._remote.frames import MAX_FRAME_BYTES
from batched._remote.http import Metrics, Page
from batched._remote.msgpack import codec_named
from batched._remote.served import check_served
from batched._remote.server import Server

_LOOK_S = 0.05
_GRACE_S = 1.0
_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name)
]  # Windows has a third


class Stop(Protocol):
    """What tells a server to end: a `threading.Event`, or one of `multiprocessing`."""

    def is_set(self) -> bool:
        """Whether the server is to end."""
        ...


def serve(  # noqa: PLR0913
    *functions: DecoratedFunction[Any],
    bind: str,
    group: str | int | None = None,
    protocol: str = "pickle",
    http: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    drain_s: float = 30.0,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    stop: Stop | None = None,
    when_ready: Callable[[str], object] | None = None,
) -> None:
    """Serve decorated functions, by their names, to other processes; return when it is told to end.

    SIGTERM, Ctrl-C or `stop` tell it to end. It then takes no new clients, answers the calls that have come,
    and returns. A second signal ends the process at once. In a thread other than the main one it is `stop`
    that ends it: Python tells signals to the main thread only.

    Calls that this process makes of a function itself share the batches of its clients. For fairness they are
    those of one more client. Of a function of `batched.aio` that holds on the event loop of the server only,
    as each loop has a queue of its own.

        stop = threading.Event()
        options = {"bind": "unix:/tmp/embed.sock", "stop": stop}
        threading.Thread(target=batched.serve, args=(embed,), kwargs=options).start()

    `python -m batched serve app.model:embed --bind unix:/run/embed.sock` does the same, as a command.

    Args:
        *functions: Decorated functions, or methods of an instance. Clients call them by their `__name__`.
        bind: Where to listen: `unix:PATH`, `tcp:127.0.0.1:PORT`, or `fd:3`, a socket that systemd has opened.
        group: The name or number of a group of users that may connect to a unix socket, too.
        protocol: `"pickle"`, or `"msgpack"` for callers that must not send pickles; it needs
            `pip install msgspec`.
        http: `HOST:PORT` for the pages `/metrics` and `/healthz`; it needs
            `pip install prometheus-client`.
        token: What clients on tcp must know, as all users of the machine can connect.
        token_file: A file that holds the token. If it is missing, it is made, for this user only.
        drain_s: The most seconds for calls that have come when it is told to end.
        max_frame_bytes: The most bytes of one call; the connection of a longer one is closed.
        stop: What tells it to end: a `threading.Event`, or one of `multiprocessing`.
        when_ready: Called with the address, in the thread of the server, when clients can connect.

    Raises:
        ValueError: An option has no meaning, or two functions have the same name.
        TypeError: A function is not decorated, or an option is of the wrong type.
        ImportError: An option needs a library that is not installed.
        OSError: Nothing can listen there.
        Exception: What `stop` raises when it is asked: then the server ends.

    """
    named = [(name_of(each), each) for each in functions]
    server = Server(
        bind,
        group=group,
        codec=codec_named(protocol),
        token=token,
        token_file=token_file,
        drain_s=drain_s,
        max_frame_bytes=max_frame_bytes,
    )
    serving = Serving(server, http=http, stop=stop, when_ready=when_ready)
    serving.hold(named)
    serving.run()


def name_of(function: Any, place: str | None = None) -> str:
    """Return the name by which clients call the function at `place`; `TypeError` if it is not decorated."""
    if isinstance(function, DecoratedFunction):
        named: Any = function
        return str(named.__name__)
    remedy = f"decorate it, as with batched.dynamically (it is a {type(function).__name__})"
    if isinstance(function, ThroughClass):
        remedy = "it is a method, so name that of an instance, as in app.model:model.embed"
    raise TypeError(f"{place or repr(function)} is no decorated function: {remedy}")


class Serving:
    """A server and what is around it: signals, a page, systemd, the log. It does not listen yet."""

    def __init__(
        self,
        server: Server,
        *,
        http: str | None = None,
        stop: Stop | None = None,
        when_ready: Callable[[str], object] | None = None,
        ends_process: bool = False,
    ) -> None:
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise TypeError(f"stop must be a threading.Event, or have its is_set, got {stop!r}")
        self.is_ready: bool = False
        self.server: Server = server
        self.at: str = str(server.address)
        """Where it listens, or tries to."""
        self._http = None if http is None else _checked_page(http)
        self._metrics = None if http is None else Metrics(self._clients)
        self._page: Page | None = None
        self._stop = stop
        self._when_ready = when_ready
        self._ends_process = ends_process
        self._late: threading.Timer | None = None
        self._functions: dict[str, Any] = {}
        self._names = ""

    def hold(self, functions: Iterable[tuple[str, Any]]) -> None:
        """Take functions, each with the name that clients know; `ValueError` if one cannot be served."""
        for name, function in functions:
            if name in self._functions:
                raise ValueError(
                    f"two functions have the name {name!r}: rename one or, on the command line, name it "
                    f"otherwise, as in other=MODULE:FUNCTION"
                )
            if not name.isidentifier() or name.startswith("_"):
                raise ValueError(
                    f"clients have a function as an attribute, of which {name!r} cannot be the name"
                )
            check_served(name, function)
            self._functions[name] = function
        if not self._functions:
            raise ValueError("there is no function to serve")
        self._names = ", ".join(self._functions)

    def _clients(self) -> Mapping[str, Any]:
        return self.server.clients.figures(self.server.sessions)

    def run(self) -> None:
        """Serve until it is told to end."""
        if running_loop_or_none() is not None:
            raise RuntimeError("batched.serve has an event loop of its own: call it in a thread, with `stop`")
        if self._http is not None and self._metrics is not None:
            bind, self.at = self.at, f"http://{shown(*self._http)}"
            self._page = Page(self._http, self._metrics)
            self.at = bind
        try:
            asyncio.run(self._run())
        finally:
            if self._late is not None:
                self._late.cancel()
            if self._page is not None:
                self._page.close()
        log(logging.INFO, "%s: the server has ended", self._names)

    async def _run(self) -> None:
        ends = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.time = monotonic  # type: ignore[method-assign]  # in true time also where a test stops the clock
        tasks = [loop.create_task(self._drains(ends))]
        if self._stop is not None:
            tasks.append(loop.create_task(_watch(self._stop, ends)))
        try:
            with _signals(loop, ends.set):
                await self.server.run(self._functions, ends, self._ready)
            for each in tasks:
                if each.done():
                    each.result()
        finally:
            for each in tasks:
                each.cancel()

    def _ready(self) -> None:
        self.is_ready = True
        if self._page is not None:
            self._page.status = "serving"
        address = str(self.server.address)
        where = "" if self._page is None else f", metrics at http://{shown(*self._page.where)}/metrics"
        log(logging.INFO, "%s: served at %s by process %s%s", self._names, address, os.getpid(), where)
        _notify("READY=1")
        if self._when_ready is not None:
            self._when_ready(address)

    async def _drains(self, ends: asyncio.Event) -> None:
        await ends.wait()
        if self._page is not None:
            self._page.status = "draining"
        _notify("STOPPING=1")
        left = sum(each.unanswered for each in self._clients().values())
        told = "%s: the server ends; unanswered calls: %s, for which it takes at most %s s"
        log(logging.INFO, told, self._names, left, self.server.drain_s)
        if self._ends_process:
            self._late = threading.Timer(self.server.drain_s + _GRACE_S, self._too_late)
            self._late.daemon = True
            self._late.start()

    def _too_late(self) -> None:
        """End the process, in which a batch still runs: it may run forever."""
        log(logging.ERROR, "%s: a batch still runs, and ends with the process", self._names)
        logging.shutdown()
        os._exit(1)


def _notify(state: str) -> None:
    """Tell systemd, if it listens, such as `READY=1`; what cannot be told is no reason to fail."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name or not hasattr(socket, "AF_UNIX"):
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(address)
        told.sendall(state.encode())


async def _watch(stop: Stop, ends: asyncio.Event) -> None:
    """Look at `stop` again and again: it may be one of another process, which wakes no event loop."""
    try:
        while not stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
    finally:
        ends.set()  # else an event that fails, as its process has ended, would never end the server


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, end: Callable[[], object]) -> Iterator[None]:
    """Have the first signal call `end` on the loop, and a second one end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def told() -> None:
        for each in before:
            _leave(loop, each, at_once())
        end()

    try:
        for each in before:
            try:
                # Not by `signal`: a loop that is about to sleep, as the signal comes, would not see it.
                loop.add_signal_handler(each, told)
            except NotImplementedError:  # on Windows, where a signal wakes the loop in any case
                signal.signal(each, lambda *_: loop.call_soon_threadsafe(told))
        yield
    finally:
        for each, handler in before.items():
            _leave(loop, each, handler)


def at_once() -> Any:
    """Return the handler with which a signal ends this process at once.

    The default does not, in the first process of a container: the system drops the signal there.
    """
    return _exit if os.getpid() == 1 else signal.SIG_DFL


def _exit(number: int, _: object) -> None:
    os._exit(128 + number)


def _leave(loop: asyncio.AbstractEventLoop, number: signal.Signals, handler: Any) -> None:
    """Have `handler` get a signal, and the loop no more."""
    with suppress(NotImplementedError):
        loop.remove_signal_handler(number)
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _checked_page(text: str) -> tuple[str, int]:
    """Return where the page is to be; `ValueError` if it is not `HOST:PORT`."""
    if not isinstance(text, str):
        raise TypeError(f"http must be HOST:PORT, such as 127.0.0.1:9100, got {text!r}")
    where = host_and_port(text)
    if where is None or not where[0]:
        raise ValueError(f"http must be HOST:PORT, such as 127.0.0.1:9100, got {text!r}")
    return where
