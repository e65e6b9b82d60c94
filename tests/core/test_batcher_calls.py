"""Calls come, wait, leave and get their answers: no call is lost or answered twice."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import batched
from batched._core.call import Call
from batched._core.keyed_queues import KeyedQueues
from batched._core.mending import close
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched.errors import ClosedError
from tests.kit.batcher_rules import COLLATOR
from tests.kit.calls import listed, single
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import kept_by


@pytest.mark.parametrize("ends", ["late", "closed"])
def test_no_call_seems_answered_without_an_error(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late caller may look while its call is dropped: it finds the error."""
    driver = ManualDriver(Options(batch_size=8, timeout_ms=9000), Queue, COLLATOR)
    calls = [single(), listed(3)]
    found = []
    drop = driver.batcher.drop

    def look(call: Call) -> None:
        drop(call)
        found.append((call.missing, call.error))

    monkeypatch.setattr(driver.batcher, "drop", look)
    for call in calls:
        call.deadline = 5.0
        driver.push(call)
    if ends == "late":
        driver.delay(6.0)
    else:
        close(driver.batcher, ClosedError())
    assert driver.take_answered() == calls
    assert [missing for missing, _ in found] == [0, 0]
    assert {type(error) for _, error in found} == {TimeoutError if ends == "late" else ClosedError}


def test_an_interruption_while_calls_are_queued_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that gives up then finds them where they came."""
    batcher = ManualDriver(Options(batch_size=8, timeout_ms=0)).batcher
    calls = [single(), listed(3)]
    batcher.arriving += calls

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "push_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batcher.take_in()
    assert batcher.arriving == calls
    close(batcher, ClosedError())
    assert batcher.effects.answered == calls


def test_a_call_that_has_failed_is_not_late_too() -> None:
    """Its other items are dropped with it, and counted as cancelled."""
    options = Options(batch_size=2, timeout_ms=0, isolate_errors=False)
    driver = ManualDriver(options, Queue, COLLATOR)
    call = listed(6)
    call.deadline = 5.0
    driver.push(call)
    assert driver.delay(1.0) == 0.0
    error = ValueError()
    assert driver.fail(driver.pop(1.0), error, 4.0) == [call]
    assert driver.delay(6.0) is None
    assert driver.take_answered() == []
    stats = driver.stats(7.0)
    assert call.error is error
    assert (stats.total_failed, stats.total_cancelled, stats.total_expired) == (2, 4, 0)


def test_a_queue_that_is_empty_again_keeps_no_call() -> None:
    """Though the call that has left was never in a batch: the delay policy forgets it too."""
    driver = ManualDriver(Options())
    call = Call().begin(list, 1, 1, False, 0.0)
    driver.push(call)
    call.left = "cancelled"
    driver.drop(call)
    assert kept_by(driver.batcher, Call) == []


@pytest.mark.parametrize("queue", [Queue, KeyedQueues])
def test_a_call_that_never_arrived_counts_nowhere_when_it_leaves(queue: Any) -> None:
    """Ctrl-C, or the end of the batcher, came between its caller's decision and the queue."""
    driver = ManualDriver(Options(batch_size=8, timeout_ms=0), queue, COLLATOR)
    calls = [single(), single()]
    for call in calls:
        call.key = 1
    driver.push(calls[0])
    driver.batcher.leave(calls[1])
    assert driver.delay(0.0) == 0.0
    assert driver.pop(0.0).calls == calls[:1]
    stats = driver.stats(0.0)
    assert (stats.total_accepted, stats.total_cancelled, stats.queue_size) == (1, 0, 0)


def test_a_submit_to_a_closed_batcher_leaves_nothing_behind() -> None:
    """It raises, and the worker that ends does not look for its call."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    running, waiting = fn.submit(1), fn.submit(2)
    gate.wait_for_batch()
    fn.shutdown(wait=False)
    with pytest.raises(ClosedError):
        fn.submit(3)
    gate.open()
    assert [future.result(PATIENCE_S) for future in (running, waiting)] == [1, 2]
    assert fn.stats.total_accepted == 2


def test_a_call_that_is_dropped_midway_keeps_the_inputs_of_its_batches() -> None:
    """A part of a call that has failed: one batch of it ends while the function has yet to get another."""
    driver = ManualDriver(Options(batch_size=1, timeout_ms=0), Queue, COLLATOR)
    call = listed(4)
    driver.push(call)
    first, second, third = (driver.pop(0.0) for _ in range(3))
    driver.run(first, 1.0)
    driver.drop(call)
    driver.run(second, 1.0)
    assert COLLATOR.collate(third) == third.slices[0][0].inputs[2:3]
    driver.run(third, 1.0)
    assert call.inputs is None


def test_a_submit_that_is_refused_keeps_no_item() -> None:
    """After the end of the batcher no worker would come to forget it."""

    class Item:
        pass

    fn = batched.dynamically(list, timeout_ms=0)
    fn(1)
    fn.shutdown()
    item = Item()
    with pytest.raises(ClosedError):
        fn.submit(item)
    gone = weakref.ref(item)
    del item
    gc.collect()
    assert gone() is None
