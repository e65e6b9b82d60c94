"""`shutdown` and `aclose`: what runs, what is cancelled, and that no thread is left."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

import batched
import batched.inference
from batched import ClosedError
from tests.kit.gate import PATIENCE_S, Gate, until
from tests.kit.threads import workers

PROCESS = "looks at all threads of the process"


def test_cancelling_at_shutdown_spares_all_that_runs() -> None:
    """Three batches run, the rest is cancelled."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3)
    futures = [fn.submit(item) for item in range(9)]
    for _ in range(3):
        gate.wait_for_batch()
    fn.shutdown(wait=False, cancel_futures=True)
    gate.open()
    fn.shutdown()
    assert [future.result(PATIENCE_S) for future in futures[:3]] == [0, 1, 2]
    for future in futures[3:]:
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)


def test_a_closer_waits_for_all_batches() -> None:
    """`aclose` too, and re-entrance is refused in every worker."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        gate.wait_for_batch()

    async def close() -> None:
        closing = asyncio.create_task(fn.aclose())
        await asyncio.sleep(0)
        gate.let_through()
        await asyncio.to_thread(lambda: until(lambda: sum(future.done() for future in futures) == 1))
        assert not closing.done()
        gate.open()
        await closing
        assert all(future.done() for future in futures)

    asyncio.run(close())


@pytest.mark.thread_unsafe(reason=PROCESS)
@pytest.mark.parametrize("close", ["shutdown", "aclose"])
def test_a_closer_waits_for_a_worker_that_was_one_too_many(close: str) -> None:
    """That worker still closes its own event loop, where a task of the user may end."""
    entered = threading.Semaphore(0)
    ending, may_end = threading.Event(), threading.Event()
    go = threading.Event()
    left: list[asyncio.Task[None]] = []

    async def leave_task_behind() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if not ending.is_set():  # the first worker that ends
                ending.set()
                may_end.wait(PATIENCE_S)
                ended.append("the worker that was one too many")

    async def batch_function(items: list[int]) -> list[int]:
        entered.release()
        left.append(asyncio.create_task(leave_task_behind()))
        await asyncio.sleep(0)
        go.wait(PATIENCE_S)
        return items

    fn = batched.dynamically(
        batch_function, batch_size=1, timeout_ms=0, max_concurrent_batches=2, name="too many"
    )
    futures = [fn.submit(item) for item in range(2)]
    for _ in range(2):
        assert entered.acquire(timeout=PATIENCE_S)
    fn.configure(max_concurrent_batches=1)
    go.set()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1]
    assert ending.wait(PATIENCE_S)  # the worker that is one too many ends
    assert fn.submit(2).result(PATIENCE_S) == 2
    ended: list[str] = []

    def end() -> None:
        if close == "shutdown":
            fn.shutdown()
        else:
            asyncio.run(fn.aclose())
        ended.append("the closer")

    closer = threading.Thread(target=end, daemon=True)
    closer.start()
    until(lambda: len(workers("too many")) == 1)  # all the others have ended
    may_end.set()
    closer.join(PATIENCE_S)
    assert ended == ["the worker that was one too many", "the closer"]
    if close == "shutdown":
        assert workers("too many") == []


@pytest.mark.thread_unsafe(reason=PROCESS)
def test_shutdown_leaves_no_thread_while_the_number_of_workers_falls() -> None:
    """All threads have ended when it returns, those too that were about to leave anyway."""
    for _ in range(20):
        fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, max_concurrent_batches=4, name="falling")
        futures = [fn.submit(item) for item in range(8)]
        fn.configure(max_concurrent_batches=1)
        assert [future.result(PATIENCE_S) for future in futures] == list(range(8))
        fn.shutdown()
        assert workers("falling") == []


def test_cancelling_at_shutdown_spares_the_running_batch() -> None:
    """What is queued gets CancelledError, from a thread, a future and a task alike."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    running = fn.submit("running")
    gate.wait_for_batch()
    queued = fn.submit("queued")

    async def task() -> str:
        try:
            await fn.acall("task")
        except asyncio.CancelledError:
            return "cancelled"
        return "ran"

    def call() -> str:
        try:
            fn("thread")
        except CancelledError:
            return "cancelled"
        return "ran"

    with ThreadPoolExecutor(2) as pool:
        callers = [pool.submit(call), pool.submit(asyncio.run, task())]
        until(lambda: fn.stats.queue_size == 3)
        fn.shutdown(wait=False, cancel_futures=True)
        assert [caller.result(PATIENCE_S) for caller in callers] == ["cancelled", "cancelled"]
    assert queued.cancelled()
    gate.open()
    assert running.result(PATIENCE_S) == "running"
    fn.shutdown()
    assert gate.batches == [["running"]]


