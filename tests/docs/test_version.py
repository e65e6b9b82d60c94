"""The version that the package tells is that of the project."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import batched
from tests.kit.script import PACKAGE, ROOT


def test_the_version_is_that_of_the_project() -> None:
    """It stands in the code, so that a copy of the files has it too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert batched.__version__ == project["version"]


def test_the_version_costs_no_import() -> None:
    """No metadata of distributions is read."""
    program = "import sys, batched; assert batched.__version__; print('importlib.metadata' in sys.modules)"
    command = [sys.executable, "-S", "-c", program]
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
    }  # which -S leaves
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True, env=environment
    )
    assert done.stdout == "False\n"
