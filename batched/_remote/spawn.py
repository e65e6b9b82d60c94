"""`spawn=`: the first process that calls starts the server, which ends when the last one has left.

Which process starts it is decided by a lock on a file beside the socket. The server inherits the lock and
keeps it to its end, so there is never a second one, and a process that gets the lock knows that none runs. A
process that was waiting for a server then knows that it has ended; and if there is no socket, that it was
never ready.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from batched._drivers.private_python import HAS_DAEMONS
from batched._remote.addresses import UNIX, Address, check_replaceable, connected, parsed
from batched.errors import DisconnectedError

UNUSED_S = 2.0
"""How long a server without clients goes on: a process that has ended one event loop may begin another."""
_MOST_OUTPUT = 4_000


class Spawn:
    """A server that is started when it is needed."""

    def __init__(self, functions: str | Sequence[str], address: str | None) -> None:
        if not UNIX:
            raise ValueError(
                "spawn= needs unix sockets, which this system has not got: start the server yourself"
            )
        is_one = isinstance(functions, str) or not isinstance(functions, Iterable)
        self.functions: list[str] = [_checked(each) for each in ([functions] if is_one else functions)]
        if not self.functions:
            raise ValueError("spawn= needs at least one 'module:function', got none")
        self.folder: str = str(Path.cwd())
        if address is None:
            address = f"unix:{_path(self.functions, self.folder)}"
        self.address: Address = parsed(address)
        if self.address.kind != "unix":
            raise ValueError(f"spawn= needs an address unix:PATH, or none, got {address!r}")
        self._path = str(self.address.where)
        self._output = f"{self._path}.log"

    def dial(self) -> Callable[[], Any]:
        """Return what connects, for one connection; it raises `OSError` while a server starts.

        If there is no server, and none is starting, it starts one.
        """
        waits = False  # whether a server was starting, or ending, at the last attempt

        def connect() -> Any:
            nonlocal waits
            try:
                return connected(self.address)
            except DisconnectedError:
                raise
            except OSError as error:
                broken = error
            try:
                if (held := self._lock()) is not None:
                    try:
                        if waits and not os.path.lexists(self._path):
                            raise self._failed()
                        with contextlib.suppress(OSError):  # it may have been started since
                            return connected(self.address)
                        self._start(held)
                    finally:
                        os.close(held)
            except DisconnectedError:
                raise
            except OSError as error:  # it would be the same at each attempt
                names = ", ".join(self.functions)
                raise DisconnectedError(f"the server of {names} cannot be started: {error}") from error
            waits = True
            raise broken

        return connect

    def _lock(self) -> int | None:
        """Return a descriptor that holds the lock, None if a server, or a process that starts one, has it."""
        import fcntl  # noqa: PLC0415  Windows has no such module

        check_replaceable(self._path)
        held = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(held)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return held

    def _start(self, held: int) -> None:
        """Start the server, which keeps the lock."""
        with contextlib.suppress(FileNotFoundError):
            Path(self._path).unlink()  # of one that has ended
        command = [sys.executable, "-m", "batched", "serve", *self.functions]
        command += ["--bind", str(self.address), "--until-unused", str(UNUSED_S), "--lock", str(held)]
        found = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        environment = {**os.environ, "PYTHONPATH": found}
        environment.pop("NOTIFY_SOCKET", None)  # systemd's, for the service that this process may be of
        with open(self._output, "wb", opener=_private) as output:
            server = subprocess.Popen(  # noqa: S603  it is this Python
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[held],
                start_new_session=True,  # Ctrl-C is for this process
            )
        if HAS_DAEMONS:  # it takes note of the end of the server, for the system
            threading.Thread(target=server.wait, name="batched server", daemon=True).start()

    def _failed(self) -> DisconnectedError:
        """Return the error that says why a server has ended before it was ready."""
        told = ""
        with contextlib.suppress(OSError), Path(self._output).open("rb") as output:
            output.seek(max(os.fstat(output.fileno()).st_size - _MOST_OUTPUT, 0))
            told = output.read().decode(errors="replace").strip()
        why = f"its output:\n{told}"
        if not told:
            why = "it has printed nothing: it may have been killed, as where memory runs out"
        names = ", ".join(self.functions)
        return DisconnectedError(f"the server of {names} has ended before it was ready; {why}")


def _checked(function: object) -> str:
    if not isinstance(function, str):
        raise TypeError(f"spawn= needs 'module:function', got {function!r}")
    module, colon, name = function.rpartition("=")[2].partition(":")
    if not (colon and module and name):
        raise ValueError(f"spawn= needs 'module:function', got {function!r}")
    if module == "__main__":
        raise ValueError(f"spawn= needs a module that another process can import, got {function!r}")
    return function


def _path(functions: list[str], folder: str) -> str:
    """Return where a server of these functions listens: in a folder that is this user's alone."""
    user = os.geteuid()
    private = Path(tempfile.gettempdir()).absolute() / f"batched-{user}"
    with contextlib.suppress(FileExistsError):
        private.mkdir(0o700)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(
            f"{private} must be a folder that only user {user} may read and write: remove it, or pass an "
            f"address"
        )
    told = "\0".join([sys.executable, folder, *functions])
    return str(private / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.sock")


def _private(path: str, flags: int) -> int:
    """Open a file of this user's alone; `OSError` for a link: it may lead to a file that is to be kept."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
