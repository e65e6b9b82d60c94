"""`python -m batched serve` and `batched.serve`: what is served, where, until when, and what is refused."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import batched
from batched._core.options import Options
from batched._remote.served import check_served
from tests.kit.gate import PATIENCE_S, until
from tests.kit.script import PACKAGE, run_script
from tests.kit.serving import COMMAND, HAS_UNIX, MODEL, TOKEN, command, folder, place_in, served, start

needs_unix = pytest.mark.skipif(not HAS_UNIX, reason="needs unix sockets")
needs_signals = pytest.mark.skipif(os.name == "nt", reason="Windows ends a process that gets SIGTERM")
DOUBLE = "model_of_test:double"
MAY_TAKE_NOTHING = [
    row.name
    for row in fields(Options)
    if "or nothing, as the `get` of a context variable" in row.metadata["text"] and row.name != "fair_by"
]


@batched.dynamically(timeout_ms=0)
def increment(items: list[int]) -> list[int]:
    return [item + 1 for item in items]


@batched.dynamically(timeout_ms=0)
def negate(items: list[int]) -> list[int]:
    return [-item for item in items]


ENDED = threading.Event()
"""Has a server end at once that should not begin."""
ENDED.set()
CUSTOMER: ContextVar[str] = ContextVar("CUSTOMER", default="none")


@batched.dynamically(timeout_ms=0, group_by=CUSTOMER.get)
def of_context(items: list[int]) -> list[int]:
    return items


def failed(*arguments: str, bind: str = "tcp:127.0.0.1:0", **environment: str) -> tuple[int, str]:
    """Run the command, which must end by itself; return its status and what it has said."""
    with folder() as found:
        found.joinpath("model_of_test.py").write_text(MODEL)
        found.joinpath("broken_module.py").write_text("import a_library_that_is_missing\n")
        found.joinpath("failing_module.py").write_text("raise ValueError('of the module')\n")
        process = start(found, [*COMMAND, *arguments, "--bind", bind.format(found)], environment)
        said = process.communicate(timeout=PATIENCE_S)[1]
        return process.returncode, said


def test_functions_and_methods_are_served_by_name() -> None:
    """Under their own names, or under those that the command gives."""
    places = (DOUBLE, "run=model_of_test:triple.run", "model_of_test:later", "twice=model_of_test:double")
    with command(*places) as server:
        client = server.connect()
        assert [client.double(4), client.run(4), client.later(0), client.twice([1, 2])] == [8, 12, 0, [2, 4]]
        with pytest.raises(LookupError, match="double, run, later, twice"):
            client.other(1)


def test_the_garbage_collector_passes_over_what_has_been_loaded() -> None:
    """Else all calls wait while it looks through that."""
    with command("model_of_test:passed_over") as server:
        assert server.connect().passed_over(1)


@needs_unix
def test_relative_paths_are_of_the_folder_of_the_command() -> None:
    """Also if the module of the model goes to another folder as it is imported."""
    with folder() as elsewhere:
        arguments = (DOUBLE, "--bind", "unix:s.sock", "--token-file", "token")
        with command(*arguments, MODEL_GOES_TO=str(elsewhere)) as server:
            server.until("served at")
            assert {"s.sock", "token"} <= {each.name for each in server.folder.iterdir()}
        assert not [*elsewhere.iterdir()]


MISTAKES = [
    (["model_of_test"], "MODULE:FUNCTION"),
    (["model_of_test:"], "MODULE:FUNCTION"),
    (["no_such_module:f"], "no module no_such_module"),
    (["./model_of_test:double"], "app.model"),
    ([".model_of_test:double"], "app.model"),
    (["model_of_test.py:double"], "app.model"),
    (["inner/model_of_test:double"], "app.model"),
    (["model_of_test.inner:f"], "no module model_of_test.inner"),
    (["model_of_test:nothing"], "model_of_test has no nothing"),
    (["model_of_test:triple.nothing"], "model_of_test.triple has no nothing"),
    (["model_of_test:plain"], "batched.dynamically"),
    (["model_of_test:Model.run"], "method"),
    ([DOUBLE, DOUBLE], "other=MODULE:FUNCTION"),
    (["not a name=" + DOUBLE], "not a name"),
    (["_hidden=" + DOUBLE], "_hidden"),
    ([DOUBLE, "--http", "9100"], "HOST:PORT"),
    ([DOUBLE, "--drain-s", "-1"], "drain_s"),
    ([DOUBLE, "--drain-s", "nan"], "drain_s"),
    ([DOUBLE, "--drain-s", "inf"], "from 0 to 604800 (a week), got inf"),
    ([DOUBLE, "--max-frame-bytes", "0"], "max_frame_bytes"),
    ([DOUBLE, "--group", "staff"], "unix sockets"),
    ([DOUBLE, "--token-file", "no/such/folder/token"], "no/such/folder"),
]
EACH_IN_TURN = """
import contextlib, io, json, logging, sys
from batched.__main__ import main
found = []
for arguments in json.loads(sys.argv[1]):
    logging.getLogger("batched").handlers.clear()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(["serve", "--bind", "tcp:127.0.0.1:0", "--token-file", "token", *arguments])
        except SystemExit as ended:
            found.append([ended.code, said.getvalue()])
