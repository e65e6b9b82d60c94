"""Where a server listens: `unix:PATH`, `tcp:127.0.0.1:PORT`, or `fd:N`, a socket that systemd has opened."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any, TypeAlias

from batched.errors import DisconnectedError

UNIX = hasattr(socket, "AF_UNIX")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
LONGEST_PATH: int = 107 if sys.platform == "linux" else 103
_BACKLOG = 1024
_FIRST_FD = 3
"""Of the sockets that systemd opens."""
_CONNECT_S = 0.2
_NO_GROUP = (1 << 32) - 1
"""The number by which the system is told to leave a group as it is; there is none from here on."""
_TURNS, _TURN_S = 100, 0.01
_PEER = struct.Struct("3i")  # process, user, group

Where: TypeAlias = "str | tuple[str, int] | int"


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    kind: str
    """`unix`, `tcp` or `fd`."""
    where: Where

    def __str__(self) -> str:
        return f"{self.kind}:{shown(*self.where) if isinstance(self.where, tuple) else self.where}"


def parsed(text: str) -> Address:
    """Return the address that `text` means; `ValueError` if it means none, `TypeError` if it is no text."""
    if not isinstance(text, str):
        raise TypeError(f"an address must be a str, such as unix:PATH or tcp:127.0.0.1:PORT, got {text!r}")
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest and "\0" not in rest:
        if not UNIX:
            raise ValueError(f"this system has no unix sockets, got {text!r}: use tcp:127.0.0.1:PORT")
        path = os.path.abspath(os.path.expanduser(rest))  # noqa: PTH100, PTH111  of a link, not where it leads
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise ValueError(f"the path of a unix socket may have {LONGEST_PATH} bytes, got {path!r}")
        return Address("unix", path)
    if kind == "fd" and rest.isdecimal():
        return Address("fd", int(rest))
    if kind == "tcp" and (where := host_and_port(rest)) is not None:
        if where[0] not in _LOOPBACK:
            raise ValueError(
                f"tcp is for one machine, so its host must be 127.0.0.1 or ::1, got {where[0]!r}: for "
                f"several machines use an engine such as Ray Serve, in which batched runs"
            )
        return Address("tcp", where)
    raise ValueError(f"an address is unix:PATH, tcp:127.0.0.1:PORT or fd:NUMBER, got {text!r}")


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return the two parts of `HOST:PORT`, None if it is none; the host may be ""."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) >= 1 << 16:
        return None
    return host.strip("[]"), int(port)


def shown(host: str, port: int) -> str:
    """Return `HOST:PORT`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of the address of a host."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_for_all_users(address: Address) -> bool:
    """Whether each user of this machine can connect; `ValueError` if `fd` is no socket that listens."""
    if address.kind == "fd":
        with listen(address, 0o600) as found:
            return found.family != getattr(socket, "AF_UNIX", None)
    return address.kind == "tcp"


class Listener(socket.socket):
    """A socket with a long queue of connections, however few of them are accepted in a turn."""

    own: tuple[int, int] | None = None
    """Of one at a path, its `identity`. Not asked of the path: another server may have taken that over."""

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        """Listen: asyncio asks for a queue as long as the number that it accepts in a turn."""
        super().listen(max(backlog, _BACKLOG))


def listen(address: Address, mode: int, group: int | None = None) -> Listener:
    """Return a socket that listens there; a unix socket has this mode, and this group, from the start.

    The path may be another server's: it is taken over in one step, and no client finds it missing. A port of
    tcp is shared with that server until it ends, where the system can do so; else it is an `OSError`.
    """
    if isinstance(address.where, int):
        listener = _inherited(address.where)
    elif isinstance(address.where, tuple):
        listener = Listener(family_of(address.where[0]), socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # elsewhere processes of other users could listen there too
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if hasattr(socket, "SO_REUSEPORT"):  # for a successor, of this user
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address.where)
            listener.listen()
        except BaseException:
            listener.close()
            raise
    else:
        listener = _listen_at(address.where, mode, group)
    listener.settimeout(0.0)
    return listener


def _inherited(number: int) -> Listener:
    """Return a socket that the parent of this process has opened; `ValueError` if there is none."""
    meant_for, count = os.environ.get("LISTEN_PID"), os.environ.get("LISTEN_FDS")
    if meant_for == str(os.getpid()) and count is not None and count.isdecimal():
        last = _FIRST_FD + int(count) - 1
        if not _FIRST_FD <= number <= last:
            raise ValueError(f"systemd has opened the sockets fd:{_FIRST_FD} to fd:{last}, got fd:{number}")
    try:
        listener = Listener(fileno=os.dup(number))
    except (OSError, OverflowError) as error:
        why = f"fd:{number} is no socket that the parent of this process has opened"
        raise ValueError(f"{why}: {error}") from error
    accepts = getattr(socket, "SO_ACCEPTCONN", None)
    if accepts is not None and not listener.getsockopt(socket.SOL_SOCKET, accepts):
        listener.close()
        raise ValueError(f"fd:{number} is a socket that does not listen")
    return listener


