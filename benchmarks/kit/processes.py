"""Other processes: a server with functions of this package, its clients, and the least behind a socket.

Run as a module, this file is what such a process does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Self

import batched
from benchmarks.kit.callers import closed_loop
from benchmarks.kit.measure import LIMIT_S
from benchmarks.kit.own_process import surroundings

__all__ = ["BarePeer", "Clients", "Served", "bare", "on_cores", "served"]

_FEW_S = 0.02
_SIZES = struct.Struct("<QQ")
_ROOM = 1 << 16


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Keep this thread, and what threads and processes it starts inside, on these cores, if any are given."""
    if sys.platform != "linux" or not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Served:
    """A function of another process, and that process."""

    def __init__(self, address: str, name: str, process: int) -> None:
        self.address = address
        self.function: Any = getattr(batched.connect(address, wait_s=10.0), name)
        self._process = process

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        if sys.platform == "linux":
            return time.clock_gettime(~self._process << 3 | 2)  # its CPU clock, as `clock_getcpuclockid` says
        import psutil  # noqa: PLC0415  elsewhere; in hundredths of a second

        times = psutil.Process(self._process).cpu_times()
        return float(times.user + times.system)


@contextmanager
def served(module: str, name: str, cores: set[int]) -> Iterator[Served]:
    """Have `python -m batched serve` hold a function, on these cores."""
    with TemporaryDirectory(prefix="batched-") as folder:
        path = Path(folder, "socket")
        address = f"unix:{path}"
        command = ["batched", "serve", f"{module}:{name}", "--bind", address]
        log = Path(folder, "log")
        with log.open("wb") as said, _running(command, cores, said=said) as process:
            _await(path, process, log)
            yield Served(address, name, process.pid)


@contextmanager
def bare(kind: str, cores: set[int]) -> Iterator[BarePeer]:
    """Have a process answer on a unix socket, on these cores: "byte" by byte, or by "sizes"."""
    with TemporaryDirectory(prefix="batched-") as folder:
        path = Path(folder, "socket")
        with _running([__name__, kind, str(path)], cores) as process:
            _await(path, process)
            with BarePeer(path) as peer:
                yield peer


class Clients:
    """Processes that call a function of a server at the same time, each from some tasks."""

    def __init__(self, server: Served, name: str, processes: int, tasks: int) -> None:
        self._command = [__name__, "client", server.address, name, str(tasks)]
        self._many, self._tasks = processes, tasks
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        self._processes = [
            self._opened.enter_context(_running(self._command, set(), talks=True)) for _ in range(self._many)
        ]
        self.rate(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def rate(self, each: int) -> float:
        """Return the calls a second of all of them, if each task makes `each` calls."""
        for process in self._processes:
            process.stdin.write(b"%d\n" % each)
            process.stdin.flush()
        walls = [float(process.stdout.readline()) for process in self._processes]
        return self._many * self._tasks * each / max(walls)


@contextmanager
def _running(
    command: Sequence[str], cores: set[int], *, talks: bool = False, said: IO[bytes] | None = None
) -> Iterator[Any]:
    """Start a module in a process, with its arguments; end it."""
    pipe = subprocess.PIPE if talks else None
    with on_cores(cores):
        process = subprocess.Popen(  # noqa: S603  our own words
            [sys.executable, "-P", "-m", *command], env=surroundings(), stdin=pipe, stdout=pipe, stderr=said
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


def _await(path: Path, process: Any, log: Path | None = None) -> None:
    """Wait until a socket is there."""
    give_up = time.monotonic() + LIMIT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"nothing listens at {path}: {log.read_text() if log else 'it says nothing'}")
        time.sleep(_FEW_S)


class BarePeer:
    """A connection to the least that a process behind a socket can do."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def __call__(self, item: Any) -> Any:
        """Send a byte, and wait for one."""
        self._socket.send(b"x")
        self._socket.recv(1)
        return item

    def exchange(self, sent: memoryview, answered: int) -> int:
        """Send bytes, and have as many answered in new memory; return how many."""
        self._socket.sendall(_SIZES.pack(len(sent), answered))
        self._socket.sendall(sent)
        return len(_received(self._socket, answered))


def _received(peer: socket.socket, size: int) -> bytearray:
    """Return bytes of a socket, in new memory; fewer if it ends."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = peer.recv_into(view)
        if not count:
            return bytearray()
        view = view[count:]
    return found


def _listens(path: str) -> socket.socket:
    """Return the connection of the first client; the path is there only when it can connect."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    Path(f"{path}.new").rename(path)
    return listener.accept()[0]


def _bytes(path: str) -> None:
    peer = _listens(path)
    while peer.recv(1):
        peer.send(b"x")


def _by_sizes(path: str) -> None:
    peer = _listens(path)
    answer = memoryview(b"")
    while asked := _received(peer, _SIZES.size):
        size, answered = _SIZES.unpack(asked)
        _received(peer, size)
        if len(answer) != answered:
            answer = memoryview(b"x" * answered)
        peer.sendall(answer)


def _client(address: str, name: str, tasks: str) -> None:
    function = getattr(batched.connect(address, wait_s=10.0), name)
    while each := sys.stdin.readline():
        print(asyncio.run(closed_loop(function.acall, int(tasks), int(each))).wall, flush=True)


if __name__ == "__main__":
    kinds: dict[str, Callable[..., None]] = {"byte": _bytes, "sizes": _by_sizes, "client": _client}
    kinds[sys.argv[1]](*sys.argv[2:])
