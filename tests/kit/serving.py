"""Servers for tests: the command, in a process of its own, or `batched.serve`, in a thread."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from queue import Queue
from typing import Any

import batched
from tests.kit.gate import PATIENCE_S, until
from tests.kit.script import PACKAGE

HAS_UNIX = hasattr(socket, "AF_UNIX")
TOKEN = "a token of the tests"
COMMAND = (sys.executable, "-m", "batched", "serve")
MODEL = """
import gc, os, pathlib, time
import batched

os.chdir(os.environ.get("MODEL_GOES_TO", "."))

@batched.dynamically(timeout_ms=0)
def double(items):
    return [2 * item for item in items]

@batched.dynamically(batch_size=1, timeout_ms=0)
def held(items):
    pathlib.Path("entered").touch()
    while not pathlib.Path("opened").exists():
        time.sleep(0.005)
    return items

@batched.aio.dynamically(timeout_ms=0)
async def later(items):
    return items

class Model:
    def __init__(self, factor):
        self.factor = factor
    @batched.dynamically(timeout_ms=0)
    def run(self, items):
        return [self.factor * item for item in items]

triple = Model(3)

def plain(items):
    return items

@batched.dynamically(timeout_ms=0)
def passed_over(items):
    return [all(each is not Model for each in gc.get_objects()) for _ in items]

@batched.dynamically(timeout_ms=0)
def signalled(items):
    import signal, threading
    tell = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Timer(0.1, tell).start()  # when the loop of the server sleeps
    return items
"""
"""A module for the command."""


@contextmanager
def folder() -> Iterator[Path]:
    """Provide a new folder, of which the path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp" if HAS_UNIX else None) as found:
        yield Path(found)


def place_in(folder: Path) -> dict[str, Any]:
    """Return the options of `batched.serve` that say where to listen."""
    if HAS_UNIX:
        return {"bind": f"unix:{folder}/s.sock"}
    return {"bind": "tcp:127.0.0.1:0", "token": TOKEN}


class Command:
    """`python -m batched serve` in a process of its own, and what it has logged so far."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        folder.joinpath("model_of_test.py").write_text(MODEL)
        self.token: str | None = None
        if "--bind" not in arguments:
            if HAS_UNIX:
                arguments = (*arguments, "--bind", f"unix:{folder}/s.sock")
            else:
                folder.joinpath("token").write_text(TOKEN)
                self.token = TOKEN
                arguments = (*arguments, "--bind", "tcp:127.0.0.1:0", "--token-file", f"{folder}/token")
        self.process = start(folder, [*COMMAND, *arguments], environment)
        self.lines: list[str] = []
        self._came: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._came.put(line)
        self._came.put("")

    def until(self, text: str) -> str:
        """Return the first line from here on that has `text`."""
        while True:
            line = self._came.get(timeout=PATIENCE_S)
            self.lines.append(line)
            if text in line:
                return line
            assert line, f"the server ended without {text!r}: {self.log}"

    def hold(self, client: Any) -> Any:
        """Have a client call `held`; return the future of a batch that runs until `let_go`."""
        future = client.held.submit(7)
        until(self.folder.joinpath("entered").exists)
        return future

    def let_go(self) -> None:
        """Let the batch of `held` end."""
        self.folder.joinpath("opened").touch()

    @cached_property
    def address(self) -> str:
        """Where it listens, once it does."""
        found = re.search(r"served at (\S+) by", self.until("served at"))
        assert found
        return found[1]

    def connect(self, **options: Any) -> Any:
        """Wait until it is ready, and return a client."""
        return batched.connect(self.address, **{"token": self.token, **options})

    @property
    def log(self) -> str:
        """What it has logged, as far as it was waited for."""
        return "".join(self.lines)

    def ended(self) -> int:
        """Wait for the end; return the status of the process."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        while not self._came.empty():
            self.lines.append(self._came.get())
        return status


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[Command]:
    """Provide a server that the command has started, in a folder of its own; it is ended in any case."""
    with folder() as found:
        server = Command(found, *arguments, **environment)
        try:
            yield server
        finally:
            server.process.kill()
            server.ended()
            assert server.process.stderr is not None
            server.process.stderr.close()


def start(
    folder: Path, command: list[str], environment: Mapping[str, str], passed: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """Start a command in `folder`, with the package and the modules there."""
    paths = os.pathsep.join([str(PACKAGE.parent), str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        pass_fds=passed,
    )


class Served:
    """`batched.serve` in a thread."""

    def __init__(self, functions: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.stop = threading.Event()
        self.address = ""
        self._ready = threading.Event()
        self.token: str | None = options.get("token")
        self._error: BaseException | None = None
        self._functions = functions
        self._options = options
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            batched.serve(*self._functions, stop=self.stop, when_ready=self._note, **self._options)
        except BaseException as error:
            self._error = error
            self._ready.set()

    def _note(self, address: str) -> None:
        self.address = address
        self._ready.set()

    def connect(self, **options: Any) -> Any:
        """Return a client."""
        return batched.connect(self.address, **{"token": self.token, **options})

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        self.stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the server did not end"


@contextmanager
def served(*functions: Any, **options: Any) -> Iterator[Served]:
    """Provide a server in a thread of this process."""
    with folder() as found:
        server = Served(functions, {"drain_s": 1.0, **place_in(found), **options})
        try:
            yield server
        finally:
            server.end()
