"""The server's side of one connection: frames come, calls are queued, answers go out."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from batched._api.streams import AsyncStream
from batched._clock import monotonic
from batched._core.call import Call
from batched._drivers.wakeups import Outbox, ask, wake
from batched._logs import log, log_error
from batched._remote.failures import encoded_error, encoded_rows, unsent
from batched._remote.frames import (
    CALL_ROW,
    MAX_FRAME_BYTES,
    MOST_ROWS,
    RESULT_ROW,
    Bytes,
    Flag,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    frame,
    frame_of_rows,
    joined,
    rows,
    size_of,
)
from batched._remote.greeting import ClientGreeting, ServerGreeting
from batched._remote.requests import PLAIN, Wanted, wanted
from batched._remote.served import Served, Why
from batched._remote.values import Codec, Unreadable, apart, are_plain, is_plain, plain_values
from batched.errors import BatchError

_MOST_US = (1 << 32) - 1
_MOST_GREETING = 1 << 14
GREETING_S = 30.0
"""So long may a connection take to greet."""
_DIRECTLY = os.name == "posix"
"""Whether a socket is a file, to which a worker may write."""
_AT_ONCE = 1 << 20
"""So many bytes are given to a transport at once."""
_CALLS = frozenset({Kind.CALL, Kind.LATE})


class Host(Protocol):
    """The server, for a session."""

    served: Mapping[str, Served]
    answers: Outbox
    """Takes calls that are answered, which have what `send_answers` asks of them as their waiters."""
    codec: Codec
    max_frame_bytes: int
    ends: bool
    """Whether clients that connect now would come too late."""

    def refusal(self, peer: socket.socket) -> str:
        """Return why the process at the other end must not call; "" if it may."""
        ...

    def welcome(self, said: ClientGreeting, nonce: str, port: object) -> ServerGreeting:
        """Return the answer to a greeting; `nonce` is that of the last answer, to which this one replies."""
        ...

    def answered(self, question: bytes, served: Served) -> Any:
        """Return the answer to a question about a function."""
        ...

    def ended(self, session: Session) -> None:
        """Note that a connection has ended."""
        ...


class Session(asyncio.BufferedProtocol):
    """One connection of a client.

    What code of the user's raises here, as items are read or keys are asked for, is the error of its call:
    also a `SystemExit`, which would end the server.
    """

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._reader = FrameReader(_MOST_GREETING)  # until it is known that the client may call
        self._has_greeted = False
        self._codec: Codec = host.codec
        self._nonce = ""
        self._port: object = ""
        self._functions: list[Served] = []
        self._transport: asyncio.Transport | None = None
        self._out: list[Bytes] = []
        self._plain: list[tuple[int, float, Any]] = []
        """Answers that share a frame: the number of the call, when it began, and the answer."""
        self._running: dict[int, tuple[Callable[[Any, Why], object], Any]] = {}
        """What drops each call that has no answer yet, and its argument."""
        self._writes = _thread.allocate_lock()
        """Held while something is written: by the loop, or by a worker."""
        self._is_clear = False
        """Whether a worker may write: nothing waits to be written, but perhaps the rest of its own."""
        self._came_alone = False
        """Whether the call that is read just now came without others."""
        self._unsent: deque[memoryview] = deque()
        """What is given to the transport once that has room, as it copies what the socket has no room for."""
        self._number = -1
        self._is_no_client: asyncio.TimerHandle | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.client = ""
        """One name for all connections of a process; "" until it has greeted."""
        self.calls = 0
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def unanswered(self) -> int:
        """How many calls have no answer yet."""
        return len(self._running)

    # -- the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where answers go."""
        self._transport = transport  # type: ignore[assignment]
        with_socket: socket.socket = transport.get_extra_info("socket")
        self._number = with_socket.fileno()
        name = with_socket.getsockname()
        self._port = name[1] if isinstance(name, tuple) else ""
        if self._host.ends:  # the client tries again, and finds the successor
            self.close()
            return
        refusal = self._host.refusal(with_socket)
        if refusal:
            self._reply(ServerGreeting(refusal=refusal))
        else:
            self._is_no_client = self._loop.call_later(GREETING_S, self._close_unknown)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the frames that have come."""
        self.bytes_in += nbytes
        if self._transport is None or self._transport.is_closing():
            return
        try:
            found = self._reader.filled(nbytes)
            self._came_alone = len(found) == 1 and found[0].kind != Kind.CALLS
            for each in found:
                self._take(each)
        except FrameError as error:
            log(logging.WARNING, "a connection was closed: %s", error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Drop what has not started: the client has left."""
        with self._writes:  # the number of the file may be that of another connection soon
            self._transport, self._is_clear = None, False
            self._unsent.clear()
        self._has_room.set()
        if self._is_no_client is not None:
            self._is_no_client.cancel()
        running, self._running = self._running, {}
        for drop, call in running.values():
            drop(call, "cancelled")
        self._host.ended(self)

    def pause_writing(self) -> None:
        """Read no more calls of a client that does not read its answers."""
        self._has_room.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on reading, and writing."""
        self._has_room.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._flush()

    # -- frames -------------------------------------------------------------------------------------------

    def _take(self, found: Frame) -> None:
        if not self._has_greeted:
            self._greet(found)
        elif found.kind == Kind.CALLS:
            self._calls(found)
        elif found.kind in _CALLS:
            self._call(found)
        elif found.kind == Kind.CANCEL:
            dropped = self._running.pop(found.number, None)
            if dropped is not None:
                dropped[0](dropped[1], "expired" if found.flags & Flag.DEADLINE else "cancelled")
        elif found.kind == Kind.ASK:
            self._asked(found)
        else:
            raise FrameError(f"a client sends no frame of kind {found.kind}")

    def _greet(self, found: Frame) -> None:
        said = ClientGreeting.read(found)
        answer = self._host.welcome(said, self._nonce, self._port)
        if answer.refusal:
            self._reply(answer)
            return
        if answer.nonce:  # the client is to greet once more, and to show that it knows the token
            self._nonce = answer.nonce
            self._write(answer.frame())
            return
        self.client = said.client
        self._functions = [*self._host.served.values()]
        self._reader.max_bytes = self._host.max_frame_bytes
        self._has_greeted = True
        if self._is_no_client is not None:
            self._is_no_client.cancel()
        self._write(answer.frame())

    def _close_unknown(self) -> None:
        """Close a connection that has not greeted: else all file descriptors might be spent on such ones."""
        if self._transport is not None:
            log(logging.WARNING, "a connection was closed: it has not greeted in %g s", GREETING_S)
            self.abort()

    def _reply(self, refusal: ServerGreeting) -> None:
        """Say why this client may not call, and close."""
        self._write(refusal.frame())
        self.close()

    def tell(self, news: ServerGreeting) -> None:
        """Greet the client once more, as functions have changed."""
        if self._has_greeted:
            self._write(news.frame())

    def leave(self) -> None:
        """Tell the client that the server ends: it sends further calls elsewhere, and closes when it can."""
        if self._has_greeted:
            self._write(frame(Kind.LEAVE, 0, 0, 0, b""))
        else:
            self.close()

    def close(self) -> None:
        """End the connection when all that was written has been sent."""
        self._flush()
        if self._transport is not None:
            while self._unsent:
                self._transport.write(self._unsent.popleft())
            self._transport.close()

    def abort(self) -> None:
        """End the connection, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def forget(self, nothing: int) -> None:
        """Let go of the socket in the child of a fork: its number is that of the file `nothing` from here on.

        It is not free: the transport, which the child has too, may close it.
        """
        if self._number >= 0:
            os.dup2(nothing, self._number, inheritable=False)
        self._number = -1  # the child may close all files, and have another one of this number as it forks

    def _served(self, found: Frame) -> Served:
        if found.extra >= len(self._functions):
            raise FrameError(f"a call of function {found.extra}, of {len(self._functions)}")
        return self._functions[found.extra]

    def _call(self, found: Frame) -> None:
        number, began = found.number, monotonic()
        served = self._served(found)
        if number in self._running:
            raise FrameError(f"two calls have the number {number}")
        self.calls += 1
        try:
            want, value = wanted(self._codec.load, found)
        except BaseException as error:  # noqa: BLE001  of a class that cannot be read here
            with contextlib.suppress(BaseException):  # there is more to it than a class
                if found.flags & Flag.ELEMENTS:  # each has an answer of its own
                    want, value = wanted(self._codec.load_apart, found)
                    self._one_by_one(number, began, served, want, apart(value, error))
                    return
            self._fail(number, began, error)
        else:
            self._begin(number, began, served, want, value)

    def _calls(self, found: Frame) -> None:
        """Begin several calls, each with one plain argument."""
        began = monotonic()
        served = self._served(found)
        read, payload = rows(CALL_ROW, found)
        numbers = [row[0] for row in read]
        if len({*numbers} - self._running.keys()) < len(numbers):
            raise FrameError("two calls have the same number")
        self.calls += len(numbers)
        values, are_read = plain_values(self._codec, payload, len(read))
        if are_read and served.together.issuperset([row[1] for row in read]):
            self._begin_all(read, began, served, values)
            return
        for (number, flags, left_s, allowed_s), value in zip(read, values, strict=True):
            if isinstance(value, Unreadable):
                self._fail(number, began, value.error)
                continue
            want = PLAIN
            if flags != Flag.ONE:
                left = left_s if flags & Flag.DEADLINE else None
                want = Wanted(Kind.CALL, flags, left, allowed_s)
            self._begin(number, began, served, want, value)

    def _begin(self, number: int, began: float, served: Served, want: Wanted, value: Any) -> None:
        try:
            try:
                call = served.call(want, value, self.client)
            except FrameError:
                raise
            except BaseException:
                if not want.flags & Flag.ELEMENTS or served.driver.options.streams:
                    raise
                self._one_by_one(number, began, served, want, value)
                return
            if call.takes_pieces or (served.callers_ask and call.size):
                send = partial(self._send_pieces, number, began, served)
                work = partial(send if call.takes_pieces else served.with_cache, call)
                self._answer_in_task(number, began, work, _many(call), call)
                return
            if not call.missing:
                self._answer(number, began, served.at_once(call), many=_many(call))
                return
            is_alone = (
                self._came_alone
                and self._is_clear
                and not self._running
                and not served.watches(call, want)
                and not want.flags & Flag.ELEMENTS  # of a map, which waits for room
                and served.is_idle
            )
            self._running[number] = served.drop, call  # first: a worker may be faster
            if is_alone:
                served.post_for_worker(call, partial(self._done_in_worker, number, began, served))
            else:
                call.waiter = self, number, began, served
                served.post(call, want, self._host.answers)
        except FrameError:
            raise
        except BaseException as error:  # noqa: BLE001  of the arguments, or a refusal
            self._running.pop(number, None)
            self._fail(number, began, error)

    def _begin_all(
        self, read: list[tuple[Any, ...]], began: float, served: Served, values: list[Any]
    ) -> None:
        """Begin calls of one argument each, without options but deadlines, as `_begin` does for each."""
        calls: list[Call] = []
        calls_or_errors = served.plain(read, values, self.client, self._host.answers)
        for row, call in zip(read, calls_or_errors, strict=True):
            number = row[0]
            if isinstance(call, BaseException):
                self._fail(number, began, call)
            else:
                call.waiter = self, number, began, served
                self._running[number] = served.drop, call
                calls.append(call)
        for refused, error in served.post_all(calls):
            self._running.pop(refused.waiter[1], None)
            self._fail(refused.waiter[1], began, error)

    def _one_by_one(self, number: int, began: float, served: Served, want: Wanted, value: list[Any]) -> None:
        """Answer elements of a map of which one is refused: each is a call of its own."""
        work = partial(served.one_by_one, want, value, self.client)
        self._answer_in_task(number, began, work, many=True)

    def answered(self, calls: list[Call]) -> None:
        """Send the answers of calls, but of those of which the callers have left."""
        done: list[tuple[int, float, Any]] = []
        others: list[Call] = []
        for call in calls:
            if call.missing or call.error is not None or call.keep_errors:
                others.append(call)
            elif call.waiter[1] in self._running:
                done.append((call.waiter[1], call.waiter[2], call.results))
        if done and are_plain(self._codec, [answer for _, _, answer in done]):
            for number, _, _ in done:
                self._running.pop(number, None)
            self._write((), done)
        else:
            for each in done:  # the last one has all of them sent
                self._running.pop(each[0], None)
                self._answer(*each)
        for call in others:
            _, number, began, served = call.waiter
            if self._running.pop(number, None) is None:
                continue
            if (error := served.error(call)) is not None:
                self._fail(number, began, error, call.left)
            else:
                self._answer(number, began, served.answer(call), many=_many(call))

    def _done_in_worker(self, number: int, began: float, served: Served) -> None:
        """Send the answer of a call at once, from the thread of the worker; else by the loop.

        To wake the loop for a single answer would take longer than all else that the server does for it.
        """
        # Not passed: the call knows what calls this, and would be a cycle.
        _, call = self._running.get(number, (None, None))
        if call is None:  # its caller has left
            return
        try:
            is_sent = self._send_from_worker(number, began, call)
        except Exception:  # noqa: BLE001  it is met once more, by the loop
            is_sent = False
        if not is_sent:  # as all others: it may be told of once more, if its item has ended amid a stream
            call.waits_at, call.waiter = self._host.answers, (self, number, began, served)
            wake([call])

    def _send_from_worker(self, number: int, began: float, call: Call) -> bool:
        """Send a small answer, if nothing else is to be sent; return whether it is on its way."""
        codec = self._codec
        if call.missing or call.error is not None or call.keep_errors or not is_plain(codec, call.results):
            return False
        payload, buffers = codec.dump(call.results)
        data = b"".join(frame(Kind.RESULT, 0, number, _us_since(began), payload, buffers))
        if not self._writes.acquire(False):  # noqa: FBT003
            return False
        try:
            if not self._is_clear or self._unsent or self._out or self._plain or len(self._running) > 1:
                return False
            if self._running.pop(number, None) is None:  # its caller has left
                return True
            self.bytes_out += len(data)
            try:
                count = os.write(self._number, data)
            except OSError:  # there is no room; or the connection is lost, as the loop will find out
                count = 0
            if count < len(data):
                self._unsent.append(memoryview(data)[count:])
        finally:
            self._writes.release()
        if self._unsent:
            ask(self._loop, self._flush)
        return True

    def _answer(self, number: int, began: float, answer: Any, *, many: bool | None = None) -> None:
        """Send an answer: `many` results, or one, of which some may be errors; None for what it is."""
        if is_plain(self._codec, answer):
            self._write((), [(number, began, answer)])
            return
        flags = 0
        try:
            if many is None:
                payload, buffers = self._codec.dump(answer)
            else:
                flags, payload, buffers = encoded_rows(self._codec, answer, many=many)
            parts = self._frame(Kind.RESULT, number, began, payload, buffers, flags)
        except BaseException as error:  # noqa: BLE001  of an object that cannot be made bytes of
            self._fail(number, began, unsent(error))
        else:
            self._write(parts)

    def _fail(self, number: int, began: float, error: BaseException, left: str | None = None) -> None:
        try:
            try:
                parts = self._frame(Kind.ERROR, number, began, *encoded_error(self._codec, error, left))
            except FrameError as too_long:
                told = BatchError(f"{type(error).__name__} of the server cannot be sent: {too_long}")
                parts = self._frame(Kind.ERROR, number, began, *encoded_error(self._codec, told, left))
        except BaseException:  # there is no memory for it: the call would wait for ever
            self.abort()
            raise
        self._write(parts)

    def _frame(  # noqa: PLR0913, PLR0917  as `frame`
        self, kind: int, number: int, began: float, payload: Bytes, buffers: list[Bytes], flags: int = 0
    ) -> list[Bytes]:
        """Return the parts of a frame; `FrameError` if the client would not take it."""
        parts = frame(kind, flags, number, _us_since(began), payload, buffers)
        if (size := size_of(parts)) > MAX_FRAME_BYTES:
            raise FrameError(f"it has {size} bytes, and the client takes {MAX_FRAME_BYTES} at most")
        return parts

    def _answer_in_task(
        self,
        number: int,
        began: float,
        work: Callable[[], Awaitable[Any]],
        many: bool | None,  # noqa: FBT001
        call: Call | None = None,
    ) -> None:
        """Answer a call that awaits something here: a cache, or room for each of its pieces, or elements."""

        async def answer() -> None:
            try:
                found = await work()
            except BaseException as error:  # noqa: BLE001
                if self._running.pop(number, None) is not None:  # else its caller has left
                    self._fail(number, began, error, None if call is None else call.left)
            else:
                if self._running.pop(number, None) is not None:
                    self._answer(number, began, found, many=many)

        self._running[number] = asyncio.Task.cancel, self._loop.create_task(answer())

    async def _send_pieces(self, number: int, began: float, served: Served, call: Call) -> None:
        pieces: AsyncStream[Any] = AsyncStream(served.driver, call)
        async for piece in pieces:  # dropped with this frame: only then, after an error, does its call leave
            try:
                parts = self._frame(Kind.PIECE, number, began, *self._codec.dump(piece))
            except BaseException as broken:
                raise unsent(broken) from broken
            self._write(parts)
            while not self._has_room.is_set():  # else what is left may have filled it up again
                await self._has_room.wait()

    def _asked(self, found: Frame) -> None:
        began = monotonic()
        try:
            answer = self._host.answered(bytes(found.payload), self._served(found))
        except Exception as error:  # noqa: BLE001
            self._fail(found.number, began, error)
        else:
            self._answer(found.number, began, answer)

    # -- writing ------------------------------------------------------------------------------------------

    def _write(self, parts: Sequence[Bytes], plain: Sequence[tuple[int, float, Any]] = ()) -> None:
        """Have `parts`, and answers that are `plain`, sent with all else of this turn of the loop."""
        is_first = not self._out and not self._plain
        self._out += parts
        self._plain += plain
        if not self._running:  # no other answer is to go with this one
            self._flush()
        elif is_first:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        plain, self._plain = self._plain, []
        try:
            for at in range(0, len(plain), MOST_ROWS):
                out += self._frame_of_several(plain[at : at + MOST_ROWS])
            with self._writes:
                self._send(out)
        except BaseException:  # there is no memory for it: the calls would wait for ever
            self.abort()
            raise

    def _send(self, out: list[Bytes]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        left = self._unsent
        for each in joined(out) if out else ():
            self.bytes_out += len(each)
            left.append(memoryview(each))
        while left and self._has_room.is_set():
            view = left.popleft()
            if len(view) > _AT_ONCE:
                left.appendleft(view[_AT_ONCE:])
            transport.write(view[:_AT_ONCE])
        self._is_clear = _DIRECTLY and not left and not transport.get_write_buffer_size()

    def _frame_of_several(self, answers: list[tuple[int, float, Any]]) -> list[Bytes]:
        """Return the frame of answers that are plain."""
        if len(answers) == 1:
            number, began, answer = answers[0]
            payload, buffers = self._codec.dump(answer)
            return frame(Kind.RESULT, 0, number, _us_since(began), payload, buffers)
        spent = {began: _us_since(began) for began in {began for _, began, _ in answers}}
        read = [RESULT_ROW.pack(number, spent[began]) for number, began, _ in answers]
        values = self._codec.dump_plain([answer for _, _, answer in answers])
        return [frame_of_rows(Kind.RESULTS, 0, read, values)]


def send_answers(calls: list[Call]) -> None:
    """Send the answers of calls of any sessions."""
    theirs: dict[Session, list[Call]] = {}
    for call in calls:
        theirs.setdefault(call.waiter[0], []).append(call)
    for session, answered in theirs.items():
        try:
            session.answered(answered)
        except Exception:  # noqa: BLE001  a fault of this library: its calls would wait for ever
            log_error("answers could not be sent: a connection is closed")
            session.abort()


def _many(call: Call) -> bool | None:
    """Return whether the answer of `call` is a list that may have errors; None if it has none."""
    return call.many or hasattr(call, "flow") if call.keep_errors else None


def _us_since(began: float) -> int:
    return min(int((monotonic() - began) * 1e6), _MOST_US)