print(json.dumps(found))
"""


@cache
def of_mistakes() -> dict[str, tuple[int, str]]:
    """Return the status and what was said for each mistake: of one process, as its start takes the time."""
    given = [arguments for arguments, _ in MISTAKES]
    with folder() as found:
        found.joinpath("model_of_test.py").write_text(MODEL)
        command = [sys.executable, "-c", EACH_IN_TURN, json.dumps(given)]
        paths = os.pathsep.join([str(PACKAGE.parent), str(found)])
        environment = {**os.environ, "PYTHONPATH": paths}
        text = subprocess.check_output(command, cwd=found, env=environment, timeout=PATIENCE_S)
    outcomes = [(status, said) for status, said in json.loads(text)]
    return dict(zip(map(str, given), outcomes, strict=True))


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line(arguments: list[str], message: str) -> None:
    """It names what was given, or the remedy; there is no traceback, and the status is 2."""
    status, said = of_mistakes()[str(arguments)]
    assert (status, len(said.splitlines())) == (2, 1), said
    assert message in said


@pytest.mark.parametrize(
    ("module", "error"), [("broken_module", "a_library_that_is"), ("failing_module", "of the mod")]
)
def test_an_error_inside_the_module_has_its_traceback(module: str, error: str) -> None:
    """It is the user's own, and says in which line."""
    status, said = failed(f"{module}:f", "--token-file", "token")
    assert status == 1
    assert f'{module}.py", line 1' in said
    assert error in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"), [([], "give a token"), (["--token-file", "token", "--drain-s", "-1"], "drain_s")]
)
def test_an_option_is_refused_before_a_module_is_imported(options: list[str], message: str) -> None:
    """A model may take minutes to load; here the import itself would fail."""
    status, said = failed("failing_module:f", *options)
    assert (status, len(said.splitlines())) == (2, 1), said
    assert message in said


@needs_unix
def test_where_nothing_can_listen_is_one_line() -> None:
    """The status is another one: the same command may work later."""
    status, said = failed(DOUBLE, bind="unix:{}/missing/s.sock")
    assert (status, len(said.splitlines())) == (1, 1)
    assert "there is no folder for" in said
    assert "missing/s.sock" in said


@needs_signals
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_a_signal_has_it_answer_and_end(how: str) -> None:
    """The call that runs is answered, the status is 0, and the log has the start and the end."""
    with command("model_of_test:held") as server:
        held = server.hold(server.connect())
        server.process.send_signal(getattr(signal, how))
        server.until("the server ends; unanswered calls: 1")
        server.let_go()
        assert (held.result(PATIENCE_S), server.ended()) == (7, 0)
        assert "the server has ended" in server.log


@needs_signals
def test_a_signal_that_interrupts_no_sleep_of_the_loop_is_seen() -> None:
    """It may come just before the loop sleeps, or, as here, in another thread: the loop is woken for it."""
    with command("model_of_test:signalled") as server:
        assert server.connect().signalled(1) == 1
        assert server.ended() == 0


@needs_signals
def test_a_second_signal_ends_it_at_once() -> None:
    """Also while a batch runs: its caller is told that the server has ended."""
    with command("model_of_test:held") as server:
        held = server.hold(server.connect())
        server.process.send_signal(signal.SIGINT)
        server.until("the server ends")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == -signal.SIGTERM
        with pytest.raises(batched.DisconnectedError):
            held.result(PATIENCE_S)


@needs_signals
def test_a_batch_that_never_ends_does_not_hold_the_process() -> None:
    """After `--drain-s` it ends, with a status that says that calls were lost."""
    with command("model_of_test:held", "--drain-s", "0") as server:
        held = server.hold(server.connect())
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 1
        assert "a batch still runs" in server.log
        with pytest.raises(batched.DisconnectedError):
            held.result(PATIENCE_S)


