"""A connection for callers in threads: they send themselves, and one thread reads the answers."""

from __future__ import annotations

import _thread
import contextlib
import socket

from batched._core.call import Call
from batched._drivers.fork_and_exit import new_thread
from batched._drivers.semaphores import new_semaphore, release
from batched._drivers.step_lock import new_step_lock
from batched._drivers.wakeups import wake_callers
from batched._logs import log_error
from batched._remote.frames import Bytes, FrameError, joined
from batched._remote.link import Caller, Link, Terms
from batched._remote.requests import Request
from batched.errors import DisconnectedError

_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""Without it, as on Windows, a caller waits for room itself."""


class ThreadLink(Link):
    """One connection, and the threads that read from it and, where there is no room, write to it."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._is_unread = _thread.allocate_lock()  # held by the thread that reads, to its end
        self._sends = new_step_lock()  # held by the thread that sends
        self._rest: list[Bytes] = []
        """What the socket had no room for: while there is something, only the thread that writes sends."""
        self._has_rest: _thread.LockType | None = None
        self._closes = new_semaphore()
        self._reads_in = 0

    @property
    def reads_here(self) -> bool:
        """Whether this is the thread that reads."""
        return _thread.get_ident() == self._reads_in

    # -- for callers --------------------------------------------------------------------------------------

    def send(self, call: Call, caller: Caller, request: Request) -> bool:
        """Send `call`; return False if this connection takes no calls any more."""
        if call.waits_at is None and _thread.get_ident() == self._reads_in:
            raise RuntimeError(
                f"{caller.name} would wait for ever: this is the thread that reads its answers, in a "
                f"callback of a future; use submit here, or make the call in a thread of your own"
            )
        if not self.begin(call, caller, request):
            return False
        # Of callers that come at once, each may start a thread: all but one of these end at once.
        if not self._is_unread.locked():
            new_thread(f"batched: {self.terms.address}", self._run).start()
        self.flush_soon()
        return True

    def flush_soon(self) -> None:
        """Send what waits, unless another thread sends just now, which does it then."""
        if self._sends.is_mine():  # a finalizer, in the middle of sending: that goes on with what waits
            return
        refused: list[Call] = []
        try:
            self._flush(refused)
        except BaseException:  # Ctrl-C, at any bytecode: the lock may still be held
            self._sends.free()
            self._flush(refused)  # what other threads have left to this one
            raise

    def _flush(self, refused: list[Call]) -> None:
        while self._waiting and self.is_open and not self._rest and self._sends.acquire(False):  # noqa: FBT003
            try:
                self._send(refused)
            except BaseException:  # Ctrl-C: a frame may have been sent in part
                self._shut()
                raise
            finally:
                self._sends.release()
        if refused:
            wake_callers(refused, "")  # without the lock: a callback of a future may call
        if not self.takes_calls:
            self._leave()

    def _send(self, refused: list[Call]) -> None:
        """Send what waits, with the lock; what there is no room for is left to the thread that writes."""
        peer = self.socket
        if not self.is_open or self._rest or peer is None:
            return
        parts = self.frames(refused)
        rest = self._unsent(peer, joined(parts)) if parts else []
        if not rest:
            return
        self._rest = rest
        if self._has_rest is not None:
            self._has_rest.release()
            return
        self._has_rest = _thread.allocate_lock()
        try:
            new_thread("batched sends", self._write, peer, self._has_rest).start()
        except Exception:  # there are too many threads
            self._has_rest = None
            raise

    def _unsent(self, peer: socket.socket, parts: list[Bytes]) -> list[Bytes]:
        """Send what there is room for; return the rest."""
        for at, each in enumerate(parts):
            view = memoryview(each)
            while view:
                try:
                    count = peer.send(view, _AT_ONCE)
                except (BlockingIOError, InterruptedError):
                    return [view, *parts[at + 1 :]]
                except OSError:  # the thread that reads finds out
                    self.unsend()
                    return []
                self._fresh.clear()
                view = view[count:]
        return []

    def _write(self, peer: socket.socket, has_rest: _thread.LockType) -> None:
        """Send what is left, as the server makes room."""
        has_rest.acquire()  # to wait for the next time there
        while not self.has_ended:
            with self._sends:
                self._fresh.clear()
                with contextlib.suppress(OSError):  # the thread that reads finds out
                    for each in self._rest:
                        peer.sendall(each)
                self._rest = []
            self.flush_soon()
            has_rest.acquire()

    def _leave(self) -> None:
        """Close, after a server said that it ends, when nothing is to come any more."""
        if self.is_open and not self.has_sent and not self._rest and self._sends.acquire(False):  # noqa: FBT003
            if not self.has_sent:
                self.is_open = False  # the calls that have not been sent go to another server
                self._shut()
            self._sends.release()
            if self._waiting and self.is_open:  # another thread has found the lock held
                self.flush_soon()

    def close(self) -> None:
        """End the connection, and the pause before another attempt to connect."""
        super().close()
        release(self._closes)

    def forget(self) -> None:
        """Close the socket in the child of a fork, where it would keep the connection of the parent open."""
        if self.socket is not None:
            self.socket.close()

    # -- the thread that reads ----------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._is_unread.acquire(False):  # noqa: FBT003
            return
        self._reads_in = _thread.get_ident()
        error: Exception
        again = False
        try:
            self._converse()
            again = not self.is_closed
            error = self.lost("the server ended before it answered")
        except DisconnectedError as refused:
            error = refused
        except (OSError, FrameError) as broken:
            again = isinstance(broken, OSError) and not self.is_closed
            error = self.lost(broken)
        except BaseException as broken:  # noqa: BLE001  logged
            log_error("the connection to %s failed", self.terms.address)
            error = self.lost(broken)
        self.is_open = False
        self._reads_in = 0  # a later thread may have the same number, and calls may be sent again from here
        self._shut()  # so that no thread is in the middle of sending when it is decided what has been sent
        told: list[Call] = []
        with self._sends:
            self.end(error, told, again=again)
            peer, self.socket = self.socket, None
        if self._has_rest is not None:
            release(self._has_rest)
        if peer is not None:
            peer.close()
        wake_callers(told, "")

    def _converse(self) -> None:
        """Connect and read until the connection ends; again, if it does before the server has greeted."""
        connect = self.terms.dial()
        while True:
            try:
                self.socket = peer = connect()
                if self.is_closed:  # meanwhile
                    return
                with contextlib.suppress(BrokenPipeError):  # it may have said why before it ended
                    peer.sendall(self.greeting())
                self._read(peer)
            except DisconnectedError:  # a refusal
                raise
            except OSError as broken:
                if self.has_greeted:
                    raise
                pause_s = self._given_up(broken)
            else:
                return
            if self._closes.acquire(True, pause_s):  # noqa: FBT003
                raise self.lost("")

    def say(self, greeting: bytes) -> None:
        """Send a second greeting."""
        if self.socket is not None:
            self.socket.sendall(greeting)

    def _given_up(self, broken: OSError) -> float:
        """Answer the calls that have waited long enough; return the seconds until the next attempt."""
        peer, self.socket = self.socket, None
        if peer is not None:
            peer.close()
        told: list[Call] = []
        pause_s = self.give_up(broken, told)
        wake_callers(told, "")
        if pause_s is None:
            self.takes_calls = False
            raise broken  # no call waits
        return pause_s

    def _read(self, peer: socket.socket) -> None:
        while count := self._receive(peer):
            was_open = self.is_open
            told: list[Call] = []
            try:
                self.filled(count, told)
                if self.is_open and not was_open:
                    self.flush_soon()
            finally:  # what came before an error, too
                wake_callers(told, "")
            del told  # while this waits for more, it would keep the calls, and with them the client
            if not self.takes_calls:
                self._leave()
        if not self.has_greeted:
            raise ConnectionResetError("the server ended before its greeting")

    def _receive(self, peer: socket.socket) -> int:
        """Wait for bytes, and return how many have come; a greeting must come in time."""
        if self.has_greeted:
            return peer.recv_into(self._reader.room())
        peer.settimeout(self.terms.still_s)
        try:
            return peer.recv_into(self._reader.room())
        except TimeoutError:
            raise self.not_greeted() from None
        finally:
            peer.settimeout(None)  # before the first call: a socket with a limit makes senders wait for room
