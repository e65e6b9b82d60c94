"""The process of the functions: it listens, and ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from batched._api.function import DecoratedFunction
from batched._core.option_checks import an_int, checked_seconds
from batched._drivers.fork_and_exit import register
from batched._drivers.wakeups import Outbox, ask
from batched._logs import log
from batched._remote.addresses import (
    Address,
    Listener,
    group_number,
    groups_of,
    is_for_all_users,
    listen,
    parsed,
    unlink,
    user_of,
)
from batched._remote.clients import Clients
from batched._remote.frames import MAX_FRAME_BYTES, VERSION
from batched._remote.greeting import ClientGreeting, ServerGreeting
from batched._remote.served import Served
from batched._remote.session import Session, send_answers
from batched._remote.tokens import checked_token, is_same, proof, token_in
from batched._remote.values import Codec, Pickles

_FIRST_CLIENT_S = 10.0
LEAVE_S = 5.0
"""How long a client without unanswered calls may take to leave, once it is told to."""


class Server:
    """Functions by name, at an address, for clients of other processes."""

    def __init__(  # noqa: PLR0913
        self,
        bind: str,
        *,
        group: str | int | None = None,
        codec: Codec | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        drain_s: float = 30.0,
        unused_s: float | None = None,
    ) -> None:
        self.address: Address = parsed(bind)
        self.served: Mapping[str, Served] = {}
        self.codec: Codec = Pickles() if codec is None else codec
        self.max_frame_bytes: int = an_int(at_least=1)("max_frame_bytes", max_frame_bytes)
        self.drain_s: float = checked_seconds("drain_s", drain_s)
        self.sessions: set[Session] = set()
        self.answers: Outbox
        self.ends: bool = False
        """Whether clients that connect now would come too late."""
        self.lost: int = 0
        """How many calls had no answer when it could wait no longer."""
        self.clients: Clients = Clients()
        self._group = None if group is None else group_number(group)
        self._token = checked_token(token)
        if token_file is not None:
            if token is not None:
                raise ValueError("give either token or token_file")
            self._token = token_in(Path(token_file))
        self._unused_s = unused_s
        """The seconds without a client after which it ends: it is its first client that has started it."""
        self._stop: asyncio.Event
        self._has_no_sessions = asyncio.Event()
        self._has_no_sessions.set()
        self._end_if_unused: asyncio.TimerHandle | None = None
        self._listener: Listener
        if self.address.kind == "tcp" and group is not None:
            raise ValueError("group is for unix sockets: what tcp has is a token")
        if is_for_all_users(self.address) and not self._token:
            raise ValueError(
                f"{self.address} can be reached by all users of this machine: give a token, as token_file or "
                f"--token-file does, or use a unix socket"
            )

    async def run(
        self,
        functions: Mapping[str, DecoratedFunction[Any]],
        stop: asyncio.Event,
        when_ready: Callable[[], object] | None = None,
    ) -> None:
        """Serve functions by name until `stop` is set; then answer what has come, and end."""
        loop = asyncio.get_running_loop()
        news = partial(ask, loop, self._tell)
        self.served = {name: Served(name, function, news) for name, function in functions.items()}
        self.answers = Outbox(loop, send_answers)
        self._listener = listener = listen(self.address, 0o600 if self._group is None else 0o660, self._group)
        if self.address.kind == "tcp" and not self.address.where[1]:  # type: ignore[index]
            self.address = Address("tcp", listener.getsockname()[:2])
        # One in each turn: out of file descriptors, asyncio has as many failures as it may accept, logs each
        # of them, and tries again after each, at once.
        accepting = await loop.create_server(lambda: self._session(loop), sock=listener, backlog=1)
        register(self)
        try:
            self._stop = stop
            self._note_use(loop)
            if when_ready is not None:
                when_ready()
            await stop.wait()
            await self._drain(accepting)
        finally:
            self._unlink()
            accepting.close()
            for session in list(self.sessions):
                session.close()
                session.abort()  # a client that does not read would keep it open for as long as the process
            for served in self.served.values():
                await served.driver.rest()

    def after_fork(self) -> None:
        """Let go of the sockets in a child, as of a process pool: clients would not see the server end."""
        self._listener.close()
        with contextlib.suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDWR)
            for session in self.sessions:
                session.forget(nothing)
            os.close(nothing)

    async def _drain(self, accepting: asyncio.Server) -> None:
        """Take no new clients, have the others leave, and wait until they have."""
        self._unlink()
        await asyncio.sleep(0.01)  # for clients that have connected already
        self.ends = True
        accepting.close()
        await asyncio.sleep(0)  # what has been accepted becomes a session, which says that it is too late
        for session in list(self.sessions):
            session.leave()
        await self._without_sessions(min(LEAVE_S, self.drain_s))
        for session in list(self.sessions):
            if not session.unanswered:  # of an event loop that is closed, and not collected yet
                session.close()
        await self._without_sessions(self.drain_s - LEAVE_S)
        self.lost = sum(each.unanswered for each in self.sessions)
        if self.lost:
            log(logging.WARNING, "calls that have no answer after %g s: %s", self.drain_s, self.lost)

    async def _without_sessions(self, limit_s: float) -> None:
        """Wait until all connections have ended, but not longer than that."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_no_sessions.wait(), max(limit_s, 0.0))

    def _unlink(self) -> None:
        """Remove the path, unless another server has taken it over.

        A server that clients have started leaves it: so they know that it did not end before it was ready.
        """
        path, own = self.address.where, self._listener.own
        if own is not None and isinstance(path, str) and self._unused_s is None:
            unlink(path, own)

    def _session(self, loop: asyncio.AbstractEventLoop) -> Session:
        session = Session(self, loop)
        self.sessions.add(session)
        self._has_no_sessions.clear()
        self._note_use(loop)
        return session

    # -- for sessions -------------------------------------------------------------------------------------

    def refusal(self, peer: socket.socket) -> str:
        """Return why the process at the other end must not call; "" if it may."""
        user = user_of(peer)
        if user is None or user in {os.geteuid(), 0}:
            return ""
        if self._group is not None and self._group in groups_of(user):
            return ""
        log(logging.WARNING, "a connection of user %s was refused", user)
        group = "" if self._group is None else f" and of group {self._group}"
        return f"the server takes calls of user {os.geteuid()}{group} only, not of user {user}"

    def welcome(self, said: ClientGreeting, nonce: str, port: object) -> ServerGreeting:
        """Return the answer to a greeting: the functions, why the client is refused, or a nonce.

        A client that is answered with a nonce is to greet once more, with a proof that it knows the token.
        """
        why = ""
        if said.version != VERSION:
            why = (
                f"the server speaks version {VERSION}, the client version {said.version}: install the same "
                f"batched on both sides"
            )
        elif said.protocol != self.codec.name:
            mine = self.codec.name
            why = f'the server speaks {mine}, the client {said.protocol}: connect with protocol="{mine}"'
        elif self._token is not None:
            if not nonce:
                nonce = secrets.token_hex(16)
                shown = proof(self._token, "server", port, said.nonce, nonce)
                return ServerGreeting(nonce=nonce, proof=shown)
            if not is_same(said.proof, proof(self._token, "client", port, said.nonce, nonce)):
                why = "the token of the client is not that of the server"
        if why:
            return ServerGreeting(refusal=why)
        self.clients.came(said.client)
        return self._greeting()

    def _greeting(self) -> ServerGreeting:
        functions = [asdict(each.described()) for each in self.served.values()]
        return ServerGreeting(functions=functions, max_frame_bytes=self.max_frame_bytes)

    def _tell(self) -> None:
        """Have clients know of options that have changed."""
        for session in list(self.sessions):
            session.tell(self._greeting())

    def answered(self, question: bytes, served: Served) -> Any:
        """Return the answer to a question about a function."""
        name, _, rest = question.decode().partition(" ")
        function = served.function
        if name == "stats":
            return function.stats
        if name == "explain":
            return function.explain()
        if name == "expected_wait_ms":
            return function.expected_wait_ms(int(rest))
        if name == "shapes":
            return function.shapes()
        if name == "is_there":
            return True
        if name == "clients":
            return {client: each.calls for client, each in self.clients.figures(self.sessions).items()}
        raise ValueError(f"the server knows no question {name!r}")

    def ended(self, session: Session) -> None:
        """Note that a connection has ended."""
        self.sessions.discard(session)
        self.clients.left(session)
        if not self.sessions:
            self._has_no_sessions.set()
            self._note_use(asyncio.get_running_loop())

    def _note_use(self, loop: asyncio.AbstractEventLoop) -> None:
        """End after a while without a client, if that is wanted; later to begin with: clients try again."""
        if self._unused_s is None:
            return
        if self._end_if_unused is not None:
            self._end_if_unused.cancel()
        if not self.sessions:
            wait_s = (
                self._unused_s if self._end_if_unused is not None else max(self._unused_s, _FIRST_CLIENT_S)
            )
            self._end_if_unused = loop.call_later(wait_s, self._stop.set)
