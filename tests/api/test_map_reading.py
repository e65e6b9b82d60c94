"""How far `map` and `amap` read ahead."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batched
import batched.aio
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, until


def test_map_reads_no_further_ahead_than_three_batches() -> None:
    """A huge iterable is consumed as its consumer goes, and dropped when it leaves."""
    read = []

    def source() -> Any:
        for item in range(10**9):
            read.append(item)
            yield item

    fn = batched.dynamically(Gate(), batch_size=4, timeout_ms=0)
    answers = fn.map(source())
    assert read == []
    assert [next(answers) for _ in range(10)] == list(range(10))
    assert len(read) <= 10 + 3 * 4
    answers.close()
    accepted = fn.stats.total_accepted
    assert accepted <= 10 + 3 * 4
    with pytest.raises(TypeError, match="Gate.map takes a list of items, or another iterable, got 3"):
        fn.map(3)


@pytest.mark.parametrize("are_shared", [False, True])
def test_map_has_a_batch_for_each_worker(are_shared: bool) -> None:
    """However many there are: all of them run at once, and one batch more is next."""
    gate = Gate(shut=True)
    workers: dict[str, Any] = {"workers": batched.Workers(5)} if are_shared else {"max_concurrent_batches": 5}
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, adaptive=False, **workers)
    with fn, ThreadPoolExecutor(1) as pool:
        answers = pool.submit(list, fn.map(range(100)))
        try:
            for _ in range(5):
                gate.wait_for_batch()
            until(lambda: fn.stats.total_accepted == 7 * 4)
        finally:
            gate.open()
        assert answers.result(PATIENCE_S) == [*range(100)]


def test_amap_has_a_batch_for_each_that_may_run_at_once() -> None:
    gate = AsyncGate()
    fn = batched.aio.dynamically(gate, batch_size=4, timeout_ms=0, max_concurrent_batches=5)

    async def answers() -> list[int]:
        return [answer async for answer in fn.amap(range(100))]

    async def main() -> None:
        reader = asyncio.create_task(answers())
        for _ in range(5):
            await gate.entered.acquire()
        gate.opened.set()
        assert await reader == [*range(100)]

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_amap_answers_a_slow_source_as_it_comes() -> None:
    """An item is answered before the next one is there, and leaving ends the reader."""
    fn = batched.dynamically(Gate(), batch_size=4, timeout_ms=0)
    closed = []

    async def main() -> None:
        before = asyncio.all_tasks()
        wanted = asyncio.Event()

        async def source() -> Any:
            try:
                for item in range(100):
                    yield item
                    await wanted.wait()
                    wanted.clear()
            finally:
                closed.append(True)

        items = source()
        answers = fn.amap(items)
        for expected in range(5):
            assert await anext(answers) == expected
            wanted.set()
        await answers.aclose()
        await items.aclose()
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert closed == [True]


def test_a_map_has_one_turn_beside_a_list() -> None:
    """Though it has queued several calls: they share each batch with the list evenly."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=4, timeout_ms=0, small_batch_threshold=0, adaptive=False)
    with ThreadPoolExecutor() as pool, fn:
        answers = fn.map(["first"] + ["map"] * 30)
        read = pool.submit(list, answers)
        gate.wait_for_batch()
        until(lambda: fn.stats.queue_size == 2 * 4)
        future = fn.submit(["list"] * 12)
        gate.let_through()
        gate.wait_for_batch()
        gate.open()
        assert future.result(PATIENCE_S) == ["list"] * 12
        assert read.result(PATIENCE_S) == ["first"] + ["map"] * 30
    assert sorted(gate.batches[1]) == ["list", "list", "map", "map"]
