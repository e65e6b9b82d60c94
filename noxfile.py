"""What must hold, in sessions: `nox --list` shows them, `nox -s lint` runs one, `nox` those that are quick.

They run in the environment that nox is in, where the `dev` extra is: an environment for each would hold
another torch. What follows `--` is for the command of a session: `nox -s tests -- tests/core`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "docs", "tests"]

WORKERS = ("-n", "2", "--dist", "worksteal")
THOROUGH = "--hypothesis-profile=soak"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
COUNTED = ("--cov", "--cov-report=", "--cov-fail-under=0")
PACKAGE = Path("batched")
CONSTRAINTS = Path(".ci/constraints.txt")


def python(session: nox.Session, *arguments: str, **named: dict[str, str]) -> None:
    """Run this very Python."""
    session.run(sys.executable, "-m", *arguments, **named)


@nox.session
def tests(session: nox.Session) -> None:
    """The default suite, or the tests that are named, in random order on two processes."""
    python(session, "pytest", *WORKERS, *session.posargs)


@nox.session
def public(session: nox.Session) -> None:
    """The tests of all flavours, with nothing of asyncio that it does not promise."""
    python(session, "pytest", *WORKERS, "--public-asyncio", "tests/contract", *session.posargs)


@nox.session
def pythons(session: nox.Session) -> None:
    """The default suite on the other Pythons that `.ci/pythons` finds or gets."""
    found = session.run(".ci/pythons", silent=True, stderr=None, external=True)
    constraint = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    needed = [each for extra in ("demo", "prometheus", "test") for each in extras[extra]]
    needed = [each for each in needed if not each.startswith(("batched", "torch"))]
    ran = []
    for line in str(found).splitlines():
        version, command = line.split()
        pip = (command, "-m", "pip", "install", "-q")
        session.run(*pip, *needed, external=True)
        # A build on disk or none: what an index has may bring gigabytes.
        session.run(
            *pip, "--no-index", "--no-deps", constraint, external=True, silent=True, success_codes=[0, 1]
        )
        suite = (command, "-m", "pytest", "-q", *WORKERS, *session.posargs)
        output = session.run(*suite, external=True, silent=True, env={"PYTHONPATH": "."})
        ran.append(f"{version}: {str(output).strip().splitlines()[-1]}")
    for line in ran:
        session.log(line)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the floors: imports run downwards."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")
    session.run(str(Path(sys.executable).with_name("lint-imports")))


@nox.session
def types(session: nox.Session) -> None:
    """Both type checkers."""
    python(session, "mypy")
    python(session, "pyright")


@nox.session
def docs(session: nox.Session) -> None:
    """The pages name what there is, and their examples run."""
    python(session, "pytest", "tests/docs", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches of the package that the default suite runs, of each room and of all."""
    with tempfile.TemporaryDirectory() as folder:
        data = {"COVERAGE_FILE": str(Path(folder, "coverage"))}
        python(session, "pytest", *WORKERS, "--timeout=300", *COUNTED, *session.posargs, env=data)
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
    """What happens rarely: the long tests, and all others with their full numbers."""
    python(session, "pytest", "-m", "soak", *session.posargs)
    python(session, "pytest", *WORKERS, THOROUGH, *session.posargs)


@nox.session
def redis(session: nox.Session) -> None:
    """A cache on a Redis of its own, which listens on 127.0.0.1 only."""
    if shutil.which("redis-server") is None:
        session.skip("there is no redis-server")
    python(session, "pytest", "-m", "redis", *session.posargs)


@nox.session
def model(session: nox.Session) -> None:
    """The examples and services with a real model."""
    python(session, "pytest", "-m", "model", *session.posargs, env=OFFLINE)


@nox.session
def ray(session: nox.Session) -> None:
    """A local Ray; needs the `ray` extra, which no other session is to find."""
    python(session, "pytest", "-m", "ray", *session.posargs, env=OFFLINE)
