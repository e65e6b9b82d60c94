"""`shutdown` reaches calls that run again, wait for an equal item, or have several keys."""

from __future__ import annotations

from concurrent.futures import CancelledError

import pytest

import batched
from tests.kit.cached import nothing_is_left
from tests.kit.culprits import Bad, picky
from tests.kit.gate import PATIENCE_S, Gate


def test_what_is_to_run_again_counts_as_running_and_survives_shutdown() -> None:
    """No call is forgotten between two halves."""
    gate = Gate(picky({0}), shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=60_000, isolate_errors=True)
    futures = [fn.submit(item) for item in range(4)]
    gate.wait_for_batch()
    gate.let_through()
    gate.wait_for_batch()
    assert (fn.stats.running_items, fn.stats.queue_size, fn.stats.total_processed) == (4, 0, 0)
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    assert isinstance(futures[0].exception(0), Bad)
    assert [future.result(0) for future in futures[1:]] == [("ok", item) for item in range(1, 4)]


def test_shutdown_answers_all_callers_of_an_item() -> None:
    """Drained, or cancelled: all callers of one item alike."""
    for cancel_futures in (False, True):
        gate = Gate(shut=True)
        fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, cache={}, group_by=lambda item: item)
        busy = fn.submit("busy")
        gate.wait_for_batch()
        futures = [fn.submit("a"), fn.submit(["a", "b"]), fn.submit("b")]
        fn.shutdown(wait=False, cancel_futures=cancel_futures)
        gate.open()
        fn.shutdown()
        assert busy.result(0) == "busy"
        if cancel_futures:
            assert all(future.cancelled() for future in futures)
        else:
            assert [future.result(0) for future in futures] == ["a", ["a", "b"], "b"]
        nothing_is_left(fn)


# -- leaving and being late -----------------------------------------------------------------------------


def test_cancelling_at_shutdown_reaches_a_list_of_mixed_keys() -> None:
    """Once, whatever of it runs."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=0, group_by=lambda item: item % 2)
    part = fn.submit([1, 2])
    gate.wait_for_batch()
    whole = fn.submit([3, 4])
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    for future in (part, whole):
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)
