"""Workers that are about to wait or to end while their number changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import batched
from batched._drivers import workers
from batched._drivers.step_lock import StepLock
from tests.kit.gate import PATIENCE_S, Gate


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Steps of the test's own, each taken once by a worker that is about to give its turn back."""
    steps: list[Callable[[], object]] = []

    class Turn(StepLock):
        """A turn before the end of which another thread takes a step."""

        def release(self) -> None:
            """Have the step taken, then release the lock."""
            if steps and threading.current_thread().name.startswith("batched: "):
                step = threading.Thread(target=steps.pop())
                step.start()
                step.join(PATIENCE_S)
            super().release()

    monkeypatch.setattr(workers, "new_step_lock", Turn)
    return steps


def test_more_batches_run_at_once_though_a_worker_is_about_to_give_its_turn_back(
    steps: list[Callable[[], object]],
) -> None:
    """`configure` leaves it to the worker with the turn to start another: also where that has its batch."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    steps.append(lambda: fn.configure(max_concurrent_batches=2))
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    assert not steps
    fn.shutdown()


def test_more_batches_run_at_once_though_a_worker_is_about_to_end(
    steps: list[Callable[[], object]],
) -> None:
    """The same where that worker was one too many before."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()
    steps.append(lambda: fn.configure(max_concurrent_batches=2))
    fn.configure(max_concurrent_batches=1)
    gate.let_through()
    futures.append(fn.submit(2))
    gate.wait_for_batch()
    assert len(fn.stats.running) == 2
    assert not steps
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]
    fn.shutdown()