def check_replaceable(path: str) -> None:
    """Raise `OSError` if there is something at `path` that is no socket, or no folder for one."""
    with contextlib.suppress(FileNotFoundError):  # one step: a server that ends may remove it at any moment
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise FileExistsError(f"{path} is no socket, so it is not replaced by one: choose another path")
    check_folder(path)


def check_folder(path: str | Path) -> None:
    """Raise `FileNotFoundError` if there is no folder for a file at `path`."""
    if not Path(path).parent.exists():
        raise FileNotFoundError(f"there is no folder for {path}: make it, or choose another path")


def _listen_at(path: str, mode: int, group: int | None) -> Listener:
    check_replaceable(path)
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    # Not by the number of the process: in containers that share a folder, both servers may have the same one.
    name = f"{path}.{secrets.token_hex(4)}"
    if len(os.fsencode(name)) > LONGEST_PATH:
        name = str(Path(path).with_name(secrets.token_hex(4)))
    try:
        before = os.umask(0o177)
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        if group is not None:
            _give(name, group)
        Path(name).chmod(mode)
        listener.listen()
        listener.own = identity(name)
        with _alone_in(Path(path).parent):
            Path(name).rename(path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return listener


def _give(name: str, group: int) -> None:
    try:
        os.chown(name, -1, group)
    except PermissionError:
        raise PermissionError(f"only root, or a member of group {group}, can give it a socket") from None


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other servers from changing sockets in `folder` meanwhile, if it can be locked."""
    number = None
    try:
        with contextlib.suppress(ImportError, OSError):  # Windows has neither
            import fcntl  # noqa: PLC0415

            number = os.open(folder, os.O_RDONLY)
            for _ in range(_TURNS):  # not for ever: each user with a right to read the folder may lock it
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    sleep(_TURN_S)
        yield
    finally:
        if number is not None:
            os.close(number)


def unlink(path: str, own: tuple[int, int]) -> None:
    """Remove the socket at `path` if it is still this one: another server may have taken the path over."""
    with _alone_in(Path(path).parent), contextlib.suppress(OSError):
        if identity(path) == own:
            Path(path).unlink()


def identity(path: str) -> tuple[int, int] | None:
    """Return what tells the socket at `path` from another one there, None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connected(address: Address) -> socket.socket:
    """Return a socket that is connected; `OSError` if no server listens there.

    It does not wait for a server that is too busy to take connections: that is an error too.
    `DisconnectedError` if the server is not to be trusted: its answers are pickles, which can run any code.
    """
    where: Any = address.where
    is_tcp = isinstance(where, tuple)
    peer = socket.socket(family_of(where[0]) if is_tcp else socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(_CONNECT_S)
        peer.connect(where)
        peer.settimeout(None)
        if is_tcp:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            _check_server(peer, where)
    except BaseException:
        peer.close()
        raise
    return peer


def _check_server(peer: socket.socket, path: str) -> None:
    """Raise if the server is that of another user, unless this process is in the group that it serves."""
    user = user_of(peer)
    if user is None or user in {os.geteuid(), 0} or serves_group_of_this_process(path):
        return
    raise DisconnectedError(
        f"the server at {path} is that of user {user}, not of user {os.geteuid()}: its answers could run any "
        f"code here; have it serve a group of this process, from a folder that not all users can write to"
    )


def serves_group_of_this_process(path: str) -> bool:
    """Whether the socket at `path` is for a group of this process, and not all users could have made it."""
    try:
        found, folder = Path(path).stat(), Path(path).parent.stat()
    except OSError:
        return False
    groups = {os.getegid(), *os.getgroups()}
    return found.st_gid in groups and bool(found.st_mode & 0o020) and not folder.st_mode & 0o002


def user_of(peer: socket.socket) -> int | None:
    """Return the user of the process at the other end of a unix socket, None where that is not known.

    Linux tells; elsewhere, as on macOS, the mode of the socket and of its folder have to do.
    """
    if not UNIX or peer.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    user: int = _PEER.unpack(found)[1]
    return user


def group_number(group: str | int) -> int:
    """Return the number of a group; `ValueError` if there is none of this name."""
    meant = f"group must be the name or the number of a group, got {group!r}"
    if isinstance(group, bool) or not isinstance(group, int | str):
        raise TypeError(meant)
    if isinstance(group, int) or group.isdecimal():
        if not 0 <= int(group) < _NO_GROUP:
            raise ValueError(meant)
        return int(group)
    try:
        import grp  # noqa: PLC0415  Windows has no such module

        return grp.getgrnam(group).gr_gid
    except (ImportError, KeyError):
        raise ValueError(f"this system has no group {group!r}") from None


def groups_of(user: int) -> frozenset[int]:
    """Return the groups that a user is in; none of a user that the system has no name for."""
    import pwd  # noqa: PLC0415  Windows has no such module

    try:
        found = pwd.getpwuid(user)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(found.pw_name, found.pw_gid))
