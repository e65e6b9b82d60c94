"""Addresses: what they mean, which sockets there are, and which users may meet there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._remote import addresses
from batched._remote.addresses import (
    LONGEST_PATH,
    Address,
    connected,
    identity,
    listen,
    parsed,
    unlink,
    user_of,
)
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S
from tests.kit.remote_server import serving
from tests.kit.script import run_script
from tests.kit.threads import together

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")
is_root = hasattr(os, "geteuid") and os.geteuid() == 0


def doubling() -> dict[str, Any]:
    """Return functions to serve."""
    return {"double": batched.dynamically(lambda items: [2 * item for item in items], timeout_ms=0)}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/embed.sock", Address("unix", "/run/embed.sock")),
        ("unix:/run/../run/a", Address("unix", "/run/a")),
        ("tcp:127.0.0.1:80", Address("tcp", ("127.0.0.1", 80))),
        ("tcp:[::1]:80", Address("tcp", ("::1", 80))),
        ("tcp:localhost:0", Address("tcp", ("localhost", 0))),
        ("fd:3", Address("fd", 3)),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    """And said as it was given."""
    assert parsed(text) == address
    assert parsed(str(address)) == address


def test_many_connections_wait_however_few_are_accepted_in_a_turn(tmp_path: Path) -> None:
    """A server of asyncio listens once more, for as many as it accepts in a turn: one."""
    path = str(tmp_path / "s")
    with contextlib.ExitStack() as peers:
        listener = peers.enter_context(listen(parsed(f"unix:{path}"), 0o600))
        listener.listen(1)
        for _ in range(100):
            peer = peers.enter_context(socket.socket(socket.AF_UNIX))
            peer.settimeout(0.0)
            peer.connect(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an address is unix:PATH"),
        ("unix:", "an address is unix:PATH"),
        ("unix:\0embed", "an address is unix:PATH"),
        ("/run/embed.sock", "an address is unix:PATH"),
        ("fd:x", "an address is unix:PATH"),
        ("tcp:127.0.0.1", "an address is unix:PATH"),
        ("tcp:127.0.0.1:65536", "an address is unix:PATH"),
        ("tcp:0.0.0.0:80", "its host must be 127.0.0.1 or ::1"),
        ("tcp:10.0.0.1:80", "its host must be 127.0.0.1 or ::1"),
        ("unix:/" + 107 * "x", r"may have \d+ bytes"),
    ],
)
def test_an_address_that_is_none_is_refused(text: str, why: str) -> None:
    """With the forms that there are."""
    with pytest.raises(ValueError, match=why):
        parsed(text)


@pytest.mark.parametrize("wrong", [8000, None, Path("/run/embed.sock"), b"unix:/run/embed.sock"])
def test_an_address_that_is_no_text_is_refused(wrong: Any) -> None:
    """By a client and by a server, with the forms that there are."""
    fn = batched.dynamically(list)
    for refused in (partial(parsed, wrong), partial(batched.serve, fn, bind=wrong)):
        with pytest.raises(TypeError, match="an address must be a str, such as unix:PATH"):
            refused()


def test_a_relative_path_is_one_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the process has changed its folder."""
    monkeypatch.chdir(tmp_path)
    assert parsed("unix:a.sock").where == str(tmp_path / "a.sock")


# -- sockets -------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    """Return the mode of what is at `path`."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_socket_is_private_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has its name, and whatever the mask is."""
    seen = []
    rename = Path.rename

    def noted(self: Path, to: str) -> Path:
        seen.append((mode(self), Path(to).exists()))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", noted)
    before = os.umask(0)
    try:
        listener = listen(parsed(f"unix:{tmp_path}/a"), 0o600)
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert seen == [(0o600, False)]
    assert mode(tmp_path / "a") == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    listener.close()


def test_a_group_may_connect(tmp_path: Path) -> None:
    """If that is wanted."""
    listener = listen(parsed(f"unix:{tmp_path}/a"), 0o660, os.getegid())
    assert mode(tmp_path / "a") == 0o660
    assert (tmp_path / "a").stat().st_gid == os.getegid()
    listener.close()


