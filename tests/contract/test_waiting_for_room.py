"""Calls that wait for room in a full queue."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.kit.flavours import Flavour
from tests.kit.full import begin, hold
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import blocked, outside


def test_calls_that_wait_for_room_are_let_in_first_come_first_served(flavour: Flavour) -> None:
    """A small call does not overtake a large one that waits before it."""
    gate, fn, _ = hold(flavour, on_full="wait", batch_size=2)
    flavour.start(fn, [1, 2])
    large = begin(flavour, fn, ["large"] * 3)
    small = begin(flavour, fn, "small")
    later = begin(flavour, fn, "later")
    assert fn.stats.queue_size == 2
    gate.open()
    assert large.result(PATIENCE_S) == ["large"] * 3
    assert (small.result(PATIENCE_S), later.result(PATIENCE_S)) == ("small", "later")
    assert gate.batches[:2] == [["first"], [1, 2]]
    assert gate.batches[2].count("large") >= 1
    assert not outside(fn)
    assert not blocked(fn)


def test_a_full_queue_does_not_wait_for_company(flavour: Flavour) -> None:
    """A bound below the batch size would else never fill a batch while callers wait for room."""
    fn = flavour.decorate(Gate(), batch_size=8, timeout_ms=60_000, max_queue_size=2, on_full="wait")
    futures = [flavour.start(fn, item) for item in range(2)]
    answers: list[Any] = []
    third = threading.Thread(target=lambda: answers.append(flavour.call(fn, 2)), daemon=True)
    third.start()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    until(lambda: fn.stats.queue_size == 1)
    flavour.close(fn)
    third.join(PATIENCE_S)
    assert answers == [2]


def test_waiting_for_room_ends_at_the_deadline(flavour: Flavour) -> None:
    """With a TimeoutError, and nothing of the call is kept."""
    gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=1)
    flavour.start(fn, 1)
    with pytest.raises(TimeoutError, match="deadline_ms=50"):
        flavour.call(fn.options(deadline_ms=50), 2)
    third = begin(flavour, fn, 3)
    gate.open()
    assert third.result(PATIENCE_S) == 3
    assert [2] not in gate.batches
    until(lambda: fn.stats.total_expired == 1)
    assert not blocked(fn)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_expired == 4


@pytest.mark.parametrize("cancel_futures", [False, True])
def test_shutdown_with_callers_that_wait_for_room(flavour: Flavour, cancel_futures: bool) -> None:
    """They are served, or cancelled as all that is queued."""
    flavour.needs_threads()
    gate, fn, first = hold(flavour, on_full="wait", max_queue_size=1)
    queued = flavour.start(fn, 1)
    waiting = [begin(flavour, fn, item) for item in (2, 3)]
    fn.shutdown(wait=False, cancel_futures=cancel_futures)
    gate.open()
    fn.shutdown()
    assert first.result(PATIENCE_S) == "first"
    if cancel_futures:
        for future in (queued, *waiting):
            with pytest.raises(CancelledError):
                future.result(PATIENCE_S)
    else:
        assert [future.result(PATIENCE_S) for future in (queued, *waiting)] == [1, 2, 3]
    assert not blocked(fn)


def test_lowering_the_bound_below_calls_that_wait_does_not_lock_them_out(flavour: Flavour) -> None:
    """They were promised a place; new ones are measured by the new bound."""
    gate, fn, _ = hold(flavour, on_full="wait")
    flavour.start(fn, 1)
    large = begin(flavour, fn, ["large"] * 3)
    behind = begin(flavour, fn, "behind")
    fn.configure(max_queue_size=2)
    with pytest.raises(ValueError, match="max_queue_size=2"):
        flavour.call(fn, ["x"] * 3)
    gate.open()
    assert large.result(PATIENCE_S) == ["large"] * 3
    assert behind.result(PATIENCE_S) == "behind"


def test_raising_the_bound_lets_in_calls_that_wait(flavour: Flavour) -> None:
    """Also lifting it."""
    for bound in (10, None):
        gate, fn, _ = hold(flavour, on_full="wait", max_queue_size=1)
        flavour.start(fn, 1)
        waiting = [begin(flavour, fn, item) for item in (2, 3)]
        assert fn.stats.queue_size == 1
        fn.configure(max_queue_size=bound)
        assert fn.stats.queue_size == 3
        gate.open()
        assert [future.result(PATIENCE_S) for future in waiting] == [2, 3]
