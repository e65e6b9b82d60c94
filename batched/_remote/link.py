"""The client's side of one connection, whatever carries its bytes: calls go out, answers come back."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from weakref import ref

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.wakeups import FUTURE, settle
from batched._remote.addresses import Address
from batched._remote.failures import decoded_error, decoded_rows
from batched._remote.frames import (
    CALL_ROW,
    LEAST_TOGETHER,
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
    rows,
    size_of,
)
from batched._remote.greeting import ClientGreeting, ServerGreeting
from batched._remote.requests import NO_VALUE, Request, too_long
from batched._remote.tokens import is_same, proof
from batched._remote.values import Codec, Unreadable, apart, plain_values
from batched.errors import DisconnectedError, too_slow

_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 0.25


def stands_still(address: Address, limit_s: float, what: str) -> str:
    """Return the sentence that says that a server has not done `what` in time."""
    return (
        f"the server at {address} has not {what} within {limit_s:g} s: its process is stopped, or a function "
        f"keeps its interpreter busy; py-spy dump shows where, and wait_s= of connect is a longer limit"
    )


@dataclass(frozen=True)
class Terms:
    """What all connections of a client share.

    Nothing here leads back to the client, so that it can be collected.
    """

    address: Address
    codec: Codec
    client: str
    wait_s: float
    """How long a call waits for a server that cannot be reached."""
    still_s: float
    """How long a server may take to greet, or to answer a question: then it stands still."""
    token: str | None
    dial: Callable[[], Callable[[], Any]]
    """Returns, for one connection, what connects: it is called until it raises no `OSError` any more."""
    told: Callable[[], Callable[[ServerGreeting], None] | None]
    """Refers to what is told the greeting of the server, as long as the client is there."""


class Caller(Protocol):
    """A function of the client, for a link."""

    name: str
    wire: WireTimes
    deadline_watch: DeadlineWatch
    options: Options

    def send_again(self, call: Call, request: Request) -> None:
        """Send `call`, of which nothing has been sent, on another connection."""
        ...


class WireTimes:
    """How long calls of a function took, and how much of that they spent in the server."""

    __slots__ = ("calls", "server_s", "total_s")

    def __init__(self) -> None:
        self.calls: int = 0
        self.total_s: float = 0.0
        self.server_s: float = 0.0

    def add(self, total_s: float, server_s: float) -> None:
        """Count a call."""
        self.calls += 1
        self.total_s += total_s
        self.server_s += min(server_s, total_s)


class _Sent:
    """A call that has no answer yet."""

    __slots__ = ("began", "call", "caller", "request")

    def __init__(self, call: Call, caller: Caller, began: float, request: Request) -> None:
        self.call = call
        self.caller = caller
        self.began = began
        self.request: Request | None = request
        """None once it has been sent."""


_Fresh: TypeAlias = tuple[int, _Sent, Request]
"""A call that is being sent: its number first."""


class Link(ABC):
    """One connection. After its end, calls need another one.

    Callers in threads take no lock here: the garbage collector may run a finalizer in the middle of any step,
    and the finalizer may call, or cancel. What a caller adds, it adds by one step of a dictionary or a deque,
    and then looks whether the connection has ended meanwhile.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms: Terms = terms
        self.is_open: bool = False
        """Whether calls may be sent: the server has greeted, and the connection has not ended."""
        self.has_greeted: bool = False
        self.takes_calls: bool = True
        self.has_ended: bool = False
        self.is_closed: bool = False
        """Whether the client itself has ended it."""
        self.socket: socket.socket | None = None
        self._renew_reader()
        self._numbers = itertools.count(1)
        self._sent: dict[int, _Sent] = {}
        self._waiting: deque[int | bytes] = deque()
        """Numbers of calls to be sent, and the frames that have calls dropped."""
        self._fresh: list[_Fresh] = []
        """Calls of which no byte has been sent, though their frames are made."""
        self._is_there: Callable[[], Call | None] = _no_call
        """Refers to the last question whether the server is there, while that has no answer."""
        self._ending: list[_Sent] = []
        """Calls that `end` has still to answer, or to have sent elsewhere."""
        self._places: dict[str, int] = {}
        self._most_bytes = 0
        self._pause_s = _FIRST_PAUSE_S
        """Until the next attempt to connect, if this one fails."""

    def pending(self, caller: Caller) -> list[Call]:
        """Return the calls of `caller` that have no answer yet."""
        return [each.call for each in self._sent.copy().values() if each.caller is caller]

    def _renew_reader(self) -> None:
        """Forget what has come: of a frame, and of what the server has shown."""
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._is_proven = False
        self._nonce = secrets.token_hex(16) if self.terms.token is not None else ""

    def greeting(self, shown: str = "") -> bytes:
        """Return the first frame; or the second one, with what is `shown` of the token."""
        terms = self.terms
        said = ClientGreeting(
            protocol=terms.codec.name,
            client=terms.client,
            nonce=self._nonce,
            proof=shown,
        )
        return b"".join(said.frame())

    def close(self) -> None:
        """End the connection: at any time, from any thread."""
        self.is_closed = True
        self.takes_calls = False
        self._shut()

    def _shut(self) -> None:
        """Let the server, and a thread that reads here, see the end."""
        if (peer := self.socket) is not None:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    @abstractmethod
    def forget(self) -> None:
        """Close the socket in the child of a fork, where it would keep the connection of the parent open."""

    @abstractmethod
    def say(self, greeting: bytes) -> None:
        """Send a second greeting."""

    # -- calls --------------------------------------------------------------------------------------------

    def begin(self, call: Call, caller: Caller, request: Request) -> bool:
        """Note `call`, to be sent; return False if this connection takes no calls any more."""
        if not self.takes_calls:
            return False
        number = next(self._numbers)
        call.tenant = self  # first: from here on it can be cancelled
        call.key = number
        self._sent[number] = _Sent(call, caller, monotonic(), request)
        self._waiting.append(number)
        # One that has ended just now may have seen the call, and then has answered it or sent it elsewhere.
        return not self.has_ended or self._sent.pop(number, None) is None

    def cancel(self, call: Call, *, is_late: bool = False) -> None:
        """Forget `call`, and have the server drop it. From any thread, and in the middle of any step.

        The server is told of a call that `is_late` too: it may have stood still before it read the deadline.
        """
        number = getattr(call, "key", 0)
        sent = self._sent.get(number)
        # A call that was sent on another connection has a number of that.
        if sent is None or sent.call is not call or self._sent.pop(number, None) is None:
            return
        if is_late and sent.request is not None:  # not sent yet: there may be many, if there is no room
            return
        flags = Flag.DEADLINE if is_late else Flag.NONE
        self._waiting.append(b"".join(frame(Kind.CANCEL, flags, number, 0, b"")))
        self.flush_soon()

    def expire(self, call: Call) -> None:
        """Answer a future that is late, if it has not been sent, or if the server stands still.

        The server heeds the deadlines of those that were sent, as only it knows which of them have begun. So
        it is asked whether it is there, and again after a while: it may have stopped since.
        """
        sent = self._sent.get(getattr(call, "key", 0))
        if sent is None or sent.call is not call or call.waits_at is not FUTURE:
            return
        now = monotonic()
        is_sent = sent.request is None
        until = self._is_asked_until(sent.caller, now) if is_sent else now
        if until > now:
            sent.caller.deadline_watch.add(call, until)
            return
        self.cancel(call, is_late=is_sent)
        _fail(sent, TimeoutError(call.overdue(sent.caller.name)))
        settle([call], sent.caller.name)

    def _is_asked_until(self, caller: Caller, now: float) -> float:
        """Ask the server whether it is there, unless it has been; return when it counts as standing still."""
        call = self._is_there()
        if call is None or not call.missing:
            call = Call().begin(None, None, 1, False, now, now + self.terms.still_s)  # noqa: FBT003
            self._is_there = ref(call)
            call.waits_at, call.waiter = FUTURE, Future()
            if self.begin(call, caller, Request(Kind.ASK, 0, None, b"is_there", [])):
                self.flush_soon()
        return call.deadline or now

    @abstractmethod
    def flush_soon(self) -> None:
        """Have sent what waits, if there is room."""

    def frames(self, refused: list[Call]) -> list[Bytes]:
        """Return the frames of what waits, for one thread at a time.

        `refused` gets the calls that cannot be sent, with their errors.
        """
        fresh, dropped = self._fresh, []
        fresh.clear()
        now = monotonic()
        for _ in range(len(self._waiting)):
            number = self._waiting.popleft()
            if isinstance(number, bytes):
                dropped.append(number)
            elif (sent := self._sent.get(number)) is not None and (request := sent.request) is not None:
                sent.request, sent.began = None, now
                fresh.append((number, sent, request))
        found: list[Bytes] = []
        alone = fresh
        if len(fresh) > 1 and self._most_bytes >= LEAST_TOGETHER:
            alone = self._share_frames(found, now)
        for number, sent, request in alone:
            try:
                found += self._frame(number, sent.caller, request, now)
            except (FrameError, LookupError) as error:
                refused.append(_fail(sent, error))
                self._sent.pop(number, None)
        return found + dropped  # a call that has just left is dropped after it has come

    def _share_frames(self, found: list[Bytes], now: float) -> list[_Fresh]:
        """Add to `found` the frames of the calls that can share one; return the other calls."""
        alone: list[_Fresh] = []
        together: dict[str, list[_Fresh]] = {}
        """Calls that can share a frame, by their function."""
        for each in self._fresh:
            _, sent, request = each
            calls = alone if request.value is NO_VALUE else together.setdefault(sent.caller.name, [])
            calls.append(each)
        for name, calls in together.items():
            place = self._places.get(name)
            if place is None or len(calls) == 1:
                alone += calls
                continue
            for at in range(0, len(calls), MOST_ROWS):
                found += self._frame_of_several(place, calls[at : at + MOST_ROWS], now)
        return alone

    def unsend(self) -> None:
        """Note that nothing of the last frames was sent: their calls can be sent elsewhere."""
        for _, sent, request in self._fresh:
            sent.request = request
        self._fresh.clear()

    def _frame_of_several(self, place: int, calls: list[_Fresh], now: float) -> list[Bytes]:
        """Return the frame of calls of one function, each with one plain argument."""
        rows = [
            CALL_ROW.pack(
                number,
                request.flags,
                0.0 if request.deadline is None else request.deadline - now,
                request.allowed_s,
            )
            for number, _, request in calls
        ]
        values = self.terms.codec.dump_plain([request.value for _, _, request in calls])
        return [frame_of_rows(Kind.CALLS, place, rows, values)]

    def _frame(self, number: int, caller: Caller, request: Request, now: float) -> list[Bytes]:
        place = self._places.get(caller.name)
        if place is None:
            raise LookupError(
                f"the server at {self.terms.address} has no function {caller.name!r}: it has "
                f"{', '.join(self._places)}"
            )
        payload = request.payload
        if request.value is not NO_VALUE:
            payload, _ = self.terms.codec.dump(request.value)
        if request.deadline is not None:
            payload = request.head(now) + bytes(payload)
        parts = frame(request.kind, request.flags, number, place, payload, request.buffers)
        if (size := size_of(parts)) > self._most_bytes:
            raise too_long(caller.name, size, self._most_bytes)
        return parts

    # -- frames -------------------------------------------------------------------------------------------

    def filled(self, count: int, told: list[Call]) -> None:
        """Take `count` bytes; `told` gets the calls of which the callers are to be woken.

        A call is in `told`, or has no answer yet, at any moment: a Ctrl-C may come in between.

        Raises:
            FrameError: What came is no frame.
            DisconnectedError: The server refuses this client.

        """
        for each in self._reader.filled(count):
            if not self.has_greeted:
                self._greeted(each)
            elif each.kind == Kind.LEAVE:
                self.takes_calls = False
            elif each.kind == Kind.RESULTS:
                self._answered_several(each, told)
            elif (sent := self._sent.get(each.number)) is not None and each.kind == Kind.PIECE:
                self._piece(each, sent, told)
            elif sent is not None:
                self._answered(each, sent)
                told.append(sent.call)
                self._sent.pop(each.number, None)
            elif each.kind == Kind.HELLO:
                self._tell(ServerGreeting.read(each))

    def _greeted(self, found: Frame) -> None:
        said = ServerGreeting.read(found)
        if said.refusal:
            raise DisconnectedError(f"{self.terms.address} refused the connection: {said.refusal}")
        if self.terms.token is None:
            if said.nonce:
                raise DisconnectedError(f"{self.terms.address} asks for a token: connect with token=")
        elif not self._is_proven:
            self._check_proof(self.terms.token, said)
            return
        self._places = {each["name"]: at for at, each in enumerate(said.functions)}
        self._most_bytes = said.max_frame_bytes
        self._tell(said)
        self.has_greeted = True
        self.is_open = True  # last: other threads send from here on

    def _tell(self, said: ServerGreeting) -> None:
        if (told := self.terms.told()) is not None:
            told(said)

    def _check_proof(self, token: str, said: ServerGreeting) -> None:
        """Show that this client knows the token, if the server has shown that it does."""
        where = self.terms.address.where
        port = where[1] if isinstance(where, tuple) else ""
        if not said.nonce and not port:
            raise DisconnectedError(
                f"the server at {self.terms.address} has no token: start it with one, or connect without it"
            )
        shown = proof(token, "server", port, self._nonce, said.nonce)
        if not said.nonce or not is_same(said.proof, shown):
            raise DisconnectedError(
                f"{self.terms.address}: the token of the client is not that of the server, or another "
                f"program listens there"
            )
        self._is_proven = True
        self.say(self.greeting(proof(token, "client", port, self._nonce, said.nonce)))

    def _answered(self, found: Frame, sent: _Sent) -> None:
        call, codec = sent.call, self.terms.codec
        try:
            if found.kind == Kind.ERROR:
                call.owns_error = True
                told = codec.load(found.payload, found.buffers)
                call.error = decoded_error(codec, told)
                call.left = told.get("left")
            elif not call.takes_pieces:
                answer = codec.load(found.payload, found.buffers)
                if found.flags & Flag.KEEP_ERRORS:
                    call.owns_error = True
                    answer = decoded_rows(codec, answer)
                call.results = answer
        except (Exception, SystemExit) as error:  # noqa: BLE001  of a class that cannot be read here
            call.owns_error, call.error = True, error
            with contextlib.suppress(Exception, SystemExit):  # there is more to it than a class
                if call.many and found.kind == Kind.RESULT:  # elements of a map, each with its own answer
                    told = codec.load_apart(found.payload, found.buffers)
                    rows, failed, _ = told if found.flags & Flag.KEEP_ERRORS else (told, (), True)
                    read = [
                        each.error if isinstance(each, Unreadable) else each for each in apart(rows, error)
                    ]
                    call.results = decoded_rows(codec, (read, failed, True))
                    call.owns_error, call.error = False, None
        if call.function is not None:  # else it is a question
            sent.caller.wire.add(monotonic() - sent.began, found.extra / 1e6)
        call.waiting = call.missing = 0

    def _answered_several(self, found: Frame, told: list[Call]) -> None:
        """Take answers that are plain; that of a stream is its end."""
        read, payload = rows(RESULT_ROW, found)
        answers, are_read = plain_values(self.terms.codec, payload, len(read))
        now = monotonic()
        for (number, spent_us), answer in zip(read, answers, strict=True):
            sent = self._sent.get(number)
            if sent is not None:
                call = sent.call
                if not are_read and isinstance(answer, Unreadable):
                    _fail(sent, answer.error)
                elif not call.takes_pieces:
                    call.results = answer
                sent.caller.wire.add(now - sent.began, spent_us / 1e6)
                call.waiting = call.missing = 0
                told.append(call)
                self._sent.pop(number, None)

    def _piece(self, found: Frame, sent: _Sent, told: list[Call]) -> None:
        call = sent.call
        try:
            most = sent.caller.options.max_pieces
            if len(call.results) >= most:
                raise too_slow(sent.caller.name, most, " in the server")  # noqa: TRY301
            call.results.append(self.terms.codec.load(found.payload, found.buffers))
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.cancel(_fail(sent, error))
        if call.error is not None or len(call.results) <= 1:  # else its consumer has been told already
            told.append(call)

    # -- the end ------------------------------------------------------------------------------------------

    def give_up(self, broken: Exception, told: list[Call]) -> float | None:
        """Answer the calls that have waited for `wait_s`, after an attempt to connect that has failed.

        Return the seconds until the next attempt; None if no call waits any more. `told` gets the calls, as
        in `filled`.
        """
        self._renew_reader()
        error = self.unreachable(broken)
        for _ in range(len(self._waiting)):  # without the calls that have left: else it grows for ever
            number = self._waiting.popleft()
            if number in self._sent:  # no frame is
                self._waiting.append(number)
        latest = monotonic() - self.terms.wait_s
        left = None
        for number, sent in self._sent.copy().items():
            if sent.began <= latest:
                told.append(_fail(sent, error))
                self._sent.pop(number, None)
            elif left is None or sent.began - latest < left:
                left = sent.began - latest
        if left is None:
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LAST_PAUSE_S)
        return min(pause_s, left)

    def not_greeted(self) -> TimeoutError:
        """Return what is wrong with a server that has taken a connection, and says nothing."""
        return TimeoutError(stands_still(self.terms.address, self.terms.still_s, "greeted"))

    @property
    def has_sent(self) -> bool:
        """Whether an answer is to come."""
        return any(each.request is None for each in self._sent.copy().values())

    def unreachable(self, broken: Exception) -> DisconnectedError:
        """Return the error of calls that have waited long enough for a server, and what is missing."""
        said = f"{self.terms.address} cannot be reached: {broken}"
        if isinstance(broken, FileNotFoundError | ConnectionRefusedError):
            said += (
                "; no server is there, `python -m batched serve` starts one, and wait_s= of connect has "
                "calls wait longer for it"
            )
        error = DisconnectedError(said)
        error.__cause__ = broken
        return error

    def lost(self, why: object) -> DisconnectedError:
        """Return the error that calls without an answer raise."""
        if self.is_closed:
            return DisconnectedError(f"the client of {self.terms.address} was closed before it was answered")
        if isinstance(why, FrameError) and not self.has_greeted:
            said = f"what listens at {self.terms.address} is no server of batched, by its first bytes: {why}"
        else:
            said = f"the connection to {self.terms.address} was lost: {why}"
        error = DisconnectedError(said)
        error.__cause__ = why if isinstance(why, Exception) else None
        return error

    def end(self, error: Exception, told: list[Call], *, again: bool) -> None:
        """Answer all calls with `error`; `told` gets them.

        Those of which nothing was sent are sent elsewhere, if calls may be sent `again`. After a Ctrl-C,
        which may come at any moment, the next attempt answers what this one has left.
        """
        self.is_open = self.takes_calls = False
        self.has_ended = True
        ending = self._ending
        for number, sent in self._sent.copy().items():
            ending.append(sent)  # first: a call is in one of the two
            if self._sent.pop(number, None) is None:  # cancelled just now, or sent elsewhere by its caller
                ending.pop()
        while ending:
            sent = ending[-1]
            call, request = sent.call, sent.request
            if call.tenant is not self:  # Ctrl-C has come as it was sent elsewhere
                call.tenant.cancel(call)
            elif again and request is not None and call.left is None:
                try:
                    sent.caller.send_again(call, request)
                except Exception as refusal:  # noqa: BLE001  the client was closed
                    call.fail(refusal)
                else:
                    ending.pop()
                    continue
            told.append(_fail(sent, error))
            ending.pop()


def _no_call() -> None:
    """Stand for the reference to a question that was never asked."""


def _fail(sent: _Sent, error: BaseException) -> Call:
    """Answer a call with `error`, unless it has one; return it."""
    call = sent.call
    if call.error is None:
        call.owns_error = False
        call.waiting = 0
        call.fail(error)
    return call
