"""Functions for event loops: each loop has a queue of its own."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from functools import partial
from typing import Any

import pytest

from batched import ClosedError, aio
from batched._drivers.loop_dispatcher import LoopDispatcher
from tests.kit.functions import echo, plain_echo
from tests.kit.gate import PATIENCE_S, until
from tests.kit.kept import driver_of, kept_by


def test_a_thread_that_a_woken_caller_starts_is_on_its_own_loop(run: Any) -> None:
    """Also while the loop that has woken it waits for that thread, and so wakes no other caller."""
    fn = aio.dynamically(echo, timeout_ms=0)

    def elsewhere(item: int) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, fn(item)).result(PATIENCE_S)

    async def caller(item: int) -> list[Any]:
        first = await fn(item)
        return [first, elsewhere(item + 10), await fn(item + 20)]

    async def main() -> list[list[Any]]:
        return await asyncio.gather(*map(caller, range(4)))

    assert run(main()) == [[item, item + 10, item + 20] for item in range(4)]


def test_loops_that_are_made_to_nest_are_told_apart() -> None:
    """As `nest_asyncio` makes them: another one runs while a task that was woken goes on."""
    fn = aio.dynamically(echo, timeout_ms=0)

    def nested() -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        asyncio.tasks._leave_task(
            loop, task
        )  # first: from Python 3.14 on only the running loop's can be left
        asyncio._set_running_loop(None)
        try:
            return asyncio.run(asyncio.wait_for(fn(2), PATIENCE_S))
        finally:
            asyncio._set_running_loop(loop)
            asyncio.tasks._enter_task(loop, task)

    async def main() -> None:
        assert await fn(1) == 1
        assert nested() == 2
        assert await fn(3) == 3

    asyncio.run(main())


def test_who_is_woken_after_one_that_has_shut_it_down_is_refused(run: Any) -> None:
    """Though both were answered by one batch."""
    fn = aio.dynamically(echo, timeout_ms=0)

    async def closing() -> None:
        await fn(1)
        await fn.aclose()

    async def calling() -> None:
        await fn(2)
        with pytest.raises(ClosedError):
            await fn(3)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(closing(), calling()), PATIENCE_S)
        assert fn.stats.total_batches == 1

    run(main())


class CallableObject:
    async def __call__(self, items: list[Any]) -> list[Any]:
        return [asyncio.get_running_loop()] * len(items)


class Methods:
    @aio.dynamically(timeout_ms=0)
    async def of_instance(self, items: list[Any]) -> list[Any]:
        return [(self, asyncio.get_running_loop())] * len(items)

    @aio.dynamically(timeout_ms=0)
    @classmethod
    async def of_class(cls, items: list[Any]) -> list[Any]:
        return [(cls, asyncio.get_running_loop())] * len(items)

    @aio.dynamically(timeout_ms=0)
    @staticmethod
    async def static(items: list[Any]) -> list[Any]:
        return [asyncio.get_running_loop()] * len(items)


def test_whatever_is_async_runs_on_the_loop_of_its_callers(run: Any) -> None:
    """Functions, methods of every kind, callable objects and partials."""

    async def with_more(more: int, items: list[Any]) -> list[Any]:
        return [asyncio.get_running_loop()] * len(items)

    threads = set(threading.enumerate())  # some of earlier tests may be about to end

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for function in (CallableObject(), CallableObject().__call__, partial(with_more, 1)):
            assert await aio.dynamically(function, timeout_ms=0)(1) is loop
        one, two = Methods(), Methods()
        assert await one.of_instance([1, 2]) == [(one, loop)] * 2
        assert await Methods.of_instance(two, 1) == (two, loop)
        assert await Methods.of_class(1) == await one.of_class(1) == (Methods, loop)
        assert await Methods.static(1) is loop
        assert (one.of_instance.stats.total_processed, two.of_instance.stats.total_processed) == (2, 1)
        assert set(threading.enumerate()) <= threads

    run(main())


@pytest.mark.parametrize("function", [echo, plain_echo])
def test_ten_loops_one_after_another(run: Any, function: Any) -> None:
    """Each gets its answers, the stats are one, and nothing of a loop is left."""
    fn = aio.dynamically(function, timeout_ms=0)
    driver = driver_of(fn)
    before = len(kept_by(driver, weakref.ref))
    loops: list[weakref.ref[Any]] = []

    async def main(number: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        assert await asyncio.gather(*(fn([number, item]) for item in range(10))) == [
            [number, item] for item in range(10)
        ]

    for number in range(10):
        run(main(number))
    until(lambda: gc.collect() is not None and not any(loop() for loop in loops))  # a thread may be the last
    assert (fn.stats.total_accepted, fn.stats.total_processed) == (200, 200)
    if function is echo:
        assert not driver.resting
        assert not driver.dispatchers()
        assert len(kept_by(driver, weakref.ref)) == before


def test_two_loops_in_two_threads_batch_their_own_callers(run: Any) -> None:
    """At once: their batches overlap, and one snapshot counts both, whole at every moment."""
    barrier = threading.Barrier(2)

    @aio.dynamically(batch_size=4, timeout_ms=0)
    async def meet(items: list[int]) -> list[Any]:
        await asyncio.to_thread(barrier.wait, PATIENCE_S)
        return [asyncio.get_running_loop() for _ in items]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            answers = await asyncio.gather(*map(meet, range(4)))
            assert answers == [loop] * 4

    with ThreadPoolExecutor(2) as pool:
        callers = [pool.submit(run, main()) for _ in range(2)]
        while not all(caller.done() for caller in callers):
            stats = meet.stats
            assert stats.total_accepted == (
                stats.queue_size + stats.running_items + stats.total_processed + stats.total_cancelled
            )
            assert stats.running_items <= 8
            wait_for_futures(callers, timeout=1e-4)  # else the loops get little of the interpreter
        for caller in callers:
            caller.result(PATIENCE_S)
    assert (meet.stats.total_processed, meet.stats.total_batches) == (160, 40)


def test_what_is_learned_is_that_of_the_loop_that_has_learned_most() -> None:
    """Neither of the newest loop, which may know nothing, nor of the first."""
    fn = aio.dynamically(echo, timeout_ms=5)

    async def call(times: int) -> None:
        for number in range(times):
            await fn.acall([1] * (1 + number % 2))

    few, many, none = (asyncio.new_event_loop() for _ in range(3))
    few.run_until_complete(call(5))
    of_few = fn.stats.learned
    assert of_few is not None
    many.run_until_complete(call(20))
    of_many = fn.stats.learned
    assert of_many not in (None, of_few)
    none.run_until_complete(call(1))
    assert fn.stats.learned == of_many
    few.run_until_complete(call(1))
    assert fn.stats.learned == of_many
    for loop in (few, many, none):
        loop.close()


def test_a_loop_is_not_taken_for_one_that_is_gone() -> None:
    """Of twenty loops one after another, most have the address of one before, of which the queue is kept."""
    fn = aio.dynamically(echo, timeout_ms=0)
    queues: list[LoopDispatcher] = []

    async def main() -> None:
        assert await asyncio.wait_for(fn(1), PATIENCE_S) == 1
        queues.extend(each for each in driver_of(fn).dispatchers() if each.is_running())

    for _ in range(20):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        del loop
        gc.collect()
    assert len(set(queues)) == 20


def test_ten_thousand_tasks_start_no_thread() -> None:
    """And each gets its own answer."""

    async def main() -> None:
        before = set(threading.enumerate())
        fn = aio.dynamically(echo, timeout_ms=0)
        assert await asyncio.gather(*map(fn, range(10_000))) == list(range(10_000))
        assert set(threading.enumerate()) <= before

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
