"""Several batches at once: `max_concurrent_batches`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from batched._core.first import First
from batched._core.halves import Half
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.threads import workers

POOL = "each holds four threads of the loop's pool, which has six on two cores"


def test_as_many_batches_run_at_once(flavour: Flavour) -> None:
    """And no more; the next waits for the first that ends, and is bound only then."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, max_concurrent_batches=3)
    futures = [flavour.start(fn, [item, item]) for item in range(3)]
    for _ in range(3):
        gate.wait_for_batch()
    futures += [flavour.start(fn, item) for item in (3, 4)]
    assert len(gate.batches) == 3
    assert (fn.stats.running_items, fn.stats.queue_size, len(fn.stats.running)) == (6, 2, 3)
    gate.open()
    answers = [future.result(PATIENCE_S) for future in futures]
    assert answers == [[0, 0], [1, 1], [2, 2], 3, 4]
    assert gate.batches[3] == [3, 4]
    flavour.close(fn)


@pytest.mark.thread_unsafe(reason=POOL)
def test_a_burst_that_fits_one_batch_goes_as_one(flavour: Flavour) -> None:
    """However many workers are idle, and whether or not they have worked before: batches wait for it."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=8, timeout_ms=60_000, adaptive=False, max_concurrent_batches=4)
    first = [flavour.start(fn, [turn] * 8) for turn in range(4)]
    for _ in range(4):
        gate.wait_for_batch()
    gate.open()
    for future in first:
        future.result(PATIENCE_S)
    for _ in range(10):
        gate.batches.clear()
        futures = [flavour.start(fn, item) for item in range(8)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
        assert gate.batches == [list(range(8))]
    flavour.close(fn)


@pytest.mark.thread_unsafe(reason=POOL)
def test_parts_of_one_list_run_at_once(flavour: Flavour) -> None:
    """And come together in order, in whatever order they end."""
    both = threading.Barrier(4)

    def together(items: list[int]) -> list[int]:
        both.wait(PATIENCE_S)
        return [item * 2 for item in items]

    fn = flavour.decorate(together, batch_size=5, timeout_ms=0, max_concurrent_batches=4)
    assert flavour.call(fn, list(range(20))) == list(range(0, 40, 2))
    flavour.close(fn)


@pytest.mark.thread_unsafe(reason=POOL)
def test_parts_that_end_in_reverse_come_together_in_order(flavour: Flavour) -> None:
    """Each part waits for the one behind it."""
    ended = [threading.Event() for _ in range(5)]
    ended[4].set()

    def backwards(items: list[int]) -> list[int]:
        part = items[0] // 2
        assert ended[part + 1].wait(PATIENCE_S)
        ended[part].set()
        return items

    fn = flavour.decorate(backwards, batch_size=2, timeout_ms=0, max_concurrent_batches=4)
    assert flavour.call(fn, list(range(8))) == list(range(8))
    flavour.close(fn)


@pytest.mark.thread_unsafe(reason=POOL)
def test_parts_of_one_call_of_arrays_run_at_once(flavour: Flavour) -> None:
    """Rows are written where they belong."""
    both = threading.Barrier(4)

    def together(features: dict[str, Any]) -> Any:
        both.wait(PATIENCE_S)
        return features["x"] * 2

    fn = flavour.decorate_arrays(together, batch_size=5, timeout_ms=0, max_concurrent_batches=4)
    x = np.arange(60).reshape(20, 3)
    assert np.array_equal(flavour.call(fn, x=x), x * 2)
    flavour.close(fn)


def test_a_part_that_fails_fails_the_list_and_nobody_else(flavour: Flavour) -> None:
    """The other parts, running or not, go nowhere."""
    gate = Gate(lambda items: items if 3 not in items else 1 / 0, shut=True)  # type: ignore[arg-type,return-value]
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=0, max_concurrent_batches=2)
    failing = flavour.start(fn, list(range(8)))
    for _ in range(2):
        gate.wait_for_batch()
    other = flavour.start(fn, "other")
    gate.open()
    assert isinstance(failing.exception(PATIENCE_S), ZeroDivisionError)
    assert other.result(PATIENCE_S) == "other"
    until(lambda: not fn.stats.running_items)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled == 9
    flavour.close(fn)


def test_shutdown_ends_all_workers(flavour: Flavour) -> None:
    """After what is queued has run, at once where they can."""
    gate = Gate(shut=True)
    fn = flavour.decorate(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3, name="ending")
    futures = [flavour.start(fn, item) for item in range(9)]
    for _ in range(3):
        gate.wait_for_batch()
    gate.open()
    flavour.close(fn)
    assert [future.result(PATIENCE_S) for future in futures] == list(range(9))
    until(lambda: not workers("ending"))


def test_async_batch_functions_run_at_once(flavour: Flavour) -> None:
    """Each worker has a loop of its own."""
    entered = threading.Barrier(2)

    async def together(items: list[int]) -> list[int]:
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        return items

    fn = flavour.decorate(together, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    assert flavour.call(fn, [1, 2]) == [1, 2]
    assert flavour.call(fn, [3, 4]) == [3, 4]
    flavour.close(fn)


@pytest.mark.parametrize("cycle", range(6))
def test_a_call_that_runs_ahead_amid_an_outage_holds_up_the_others_until_its_end(
    flavour: Flavour, cycle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer, though the other worker has found nothing to run, and sleeps."""
    fails, looked, finds = [True], threading.Event(), First.find

    def noted(*args: Any) -> Half | None:
        found = finds(*args)
        if found is None:
            looked.set()
        return found

    def answer(items: list[int]) -> list[int]:
        if fails[0]:
            raise RuntimeError("503")
        if len(items) == 1:
            assert looked.wait(PATIENCE_S)
        return items

    monkeypatch.setattr(First, "find", noted)
    fn = flavour.decorate(answer, timeout_ms=0, max_concurrent_batches=2)
    ask = fn.options(return_exceptions=True)
    for _ in range(cycle + 1):  # by chance, one item of every other batch runs ahead
        results = flavour.start(ask, [*range(8)]).result(PATIENCE_S)
        assert all(isinstance(result, RuntimeError) for result in results)
    assert fn.stats.isolation_paused
    looked.clear()
    fails[0] = False
    results = flavour.start(ask, [*range(8)]).result(PATIENCE_S)
    assert results == [*range(8)]
    assert not fn.stats.isolation_paused
    flavour.close(fn)