@needs_signals
def test_a_server_that_has_ended_leaves_the_process_its_time() -> None:
    """What the program does at its exit is not cut off after `--drain-s`: no batch runs any more."""
    with folder() as found:
        found.joinpath("leaves_slowly.py").write_text(LEAVES_SLOWLY)
        order = [*COMMAND, "leaves_slowly:signalled", "--bind", f"unix:{found}/s.sock", "--drain-s", "0"]
        client = batched.connect(f"unix:{found}/s.sock", wait_s=PATIENCE_S)
        with client, start(found, order, {}) as process:
            with suppress(batched.DisconnectedError):
                client.signalled(1)
            said = process.communicate(timeout=PATIENCE_S)[1]
        assert "all is put away" in said
        assert "a batch still runs" not in said


LEAVES_SLOWLY = """
import atexit, os, signal, sys, threading
import batched

@batched.dynamically(timeout_ms=0)
def signalled(items):
    os.kill(os.getpid(), signal.SIGTERM)
    return items

def put_away():
    for each in threading.enumerate():
        if isinstance(each, threading.Timer):
            each.join()
    print("all is put away", file=sys.stderr)

atexit.register(put_away)
"""


@needs_signals
def test_calls_that_come_too_late_for_their_answers_are_told() -> None:
    """Of a batch that ends in time with the process: the status, and the log, say that calls were lost."""
    with command("model_of_test:held", "--drain-s", "0") as server:
        client = server.connect()
        futures = [server.hold(client), client.held.submit(8)]
        until(lambda: client.held.stats.queue_size == 1)
        server.process.send_signal(signal.SIGTERM)
        assert all(isinstance(each.exception(PATIENCE_S), batched.DisconnectedError) for each in futures)
        server.let_go()
        assert server.ended() == 1
        assert "calls that have no answer after 0 s: 2" in server.log
        assert "the server has ended" in server.log


IN_A_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
"""Have a command be the first process of a container."""


@cache
def has_containers() -> bool:
    """Whether this user may make what a container is made of."""
    with suppress(OSError):
        return subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.parametrize("when", ["imported", "draining"])
def test_the_first_process_of_a_container_ends_at_once_too(when: str) -> None:
    """The system drops a signal for which such a process has no handler of its own."""
    if not has_containers():
        pytest.skip("needs unshare")
    with folder() as found:
        found.joinpath("signalled.py").write_text(SIGNALLED)
        at = f"unix:{found}/s.sock"
        order = [*IN_A_CONTAINER, *COMMAND, "signalled:twice", "--bind", at]
        client = batched.connect(at, wait_s=PATIENCE_S)
        with client, start(found, order, {"WHEN": when}) as process:
            try:
                if when == "draining":
                    with suppress(batched.DisconnectedError):
                        client.twice(1)
                said = process.communicate(timeout=PATIENCE_S)[1]
            finally:
                process.kill()
        assert process.returncode == 128 + signal.SIGTERM, said
        assert ("served at" in said) == (when == "draining")


SIGNALLED = """
import os, signal, time
import batched

def tell():
    os.kill(os.getpid(), signal.SIGTERM)

if os.environ["WHEN"] == "imported":
    tell()

@batched.dynamically
def twice(items):
    before = signal.getsignal(signal.SIGTERM)
    tell()
    while signal.getsignal(signal.SIGTERM) is before:
        time.sleep(0.001)
    tell()
    time.sleep(600)
"""


# -- tokens --------------------------------------------------------------------------------------------


def test_a_token_file_that_is_missing_is_made() -> None:
    """For this user only; clients that have what is in it may call, others may not."""
    with folder() as found:
        file = found / "token"
        with command(DOUBLE, "--bind", "tcp:127.0.0.1:0", "--token-file", str(file)) as server:
            assert server.address.startswith("tcp:127.0.0.1:")
            assert os.name == "nt" or stat.S_IMODE(file.stat().st_mode) == 0o600
            token = file.read_text().strip()
            assert len(token) >= 32
            assert server.connect(token=token).double(1) == 2
            with pytest.raises(batched.DisconnectedError, match="token"):
                server.connect(token=token[:-1]).double(1)
            for none in ("", None):
                with pytest.raises(ValueError, match="give the token of the server"):
                    server.connect(token=none)
        assert [each.name for each in found.iterdir()] == ["token"]


