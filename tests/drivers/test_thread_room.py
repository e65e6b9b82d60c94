"""Threads, tasks and futures of one batcher that wait for room in its queue."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

import batched
from batched import QueueFullError
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.kept import blocked, outside


def test_a_refused_task_leaves_no_timer_behind() -> None:
    """A deadline far ahead would else keep its call for as long."""
    timers: list[asyncio.TimerHandle] = []

    class Noting(asyncio.SelectorEventLoop):
        def call_at(self, *args: Any, **named: Any) -> asyncio.TimerHandle:
            timers.append(super().call_at(*args, **named))
            return timers[-1]

    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1)

    async def main() -> None:
        first = asyncio.create_task(fn.acall(0))
        await asyncio.to_thread(gate.wait_for_batch)
        second = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        for _ in range(10):
            with pytest.raises(QueueFullError):
                await fn.options(deadline_ms=600_000).acall(2)
        assert all(timer.cancelled() for timer in timers)
        gate.open()
        assert await asyncio.gather(first, second) == [0, 1]

    with asyncio.Runner(loop_factory=Noting) as runner:
        runner.run(main())


def test_single_items_never_overrun_the_bound() -> None:
    """However many threads push at once; and none is refused while there is room."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=50)
    first = fn.submit(-1)
    gate.wait_for_batch()
    results: list[int | str] = []
    barrier = threading.Barrier(80)

    def call(item: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            results.append(fn(item))
        except QueueFullError:
            results.append("full")

    threads = [threading.Thread(target=call, args=[item], daemon=True) for item in range(80)]
    for thread in threads:
        thread.start()
    until(lambda: results.count("full") == 30)
    assert fn.stats.queue_size == 50
    gate.open()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert first.result(PATIENCE_S) == -1
    assert len(results) == 80
    assert results.count("full") == 30
    fn.shutdown()


def test_a_task_that_is_cancelled_while_it_waits_for_room_leaves() -> None:
    """Those behind it move up."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall(item)) for item in range(4)]
        await asyncio.to_thread(gate.wait_for_batch)
        tasks[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[2]
        gate.open()
        assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == [0, 1, 3]

    asyncio.run(main())
    assert [2] not in gate.batches
    assert not blocked(fn)
    assert fn.stats.total_cancelled == 1


def test_submit_blocks_until_there_is_room() -> None:
    """Its future is not returned before."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1, on_full="wait")
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    futures.append(fn.submit(1))
    returned = threading.Event()

    def submit() -> None:
        futures.append(fn.submit(2))
        returned.set()

    threading.Thread(target=submit, daemon=True).start()
    until(lambda: blocked(fn))
    assert not returned.is_set()
    gate.let_through()
    gate.wait_for_batch()
    assert returned.wait(PATIENCE_S)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]


def ask_in_a_thread(fn: Any, seed: int, answered: list[int]) -> None:
    """Ask lists of all sizes, some of them in great haste."""
    for turn in range(60):
        size = 1 + (seed + turn) % 10
        with contextlib.suppress(TimeoutError):
            assert fn.options(deadline_ms=20_000 if turn % 5 else 0.2)([turn] * size) == [turn] * size
            answered.append(seed)


async def ask_in_a_task(fn: Any, seed: int, answered: list[int]) -> None:
    """Ask lists of all sizes, and leave at times."""
    for turn in range(60):
        task = asyncio.ensure_future(fn.acall([turn] * (1 + (seed + turn) % 10)))
        if turn % 7 == 0:
            await asyncio.sleep(0)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert set(await task) == {turn}
            answered.append(seed)


def test_a_bounded_queue_under_random_load_answers_all_callers() -> None:
    """Threads and tasks, with and without patience; then nothing is left."""
    fn = batched.dynamically(
        lambda items: items, batch_size=8, timeout_ms=0.2,
        max_queue_size=10, on_full="wait", max_concurrent_batches=2,
    )  # fmt: skip
    answered: list[int] = []

    async def tasks() -> None:
        await asyncio.gather(*(ask_in_a_task(fn, seed, answered) for seed in range(10)))

    threads = [threading.Thread(target=ask_in_a_thread, args=[fn, seed, answered]) for seed in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(tasks(), PATIENCE_S))
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
    assert len(answered) > 100
    assert not blocked(fn)
    assert not outside(fn)
    fn.shutdown()
