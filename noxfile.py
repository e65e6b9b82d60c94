"""What must hold, in sessions: `nox --list` shows them, `nox -s lint` runs one, `nox` those that are quick.

They run in the environment that nox is in, where the `dev` extra is: an environment for each would hold
another torch. Those that need other versions, the wheel, or pytest-run-parallel make one without torch. What
follows `--` is for the command of a session: `nox -s tests -- tests/core`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "docs", "tests"]

# More than cores: half of the time of a test is a wait, for a thread, a process or a socket.
WORKERS = ("-n", "4", "--dist", "worksteal")
BUSY = ("-n", "2", "--dist", "worksteal")
"""Where tests compute, install, or load a model: more at once would come past their time limits."""
THOROUGH = "--hypothesis-profile=soak"
NUMBERS = re.compile(r"from hypothesis|kit\.effort|kit\.batcher_rules")
"""What a file imports if the profile says how much its tests do."""
OFFLINE = {"HF_HUB_OFFLINE": "1"}
COUNTED = ("--cov", "--cov-report=", "--cov-fail-under=0")
PACKAGE = Path("batched")
DISTRIBUTIONS = Path("dist")
COMMANDS = "Scripts" if os.name == "nt" else "bin"  # of a virtual environment
CONSTRAINTS = Path(".ci/constraints.txt")
NEIGHBOURS = [
    f"tests/{room}" for room in ("api", "collate", "contract", "docs", "extras", "life", "parts", "remote")
]
"""Rooms whose tests use other libraries."""
SHARED = [
    f"tests/{room}"
    for room in (
        "api",
        "collate",
        "contract",
        "core",
        "drivers",
        "extras",
        "features",
        "life",
        "parts",
        "policy",
    )
]
"""Rooms of tests that run the package itself, in one process."""
EACH_PYTHON = [f"--ignore=tests/{room}" for room in ("benchmarks", "docs")]
"""All rooms but those of pages and benchmarks, which one Python runs."""
FEATURES = (
    "FitsMemory",
    "Isolation",
    "FixedSizes",
    "Waiting",
    "LearnedLengths",
    "WithDeadlines",
    "Backlog",
)
PYTHONS = Path("/var/tmp/batched-pythons")  # noqa: S108  as `.ci/pythons` has it
"""Where `.ci/pythons` has the Pythons that it gets."""
VERSION = """
import platform, sysconfig
print(platform.python_version() + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""
FEW = 3
"""Tests: so many may fail on a busy machine, and pass when they run once more, beside no other."""
LACKS = re.compile(r"needs torch|could not import '(?P<unforeseen>\w+)")
"""Reasons for which tests are skipped where a library cannot be had. Only torch need not be there."""


class Counted(NamedTuple):
    """What became of the tests of one run; skipped tests by their reasons."""

    is_good: bool
    ran: int
    failed: int
    skipped: Counter[str]
    delayed: list[str]
    """Tests that failed beside others, and passed when they ran once more."""

    @property
    def unforeseen(self) -> set[str]:
        """Libraries other than torch for lack of which tests were skipped."""
        return {lack["unforeseen"] for why in self.skipped if (lack := LACKS.match(why))} - {None}

    def __str__(self) -> str:
        lacks = [f"{number} {why}" for why, number in sorted(self.skipped.items()) if LACKS.match(why)]
        return (
            f"{self.ran} tests ran, {self.failed} of them failed; {self.skipped.total()} were skipped "
            f"({', '.join(lacks) or 'none for lack of a library'})"
            + (f"; passed only when run once more: {', '.join(self.delayed)}" if self.delayed else "")
        )


RAN: dict[str, Counted] = {}
"""By the version of Python, what became of its default suite."""


def python(session: nox.Session, *arguments: str, **named: dict[str, str]) -> None:
    """Run this very Python."""
    session.run(sys.executable, "-m", *arguments, **named)


def version_of(session: nox.Session, command: str) -> str:
    """Return the version of a Python; that of a free-threaded one ends in "t"."""
    return str(session.run(command, "-c", VERSION, external=True, silent=True, log=False)).strip()


def suite(session: nox.Session, command: str, *options: str, **named: dict[str, str]) -> None:
    """Run the default suite with the Python of `command`, and note in `RAN` what became of its tests."""
    version = version_of(session, command)
    # What is an experiment is not to hold up the rest, should a test hang.
    limit = ("timeout", "1200") if version.endswith("t") else ()
    run = (*limit, command, "-m", "pytest", *options, *session.posargs, *WORKERS)
    RAN[version] = run_tests(session, *run, **named)


def must_pass(
    session: nox.Session,
    command: str,
    *options: str,
    workers: Sequence[str] = BUSY,
    **named: dict[str, str],
) -> None:
    """Run tests with the Python of `command`; the session fails with them."""
    counted = run_tests(session, command, "-m", "pytest", *options, *workers, **named)
    session.log(str(counted))
    if not counted.is_good:
        session.error("tests failed")


def run_tests(session: nox.Session, *run: str, **named: dict[str, str]) -> Counted:
    """Run tests, and few that failed once more; return what became of them."""
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        try:
            session.run(*run, f"--junitxml={report}", external=True, **named)
        except CommandFailed:
            is_good = False
        counted = counted_in(report)
        failed = counted.delayed
        if not is_good and 0 < len(failed) <= FEW:
            try:
                append = ["--cov-append"] if "--cov" in run else []
                session.run(*run, "--last-failed", *append, external=True, **named)
                is_good = True
            except CommandFailed:
                pass
    return counted._replace(is_good=is_good and counted.ran > 0, delayed=failed if is_good else [])


def counted_in(report: Path) -> Counted:
    """Return what became of the tests of a report; those that failed are named as delayed ones."""
    ran, failed, skipped = 0, list[str](), Counter[str]()
    for test in ET.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314  our own
        skips = [str(each.get("message")) for each in test.iter("skipped")]
        skipped.update(skips)
        ran += not skips
        if test.find("failure") is not None or test.find("error") is not None:
            failed.append(str(test.get("name")))
    return Counted(ran > 0 and not failed, ran, len(failed), skipped, failed)


@nox.session
def tests(session: nox.Session) -> None:
    """The default suite, or the tests that are named, in random order on two processes."""
    python(session, "pytest", *WORKERS, *session.posargs)


@nox.session
def public(session: nox.Session) -> None:
    """The tests of all flavours and of the drivers, with nothing of asyncio that it does not promise."""
    rooms = ("tests/contract", "tests/drivers")
    must_pass(session, sys.executable, "--public-asyncio", *rooms, *session.posargs)


@nox.session
def without(session: nox.Session) -> None:
    """The tests of what every flavour promises, once without each feature: by `submit` and with `aio`.

    Those that ask for the feature are left out; the default suite is without `BestSizes` in any case. Then
    once with workers that a function shares in the place of its own, in each flavour; and once with the
    functions in a server, behind a socket.
    """
    flavours = ("-k", "not threads and not acall and not aio-plain")
    if not session.posargs:
        for name in ("OwnWorkers", "OneProcess"):
            must_pass(session, sys.executable, "tests/contract", f"--without={name}")
    for name in session.posargs or FEATURES:
        must_pass(session, sys.executable, "tests/contract", f"--without={name}", *flavours)


@nox.session
def pythons(session: nox.Session) -> None:
    """The default suite on this Python; what runs the package on others that `.ci/pythons` finds or gets.

    It counts the tests.
    """
    found = session.run(".ci/pythons", silent=True, stderr=None, external=True)
    constraint = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    if not RAN:  # else the session coverage has just run it
        suite(session, sys.executable)
    for line in str(found).splitlines():
        version, command = line.split()
        install(session, command)
        try_to_install(session, command, "--no-index", "--no-deps", constraint)  # else it may be gigabytes
        rooms = SHARED if version.endswith("t") else EACH_PYTHON
        suite(session, command, *(() if session.posargs else rooms))
    for version, counted in RAN.items():
        session.log(f"Python {version}: {counted}")
    failed = [version for version, counted in RAN.items() if not counted.is_good]
    # Free-threaded, 3.13 is an experiment of its own: what fails there is told, and looked at.
    if failed := [version for version in failed if not version.endswith("t") or version > "3.14"]:
        session.error(f"the suite failed on Python {', '.join(failed)}")
    for version, counted in RAN.items():
        if counted.unforeseen and not version.endswith("t"):
            session.error(f"tests were skipped on Python {version}: {counted}")


@nox.session
def lowest(session: nox.Session) -> None:
    """What meets other libraries, beside the oldest of them that the extras allow; torch is the user's."""
    with tempfile.TemporaryDirectory() as folder:
        python(session, "uv", "venv", "-q", "--python", sys.executable, folder)
        oldest = ("--system-certs", "--resolution", "lowest-direct")
        python(session, "uv", "pip", "install", "-q", "--python", folder, *oldest, *needed())
        command = str(Path(folder, COMMANDS, "python"))
        must_pass(session, command, *(session.posargs or NEIGHBOURS), env={"PYTHONPATH": "."})


@nox.session
def parallel(session: nox.Session) -> None:
    """The tests of the package, in two threads at once, on this Python and on a free-threaded one.

    With pytest-run-parallel, and without torch. The free-threaded Python is the one that `.ci/pythons` has
    built, if it has. Tests that threads cannot run at once are marked `thread_unsafe`, with the reason.
    """
    run = ("-m", "pytest", *BUSY, "--parallel-threads=2", *(session.posargs or SHARED))
    with tempfile.TemporaryDirectory() as folder:
        python(session, "uv", "venv", "-q", "--python", sys.executable, folder)
        packages = (*needed(), "pytest-run-parallel")
        python(session, "uv", "pip", "install", "-q", "--system-certs", "--python", folder, *packages)
        session.run(str(Path(folder, COMMANDS, "python")), *run, env={"PYTHONPATH": "."})
    for command in map(str, PYTHONS.glob("python3.*t")):
        install(session, command, "pytest-run-parallel")
        session.run("timeout", "1200", command, *run, external=True, env={"PYTHONPATH": "."})


def needed() -> list[str]:
    """Return what the tests need, but for torch."""
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    named = [each for extra in ("demo", "msgpack", "prometheus", "test") for each in extras[extra]]
    return [each for each in named if not each.startswith(("batched", "torch"))]


def install(session: nox.Session, command: str, *packages: str) -> None:
    """Have the Python of `command` install packages, and what the tests need, with pip."""
    if not version_of(session, command).endswith("t"):
        session.run(command, "-m", "pip", "install", "-q", *packages, *needed(), external=True)
        return
    for each in (*packages, *needed()):  # not all libraries are there
        try_to_install(session, command, "--only-binary=:all:", each)


def try_to_install(session: nox.Session, command: str, *arguments: str) -> None:
    """Have the Python of `command` install a package, if there is a build for it."""
    pip = (command, "-m", "pip", "install", "-q", *arguments)
    session.run(*pip, external=True, silent=True, success_codes=[0, 1])


@nox.session
def package(session: nox.Session) -> None:
    """Builds `dist`, has it checked, and runs a part of its tests; that needs a network."""
    shutil.rmtree(DISTRIBUTIONS, ignore_errors=True)
    python(session, "build", "--outdir", str(DISTRIBUTIONS))
    source, wheel = sorted(map(str, DISTRIBUTIONS.iterdir()), key=lambda name: name.endswith(".whl"))
    python(session, "twine", "check", "--strict", source, wheel)
    session.run(str(Path(sys.executable).with_name("check-wheel-contents")), wheel)
    # Of ten: the address of the repository and an e-mail address of the authors are not known yet.
    session.run(str(Path(sys.executable).with_name("pyroma")), "--min", "8", source)
    try_distributions(session, session.posargs or ["tests/docs", "tests/core", "tests/life/test_copies.py"])


@nox.session
def wheel(session: nox.Session) -> None:
    """The default suite, of the source distribution in `dist`, with the wheel there."""
    try_distributions(session, session.posargs)


def try_distributions(session: nox.Session, tests: list[str]) -> None:
    """Run tests of the source distribution, with the wheel, and with no other copy of the package around."""
    (source,), (wheel,) = DISTRIBUTIONS.glob("*.tar.gz"), DISTRIBUTIONS.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        command = str(Path(folder, "venv", COMMANDS, "python"))
        python(session, "venv", str(Path(folder, "venv")))
        install(session, command, str(wheel))
        shutil.unpack_archive(source, folder, filter="data")
        unpacked = Path(folder, source.name.removesuffix(".tar.gz"))
        shutil.rmtree(unpacked / PACKAGE)
        with session.chdir(unpacked):
            alone = {"PYTHONPATH": "", "PYTHONUTF8": "1"}  # Windows reads files in another encoding
            must_pass(session, command, *tests, env=alone)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the floors: imports run downwards."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")
    session.run(str(Path(sys.executable).with_name("lint-imports")))


