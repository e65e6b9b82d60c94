"""More or fewer batches run at once while batches run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


@pytest.mark.parametrize("asked", [[[0, 1, 2, 3, 4, 5]], [[0, 1], 2, 3, [4, 5]]], ids=["a list", "calls"])
def test_more_batches_run_at_once_while_one_runs(flavour: Flavour, asked: list[Any]) -> None:
    """At once, not when that has ended; also of the rest of the list that it is of."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0)
    for _ in range(3):
        futures = [flavour.start(fn, asked[0])]
        gate.wait_for_batch()
        futures += [flavour.start(fn, items) for items in asked[1:]]
        fn.configure(max_concurrent_batches=3)
        for _ in range(2):
            gate.wait_for_batch()
        gate.let_through(3)
        assert [future.result(PATIENCE_S) for future in futures] == asked
        until(lambda: not fn.stats.running_items)
        fn.configure(max_concurrent_batches=1)
    flavour.close(fn)


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_fewer_batches_run_at_once_when_the_others_have_ended(flavour: Flavour) -> None:
    """Whatever runs is finished; no thread is left that is one too many, and then there may be more again."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=4, name="fewer")
    futures = [flavour.start(fn, item) for item in range(10)]
    for _ in range(4):
        gate.wait_for_batch()
    fn.configure(max_concurrent_batches=2)
    gate.let_through(2)
    until(lambda: fn.stats.total_processed == 2)
    assert len(fn.stats.running) == len(gate.batches) - 2 == 2
    for batches in range(5, 9):
        gate.let_through()
        gate.wait_for_batch()
        assert len(gate.batches) == batches
        assert len(fn.stats.running) <= 2
    fn.configure(max_concurrent_batches=4)
    for _ in range(2):
        gate.wait_for_batch()
    assert len(fn.stats.running) == 4
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(10))
    fn.configure(max_concurrent_batches=1)
    until(lambda: len([t for t in threading.enumerate() if t.name == "batched: fewer"]) <= 1)
    assert flavour.call(fn, list(range(9))) == list(range(9))
    flavour.close(fn)


def test_as_many_batches_run_at_once_as_may_while_that_changes(flavour: Flavour) -> None:
    """Never more than the highest number of late; every list is answered whole, failing ones too."""
    most = 0
    running = 0
    lock = threading.Lock()

    def run(items: list[int]) -> list[int]:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        try:
            return [1 // item for item in items]
        finally:
            with lock:
                running -= 1

    fn = flavour.decorate(run, batch_size=4, timeout_ms=0)
    for turn in range(100):
        futures = [flavour.start(fn, [1] * 40), flavour.start(fn, [1] * 20 + [0] + [1] * 19)]
        fn.configure(max_concurrent_batches=1 + turn % 3)
        assert futures[0].result(PATIENCE_S) == [1] * 40
        assert isinstance(futures[1].exception(PATIENCE_S), ZeroDivisionError)
    assert most <= 3
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 8000
    flavour.close(fn)