def test_a_token_file_of_several_servers_is_made_once() -> None:
    """The second one, and each start after the first, has the same token."""
    with folder() as found:
        file = found / "token"
        file.write_text(f"  {TOKEN}\n")
        file.chmod(0o600)
        with served(increment, bind="tcp:127.0.0.1:0", token_file=file) as server:
            assert server.connect(token=TOKEN).increment(1) == 2
        assert file.read_text() == f"  {TOKEN}\n"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_token_that_others_can_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The server starts: it may be a secret that a container has mounted."""
    with folder() as found:
        file = found / "token"
        file.write_text(TOKEN)
        file.chmod(0o644)
        with served(increment, bind="tcp:127.0.0.1:0", token_file=file):
            pass
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(("held", "message"), [(b"", "is empty"), (b"\xff\xfe", "is no text in UTF-8")])
def test_a_token_file_without_a_token_is_refused(held: bytes, message: str) -> None:
    """Else anyone could call."""
    with folder() as found:
        found.joinpath("token").write_bytes(held)
        with pytest.raises(ValueError, match=re.escape(f"{found / 'token'} {message}")):
            batched.serve(increment, bind="tcp:127.0.0.1:0", token_file=found / "token")
    with pytest.raises(ValueError, match="either"):
        batched.serve(increment, bind="tcp:127.0.0.1:0", token_file="token", token=TOKEN)
    with pytest.raises(FileNotFoundError, match="there is no folder for none/token: make it"):
        batched.serve(increment, bind="tcp:127.0.0.1:0", token_file="none/token")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_frame_bytes": 1e9}, "max_frame_bytes must be an int, got 1000000000.0"),
        ({"max_frame_bytes": "5"}, "max_frame_bytes must be an int, got '5'"),
        ({"http": 9100}, "http must be HOST:PORT, such as 127.0.0.1:9100, got 9100"),
        ({"group": 1.5}, "group must be the name or the number of a group, got 1.5"),
        ({"drain_s": "1"}, "drain_s must be a number of seconds, got '1'"),
        ({"token": 5}, "token must be a str, got int"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(options: dict[str, Any], text: str) -> None:
    """Before the server listens: else its clients would meet it."""
    stop = threading.Event()
    stop.set()
    with folder() as found, pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        batched.serve(increment, stop=stop, **{**place_in(found), **options})


# -- users and groups ----------------------------------------------------------------------------------

AS_ANOTHER = """
import os, sys
import batched
import batched._remote.client
client = batched.connect(sys.argv[1], wait_s=float(sys.argv[4]))
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2]))
try:
    print(client.increment(1))
except batched.DisconnectedError as error:
    print(error)
os._exit(0)
"""
OTHER_USER = 65534


def call_as(address: str, user: int, group: int, wait_s: float = PATIENCE_S) -> str:
    """Call `increment` in a process of another user; return what it says."""
    command = [sys.executable, "-c", AS_ANOTHER, address, str(user), str(group), str(wait_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


@needs_unix
def test_a_socket_is_of_its_user_or_of_a_group_too() -> None:
    """By its mode, and from its first moment: it is made under another name."""
    group = os.getegid()
    for options, mode in (({}, 0o600), ({"group": group}, 0o660), ({"group": str(group)}, 0o660)):
        with served(increment, **options) as server:
            found = Path(server.address.removeprefix("unix:")).stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (mode, os.geteuid())
            assert server.connect().increment(1) == 2


@needs_unix
@pytest.mark.skipif(HAS_UNIX and os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused_unless_of_the_group() -> None:
    """By the mode; and by the user at the other end, where a mode lets all in."""
    with served(increment) as server:
        path = Path(server.address.removeprefix("unix:"))
        path.parent.chmod(0o755)
        assert "ermission" in call_as(server.address, OTHER_USER, OTHER_USER, wait_s=0)
        path.chmod(0o666)
        assert f"not of user {OTHER_USER}" in call_as(server.address, OTHER_USER, OTHER_USER)
    with served(increment, group=OTHER_USER) as server:
        path = Path(server.address.removeprefix("unix:"))
        path.parent.chmod(0o755)
        assert call_as(server.address, OTHER_USER, OTHER_USER) == "2\n"
        assert "ermission" in call_as(server.address, 1, 1, wait_s=0)
        path.chmod(0o666)
        assert "not of user 1" in call_as(server.address, 1, 1)


@needs_unix
@pytest.mark.parametrize(
    ("group", "kind", "message"),
    [
        ("no such group", ValueError, "no group 'no such group'"),
        (-1, ValueError, "the number of a group, got -1"),
        ("4294967295", ValueError, "the number of a group, got '4294967295'"),
        (True, TypeError, "group must be the name or the number of a group, got True"),
        (b"web", TypeError, "group must be the name or the number of a group, got b'web'"),
    ],
)
def test_a_group_that_there_is_not_is_refused(group: Any, kind: type[Exception], message: str) -> None:
    """With its name; the system takes some numbers for none, and the group of this process would do."""
    with folder() as found, pytest.raises(kind, match=message):
        batched.serve(increment, bind=f"unix:{found}/s.sock", group=group, stop=ENDED)


# -- systemd -------------------------------------------------------------------------------------------

AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, sys.argv[2:])
"""


