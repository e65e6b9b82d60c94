"""What each client of a server has done: a client is a process, of one or several connections."""

from __future__ import annotations

import logging
from collections import Counter
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
        self._connections: Counter[str] = Counter()
        self._ended: dict[str, ClientFigures] = {}

    def came(self, client: str) -> None:
        """Note that a client has greeted on a new connection."""
        self._connections[client] += 1
        if self._connections[client] == 1:
            log(logging.DEBUG, "client %s came", client)

    def left(self, ended: Session) -> None:
        """Note that a connection has ended; it may be one that never came to a greeting."""
        client = ended.client
        if not self._connections[client]:
            del self._connections[client]
            return
        figures = self._ended.pop(client, None) or ClientFigures()
        figures.add(ended)
        self._connections[client] -= 1
        if self._connections[client]:
            self._ended[client] = figures
            return
        del self._connections[client]
        told = "client %s left: %s calls, %s bytes in, %s bytes out"
        log(logging.DEBUG, told, client, figures.calls, figures.bytes_in, figures.bytes_out)

    def figures(self, live: Iterable[Session]) -> dict[str, ClientFigures]:
        """Return the figures of the clients that are connected; `live` are their connections."""
        found: dict[str, ClientFigures] = {}
        for each in [*live]:
            if each.client not in self._connections:
                continue
            if each.client not in found:
                before = self._ended.get(each.client) or ClientFigures()
                found[each.client] = replace(before)
            figures = found[each.client]
            figures.connections += 1
            figures.unanswered += each.unanswered
            figures.add(each)
        return found

    def shares(self, live: Iterable[Session]) -> dict[str, int]:
        """Return the number of calls of each client that is connected."""
        return {client: figures.calls for client, figures in self.figures(live).items()}
