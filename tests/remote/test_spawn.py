"""`spawn=`: the first process that calls starts the server, the last that leaves ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import batched
from tests.kit.gate import PATIENCE_S, moment, until
from tests.kit.remote_server import FUNCTIONS
from tests.kit.script import ROOT

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")

UNUSED_S = 0.2
"""How long a server without clients goes on here: tests wait for its end."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder that has the functions, with a folder of temporary files of its own."""
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    (tmp_path / "slowly.py").write_text("import time\ntime.sleep(0.5)\nfrom functions import *\n")
    (tmp_path / "broken.py").write_text("import a_module_that_is_missing\n")
    (tmp_path / "deadly.py").write_text("import os\nprint('about to die', flush=True)\nos._exit(3)\n")
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (tmp_path / "t").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr("batched._remote.spawn.UNUSED_S", UNUSED_S)


def is_alive(process: int) -> bool:
    """Whether there is such a process."""
    with suppress(OSError):
        os.kill(process, 0)
        return Path(f"/proc/{process}").exists() or not Path("/proc").exists()
    return False


def callers(number: int, script: str) -> list[subprocess.Popen[str]]:
    """Start so many processes."""
    prologue = f"""
import asyncio, batched, os, sys, time
from batched._remote import spawn
spawn.UNUSED_S = {UNUSED_S}
"""
    command = [sys.executable, "-W", "error", "-c", prologue + textwrap.dedent(script)]
    pipe = subprocess.PIPE
    return [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(number)]


def ended(processes: list[subprocess.Popen[str]], told: str = "") -> list[str]:
    """Return what the processes have printed; they must end well, and silently on stderr."""
    outputs = [each.communicate(told, timeout=60) for each in processes]
    assert [(each.returncode, error) for each, (_, error) in zip(processes, outputs, strict=True)] == [
        (0, "")
    ] * len(processes)
    return [output for output, _ in outputs]


def test_of_many_processes_one_starts_the_server_and_the_last_ends_it() -> None:
    """All at once; and a second time, with another server."""
    script = """
        client = batched.connect(spawn="slowly:process")
        print(client.process(1), asyncio.run(client.process.acall(1)), flush=True)
        sys.stdin.read()
        assert client.process(1)
    """
    servers = []
    for _ in range(2):
        processes = callers(4, script)
        first = [each.stdout.readline() for each in processes if each.stdout is not None]
        ended(processes)
        told = {server for line in first for server in line.split()}
        assert len(told) == 1, "there was more than one server"
        servers.append(int(told.pop()))
        until(lambda: not is_alive(servers[-1]))
    assert servers[0] != servers[1]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("broken:embed", "No module named 'a_module_that_is_missing'"),
        ("functions:missing", "functions has no missing"),
        ("deadly:embed", "about to die"),
        ("killed:embed", "it has printed nothing: it may have been killed"),
    ],
)
def test_a_server_that_dies_at_its_start_says_why(spec: str, text: str) -> None:
    """To all that wait for it: threads, tasks, other processes; and not after a long wait."""
    name = spec.partition(":")[2]
    client = batched.connect(spawn=spec)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        futures = [client[name].submit(each) for each in range(20)]
        errors = [each.exception(PATIENCE_S) for each in futures]
        loops = [pool.submit(asyncio.run, client[name].acall(1)) for _ in range(4)]
        errors += [each.exception(PATIENCE_S) for each in loops]
    assert {type(each) for each in errors} == {batched.DisconnectedError}
    for each in errors:
        assert "has ended before it was ready" in str(each)
        assert text in str(each)
    script = f"""
        try:
            batched.connect(spawn={spec!r})[{name!r}](1)
        except batched.DisconnectedError as error:
            print(error)
    """
    for output in ended(callers(2, script)):
        assert text in output
    assert time.monotonic() - begun < PATIENCE_S
    client.close()


def test_several_functions_have_one_server() -> None:
    """By their names, or by other ones; the address may be given."""
    path = Path("here.sock").absolute()
    spawn = ["functions:process", "two=functions:double"]
    with batched.connect(f"unix:{path}", spawn=spawn) as client:
        assert client.two([1, 2]) == [2, 4]
        server = client.process(1)
        with pytest.raises(LookupError, match="it has process, two"):
            client.double(1)
    until(lambda: not is_alive(server))


def test_a_server_that_was_killed_is_started_again() -> None:
    """By the next call."""
    with batched.connect(spawn="functions:process") as client:
        first = client.process(1)
        os.kill(first, signal.SIGKILL)
        until(lambda: not is_alive(first))
        with suppress(batched.DisconnectedError):  # the call may be sent before its connection has ended
            client.process(1)
        second = client.process(1)
        assert asyncio.run(client.process.acall(1)) == second != first
    until(lambda: not is_alive(second))


def test_systemd_is_told_nothing_of_a_server_that_a_service_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the end of the server for that of the service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind("told")
        told.settimeout(0.0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(Path("told").absolute()))
        with batched.connect(spawn="functions:process") as client:
            server = client.process(1)
        until(lambda: not is_alive(server))
        with pytest.raises(BlockingIOError):
            told.recv(99)


