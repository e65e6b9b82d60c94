"""Both type checkers agree with `tests/typing/api.py`, which says what they should see."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.optional import HAS_TORCH
from tests.kit.script import ROOT

LIMIT_S = 240  # without a cache both read all of numpy's types first


def check(*command: str) -> None:
    """Run a type checker on `tests/typing/api.py`, and fail with what it says if it objects."""
    checker = subprocess.run(
        [sys.executable, "-m", *command, "tests/typing/api.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert checker.returncode == 0, f"{command[0]} says:\n{checker.stdout}"


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.timeout(LIMIT_S + 30)
def test_mypy_sees_the_types_of_every_call() -> None:
    """`mypy --strict` accepts every use, and rejects what it should."""
    check("mypy", "--strict")


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.timeout(LIMIT_S + 30)
def test_pyright_sees_the_types_of_every_call() -> None:
    """Pyright, in its standard mode, does so too."""
    check("pyright", "--pythonpath", sys.executable)
