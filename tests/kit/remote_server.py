"""Servers of functions for other processes: in a thread of the test, or in a process that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from batched._remote.server import Server
from tests.kit.gate import PATIENCE_S, until
from tests.kit.script import ROOT


class ThreadServer:
    """A server on an event loop in a thread of this process, so that a test can hold its functions."""

    def __init__(self, functions: dict[str, Any], bind: str, **options: Any) -> None:
        self.functions = functions
        self.bind = bind
        self.options = options
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Start; the server listens when this returns."""
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = Server(self.bind, **self.options)
        await self.server.run(self.functions, self._stop, self._ready.set)

    def stop(self) -> None:
        """Have it drain, and do not wait."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server does not end"
        if self._error is not None:
            raise self._error

    def on_loop(self, function: Any, *args: Any) -> Any:
        """Return what `function` returns on the loop of the server."""

        async def call() -> Any:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    def sessions(self) -> int:
        """Return how many connections there are."""
        return len(self.server.sessions)


@contextmanager
def serving(
    bind: str, /, *, functions: dict[str, Any] | None = None, **options: Any
) -> Iterator[ThreadServer]:
    """Serve in a thread."""
    server = ThreadServer(functions or {}, bind, **options).start()
    try:
        yield server
    finally:
        server.stop()
        server.join()


FUNCTIONS = """
import os, sys, time
import batched

@batched.dynamically(timeout_ms=0)
def double(items):
    return [2 * item for item in items]

@batched.dynamically(timeout_ms=0)
def process(items):
    return [os.getpid()] * len(items)

@batched.dynamically(timeout_ms=0, batch_size=2)
def held(items):
    time.sleep(600)

@batched.dynamically(timeout_ms=0, batch_size=1)
def noted(items):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{items}\\n")
    time.sleep(0.05)
    return items

@batched.dynamically(timeout_ms=0)
def pieces(items):
    yield [f"{item} first" for item in items]
    time.sleep(600)
"""
"""The module `functions` of a process: some are held for ever."""


class ProcessServer:
    """`python -m batched serve` in a process of its own."""

    def __init__(self, folder: Path, *names: str, bind: str | None = None, **environment: str) -> None:
        self.path = folder / "server.sock"
        self.bind = f"unix:{self.path}" if bind is None else bind
        module = folder / "functions.py"
        if not module.exists():
            module.write_text(textwrap.dedent(FUNCTIONS))
        command = [sys.executable, "-m", "batched", "serve", *[f"functions:{name}" for name in names]]
        before = self._identity()
        self.process = subprocess.Popen(
            [*command, "--bind", self.bind],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            start_new_session=True,
        )
        if bind is None:
            until(lambda: self._identity() not in {before, None} or self.process.poll() is not None)
            assert self.process.poll() is None, "the server did not start"

    def _identity(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it as nothing can be killed more."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> int:
        """Have it drain, and return its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def process_serving(folder: Path, *names: str, **environment: str) -> Iterator[ProcessServer]:
    """Serve in a process, which is killed at the end."""
    server = ProcessServer(folder, *names, **environment)
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            server.signal(signal.SIGCONT)
        server.kill()
