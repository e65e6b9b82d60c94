"""A page of the documentation, run as a reader runs it: files are written, commands given, examples run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.kit.ports import free_port
from tests.kit.script import ROOT

BUILT = ROOT / "docs" / "_build"
"""The site, if it was built: it has copies of the pages."""
WRITTEN = [page for page in (ROOT / "docs").rglob("*.md") if not page.is_relative_to(BUILT)]
PAGES = [ROOT / "README.md", *sorted(WRITTEN)]
FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<about>[^`\n]*)\n(?P<text>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE
)
INSTALL = "pip install "
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PORTS = ("8000", "8001", "8002", "6379")
"""The ports of a page's servers. A server of which the command names none has the first."""
PLACE = re.compile(rf"{'|'.join(PORTS)}|/tmp/(?=\w+\.sock)")
"""Where a page's servers listen; each page gets free ports and a folder of its own in the place of these, so
that pages can run at once. A folder of pytest's may have too long a name for a socket."""
SOCKET = re.compile(r"\bunix:(\S+)")
"""Where a server listens that has no port."""


class Block(NamedTuple):
    """What stands between two fences."""

    kind: str
    """Its language: Python is run, `sh` is a command. Others, such as `text`, are to be read."""
    name: str
    """The file that it is; of a command, "server" if it runs until it is ended."""
    text: str
    line: int


class Page:
    """The blocks of a page, and the libraries that it has its reader install."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text("utf-8")
        self.blocks = []
        for found in FENCE.finditer(text):
            kind, _, name = found["about"].strip().partition(" ")
            self.blocks.append(Block(kind, name, found["text"], text.count("\n", 0, found.start("text"))))

        commands = [line for block in self.blocks if block.kind == "sh" for line in block.text.splitlines()]
        named = [shlex.split(line)[2:] for line in commands if line.startswith(INSTALL) and "&&" not in line]
        self.needs = [name for names in named for name in names if not name.startswith((".", "-"))]

    @property
    def is_run(self) -> bool:
        """Whether it has anything to run."""
        return any(block.kind in {"python", "sh"} for block in self.blocks)

    @property
    def lacks(self) -> list[str]:
        """The libraries that it needs and that are not installed."""
        return [name for name in self.needs if not is_installed(name)]

    def missing_servers(self, path: str = PATH) -> list[str]:
        """The programs of its servers that are not there, and that no `pip install` brings."""
        commands = [block.text.split()[0] for block in self.blocks if block.name == "server"]
        return [name for name in commands if shutil.which(name, path=path) is None]

    def examples(self) -> str:
        """Return the examples as one script, in which each line has the number that it has on the page."""
        script: list[str] = []
        for block in self.blocks:
            if block.kind == "python" and not block.name:
                script += [""] * (block.line - len(script)) + block.text.splitlines()
        return "\n".join(script) + "\n" if script else ""

    def write_files(self, folder: Path, places: Mapping[str, str] | None = None) -> None:
        """Write its files into `folder`, with these places instead of those that they name."""
        for block in self.blocks:
            if block.name and block.kind != "sh" and not block.kind.startswith("{"):
                Path(folder, block.name).write_text(moved(block.text, places or {}), "utf-8")

    def run(
        self, folder: Path, *, python: str = sys.executable, path: str = PATH, time_limit_s: float = 100.0
    ) -> None:
        """Run all of it in `folder`: first its files are written, then commands are given, then examples run.

        `pip install` is not run: the environment of `python` has what the page needs. Commands are looked for
        in `path`.
        """
        places = {port: str(free_port()) for port in PORTS}
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = path
        with ExitStack() as servers:
            places["/tmp/"] = servers.enter_context(TemporaryDirectory(prefix="page-")) + "/"
            self.write_files(folder, places)
            examples = moved(self.examples(), places)
            Path(folder, "examples_of_the_page.py").write_text(examples, "utf-8")
            for block in self.blocks:
                if block.kind != "sh":
                    continue
                lines = [line for line in block.text.splitlines() if not line.startswith(INSTALL)]
                command = moved("\n".join(lines), places).strip()
                if block.name == "server":
                    named = [port for port in PORTS if port in block.text]
                    port = int(places[[*named, PORTS[0]][0]])
                    servers.callback(end, start(command, port, folder, environment))
                elif command:
                    check(["bash", "-euo", "pipefail", "-c", command], folder, environment, time_limit_s)
            if examples:
                check([python, "examples_of_the_page.py"], folder, environment, time_limit_s)


def is_installed(name: str) -> bool:
    """Whether a distribution is there; that its extras, `name[extra]`, are too is not checked."""
    try:
        distribution(name.partition("[")[0])
    except PackageNotFoundError:
        return False
    return True


def moved(text: str, places: Mapping[str, str]) -> str:
    """Return the text with these ports and folders in the place of those that it names."""
    return PLACE.sub(lambda found: places.get(found[0], found[0]), text)


def check(command: list[str], folder: Path, environment: dict[str, str], time_limit_s: float) -> None:
    """Run a command, which must end well."""
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        encoding="utf-8",
        cwd=folder,
        env=environment,
        timeout=time_limit_s,
    )
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"


def start(
    command: str, port: int, folder: Path, environment: dict[str, str], *, time_limit_s: float = 60.0
) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it listens, at `port` or at a socket that the command names."""
    named = SOCKET.search(command)
    family, address = (
        (socket.AF_UNIX, str(folder / named[1])) if named else (socket.AF_INET, ("127.0.0.1", port))
    )
    log = Path(folder, "server.log")
    with log.open("wb") as output:
        program, *arguments = shlex.split(command.replace("\\\n", ""))  # as a shell continues a line
        # `Popen` would look for it in the path of the tests.
        program = shutil.which(program, path=environment["PATH"]) or program
        server = subprocess.Popen(
            [program, *arguments], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    late = time.monotonic() + time_limit_s
    while server.poll() is None and time.monotonic() < late:
        with socket.socket(family) as client:
            if client.connect_ex(address) == 0:
                return server
        time.sleep(0.05)
    end(server)
    raise AssertionError(f"no server on port {port}: {command}\n{log.read_text('utf-8', 'replace')}")


def end(server: subprocess.Popen[bytes]) -> None:
    """End a server as a machine that shuts down does, and wait for it."""
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