def test_a_path_of_the_greatest_length(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It has no room for a suffix."""
    folder = Path(f"/tmp/{secrets.token_hex(8)}")
    folder.mkdir()
    try:
        path = folder / ("x" * (LONGEST_PATH - len(str(folder)) - 1))
        listener = listen(parsed(f"unix:{path}"), 0o600)
        connected(parsed(f"unix:{path}")).close()
        listener.close()
        path.unlink()
    finally:
        folder.rmdir()


def test_a_file_is_not_replaced_by_a_socket(tmp_path: Path) -> None:
    """It may have been meant for another purpose; a socket that nothing listens on is replaced."""
    (tmp_path / "a").write_text("precious")
    with pytest.raises(FileExistsError, match="is no socket"):
        listen(parsed(f"unix:{tmp_path}/a"), 0o600)
    assert (tmp_path / "a").read_text() == "precious"
    listen(parsed(f"unix:{tmp_path}/b"), 0o600).close()
    with pytest.raises(ConnectionRefusedError):
        connected(parsed(f"unix:{tmp_path}/b"))
    second = listen(parsed(f"unix:{tmp_path}/b"), 0o600)
    connected(parsed(f"unix:{tmp_path}/b")).close()
    second.close()


def test_what_is_missing_for_a_socket_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says of no path or group what it is about."""

    def chown(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(FileNotFoundError, match=f"there is no folder for {tmp_path}/none/a: make it"):
        listen(parsed(f"unix:{tmp_path}/none/a"), 0o600)
    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(PermissionError, match="only root, or a member of group 4321, can give it a socket"):
        listen(parsed(f"unix:{tmp_path}/a"), 0o660, 4321)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor a descriptor."""

    def chmod(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises(PermissionError):
        listen(parsed(f"unix:{tmp_path}/a"), 0o600)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("restless")
def test_servers_that_end_remove_no_socket_of_others(tmp_path: Path) -> None:
    """While one takes the path over, another ends: the path is never without a server."""
    address = parsed(f"unix:{tmp_path}/a")
    last = listen(address, 0o600)
    missing = []

    def work(number: int) -> None:
        nonlocal last
        for _ in range(times(200)):
            if number:
                try:
                    connected(address).close()
                except BlockingIOError:  # nothing accepts here
                    pass
                except FileNotFoundError as error:
                    missing.append(error)
                except ConnectionRefusedError:  # the test has closed it meanwhile
                    pass
                continue
            own = identity(str(address.where))
            assert own is not None
            ending = threading.Thread(target=unlink, args=(address.where, own))
            fresh = listen(address, 0o600)
            ending.start()
            ending.join()
            last.close()
            last = fresh

    together(2, work)
    assert identity(str(address.where)) is not None
    assert not missing
    last.close()


@pytest.mark.parametrize("look", ["stat", "lstat"])
def test_a_server_may_end_while_another_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """Its path goes as soon as it has been looked at."""
    address = parsed(f"unix:{tmp_path}/s")
    real = getattr(os, look)

    def then_gone(path: Any, *args: Any, **named: Any) -> Any:
        found = real(path, *args, **named)
        if str(path) == address.where:
            Path(path).unlink()
        return found

    with listen(address, 0o600):
        monkeypatch.setattr(os, look, then_gone)
        listen(address, 0o600).close()


def test_a_socket_of_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd opens it: it has to listen, and to be one of those that are meant for this process."""
    parent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    parent.bind(str(tmp_path / "a"))
    with pytest.raises(ValueError, match="does not listen"):
        listen(parsed(f"fd:{parent.fileno()}"), 0o600)
    parent.listen()
    with (
        serving(f"fd:{parent.fileno()}", functions=doubling()),
        batched.connect(f"unix:{tmp_path}/a") as client,
    ):
        assert client.double(2) == 4
    connected(parsed(f"unix:{tmp_path}/a")).close()  # the next server goes on with it
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    with pytest.raises(ValueError, match="systemd has opened the sockets fd:3 to fd:4, got fd:77"):
        listen(parsed("fd:77"), 0o600)
    monkeypatch.setenv("LISTEN_PID", "1")
    with pytest.raises(ValueError, match="fd:9999 is no socket that the parent of this process has opened"):
        listen(parsed("fd:9999"), 0o600)
    with (tmp_path / "file").open("w") as file, pytest.raises(ValueError, match="is no socket"):
        listen(parsed(f"fd:{file.fileno()}"), 0o600)
    parent.close()


def test_tcp_needs_a_token() -> None:
    """All users of the machine can reach it."""
    with pytest.raises(ValueError, match="give a token"), serving("tcp:127.0.0.1:0", functions=doubling()):
        pass
    with serving("tcp:127.0.0.1:0", functions=doubling(), token="t") as server:
        client = batched.connect(str(server.server.address), token="t")
        assert client.double(2) == 4
        assert client.double("x" * 300_000) == "x" * 600_000
        client.close()


def test_a_port_where_nothing_listens() -> None:
    """The call says so, within its wait."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen(parsed(f"tcp:127.0.0.1:{port}"), 0o600)
    client = batched.connect(f"tcp:127.0.0.1:{port}", token="t", wait_s=0.05)
    with pytest.raises(batched.DisconnectedError, match="cannot be reached"):
        client.double(1)


# -- users ---------------------------------------------------------------------------------------------------


needs_credentials = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell")


@needs_credentials
def test_the_user_of_a_connection_is_known(tmp_path: Path) -> None:
    """From both ends."""
    listener = listen(parsed(f"unix:{tmp_path}/a"), 0o600)
    with listener, connected(parsed(f"unix:{tmp_path}/a")) as client, listener.accept()[0] as server:
        assert user_of(client) == user_of(server) == os.geteuid()
    with socket.socket() as other:
        assert user_of(other) is None


@needs_credentials
def test_a_client_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it could open the socket; one of the group is not."""
    import batched._remote.server as module

    bind = f"unix:{tmp_path}/a"
    with serving(bind, functions=doubling()):
        monkeypatch.setattr(module, "user_of", lambda peer: 12345)
        with pytest.raises(
            batched.DisconnectedError, match=r"takes calls of user \d+ only, not of user 12345"
        ):
            batched.connect(bind).double(1)
    with serving(bind, functions=doubling(), group=os.getegid()):
        with pytest.raises(batched.DisconnectedError, match="and of group"):
            batched.connect(bind).double(1)
        monkeypatch.setattr(module, "groups_of", lambda user: {os.getegid()})
        with batched.connect(bind) as client:
            assert client.double(1) == 2
        monkeypatch.setattr(module, "user_of", lambda peer: 0)
        with batched.connect(bind) as client:
            assert client.double(1) == 2


@needs_credentials
def test_a_server_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pickles could run any code here.

    One that serves a group of this process is believed, if not all users may put sockets into its folder.
    """
    bind = f"unix:{tmp_path}/a"
    with serving(bind, functions=doubling()):
        monkeypatch.setattr(addresses, "user_of", lambda peer: 12345)
        client = batched.connect(bind, wait_s=600)  # it is not tried again
        with pytest.raises(batched.DisconnectedError, match="is that of user 12345, not of user"):
            client.double(1)
        monkeypatch.setattr(addresses, "user_of", lambda peer: 0)
        assert client.double(1) == 2
        client.close()
    with serving(bind, functions=doubling(), group=os.getegid()):
        monkeypatch.setattr(addresses, "user_of", lambda peer: 12345)
        with batched.connect(bind) as client:
            assert client.double(1) == 2
        tmp_path.chmod(0o777)
        with pytest.raises(batched.DisconnectedError, match="is that of user 12345, not of user"):
            batched.connect(bind).double(1)


@needs_credentials
@pytest.mark.skipif(not is_root, reason="needs to be another user")
def test_users_in_truth() -> None:
    """A process of another user: the mode keeps it out, and its credentials do where the mode would not."""
    folder = Path(f"/tmp/{secrets.token_hex(8)}")
    folder.mkdir(mode=0o755)
    script = """
        client = batched.connect({bind!r}, wait_s={wait_s})
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            print(client.double(1))
        except OSError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)  # coverage could not write its file as this user
    """

    def call(wait_s: float) -> str:
        return run_script(script.format(bind=f"unix:{folder}/a", wait_s=wait_s))

    try:
        with serving(f"unix:{folder}/a", functions=doubling()):
            assert "Permission denied" in call(0)
            (folder / "a").chmod(0o666)
            assert "takes calls of user 0 only, not of user 65534" in call(PATIENCE_S)
    finally:
        folder.rmdir()
