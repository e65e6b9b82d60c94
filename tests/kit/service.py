"""The web service of the examples in a process of its own, and its clients."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from tests.kit.script import ROOT

PATIENCE_S = 60.0
JSON = {"content-type": "application/json"}
FROM_LOOP, FROM_THREAD = ROUTES = ["/embed", "/embed_from_thread"]
UVICORN = ["uvicorn", "--factory", "--no-access-log", "--port"]
WEB_PROCESSES = ["uvicorn", "--workers=2", *UVICORN[1:]]
GUNICORN = ["gunicorn", "--preload", "--workers=2", "--worker-class=uvicorn_worker.UvicornWorker", "--bind"]


def vector(text: str) -> list[float]:
    """Return what the gated service answers for a text."""
    return [float(ord(letter)) for letter in text]


def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true, for what another process does, and return what it was."""
    waiting = threading.Event()
    limit = monotonic() + PATIENCE_S
    while not (value := condition()):
        assert monotonic() < limit, "the condition never came true"
        waiting.wait(0.01)
    return value


class Service:
    """A service in a process of its own, and its clients.

    With a `model`, as `module:function`, that is in one more process, and the service asks it there.
    """

    def __init__(self, folder: Path, app: str, server: list[str], model: str | None = None) -> None:
        self.app = app
        self.server = server
        self.model: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.noted = folder / "batches"
        for file in (self.log, self.gate, self.noted):
            file.touch()
        paths = [str(ROOT), str(ROOT / "examples"), str(ROOT / "tests" / "kit")]
        self.environment = {**os.environ, "GATED_SERVICE": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
        self.clients = ThreadPoolExecutor(64)
        if model is not None:
            self._held = model
            self._folder = TemporaryDirectory(
                prefix="batched-"
            )  # not pytest's: a socket's path must be short
            self.hold_model()
        self.start()

    def hold_model(self) -> None:
        """Start the process of the model, and wait until it is there."""
        path = Path(self._folder.name, "embed.sock")
        self.environment["EMBED_AT"] = f"unix:{path}"
        with self.log.open("a") as log:
            self.model = subprocess.Popen(
                [sys.executable, "-m", "batched", "serve", self._held, "--bind", f"unix:{path}"],
                cwd=ROOT,
                env=self.environment,
                stderr=log,
                stdout=log,
            )
        until(lambda: path.exists() or self.model.poll() is not None)
        assert self.model.poll() is None, self.log.read_text()

    def kill_model(self) -> None:
        """End the process of the model, which gets no chance to do anything."""
        self.model.kill()
        self.model.wait(PATIENCE_S)
        Path(self._folder.name, "embed.sock").unlink()

    def start(self, port: int = 0) -> None:
        """Start the process and wait until it says where it listens."""
        import httpx

        place = f"127.0.0.1:{port}" if self.server is GUNICORN else str(port)
        with self.log.open("w" if self.model is None else "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.server, place, self.app],
                cwd=ROOT,
                env=self.environment,
                stderr=log,
                stdout=log,
            )
        self.port = int(until(self._port))
        until(self._listens)  # uvicorn says the port before any of its processes listens
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"x-deadline-ms": "25000"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def _port(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        said = re.search(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)", self.log.read_text())
        return said and said[1]

    def _listens(self) -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def ask(self, text: Any, route: str = FROM_LOOP, **options: Any) -> Any:
        """Return the response to a text, or to several."""
        return self.http.post(route, json={"text": text}, **options)

    def asking(self, text: Any, route: str = FROM_LOOP, **options: Any) -> Future[Any]:
        """Ask, and do not wait for the response."""
        return self.clients.submit(self.ask, text, route, **options)

    def send(self, text: str, route: str = FROM_LOOP, **headers: str) -> http.client.HTTPConnection:
        """Ask over a connection that can be closed before the response comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", route, json.dumps({"text": text}), JSON | headers)
        return connection

    def stat(self, name: str) -> int:
        """Return what the batcher has counted."""
        return int(self.http.get("/stats").json()[name])

    def waits(self, items: int) -> None:
        """Wait until so many items wait."""
        until(lambda: self.stat("queue_size") == items)

    def batches(self) -> list[list[str]]:
        """Return the batches that have come to the gate, each sorted."""
        return [sorted(json.loads(line)) for line in self.noted.read_text().splitlines()]

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Hold every batch at the gate."""
        import fcntl  # not on Windows, where no service is started

        with self.gate.open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Hold a batch of "first" at the gate."""
        with self.shut():
            first = self.asking("first")
            until(self.batches)
            yield
        assert letters(first) == "first"

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.clients.shutdown()
            self.http.close()
            if self.model is not None:
                self.model.terminate()
                self.model.wait(PATIENCE_S)
                self._folder.cleanup()


def letters(response: Any) -> Any:
    """Return the text that an answer was given for, or the texts; what was said instead of an answer."""
    if isinstance(response, Future):
        response = response.result(PATIENCE_S)
    answer = response.json()
    if response.status_code != 200:
        return response.status_code, answer["detail"]
    if answer["embedding"] and isinstance(answer["embedding"][0], list):
        return ["".join(map(chr, map(int, vector))) for vector in answer["embedding"]]
    return "".join(map(chr, map(int, answer["embedding"])))