def pass_socket(
    passed: socket.socket, found: Path, *arguments: str, **environment: str
) -> subprocess.Popen[str]:
    """Start the command with a socket as its file 3, as systemd does."""
    found.joinpath("model_of_test.py").write_text(MODEL)
    number = passed.fileno()
    supervisor = [sys.executable, "-c", AS_SYSTEMD, str(number), *COMMAND, DOUBLE, *arguments]
    return start(found, supervisor, environment, (number,))


@needs_unix
def test_a_socket_of_systemd_is_served_and_systemd_is_told() -> None:
    """A call may come before the server; the path is systemd's, so it stays."""
    with folder() as found, socket.socket(socket.AF_UNIX) as passed, told_at(found) as told:
        passed.bind(str(found / "s.sock"))
        passed.listen()
        client = batched.connect(f"unix:{found}/s.sock")
        early = client.double.submit(4)
        server = pass_socket(passed, found, "--bind", "fd:3", NOTIFY_SOCKET=str(found / "told"))
        assert early.result(PATIENCE_S) == 8
        assert told.recv(99) == b"READY=1"
        client.close()
        server.terminate()
        assert told.recv(99) == b"STOPPING=1"
        server.communicate(timeout=PATIENCE_S)
        assert (server.returncode, found.joinpath("s.sock").exists()) == (0, True)


def told_at(found: Path) -> socket.socket:
    """Return the socket of a systemd that is told what its services say."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(found / "told"))
    told.settimeout(PATIENCE_S)
    return told


@needs_unix
@pytest.mark.parametrize(
    ("bind", "family", "listens", "message"),
    [
        ("fd:4", "AF_UNIX", True, "fd:3 to fd:3"),
        ("fd:3", "AF_UNIX", False, "does not listen"),
        ("fd:3", "AF_INET", True, "give a token"),
    ],
)
def test_a_socket_that_cannot_be_served_is_refused(
    bind: str, family: str, listens: bool, message: str
) -> None:
    """Another number than systemd's, one that does not listen, and one that all users can reach."""
    with folder() as found, socket.socket(getattr(socket, family)) as passed:
        passed.bind(str(found / "s.sock") if family == "AF_UNIX" else ("127.0.0.1", 0))
        if listens:
            passed.listen()
        server = pass_socket(passed, found, "--bind", bind)
        said = server.communicate(timeout=PATIENCE_S)[1]
        assert (server.returncode, len(said.splitlines())) == (2, 1), said
        assert message in said


@pytest.mark.parametrize("number", [999, 10**20])
def test_a_file_that_is_no_socket_is_refused(number: int) -> None:
    """With its number."""
    with pytest.raises(ValueError, match=f"fd:{number} is no socket"):
        batched.serve(increment, bind=f"fd:{number}")


# -- in code -------------------------------------------------------------------------------------------


def test_a_thread_serves_until_it_is_told_to_stop() -> None:
    """`serve` returns when its last call is answered; nothing listens there any more."""
    with served(increment, negate) as server:
        client = server.connect()
        assert (client.increment(1), client.negate([1, 2])) == (2, [-1, -2])
        server.end()
        with pytest.raises(batched.DisconnectedError):
            server.connect(wait_s=0.0).increment(1)


