"""Has the flavours call functions of a server, through a socket: each suite holds that to its rules.

The server is a thread of this process, so that tests can hold its batches and look at what they have run.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from batched._clock import monotonic
from batched._core.call import Call
from batched._remote.client import Client, connect
from batched._remote.frames import Flag, Kind
from batched._remote.requests import Asked, Request
from batched._remote.server import Server
from batched._remote.values import Encoded, Pickles
from tests.kit.flavours import Flavour, Pieces, Tasks
from tests.kit.gate import PATIENCE_S

ONE_PROCESS = "OneProcess"
"""How `pytest --without` names that callers and batches are in one process."""

END_S = 1.0
"""How long the end of a test waits for a server: a batch that the test still holds is left alone."""


class Known(Pickles):
    """Pickles, with classes and functions of tests by reference: as if both sides could import them."""

    def dump(self, value: Any) -> Encoded:
        """Return the bytes of `value`; raise if there are none."""
        try:
            return super().dump(value)
        except Exception:
            file = io.BytesIO()
            _Referring(file, 5).dump(value)
            return file.getvalue(), []


_known: dict[int, Any] = {}


def _of(number: int) -> Any:
    return _known[number]


class _Referring(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and "<locals>" in value.__qualname__:
            _known[id(value)] = value
            return _of, (id(value),)
        return NotImplemented


class Behind:
    """One decorated function in a server, and the client that calls it."""

    def __init__(self, decorated: Any, folder: str) -> None:
        name = decorated._name
        address = f"unix:{folder}/{id(self)}.sock"
        self._ready = threading.Event()
        self._server = Server(address, codec=Known(), drain_s=END_S)
        self._functions = {name: decorated}
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"
        self.client: Client = connect(address)
        connections = self.client._connections
        connections.make_terms = partial(connections.make_terms, codec=Known())
        connections._begin()
        self.fn: Any = self.client[name]
        self.fn._driver.ask("stats")  # the client knows then what it has to know of the function
        # What only a server may do is done there.
        self.fn._driver.in_server = self.served._driver
        self.fn._driver.configure = lambda changes: self.served.configure(**changes)

    @property
    def served(self) -> Any:
        """The function as the server has it."""
        return next(iter(self._server.served.values())).function

    def _run(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            await self._server.run(self._functions, self._stop, self._ready.set)

        asyncio.run(serve())

    def take_turns(self) -> None:
        """Have the server go on until all that came has been queued: a stream is begun by a task."""
        for _ in range(3):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(PATIENCE_S)

    def close(self) -> None:
        """Have the function run what is queued at once, and take no more calls."""
        with suppress(RuntimeError):  # the server has ended
            asyncio.run_coroutine_threadsafe(self.served.aclose(), self.loop)

    def end(self) -> None:
        """End the server when what it has taken is answered."""
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """End the connections, and wait for the end of the server."""
        self.client.close()
        self.end()
        self._thread.join(END_S)


class _Method:
    """A decorated method in a class: each instance has a server for it."""

    def __init__(self, flavour: ThroughSocket, decorated: Any) -> None:
        self._flavour = flavour
        self._decorated = decorated
        self._served: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __set_name__(self, owner: type, name: str) -> None:
        self._decorated.__set_name__(owner, name)

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        if instance not in self._served:
            self._served[instance] = self._flavour.serve(self._decorated.__get__(instance, owner))
        return self._served[instance]


class ThroughSocket(Flavour):
    """What the flavours have in common through a socket."""

    behind: dict[int, Behind]

    def decorate(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function`, batched in a server."""
        return self._serve(super().decorate(function, **options))

    def decorate_arrays(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function`, over features, batched in a server."""
        return self._serve(super().decorate_arrays(function, **options))

    def _serve(self, decorated: Any) -> Any:
        parameters: list[str] = []
        with suppress(TypeError, ValueError):  # some builtins have no signature
            parameters += signature(decorated._shared.function).parameters
        if parameters[:1] == ["self"]:
            return _Method(self, decorated)
        return self.serve(decorated)

    def serve(self, decorated: Any) -> Any:
        """Return the function of a client for a function that is served from now on."""
        behind = Behind(decorated, self.folder)
        self.behind[id(behind.fn._driver)] = behind
        return behind.fn

    def arrived(self, fn: Any) -> None:
        """Wait until the calls so far, of threads, have come to the server: it answers in order."""
        behind = self.behind.get(id(fn._driver))
        if behind is not None:  # else it is a function of this process
            fn._driver.ask("stats")
            behind.take_turns()

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call; it is queued when this returns."""
        future = super().start(fn, *args, **named)
        self.arrived(fn)
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a call; the batcher knows when this returns."""
        super().cancel(future)
        for behind in self.behind.values():
            self.arrived(behind.fn)

    def stream(self, fn: Any, *args: Any, **named: Any) -> Any:
        """Begin a stream; it is queued when this returns."""
        stream = super().stream(fn, *args, **named)
        self.arrived(fn)
        return stream

    def close(self, fn: Any) -> None:
        """Shut `fn` down, with what is queued run to its end: in the client, and in the server."""
        behind = self.behind.get(id(fn._driver))
        if behind is not None:
            behind.close()
        super().close(fn)
        if behind is not None:
            behind.end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Provide what callers run on, and end the servers."""
        self.behind = {}
        with tempfile.TemporaryDirectory() as folder, super().running():
            self.folder = folder
            try:
                yield
            finally:
                for behind in self.behind.values():
                    behind.join()


class TasksThroughSocket(ThroughSocket, Tasks):
    """The same, with callers in tasks; also of functions for event loops only, which run on the server's."""

    def arrived(self, fn: Any) -> None:
        """Wait until the calls so far, of the loop, have come to the server."""
        behind = self.behind.get(id(fn._driver))
        if behind is not None:
            self.run(_asked(fn))
            behind.take_turns()

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call in a task of its own."""
        future = Tasks.start(self, fn, *args, **named)
        self.arrived(fn)
        return future


async def _asked(fn: Any) -> None:
    """Ask the server for something, in the order of the calls of this loop."""
    call = Call().begin(None, Asked(Flag.NONE, "stats"), 1, False, monotonic())
    call.waits_at = loop = asyncio.get_running_loop()
    call._loop = loop
    fn._driver._links.send(call, fn._driver, Request(Kind.ASK, 0, None, b"stats", []))
    await call.wait()


def through_socket(kind: type[Flavour]) -> type[Flavour]:
    """Return a flavour that calls functions of a server."""
    base = TasksThroughSocket if issubclass(kind, Tasks) else ThroughSocket
    return type(kind.__name__, (base, kind), {})


__all__ = ["Pieces", "through_socket"]
