"""Callers in threads meet at every step: the interpreter changes threads as often as it can."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

import batched
from batched import aio
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S
from tests.kit.stats import check_sums
from tests.kit.threads import together

pytestmark = pytest.mark.usefixtures("restless")


def test_callers_add_keys_while_the_worker_plans() -> None:
    """Every call of every thread is answered, and the counters are never lost."""
    fn = batched.dynamically(list, group_by=lambda item: item % 7, timeout_ms=0.2, adaptive=False)
    turns = times(1500, 40)

    def work(number: int) -> None:
        for turn in range(turns):
            assert fn(number + turn) == number + turn

    together(6, work)
    assert fn.stats.total_accepted == 6 * turns
    check_sums(fn)


def test_lists_that_run_again_in_parts_and_fail_on_several_workers() -> None:
    """A list fails with its first part, while other workers have others in hand or are about to take them."""

    def fail(items: list[int]) -> list[int]:
        raise ValueError(items)

    fn = batched.dynamically(
        fail, batch_size=4, timeout_ms=0.05, adaptive=False, isolate_errors=True, max_concurrent_batches=4
    )

    def work(number: int) -> None:
        for _ in range(times(200, 20)):
            with pytest.raises(ValueError, match=r"\["):
                fn([number] * 16)

    together(6, work)
    check_sums(fn)
    fn.shutdown()


def test_options_change_while_an_event_loop_asks_whether_its_queue_is_full() -> None:
    """No call is lost, and none fails, whatever other threads configure."""

    async def double(items: list[str]) -> list[str]:
        return [item * 2 for item in items]

    fn = aio.dynamically(double, batch_size=4, timeout_ms=0, length=len, max_batch_length=8)
    done = threading.Event()

    def configure() -> None:
        chance = random.Random(0)
        while not done.is_set():
            fn.configure(batch_size=chance.randint(2, 9), max_batch_length=chance.randint(4, 20))

    async def main() -> None:
        for _ in range(times(200, 20)):
            calls = [fn("ab" * (turn % 4 + 1)) for turn in range(20)]
            await asyncio.wait_for(asyncio.gather(*calls, fn(["abc"] * 9)), PATIENCE_S)

    thread = threading.Thread(target=configure, daemon=True)
    thread.start()
    try:
        asyncio.run(main())
    finally:
        done.set()
        thread.join(PATIENCE_S)
    check_sums(fn)