def test_shutdown_from_inside_the_batch_function_cannot_wait() -> None:
    """It raises a ClosedError instead of waiting for itself; without `wait` it works."""
    raised = []

    def end(items: list[int]) -> list[int]:
        try:
            fn.shutdown()
        except ClosedError as error:
            raised.append(error)
        fn.shutdown(wait=False)
        return items

    fn = batched.dynamically(end, timeout_ms=0)
    assert fn(1) == 1
    assert "inside its own batch function" in str(raised[0])
    with pytest.raises(ClosedError):
        fn(2)
    fn.shutdown()


@pytest.mark.thread_unsafe(reason=PROCESS)
def test_the_with_statement_drains() -> None:
    """At its end everything submitted has been answered and the thread is gone."""
    before = set(workers())  # some of which may end meanwhile: other tests' functions are collected
    with batched.dynamically(Gate(), timeout_ms=60_000) as fn:
        futures = [fn.submit(item) for item in range(100)]
    assert [future.result(0) for future in futures] == list(range(100))
    assert set(workers()) <= before


@pytest.mark.parametrize("used", [True, False])
def test_calls_that_race_with_shutdown_are_answered_or_refused(used: bool) -> None:
    """None of them waits for ever, also if they are the first."""
    for _ in range(50):
        fn = batched.dynamically(Gate(), timeout_ms=0)
        if used:
            fn(0)
        barrier = threading.Barrier(5)

        def call(fn: Any = fn, barrier: Any = barrier) -> Any:
            barrier.wait(PATIENCE_S)
            try:
                return fn(1)
            except ClosedError:
                return 1

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(call) for _ in range(4)]
            barrier.wait(PATIENCE_S)
            fn.shutdown()
            assert [future.result(PATIENCE_S) for future in futures] == [1, 1, 1, 1]


def test_a_call_at_the_door_starts_no_worker_after_the_end() -> None:
    """It came before `shutdown`, and is queued after that has returned: it is turned away."""
    at_the_door, ended = threading.Event(), threading.Event()
    gate = Gate()

    def length(item: int) -> int:
        at_the_door.set()
        assert ended.wait(PATIENCE_S)
        return item

    fn = batched.dynamically(gate, timeout_ms=0, length=length)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fn, 1)
        assert at_the_door.wait(PATIENCE_S)
        fn.shutdown()
        ended.set()
        with pytest.raises(ClosedError):
            answer.result(PATIENCE_S)
    assert gate.batches == []


def test_a_worker_ends_though_a_task_that_the_function_left_behind_exits() -> None:
    """Its loop is closed as the worker ends; what a task raises then holds up no `aclose`."""

    async def lingering() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise SystemExit

    kept: list[asyncio.Task[None]] = []

    async def function(items: list[int]) -> list[int]:
        kept.append(asyncio.create_task(lingering()))
        await asyncio.sleep(0)
        return items

    fn = batched.dynamically(function, timeout_ms=0)
    assert fn(1) == 1

    async def close() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await fn.aclose()

    asyncio.run(close())
    assert isinstance(kept[0].exception(), SystemExit)  # else it is logged in another test
