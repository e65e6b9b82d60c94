"""Callers that wait for equal items leave, are late, or meet the end of the batcher."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.kit.cached import nothing_is_left
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("running", [False, True])
def test_either_of_two_equal_callers_may_leave(flavour: Flavour, running: bool, leaver: int) -> None:
    """While the item waits, and while it runs: the other gets the value."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    cache: dict[Any, Any] = {}
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache=cache)
    if not running:
        flavour.start(fn, "busy")
        gate.wait_for_batch()
    futures = [flavour.start(fn, "a"), flavour.start(fn, "a")]
    if running:
        gate.wait_for_batch()
    flavour.cancel(futures[leaver])
    gate.open()
    assert futures[1 - leaver].result(PATIENCE_S) == "a"
    until(lambda: cache.get("a") == "a")
    nothing_is_left(fn)


def test_an_item_whose_callers_have_left_never_runs(flavour: Flavour) -> None:
    """Both have left; a third that comes later gets a run of its own."""
    if not flavour.cancels:
        pytest.skip("a blocked thread has no cancel")
    gate = Gate(shut=True)
    cache: dict[Any, Any] = {}
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0, cache=cache)
    busy = flavour.start(fn, "busy")
    gate.wait_for_batch()
    futures = [flavour.start(fn, "a"), flavour.start(fn, ["a", "b"])]
    for future in futures:
        flavour.cancel(future)
    third = flavour.start(fn, ["b", "c"])
    gate.open()
    assert (busy.result(PATIENCE_S), third.result(PATIENCE_S)) == ("busy", ["b", "c"])
    nothing_is_left(fn)
    assert gate.batches == [["busy"], ["b", "c"]]
    assert "a" not in cache
    assert fn.stats.total_cancelled == 2


@pytest.mark.parametrize(("first_ms", "second_ms"), [(30, None), (None, 30), (30, 60_000)])
def test_an_early_deadline_does_not_end_what_another_waits_for(
    flavour: Flavour, first_ms: float | None, second_ms: float | None
) -> None:
    """The run has as long as the most patient of its callers, whichever came first."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, cache={})
    flavour.start(fn, "busy")
    gate.wait_for_batch()
    with ThreadPoolExecutor(2) as pool:
        futures: list[Any] = []
        for allowed_ms in (first_ms, second_ms):
            view = fn.options(deadline_ms=allowed_ms) if allowed_ms else fn
            # A future of `submit` would be late only when the worker looks again: its caller blocks instead.
            ask = partial(flavour.call, view) if flavour.in_tasks else view
            futures.append(pool.submit(ask, "a"))
            until(lambda: fn.stats.total_accepted + fn.stats.total_cached == 1 + len(futures))
        hasty, patient = futures if first_ms == 30 else reversed(futures)
        with pytest.raises(TimeoutError):
            hasty.result(PATIENCE_S)
        gate.open()
        assert patient.result(PATIENCE_S) == "a"
    nothing_is_left(fn)
