"""The servers that are compared: how to start each, what it is sent, and what its processes take."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http.models import COUNTS, MODEL, Counts

__all__ = ["SERVERS", "Kind", "Server", "port_free", "service", "started"]

_CHECKOUT = Path(__file__).parents[2]
_START_S = 120.0
_STOP_S = 15.0


@dataclass(frozen=True)
class Kind:
    """One of the servers."""

    name: str
    title: str
    environment: str
    command: tuple[str, ...]  # `{port}` is filled in; the first is a program of the environment
    lists: bool = False  # a request is a list of texts
    role: str = "peer"  # "ours", "apart", "bare", "plain", "floor", "pieces" or "peer"
    web_processes: int = 0  # beside the model's; 0: there is one process for all

    def body(self, text: str) -> bytes:
        """Return the request for one text."""
        return json.dumps({"text": [text] if self.lists else text}).encode()


def service(name: str, title: str, role: str) -> Kind:
    """Return the embedding service with one of the functions of `with_fastapi`."""
    return Kind(
        name, title, "fastapi", ("python", "-m", "benchmarks.http.with_fastapi", name, "{port}"), role=role
    )


def apart(name: str, title: str, app: str, server: str, processes: int) -> Kind:
    """Return an application in several web processes, and one process for the model."""
    program = "benchmarks.http.with_web_processes"
    command = ("python", "-m", program, app, server, str(processes), "{port}")
    role = "apart" if app == "fastapi" else "bare"
    return Kind(name, title, "fastapi", command, role=role, web_processes=processes)


SERVERS = {
    kind.name: kind
    for kind in (
        service("ours", "this service", "ours"),
        apart("ours-2", "this service, 2 web processes + the model's", "fastapi", "uvicorn", 2),
        apart("ours-3", "this service, 3 web processes + the model's", "fastapi", "uvicorn", 3),
        apart("granian-2", "this service, 2 of granian + the model's", "fastapi", "granian", 2),
        service("asgi", "bare ASGI app", "bare"),
        Kind(
            "asgi-granian",
            "bare ASGI app, granian",
            "fastapi",
            (
                *("python", "-m", "granian", "--factory", "benchmarks.http.with_fastapi:asgi"),
                *("--port", "{port}", "--interface", "asginl", "--loop", "uvloop", "--no-ws"),
                *("--log-level", "critical", "--no-access-log"),
            ),
            role="bare",
        ),
        apart("asgi-2", "bare ASGI app, 2 web processes + the model's", "asgi", "uvicorn", 2),
        apart("asgi-granian-2", "bare ASGI app, 2 of granian + the model's", "asgi", "granian", 2),
        service("plain", "without batching", "plain"),
        service("greedy", "floor: greedy", "floor"),
        service("patient", "floor: waits for callers that come back", "floor"),
        service("pieces", "floor: sorted pieces of 4", "pieces"),
        Kind(
            "mosec",
            "mosec",
            "mosec",
            ("python", "-m", "benchmarks.http.with_mosec", "--port", "{port}", "--timeout", "30000"),
        ),
        Kind("litserve", "LitServe", "litserve", ("python", "-m", "benchmarks.http.with_litserve", "{port}")),
        Kind(
            "bentoml",
            "BentoML",
            "bentoml",
            (
                "bentoml",
                "serve",
                "benchmarks.http.with_bentoml:Embedding",
                "--port",
                "{port}",
                "--host",
                "127.0.0.1",
            ),
            lists=True,
        ),
        Kind("ray", "Ray Serve", "ray", ("python", "-m", "benchmarks.http.with_ray", "{port}")),
    )
}


@dataclass
class Server:
    """One that runs. `counts` are of its model."""

    kind: Kind
    port: int
    process: psutil.Popen
    counts: Counts
    _known: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where to send requests."""
        return f"http://127.0.0.1:{self.port}/embed"

    def processes(self) -> list[psutil.Process]:
        """Return all of its processes that live, those included that have lost their parent."""
        with suppress(psutil.NoSuchProcess):
            for process in (self.process, *self.process.children(recursive=True)):
                self._known.setdefault(process.pid, process)
        return [process for process in self._known.values() if process.is_running() and not _is_dead(process)]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all of them so far."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def signal(self, number: int) -> None:
        """Send a signal to all of them. While one is stopped it costs the others nothing."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def settle(self) -> None:
        """Wait until the model has run what clients have left behind."""
        before = -1
        while (now := self.counts.read()[1]) != before or self.counts.busy:
            before = now
            time.sleep(0.4)

    def ask(self, text: str, timeout_s: float = 60.0) -> tuple[int, Any]:
        """Return status and answer for one text, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("POST", "/embed", self.kind.body(text), {"content-type": "application/json"})
            response = connection.getresponse()
            found = response.read()
        finally:
            connection.close()
        return response.status, self._row(found) if response.status == 200 else None  # noqa: PLR2004

    def _row(self, found: bytes) -> Any:
        """Return the four numbers, however they are wrapped."""
        row = json.loads(found)
        if isinstance(row, dict):
            row = row["embedding"]
        return row[0] if self.kind.lists else row


@contextmanager
def started(kind: Kind, programs: Path, model: str, temporary: Path) -> Iterator[Server]:
    """Start a server and wait until it answers; in the end, end it with all it has started."""
    port = port_free()
    file = temporary / f"{kind.name}-{port}.counts"
    counts = Counts(file)
    program, *arguments = (part.format(port=port) for part in kind.command)
    with (temporary / f"{kind.name}.log").open("ab") as log:
        process = psutil.Popen(
            [programs / program, *arguments],
            cwd=_CHECKOUT,
            env={
                **os.environ,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(_CHECKOUT),
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                MODEL: model,
                COUNTS: str(file),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    server = Server(kind, port, process, counts)
    try:
        _await(lambda: _answers(server), server, temporary)
        _await(lambda: len(list(temporary.glob(f"{file.name}-*"))) >= kind.web_processes, server, temporary)
        server.processes()
        yield server
    finally:
        _end(server)


def _answers(server: Server) -> bool:
    try:
        return server.ask("Are you there?")[0] == 200  # noqa: PLR2004
    except (OSError, http.client.HTTPException):
        return False


def _await(condition: Callable[[], bool], server: Server, temporary: Path) -> None:
    give_up = time.monotonic() + _START_S
    while not condition():
        log = temporary / f"{server.kind.name}.log"
        if server.process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"{server.kind.title} does not answer. It says:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def _end(server: Server) -> None:
    mine = server.processes()
    server.signal(signal.SIGCONT)
    with suppress(psutil.NoSuchProcess):
        server.process.terminate()
    _, alive = psutil.wait_procs(mine, timeout=_STOP_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_STOP_S)


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def port_free() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if sys.platform == "win32":
    raise NotImplementedError("servers are paused and ended with POSIX signals")
