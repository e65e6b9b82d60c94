"""What becomes of the others when one item raises, clients leave, or the server is told to end."""

from __future__ import annotations

import http.client
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil

from benchmarks.http.models import BAD
from benchmarks.http.servers import Kind, Server, started

__all__ = ["Trouble", "look_for"]

_CLIENTS = 32
_LEAVING = 8
_WAIT_S = 60.0
_OK = 200


@dataclass(frozen=True)
class Trouble:
    """What was seen of one server."""

    server: str
    strangers_failed: int  # of 31 in the queue with an item that raises
    strangers_wrong: int  # that got what is not theirs
    executed: int  # of 8 whose clients had left while they were queued
    answered: int  # of the requests in flight at SIGTERM ...
    dropped: int
    later: dict[str, int]  # what became of those that the same clients sent after it
    exit_s: float | None  # None: it had to be killed
    left_over: int  # processes that outlived the one that was started


def look_for(kind: Kind, programs: Path, temporary: Path) -> Trouble:
    """Try all three on the server."""
    with started(kind, programs, "trouble", temporary) as server:
        failed, wrong = _one_raises(server)
        server.settle()
        executed = _clients_leave(server)
    with started(kind, programs, "20ms", temporary) as server:
        in_flight, later, exit_s, left_over = _told_to_end(server)
    return Trouble(
        kind.name, failed, wrong, executed, in_flight["answered"], in_flight.total() - in_flight["answered"],
        dict(later), exit_s, left_over,
    )  # fmt: skip


def _one_raises(server: Server) -> tuple[int, int]:
    """Return how many of those beside an item that raises fail, and how many get a wrong answer."""
    texts = ["x" * length for length in range(1, _CLIENTS)]
    with ThreadPoolExecutor(_CLIENTS + 1) as clients:
        first = clients.submit(server.ask, "occupies the device")  # so that the others share a batch
        time.sleep(0.2)
        asked = [clients.submit(server.ask, text) for text in texts[:15]]
        bad = clients.submit(server.ask, BAD)
        asked += [clients.submit(server.ask, text) for text in texts[15:]]
        found = [answer.result() for answer in asked]
        if first.result()[0] != _OK or bad.result()[0] == _OK:
            raise RuntimeError(f"{server.kind.title}: the item that raises did not, or the first one did")
    failed = sum(status != _OK for status, _ in found)
    wrong = sum(
        status == _OK and row[0] != len(text) for text, (status, row) in zip(texts, found, strict=True)
    )
    return failed, wrong


def _clients_leave(server: Server) -> int:
    """Return how many items run although their clients have left while they were queued."""
    before = server.counts.read()[1]
    with ThreadPoolExecutor(1) as client:
        first = client.submit(server.ask, "occupies the device")
        time.sleep(0.15)
        for _ in range(_LEAVING):
            body = server.kind.body("leaves")
            leaving = socket.create_connection(("127.0.0.1", server.port))
            leaving.sendall(
                b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            time.sleep(0.01)
            leaving.close()
        first.result()
    time.sleep(0.2)
    server.settle()
    time.sleep(1.0)
    server.settle()
    return server.counts.read()[1] - before - 1


def _told_to_end(server: Server) -> tuple[Counter[str], Counter[str], float | None, int]:
    """Return what became of requests in flight at SIGTERM, and of later ones; when it ended; what did not."""
    told, over = Event(), Event()
    in_flight: Counter[str] = Counter()
    later: Counter[str] = Counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_WAIT_S)
        while not over.is_set():
            after = told.is_set()
            outcome = _outcome(connection, server.kind)
            if after:
                later[outcome] += 1
                if outcome == "refused":
                    return
            elif told.is_set():
                in_flight[outcome] += 1
            if outcome != "answered":
                connection.close()

    clients = [Thread(target=client, daemon=True) for _ in range(_CLIENTS)]
    for thread in clients:
        thread.start()
    time.sleep(1.5)
    mine = server.processes()
    told.set()
    at = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    exit_s = None
    with suppress(psutil.TimeoutExpired):
        server.process.wait(20)
        exit_s = time.monotonic() - at
    time.sleep(2.0)
    over.set()
    left_over = len([process for process in server.processes() if process in mine])
    for thread in clients:
        thread.join(_WAIT_S)
    return in_flight, later, exit_s, left_over


def _outcome(connection: http.client.HTTPConnection, kind: Kind) -> str:
    try:
        connection.request("POST", "/embed", kind.body("busy"), {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
    except ConnectionRefusedError:
        return "refused"
    except (OSError, http.client.HTTPException):
        return "dropped"
    return "answered" if response.status == _OK else str(response.status)