def test_a_loop_that_is_closed_does_not_keep_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is open as long as the loop is in memory, and reads nothing."""
    monkeypatch.setattr("batched._remote.server.LEAVE_S", 0.05)
    with served(increment, drain_s=1000.0) as server, server.connect() as client:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(client.increment.acall(1)) == 2
        loop.close()
        server.end()
        assert loop.is_closed()


def test_an_event_of_another_process_stops_it_too() -> None:
    """What is asked is only whether it is set."""
    stop = multiprocessing.get_context("spawn").Event()
    with folder() as found:
        options: dict[str, Any] = {**place_in(found), "stop": stop, "when_ready": lambda _: stop.set()}
        thread = threading.Thread(target=batched.serve, args=(increment,), kwargs=options, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class Failing:
    """An event of a process that has ended."""

    def is_set(self) -> bool:
        """Fail."""
        raise EOFError("of the event")


def test_an_event_that_fails_ends_it() -> None:
    """Nothing else could tell a server in a thread to end; its caller gets the error."""
    told: list[BaseException] = []
    with folder() as found:

        def run() -> None:
            try:
                batched.serve(increment, stop=Failing(), **place_in(found))
            except EOFError as error:
                told.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert [str(each) for each in told] == ["of the event"]


class OfInstance:
    """A class with a method that can be served of an instance only."""

    @batched.dynamically(timeout_ms=0)
    def run(self, items: list[int]) -> list[int]:
        """Return the items."""
        return items


@pytest.mark.parametrize(
    ("functions", "options", "kind", "message"),
    [
        ((), {}, ValueError, "no function"),
        ((len,), {}, TypeError, "built-in function len"),
        ((OfInstance.run,), {}, TypeError, "it is a method, so name that of an instance"),
        ((increment, increment), {}, ValueError, "two functions have the name 'increment'"),
        ((increment,), {"bind": "/run/embed.sock"}, ValueError, "unix:PATH"),
        ((increment,), {"protocol": "json"}, ValueError, "pickle, msgpack"),
        ((increment,), {"http": "127.0.0.1:99999"}, ValueError, "HOST:PORT"),
        ((increment,), {"http": 9100}, TypeError, "http must be HOST:PORT, .* got 9100"),
        ((increment,), {"max_frame_bytes": "64M"}, TypeError, "max_frame_bytes must be an int, got '64M'"),
        ((increment,), {"max_frame_bytes": 1e6}, TypeError, "max_frame_bytes must be an int, got 1000000.0"),
        ((increment,), {"bind": "tcp:127.0.0.1:0", "token": b"t"}, TypeError, "a str, got bytes"),
        ((increment,), {"stop": True}, TypeError, "stop must be a threading.Event"),
        ((of_context,), {}, ValueError, "Make the key a parameter of of_context"),
    ],
)
def test_a_mistake_in_code_is_an_error(
    functions: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """Before anything listens."""
    with folder() as found, pytest.raises(kind, match=message):
        batched.serve(*functions, **{**place_in(found), "stop": ENDED, **options})


@pytest.mark.parametrize("option", MAY_TAKE_NOTHING)
def test_an_option_that_reads_the_context_of_the_caller_is_refused(option: str) -> None:
    """The context stays in the client, which says by itself only what its tenant is."""
    function = batched.dynamically(list, **{option: CUSTOMER.get})
    with pytest.raises(ValueError, match=f"{option} takes no item"):
        check_served("f", function)


def test_a_running_loop_is_told_of_threads() -> None:
    """As in a notebook, of which the cells run on a loop."""

    async def cell() -> None:
        with pytest.raises(RuntimeError, match="in a thread"):
            batched.serve(increment, bind="tcp:127.0.0.1:0", token=TOKEN)

    asyncio.run(cell())


@needs_signals
def test_signals_are_as_before_when_it_has_ended() -> None:
    """In the main thread: Ctrl-C is Ctrl-C again."""
    with folder() as found:
        run_script(f"""
            import signal
            before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
            stop = threading.Event()
            told = []
            def ready(address):
                assert signal.getsignal(signal.SIGINT) not in before
                told.append(address)
                stop.set()
            batched.serve(double, bind="unix:{found}/s.sock", stop=stop, when_ready=ready)
            assert told == ["unix:{found}/s.sock"]
            assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
        """)


def test_importing_the_package_imports_nothing_of_servers() -> None:
    """Yet `connect` and `serve` are there, for `dir`, for `import *` and for what looks at the package."""
    run_script("""
        names = dir(batched)
        assert {"connect", "serve", "dynamically", "__version__"} <= {*names} and names == sorted(names)
        assert not [name for name in sys.modules if name.startswith("batched._remote")]
        assert "http.server" not in sys.modules and "argparse" not in sys.modules
        connect = batched.connect
        assert not {"msgspec", "prometheus_client", "http.server", "argparse"} & {*sys.modules}
        space = {}
        exec("from batched import *", space)
        assert space["connect"] is connect and space["serve"] is batched.serve
        assert not {"msgspec", "prometheus_client", "numpy"} & {*sys.modules}
        try:
            batched.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
    """)
