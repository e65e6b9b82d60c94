"""The fixtures that pytest finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import batched
from batched.testing import manual_clock, plugin
from tests.kit.script import ROOT

TESTS = """
import batched, threading

@batched.dynamically
def ident(items):
    return [threading.get_ident() for _ in items]

def test_inline(batched_inline):
    assert ident(1) == threading.get_ident()

def test_clock(batched_clock):
    clock = batched_clock(ident)
    call = clock.call(1)
    clock.turn(ms=100)
    assert call.done()
"""


def test_fixtures_are_found_by_name(tmp_path: Path) -> None:
    """As pytest loads them from an entry point."""
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:batched", "-p", "batched.testing.plugin"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_what_they_give() -> None:
    """The helpers of `batched.testing`."""
    inline, clock = plugin.batched_inline, plugin.batched_clock
    given = inline._get_wrapped_function()()  # noqa: SLF001  pytest lets none call a fixture
    next(given)
    fn = batched.dynamically(list, timeout_ms=60_000, adaptive=False)
    assert fn(1) == 1
    given.close()
    assert clock._get_wrapped_function()() is manual_clock  # noqa: SLF001