def test_the_death_of_the_process_that_starts_it_does_not_matter() -> None:
    """Others wait for the same server."""
    script = 'batched.connect(spawn="slowly:process").process(1)'
    (starter,) = callers(1, script)
    folder = Path(tempfile.gettempdir()) / f"batched-{os.geteuid()}"
    until(lambda: list(folder.glob("*.log")))
    starter.kill()
    starter.communicate(timeout=PATIENCE_S)
    with batched.connect(spawn="slowly:process") as client:
        server = client.process(1)
    until(lambda: not is_alive(server))
    assert len(list(folder.glob("*.log"))) == 1


def test_a_loop_goes_on_while_the_server_starts() -> None:
    """Its other tasks run."""
    ticks = 0

    async def main() -> Any:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await moment(0.001)
                ticks += 1

        task = asyncio.ensure_future(tick())
        try:
            return await client.double.acall(2)
        finally:
            task.cancel()

    with batched.connect(spawn="slowly:double") as client:
        assert asyncio.run(main()) == 4
    assert ticks > 20


def test_what_can_be_imported_here_can_be_imported_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.path` is handed on; what the server prints is in a file."""
    (tmp_path / "elsewhere").mkdir()
    module = (
        "import batched\nprint('hello')\n@batched.dynamically(timeout_ms=0)\ndef f(items): return items\n"
    )
    (tmp_path / "elsewhere" / "far.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    with batched.connect(f"unix:{tmp_path}/a", spawn="far:f") as client:
        assert client.f(5) == 5
        assert "hello" in (tmp_path / "a.log").read_text()
        assert (tmp_path / "a.log").stat().st_mode & 0o777 == 0o600


def test_the_address_follows_from_the_folder_and_the_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is this user's alone."""

    def address(spec: Any) -> str:
        return repr(batched.connect(spawn=spec))

    here = address("functions:double")
    assert here == address(["functions:double"])
    assert here != address("functions:process")
    assert here != address(["functions:double", "functions:process"])
    (private,) = (tmp_path / "t").iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert here != address("functions:double")
    private.chmod(0o755)
    with pytest.raises(PermissionError, match="only user .* may read and write"):
        address("functions:double")
    private.chmod(0o700)
    private.rmdir()
    private.symlink_to(tmp_path / "other")
    with pytest.raises(PermissionError, match="only user .* may read and write"):
        address("functions:double")


@pytest.mark.parametrize(
    ("address", "spawn", "text"),
    [
        (None, "double", "needs 'module:function', got 'double'"),
        (None, "functions:", "needs 'module:function', got 'functions:'"),
        (None, "__main__:double", "a module that another process can import"),
        (None, [], "at least one"),
        ("tcp:127.0.0.1:9", "functions:double", "needs an address unix:PATH"),
    ],
)
def test_what_cannot_be_started_is_refused(address: str | None, spawn: Any, text: str) -> None:
    """By `connect`, not by the first call."""
    with pytest.raises(ValueError, match=text):
        batched.connect(address, spawn=spawn)


def test_a_server_that_cannot_be_started_fails_at_once() -> None:
    """Without a folder for its socket, say: no call waits for what cannot come, in threads or tasks."""
    path = Path("missing").absolute() / "server.sock"
    client = batched.connect(f"unix:{path}", spawn="functions:double")
    text = f"the server of functions:double cannot be started: .*{path}"
    with pytest.raises(batched.DisconnectedError, match=text):
        client.double.submit(1).result(PATIENCE_S)
    with pytest.raises(batched.DisconnectedError, match=text):
        asyncio.run(asyncio.wait_for(client.double.acall(1), PATIENCE_S))
    path.parent.mkdir()
    assert client.double.submit(1).result(PATIENCE_S) == 2
    client.close()


def test_a_file_at_the_address_is_not_replaced_by_a_socket() -> None:
    """It stays as it is, and the call says so."""
    path = Path("notes.txt").absolute()
    path.write_text("of the user")
    with batched.connect(f"unix:{path}", spawn="functions:double") as client:
        with pytest.raises(batched.DisconnectedError, match=f"{path} is no socket, so it is not replaced"):
            client.double.submit(1).result(PATIENCE_S)
        assert path.read_text() == "of the user"
        assert [*path.parent.glob("notes.txt*")] == [path]


@pytest.mark.parametrize("ending", ["log", "lock"])
def test_a_link_beside_the_address_is_not_followed(ending: str) -> None:
    """In a folder that all users share, another one may have put it there: its file would be written over."""
    precious = Path("precious")
    precious.write_text("mine")
    Path(f"a.sock.{ending}").symlink_to(precious)
    client = batched.connect("unix:a.sock", spawn="functions:double")
    with client, pytest.raises(batched.DisconnectedError, match="cannot be started"):
        client.double(1)
    assert precious.read_text() == "mine"


def test_connect_needs_an_address_or_what_to_start() -> None:
    """And no address of a server."""
    with pytest.raises(TypeError, match="needs the address of a server, or spawn="):
        batched.connect()
    with pytest.raises(ValueError, match="a client needs unix:PATH or"):
        batched.connect("fd:3")
