"""Files of results: the figures, beside the machine, Python, the commit and the date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.kit.own_process import CHECKOUT
from benchmarks.kit.row import Result

__all__ = ["FOLDER", "Found", "about", "git", "shown"]

FOLDER = CHECKOUT / "benchmarks" / "results"  # git ignores it
_THREADING = ", free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
_PACKAGES = ("batched", "numpy", "torch", "rich")


@dataclass
class Found:
    """All that one run found."""

    about: dict[str, Any]
    rows: dict[str, list[Result]] = field(default_factory=dict)  # by benchmark
    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    def all_rows(self) -> dict[str, Result]:
        """Return the rows of all benchmarks by name."""
        return {row.name: row for rows in self.rows.values() for row in rows}

    def write(self, file: Path) -> None:
        """Write all of it as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: [row.as_dict() for row in some] for name, some in self.rows.items()}
        file.write_text(json.dumps({**self.about, "rows": rows, "details": self.details}, indent=1) + "\n")

    @staticmethod
    def read(file: Path) -> Found:
        """Return what was written."""
        told = json.loads(file.read_text())
        rows = {name: [Result.from_dict(row) for row in some] for name, some in told.pop("rows").items()}
        details = told.pop("details")
        return Found(told, rows, details)


def about(*, options: str, quick: bool) -> dict[str, Any]:
    """Return what the figures depend on besides the code that measures, and when they were measured."""
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "os": platform.platform(),
            "load": [round(load, 2) for load in os.getloadavg()],
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}{_THREADING}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") or "unknown",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": options,
        "quick": quick,
    }


def git(*words: str, checkout: Path = CHECKOUT) -> str:
    """Return what git says of the checkout; nothing where there is no git, or no checkout."""
    command = ["git", "-C", str(checkout), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  our own words
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def shown(told: Mapping[str, Any]) -> str:
    """Return one line for people."""
    machine = told["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in told["packages"].items())
    load = " ".join(map(str, machine["load"]))
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}, load {load}"
    return (
        f"{told['python']}, {where}; {packages}; commit {told['commit']}, {told['date']}; {told['options']}"
    )


def _cpu() -> str:
    try:
        lines: Iterable[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = ()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
