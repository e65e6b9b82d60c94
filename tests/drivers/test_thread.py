"""Callers in threads and on event loops share the worker of one function."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import batched
from tests.kit.gate import PATIENCE_S, Gate


def test_two_loops_and_threads_share_one_worker() -> None:
    """Each gets its own answers, one after another and at once; a closed loop harms no other."""
    gate = Gate(lambda xs: [x * 2 for x in xs], shut=True)
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=60_000)

    async def leave_early() -> None:
        task = asyncio.create_task(fn.acall(100))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leave_early())
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(asyncio.run, fn.acall(1)),
            pool.submit(asyncio.run, fn.acall(2)),
            pool.submit(fn, 3),
        ]
        gate.open()
        assert [future.result(PATIENCE_S) for future in futures] == [2, 4, 6]
    assert 100 not in sum(gate.batches, [])
    for item in range(10):
        assert asyncio.run(fn.options(priority="interactive").acall([item, item, item])) == [2 * item] * 3


def test_a_loop_closed_under_a_running_batch_harms_nobody() -> None:
    """The worker goes on, and prints nothing."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=60_000)
    loop = asyncio.new_event_loop()
    task = loop.create_task(fn.acall(1))
    loop.run_until_complete(asyncio.sleep(0))
    other = fn.submit(2)
    gate.wait_for_batch()
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    gate.open()
    assert other.result(PATIENCE_S) == 2


def test_ten_thousand_tasks_need_no_further_thread() -> None:
    """Waiting on an event loop costs no thread."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1024, timeout_ms=0)
    fn.submit(0)
    gate.wait_for_batch()
    before = threading.active_count()

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall(item)) for item in range(10_000)]
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        gate.open()
        assert await asyncio.gather(*tasks) == list(range(10_000))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
