"""Caches where threads, futures and tasks share one batcher."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import cachetools
import pytest

import batched
from tests.kit.cached import nothing_is_left
from tests.kit.caches import Client
from tests.kit.gate import PATIENCE_S, Gate


class Returning(Client):
    """One whose plain functions return what can only be awaited, as those of `redis.asyncio` do."""

    def get(self, key: Any) -> Any:
        return self._get(key)

    async def _get(self, key: Any) -> Any:
        raise AssertionError("it was awaited")


def test_a_cache_that_can_only_be_awaited_is_refused_by_threads() -> None:
    """Where it says so by decoration, else by the first call of any kind; nothing is left of that."""
    gate = Gate()
    fn = batched.dynamically(gate, timeout_ms=0, cache=Returning(), name="f")
    for call in (
        lambda: fn(1),
        lambda: fn([1, 2]),
        lambda: fn.submit(1),
        lambda: list(fn.map([1])),
        lambda: asyncio.run(fn.acall(1)),
    ):
        with pytest.raises(TypeError, match="f: a cache with asynchronous get and set needs batched.aio"):
            call()
    assert gate.batches == []
    nothing_is_left(fn)


def test_cancelled_tasks_leave_equal_items_to_each_other() -> None:
    """Half of a hundred, at random; all others are answered."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=0, cache={})

    async def main() -> None:
        tasks = [asyncio.create_task(fn.acall([number % 7, number % 5])) for number in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        gate.open()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        for number, answer in enumerate(answers):
            if number % 2:
                assert answer == [number % 7, number % 5]
            else:
                assert isinstance(answer, asyncio.CancelledError)

    asyncio.run(main())
    nothing_is_left(fn)


def check(items: list[int], answers: list[Any]) -> None:
    for item, answer in zip(items, answers, strict=True):
        assert isinstance(answer, ValueError) if item == 13 else answer == ("out", item)


def ask_in_a_thread(fn: Any, seed: int) -> None:
    """Ask lists of a few keys, some of them in great haste."""
    for turn in range(80):
        items = [(seed + turn * step) % 16 for step in range(1 + turn % 9)]
        hasty = fn.options(deadline_ms=0.3, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            check(items, (fn if turn % 4 else hasty)(items))


async def ask_in_a_task(fn: Any, seed: int) -> None:
    """Ask lists of a few keys, and leave at times."""
    for turn in range(60):
        items = [(seed * turn + step) % 16 for step in range(1 + turn % 5)]
        task = asyncio.ensure_future(fn.acall(items))
        if turn % 3 == 0:
            await asyncio.sleep(0)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            check(items, await task)


def test_equal_items_at_random() -> None:
    """Threads and tasks that ask, leave and are late over a few keys; then nothing is left."""
    fn = batched.dynamically(
        lambda items: [ValueError(item) if item == 13 else ("out", item) for item in items],
        batch_size=4, timeout_ms=0.2, cache=cachetools.LRUCache(4), group_by=lambda item: item % 2,
        max_queue_size=30, on_full="wait", max_concurrent_batches=2,
    )  # fmt: skip
    view = fn.options(return_exceptions=True)

    async def tasks() -> None:
        await asyncio.gather(*(ask_in_a_task(view, seed) for seed in range(10)))

    threads = [threading.Thread(target=ask_in_a_thread, args=[view, seed], daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(tasks(), PATIENCE_S))
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    nothing_is_left(fn)
    fn.shutdown()
