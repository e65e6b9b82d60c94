"""What each client of a server has done: a client is a process, of one or several connections."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from batched._logs import log

if TYPE_CHECKING:
    from batched._remote.session import Session


@dataclass(slots=True)
class ClientFigures:
    """What one client has done, on all of its connections."""

    connections: int = 0
    """Those that there are."""
    calls: int = 0
    unanswered: int = 0
    bytes_in: int = 0
    """Bytes that the server has received."""
    bytes_out: int = 0

    def add(self, each: Session) -> None:
        """Count what came and went on a connection."""
        self.calls += each.calls
        self.bytes_in += each.bytes_in
        self.bytes_out += each.bytes_out


class Clients:
    """Keeps what a client did on connections that have ended, for as long as it has another one.

    The figures are read from other threads too, while connections come and end.
    """

    def __init__(self) -> None:
        self._known: dict[str, ClientFigures] = {}
        """Of clients that are connected: how many connections there are, and what ended ones have done."""

    def came(self, client: str) -> None:
        """Note that a client has greeted on a new connection."""
        known = self._known.setdefault(client, ClientFigures())
        known.connections += 1
        if known.connections == 1:
            log(logging.DEBUG, "client %s came", client)

    def left(self, ended: Session) -> None:
        """Note that a connection has ended; it may be one that never came to a greeting."""
        known = self._known.get(ended.client)
        if known is None:
            return
        known.add(ended)
        known.connections -= 1
        if not known.connections:
            del self._known[ended.client]
            told = "client %s left: %s calls, %s bytes in, %s bytes out"
            log(logging.DEBUG, told, ended.client, known.calls, known.bytes_in, known.bytes_out)

    def figures(self, live: Iterable[Session]) -> dict[str, ClientFigures]:
        """Return the figures of the clients that are connected; `live` are their connections."""
        found = {client: replace(known) for client, known in [*self._known.items()]}
        for each in [*live]:
            if (figures := found.get(each.client)) is not None:
                figures.unanswered += each.unanswered
                figures.add(each)
        return found
