"""`python -m batched.demo`, run as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TIME_LIMIT_S = 50.0  # it takes about two seconds on an idle machine
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR"}}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; its output is not a terminal."""
    return subprocess.run(
        [sys.executable, *args],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        timeout=TIME_LIMIT_S,
    )


def test_the_demo_shows_both_rounds_and_verifies_every_answer() -> None:
    """It prints one table of every kind of caller in both rounds, in plain text, and exits well."""
    demo = run("-m", "batched.demo", "--quick")
    assert demo.stderr == ""
    assert demo.returncode == 0
    assert "\x1b" not in demo.stdout
    for heading in ("one by one", "batched", "items/s", "p50 ms", "p95 ms", "p99 ms", "speed-up"):
        assert heading in demo.stdout
    for callers in ("16 threads", "64 asyncio tasks", "a list of 64", "all of them"):
        rows = [line for line in demo.stdout.splitlines() if line.startswith(f"  {callers}")]
        assert len(rows) == 2, callers
    assert "All 224 answers verified against the plain function." in demo.stdout


def test_the_demo_fails_when_an_answer_is_not_that_of_the_plain_function() -> None:
    """A model whose batches mix up their rows is found out: the exit status is 1."""
    demo = run(
        "-c",
        "import sys; sys.argv[1:] = ['--quick']\n"
        "from batched import demo\n"
        "forward = demo.Classifier.forward\n"
        "demo.Classifier.forward = lambda self, vectors: forward(self, vectors)[::-1]\n"
        "sys.exit(demo.main())",
    )
    assert demo.stderr == ""
    assert demo.returncode == 1
    assert "Some answers differ" in demo.stdout
    assert "verified" not in demo.stdout


@pytest.mark.parametrize("package", ["numpy", "rich"])
def test_the_demo_says_what_it_lacks(package: str) -> None:
    """Without its extra it prints the one line that helps, and exits with 1."""
    demo = run(
        "-c",
        f"import runpy, sys; sys.modules['{package}'] = None\n"
        "runpy.run_module('batched.demo', run_name='__main__')",
    )
    assert demo.returncode == 1
    assert demo.stdout == ""
    assert demo.stderr == f"The demo needs {package}: pip install {package}\n"
