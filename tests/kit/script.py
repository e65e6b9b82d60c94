"""Scripts that run in a process of their own, for what a test cannot do to its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import batched

ROOT = Path(__file__).parents[2]
"""The folder of the project."""

PACKAGE = Path(batched.__file__).parent
"""The folder of the package that is tested: in the project, or where a wheel was installed."""

PROLOGUE = """
import asyncio, copy, gc, os, pickle, sys, threading, time
import batched

@batched.dynamically(timeout_ms=0)
def double(items):
    return [2 * item for item in items]

class Model:
    def __init__(self, factor):
        self.factor = factor
    @batched.dynamically(timeout_ms=0)
    def run(self, items):
        return [self.factor * item for item in items]

def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batched")]

def join_workers():
    for thread in workers():
        thread.join(10)
    assert not workers(), len(workers())

entered = threading.Event()

@batched.dynamically(batch_size=2, timeout_ms=0)
def slow(items):
    entered.set()
    time.sleep(0.05)
    return items
"""
"""What every script begins with: functions that are fast and slow, a class with a batched method, workers."""


FORKS = "ignore:This process:DeprecationWarning"
"""From Python 3.12 on, a fork beside threads warns; where warnings are errors, from 3.15 on it fails."""

COVERAGE = "COVERAGE_PROCESS_CONFIG"
"""By this variable a process knows that its lines are to be counted, which takes memory for each thread."""


def run_script(script: str, *, timeout: float = 60.0, cwd: Path = ROOT, counts_memory: bool = False) -> str:
    """Run `script` after the prologue; it must end by itself, well, and silently on stderr."""
    environment = {name: value for name, value in os.environ.items() if not counts_memory or name != COVERAGE}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", FORKS, "-c", PROLOGUE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout
