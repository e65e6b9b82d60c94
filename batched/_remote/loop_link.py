"""A connection for the tasks of one event loop, which reads and writes itself: no thread stands between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import Callable

from batched._core.call import Call
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.timers import call_later
from batched._drivers.wakeups import ask, resolve_on_loop
from batched._remote.frames import joined
from batched._remote.link import Caller, Link, Terms
from batched._remote.requests import Request
from batched.errors import DisconnectedError

_ASYNCIO = vars(asyncio)
"""Where `nest_asyncio` notes that it lets a task run its loop once more."""


def can_have_link(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `loop` can watch a socket: the loop that Windows has by default cannot."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


def _ends_if_interrupted(step: Callable[[LoopLink], None]) -> Callable[[LoopLink], None]:
    """Have a Ctrl-C in the middle of `step` end the connection, and all its calls."""

    def guarded(self: LoopLink) -> None:
        try:
            step(self)
        except BaseException:
            self._interrupted()
            raise

    return guarded


class LoopLink(Link):
    """One connection of an event loop. Only for the thread of that loop, but for `cancel` and `close`."""

    def __init__(self, terms: Terms, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(terms)
        me = weakref.ref(self)
        self.loop: weakref.ref[asyncio.AbstractEventLoop] = weakref.ref(loop, lambda _: _forsake(me()))
        self._has_begun = False
        self._close_socket: Callable[[], object] = int
        self._connect: Callable[[], socket.socket] | None = None
        self._rest: list[memoryview] = []
        self._is_writing = False
        self._flushes = False
        """Whether it is seen to that what waits is sent: in the next turn of the loop, or in this step."""
        self._told: list[Call] = []
        """Calls that are answered, and of which the callers are to be woken: after a Ctrl-C, once more."""

    def send(self, call: Call, caller: Caller, request: Request) -> bool:
        """Send `call`; return False if this connection takes no calls any more."""
        if not self.begin(call, caller, request):
            return False
        if self.is_open:
            self.flush_soon()
        elif not self._has_begun:
            self._dial()
        return True

    def flush_soon(self) -> None:
        """Have what waits sent with all else that this turn of the loop writes; from any thread."""
        loop = self.loop()
        if self._flushes or not self.is_open or loop is None:
            return
        if running_loop_or_none() is loop:
            loop.call_soon(self._flush)
            self._flushes = True
        else:
            ask(loop, self._flush)  # of one that is closed nothing need be sent

    # -- connecting ---------------------------------------------------------------------------------------

    @_ends_if_interrupted
    def _dial(self) -> None:
        """Connect, or try again later; a local socket connects at once."""
        self._has_begun = True  # first: a finalizer may call meanwhile
        if self.has_ended:
            return
        if self._connect is None:
            self._connect = self.terms.dial()
        try:
            self.socket = peer = self._connect()
            # Not `__del__`: of a cycle of garbage the socket may go first, with a warning that it is open.
            self._close_socket = weakref.finalize(self, peer.close)
        except DisconnectedError as error:  # a refusal
            self._lost(error)
        except OSError as error:
            self._retry(error)
        except Exception as error:  # noqa: BLE001  else the calls would wait for ever
            self._lost(DisconnectedError(f"{self.terms.address} cannot be reached: {error!r}"))
        else:
            peer.settimeout(0.0)
            loop = asyncio.get_running_loop()
            loop.add_reader(peer.fileno(), self._read)
            # Not kept, to be cancelled: a timer knows its loop, which is to be collected.
            call_later(loop, self.terms.still_s, _check_greeting, weakref.ref(self), peer)
            self.say(self.greeting())

    @_ends_if_interrupted
    def check_greeting(self) -> None:
        """Give up an attempt to connect, if the server has not greeted."""
        peer = self.socket
        self._read()  # it may have, while this loop stood still
        if self.socket is peer and not self.has_greeted:
            self._retry(self.not_greeted())

    def _retry(self, broken: Exception) -> None:
        """Forget an attempt to connect, and make another one if calls wait for it."""
        self._disconnect()
        pause_s = self.give_up(broken, self._told)
        self._wake()
        if pause_s is None:
            self._lost(self.unreachable(broken))
        else:
            call_later(asyncio.get_running_loop(), pause_s, self._dial)

    # -- reading and writing ------------------------------------------------------------------------------

    @_ends_if_interrupted
    def _read(self) -> None:
        """Take what has come, as far as there is room for it."""
        peer = self.socket
        if peer is None:
            return
        try:
            count = peer.recv_into(self._reader.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken(error)
            return
        if not count:
            self._broken(ConnectionResetError("the server ended before it answered"))
            return
        try:
            self._come(count)
        except Exception as error:  # noqa: BLE001  no frame, or no greeting
            self._lost(error if isinstance(error, DisconnectedError) else self.lost(error))

    def _come(self, count: int) -> None:
        self.filled(count, self._told)
        if not self.takes_calls:
            self._leave()
        self._flushes = "_nest_patched" not in _ASYNCIO  # else a caller may run the loop as it wakes
        if not self._flushes and self.socket is not None:  # a handle cannot run inside of itself
            asyncio.get_running_loop().add_reader(self.socket.fileno(), self._read)
        resolve_on_loop(self._told)
        self._told = []
        self._flushes = False
        if self._waiting and self.is_open and not self._is_writing:  # also by callers that woke
            self._send()

    def say(self, greeting: bytes) -> None:
        """Send a greeting."""
        self._rest.append(memoryview(greeting))
        if not self._is_writing:
            self._write()

    @_ends_if_interrupted
    def _flush(self) -> None:
        self._flushes = False
        if self.is_open and not self._is_writing:
            self._send()

    @_ends_if_interrupted
    def _write(self) -> None:
        self._send()

    def _send(self) -> None:
        """Send what waits, as far as there is room."""
        peer = self.socket
        if peer is None:
            return
        rest = self._rest
        try:
            while rest or (self.is_open and self._fill(rest)):
                count = peer.send(rest[0])
                self._fresh.clear()
                if count == len(rest[0]):
                    del rest[0]
                else:
                    rest[0] = rest[0][count:]
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                asyncio.get_running_loop().add_writer(peer.fileno(), self._write)
        except OSError as error:
            self.unsend()
            self._broken(error)
        else:
            if self._is_writing:
                self._is_writing = False
                asyncio.get_running_loop().remove_writer(peer.fileno())
            if self.is_open and not self.takes_calls:  # perhaps the last one was cancelled
                self._leave()
        self._wake()

    def _fill(self, rest: list[memoryview]) -> bool:
        """Add to `rest` what waits; return whether there is something."""
        rest += map(memoryview, joined(self.frames(self._told))) if self._waiting else ()
        return bool(rest)

    def _wake(self) -> None:
        """Wake callers in a turn of their own: this may be in the middle of a call."""
        if self._told:
            asyncio.get_running_loop().call_soon(resolve_on_loop, self._told)
        self._told = []

    # -- the end ------------------------------------------------------------------------------------------

    def _broken(self, error: OSError) -> None:
        if self.has_greeted:
            self._lost(self.lost(error), again=not self.is_closed)
        elif not isinstance(error, BrokenPipeError):  # else it may have said why before it ended
            self._retry(error)

    def _leave(self) -> None:
        """Close, after a server said that it ends, when nothing is to come any more."""
        if not self.has_sent:  # the calls that have not been sent go to another server
            self._lost(DisconnectedError(f"the server at {self.terms.address} has ended"), again=True)

    def _interrupted(self) -> None:
        """End the connection after a Ctrl-C: what has come may be lost, and a frame sent in part."""
        self._lost(self.lost("it was interrupted"))

    def _lost(self, error: DisconnectedError, *, again: bool = False) -> None:
        self._disconnect()
        self.end(error, self._told, again=again)
        self._wake()

    @_ends_if_interrupted
    def _close(self) -> None:
        self._lost(self.lost(""))

    def close(self) -> None:
        """End the connection: its loop does so, if it still runs."""
        super().close()  # first, so that the server knows, though the loop may stand still
        loop = self.loop()
        if loop is None or not ask(loop, self._close):
            self.forget()

    def _disconnect(self) -> None:
        self._rest = []
        self._is_writing = False
        peer = self.socket
        if peer is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it is closed already
            loop = asyncio.get_running_loop()
            loop.remove_reader(peer.fileno())
            loop.remove_writer(peer.fileno())
        self._close_socket()
        self.socket = None  # last: after a Ctrl-C this is done once more

    def forget(self) -> None:
        """Close the socket, without the loop: it has ended, or is that of the parent of this process."""
        self.has_ended = True
        self.is_open = self.takes_calls = False
        self.socket = None
        self._close_socket()


def _check_greeting(known: weakref.ref[LoopLink], peer: socket.socket) -> None:
    if (link := known()) is not None and link.socket is peer and not link.has_greeted:
        link.check_greeting()


def _forsake(link: LoopLink | None) -> None:
    """Close the connection of a loop that is gone."""
    if link is not None:
        link.forget()
