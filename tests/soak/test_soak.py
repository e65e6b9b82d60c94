"""Everything at once, at random: every caller gets its own answer exactly once, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import cachetools
import pytest

import batched
import batched.aio.inference
from batched import aio, inference
from batched._core.keyed_queues import KeyedQueues
from batched._parts.in_flight import Item
from tests.kit.gate import PATIENCE_S
from tests.kit.kept import driver_of, kept_by, size_of
from tests.kit.random_callers import ArrayCaller, Caller, array_function, function, short_of_memory
from tests.kit.stats import check_sums

# Everything that a server asks of a batcher, at once.
SERVER: dict[str, Any] = {
    "max_concurrent_batches": 3,
    "max_queue_size": 400,
    "on_full": "wait",
    "isolate_errors": True,
    "group_by": lambda item: item % 5,
    "cache": cachetools.LRUCache(1000),
}


SHORT = 16
LONG = 600
LIMIT_S = 280.0
LISTS = partial(batched.dynamically, function), Caller
ARRAYS = partial(inference.dynamically, array_function, unpad_outputs={"tokens": "x"}), ArrayCaller


def reconfigure(fn: Any, over: threading.Event) -> None:
    """Change options all the time."""
    rng = random.Random(0)
    while not over.wait(0.01):
        fn.configure(batch_size=rng.randrange(8, 48), timeout_ms=rng.choice([0, 0.5, 2]))
        fn.configure(max_queue_size=rng.choice([None, 400, 1000]), small_batch_threshold=rng.randrange(9))


def soak(turns: int, decorate: Any, kind: type[Caller], *, changing: bool = False) -> None:
    """Let each of many callers, in threads and on event loops, call so many times."""
    fn = decorate(batch_size=32, timeout_ms=0.5, small_batch_threshold=4, name="soak")
    over = threading.Event()
    with ThreadPoolExecutor(11) as pool:
        changes = pool.submit(reconfigure, fn, over) if changing else None
        try:
            threads = [pool.submit(kind(fn, seed, turns).in_a_thread) for seed in range(8)]
            loops = [pool.submit(asyncio.run, kind(fn, seed, turns).tasks(20)) for seed in (100, 101)]
            callers = [future.result(LIMIT_S) for future in threads]
            callers += [caller for future in loops for caller in future.result(LIMIT_S)]
        finally:
            over.set()
        assert changes is None or changes.result(LIMIT_S) is None
    for caller in callers:
        assert caller.asked == caller.answered + caller.failed + caller.late + caller.cancelled
    assert sum(caller.answered for caller in callers) > 100
    check_sums(fn)
    fn.shutdown()
    batcher = driver_of(fn)
    assert not batcher.batcher.arriving
    assert not batcher.batcher.running
    assert not batcher.batcher.waiting()
    assert not batcher.batcher.first
    assert not batcher.dispatcher.blocked
    assert not kept_by(batcher.batcher, Item)
    queue = batcher.batcher.queue
    assert not isinstance(queue, KeyedQueues) or not size_of(queue)
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "batched: soak"]


@pytest.mark.parametrize("what", [LISTS, ARRAYS], ids=["lists", "arrays"])
def test_a_short_soak(what: Any) -> None:
    """A few seconds of it."""
    soak(SHORT, *what)


def test_a_short_soak_of_a_server() -> None:
    """With every option, while those that can change do."""
    soak(SHORT, partial(batched.dynamically, short_of_memory, **SERVER), Caller, changing=True)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", [LISTS, ARRAYS], ids=["lists", "arrays"])
def test_a_long_soak(what: Any) -> None:
    """Half a minute of it."""
    soak(LONG, *what)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_long_soak_of_a_server() -> None:
    """With every option that a server can have."""
    soak(LONG, partial(batched.dynamically, short_of_memory, **SERVER), Caller, changing=True)


def test_a_soak_on_two_loops_answers_everyone_exactly_once() -> None:
    """Random sizes, deadlines, priorities, failures and cancellations."""

    async def asynchronously(items: list[int]) -> list[Any]:
        await asyncio.sleep(0)
        return function(items)

    for batch_function in (asynchronously, function):
        fn = aio.dynamically(batch_function, batch_size=32, timeout_ms=0.5, small_batch_threshold=4)
        with ThreadPoolExecutor(2) as pool:
            loops = [pool.submit(asyncio.run, Caller(fn, seed, SHORT).tasks(20)) for seed in (1, 2)]
            callers = [caller for loop in loops for caller in loop.result(PATIENCE_S)]
        for caller in callers:
            assert caller.asked == caller.answered + caller.failed + caller.late + caller.cancelled
        assert sum(caller.answered for caller in callers) > 100
        check_sums(fn)
        asyncio.run(fn.aclose())
