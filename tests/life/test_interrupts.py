"""Ctrl-C at each bytecode of what holds the lock: it is free then, and no call of others is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import batched
from tests.kit.effort import is_thorough
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.interrupted import OPTIONS, STEPS
from tests.kit.interrupts import Interrupt
from tests.kit.script import ROOT

pytestmark = [
    pytest.mark.thread_unsafe(reason="it traces its thread"),
    pytest.mark.usefixtures("untraced"),
    # Where a Ctrl-C comes as a finalizer runs, Python can only show it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STRIDE = 10 if is_thorough() else 250
"""One in so many bytecodes is interrupted."""


def interrupted(*arguments: str) -> None:
    """Run the interrupts in a process of their own: Python has more to say of tasks and finalizers."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.kit.interrupted", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_step_of_a_thread_loses_no_call(step: str) -> None:
    """Nor does it leave the lock held; calls that follow are answered, and counted."""
    interrupted("thread", step, str(STRIDE))


@pytest.mark.parametrize("option", [*OPTIONS, "window"])
def test_an_interrupted_loop_loses_no_call(option: str) -> None:
    """Whatever its thread was doing for the batcher: taking a batch, running it, answering."""
    interrupted("loop", option, str(STRIDE))


def test_callers_in_other_threads_go_on_after_an_interrupt() -> None:
    """They wait for no lock."""
    for at in range(1, 2500, 300):
        fn = batched.dynamically(Gate(), timeout_ms=0, max_queue_size=8)
        Interrupt(at).during(lambda fn=fn: fn.stats)
        answers: list[int] = []
        thread = threading.Thread(target=lambda fn=fn, answers=answers: answers.append(fn(1)), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert answers == [1]
        fn.shutdown()
        until(lambda thread=thread: not thread.is_alive())