@nox.session
def types(session: nox.Session) -> None:
    """Both type checkers, what editors show, and that all types are written down, as users see them."""
    python(session, "mypy")
    python(session, "pyright")
    python(session, "pytest", "-m", "editors", *session.posargs)
    with tempfile.TemporaryDirectory() as folder:
        # pyright looks at a package that is installed. This one needs no network; `package` has the wheel.
        python(session, "venv", "--without-pip", folder)
        installed = next(Path(folder).glob("[Ll]ib/**/site-packages"))
        shutil.copytree(PACKAGE, installed / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        installed.joinpath("beside.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        here = {"VIRTUAL_ENV": folder, "PATH": f"{Path(folder, COMMANDS)}{os.pathsep}{os.environ['PATH']}"}
        python(session, "pyright", "--verifytypes", str(PACKAGE), "--ignoreexternal", env=here)


@nox.session
def docs(session: nox.Session) -> None:
    """The pages name what there is, and their examples run."""
    python(session, "pytest", "tests/docs", *session.posargs)


def needs(session: nox.Session, extra: str, *modules: str) -> None:
    """End a session that lacks modules with the command that installs them."""
    if missing := [module for module in modules if find_spec(module) is None]:
        install = f'{sys.executable} -m pip install -e ".[{extra}]"'
        session.error(
            f"there is no {', '.join(missing)}. To install what this session needs:\n\n  {install}\n"
        )


@nox.session
def site(session: nox.Session) -> None:
    """The site, strictly: a link that leads nowhere is an error. Needs no network, but the `site` extra."""
    needs(session, "site", "furo", "myst_parser", "prometheus_client", "sphinx", "sphinx_copybutton")
    strict = ("-W", "--keep-going", "-n", "-E")  # all pages anew: Sphinx does not see what extensions read
    beside = ("-d", "docs/_build/doctrees")  # else what Sphinx has read is published too
    python(session, "sphinx", *strict, *beside, "-b", "html", "docs", "docs/_build/html")


@nox.session
def look(session: nox.Session) -> None:
    """What `site` has built, in Chromium: pictures in `docs/_build/look`, and what hinders readers."""
    needs(session, "look", "axe_playwright_python", "playwright")
    if shutil.which("chromium") is None:
        session.skip("there is no chromium")
    session.run(sys.executable, "docs/look.py", "docs/_build/html", "docs/_build/look")


@nox.session
def pages(session: nox.Session) -> None:
    """The pages that need other libraries, run as printed; needs the `pages` extra."""
    must_pass(session, sys.executable, "-m", "pages", *session.posargs, env=OFFLINE)


@nox.session
def pages_alone(session: nox.Session) -> None:
    """The same and all others, each with only what its `pip install` names; needs a network."""
    must_pass(session, sys.executable, "-m", "pages_alone", *session.posargs, env=OFFLINE)


@nox.session
def libraries(session: nox.Session) -> None:
    """What users have beside this package: errors, clocks, green threads; needs the `libraries` extra."""
    must_pass(session, sys.executable, "-m", "libraries", *session.posargs, env=OFFLINE)


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches of the package that the default suite runs, of each room and of all.

    `.ci/run` has them counted as it runs the suite by the command of the README, in the folder `TESTED`.
    """
    with tempfile.TemporaryDirectory() as folder:
        tested = os.environ.get("TESTED")
        data = {"COVERAGE_FILE": str(Path(tested or folder, "coverage"))}
        if tested:
            counted = counted_in(Path(tested, "report.xml"))
            RAN[version_of(session, sys.executable)] = counted._replace(is_good=True)  # else it had ended
        else:
            suite(session, sys.executable, *COUNTED, env=data)
        if not all(counted.is_good for counted in RAN.values()):
            session.error("the suite failed")
        rooms = sorted({file.parent for file in PACKAGE.rglob("*.py")})
        for room in rooms:
            report = ["coverage", "report", "--format=total", "--precision=1", "--fail-under=0"]
            report += [f"--include={room}/*.py", *omitted(room, rooms)]
            total = session.run(sys.executable, "-m", *report, env=data, silent=True, log=False)
            session.log(f"{room!s:20} {str(total).strip():>6} %")
        python(session, "coverage", "report", "--skip-covered", "--show-missing", env=data)


def omitted(room: Path, rooms: list[Path]) -> list[str]:
    """Return the option that leaves out the rooms inside `room`: to coverage, a star is any path."""
    inside = ",".join(f"{other}/*" for other in rooms if room in other.parents)
    return [f"--omit={inside}"] if inside else []


@nox.session
def bench(session: nox.Session) -> None:
    """`python -m benchmarks`, with what follows `--`; alone it measures all of `overhead` and `load`."""
    python(session, "benchmarks", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """What happens rarely: the long tests, and those that do a part by default with their full numbers."""
    must_pass(session, sys.executable, "-m", "soak", *session.posargs)
    must_pass(session, sys.executable, THOROUGH, *(session.posargs or with_numbers()))


def with_numbers() -> list[str]:
    """Return the files of tests of which the profile says how much they do."""
    files = sorted(Path("tests").glob("*/test_*.py"))
    return [str(file) for file in files if NUMBERS.search(file.read_text(encoding="utf-8"))]


@nox.session
def redis(session: nox.Session) -> None:
    """A cache on a Redis of its own, which listens on 127.0.0.1 only."""
    if shutil.which("redis-server") is None:
        session.skip("there is no redis-server")
    must_pass(session, sys.executable, "-m", "redis", *session.posargs, workers=())


@nox.session
def model(session: nox.Session) -> None:
    """The examples and services with a real model; what meets a GPU, on the CPU where there is none."""
    must_pass(session, sys.executable, "-m", "model or gpu", *session.posargs, workers=(), env=OFFLINE)


@nox.session
def ray(session: nox.Session) -> None:
    """A local Ray; needs the `ray` extra, which no other session is to find."""
    must_pass(session, sys.executable, "-m", "ray", *session.posargs, workers=(), env=OFFLINE)
