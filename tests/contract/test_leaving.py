"""Calls that are cancelled or late."""

from __future__ import annotations

import random
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.held import hold


def test_a_cancelled_call_never_runs_and_its_place_is_refilled(flavour: Flavour) -> None:
    """Behind four cancelled callers, four live ones make one full batch."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate, fn, _ = hold(flavour, batch_size=4, timeout_ms=60_000)
    gone = [flavour.start(fn, "gone") for _ in range(4)]
    live = [flavour.start(fn, index) for index in range(4)]
    for future in gone:
        flavour.cancel(future)
    assert all(future.cancelled() for future in gone)
    gate.open()
    assert [future.result(PATIENCE_S) for future in live] == [0, 1, 2, 3]
    assert gate.batches[1:] == [[0, 1, 2, 3]]
    assert fn.stats.total_cancelled == 4


def test_a_cancelled_caller_of_a_running_batch_harms_nobody(flavour: Flavour) -> None:
    """It is free at once, while the batch still runs; the others get their answers."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=3, timeout_ms=60_000)
    futures = [flavour.start(fn, index) for index in range(3)]
    gate.wait_for_batch()
    flavour.cancel(futures[1])
    with pytest.raises(CancelledError):
        futures[1].result(0)
    gate.open()
    assert [futures[0].result(PATIENCE_S), futures[2].result(PATIENCE_S)] == [0, 2]
    assert flavour.call(fn, [7, 8, 9]) == [7, 8, 9]


def test_a_random_half_cancelled_leaves_the_other_half_whole(flavour: Flavour) -> None:
    """Of 400 calls every one that stays gets its own answer."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate, fn, _ = hold(flavour, batch_size=16, timeout_ms=0)
    futures = [flavour.start(fn, index) for index in range(400)]
    gone = set(random.Random(1).sample(range(400), 200))
    for index in gone:
        flavour.cancel(futures[index])
    gate.open()
    for index, future in enumerate(futures):
        if index not in gone:
            assert future.result(PATIENCE_S) == index
    assert not gone & {item for batch in gate.batches for item in batch}


def test_a_deadline_frees_the_caller_while_the_worker_is_busy(flavour: Flavour) -> None:
    """The item that was late is never executed."""
    gate, fn, first = hold(flavour, batch_size=1, timeout_ms=0)
    late = flavour.start(fn.options(deadline_ms=20), "late")
    if flavour.name != "submit":  # a future's wait is bounded by its caller
        with pytest.raises(TimeoutError, match="deadline_ms=20"):
            late.result(PATIENCE_S)
    else:
        wait([late], timeout=0.05)
    gate.open()
    assert first.result(PATIENCE_S) == ["first"]
    with pytest.raises(TimeoutError, match="deadline_ms=20"):
        late.result(PATIENCE_S)
    assert flavour.call(fn, "next") == "next"
    assert gate.batches == [["first"], ["next"]]
    assert fn.stats.total_expired == 1


def test_a_deadline_shorter_than_the_window_is_met(flavour: Flavour) -> None:
    """No caller times out only because it was made to wait for company."""
    fn = flavour.decorate(Gate(), batch_size=4, timeout_ms=60_000)
    assert flavour.call(fn.options(deadline_ms=1000), 1) == 1


@pytest.mark.parametrize("value", [0, -1, float("nan"), "5", True, [5]])
def test_a_senseless_deadline_is_refused(flavour: Flavour, value: Any) -> None:
    """The value is in the message, whatever has been asked for before; nothing else is shown with it."""
    fn = flavour.decorate(Gate())
    fn.options(deadline_ms=1)  # which is equal to True
    with pytest.raises((TypeError, ValueError), match="deadline_ms must be") as caught:
        fn.options(deadline_ms=value)
    assert caught.value.__context__ is None
    with pytest.raises(ValueError, match="'urgent'"):
        fn.options(priority="urgent")
