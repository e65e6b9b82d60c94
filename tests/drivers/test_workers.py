"""Worker threads: when they start, sleep and wake."""

from __future__ import annotations

import _thread
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest

import batched
import batched.inference
from batched._drivers import semaphores
from batched._drivers.fork_and_exit import NO_THREAD
from tests.kit.effort import times
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until
from tests.kit.kept import driver_of
from tests.kit.threads import until_asleep, workers


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_threads_start_when_they_are_needed() -> None:
    """None before the first call, never more than there may be."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=3, name="lazy")
    assert workers("lazy") == []
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    assert len(workers("lazy")) <= 2
    futures += [fn.submit(item) for item in range(1, 20)]
    for _ in range(2):
        gate.wait_for_batch()
    assert len(workers("lazy")) == 3
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(20))
    assert len(workers("lazy")) == 3
    fn.shutdown()
    assert workers("lazy") == []


def test_a_worker_that_starts_late_does_not_put_another_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may be asleep again, and wait to be woken, before the second has begun."""
    asleep = threading.Event()
    begun = threading.Event()
    work = threading.Thread.run
    started: list[threading.Thread] = []

    def late(thread: threading.Thread) -> None:
        if thread.name == "batched: late":
            started.append(thread)
            if len(started) == 2:
                assert asleep.wait(PATIENCE_S)
                begun.set()
        work(thread)

    monkeypatch.setattr(threading.Thread, "run", late)
    fn = batched.dynamically(Gate(), timeout_ms=0, max_concurrent_batches=2, name="late")
    assert fn(1) == 1
    until_asleep(fn)
    asleep.set()
    assert begun.wait(PATIENCE_S)
    its_workers = driver_of(fn).workers
    until(lambda: its_workers.waiting_for_turn == 1)
    assert fn.submit(2).result(PATIENCE_S) == 2
    fn.shutdown()


@pytest.mark.parametrize("error", NO_THREAD)
@pytest.mark.parametrize("shared", [False, True])
def test_too_many_threads_for_the_process_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], shared: bool
) -> None:
    """Those there are do the work; so they do if there is no memory for another."""
    pool = batched.Workers(8)
    options: dict[str, Any] = {"workers": pool} if shared else {"max_concurrent_batches": 8}
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0, **options)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise error
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    assert fn(list(range(50))) == list(range(50))
    assert {*driver_of(fn).members} == {*started}
    monkeypatch.undo()
    fn.shutdown()
    pool.shutdown()


def test_every_worker_refuses_to_call_itself() -> None:
    """It would wait for itself once all are busy."""
    raised = []
    both = threading.Barrier(2)

    def again(items: list[int]) -> list[int]:
        both.wait(PATIENCE_S)
        try:
            fn(items)
        except RuntimeError as error:
            raised.append(error)
        return items

    fn = batched.dynamically(again, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    assert fn([1, 2]) == [1, 2]
    assert len(raised) == 2
    fn.shutdown()


@pytest.mark.thread_unsafe(reason="looks at all threads of the process")
def test_nothing_starts_before_the_first_call() -> None:
    """Decorating, looking at stats and closing need no thread; the thread is named after the function."""

    def look_up(items: list[int]) -> list[int]:
        return items

    fn = batched.dynamically(look_up, timeout_ms=0)
    assert fn.stats.queue_size == 0
    assert "batched: look_up" not in [thread.name for thread in workers()]
    fn(1)
    assert [thread.name for thread in workers()].count("batched: look_up") == 1
    batched.dynamically(look_up).shutdown()


def test_many_first_calls_start_one_worker() -> None:
    """Fifty threads that make the first call together get one worker and their own answers."""
    for _ in range(20):
        names: set[int] = set()
        fn = batched.dynamically(lambda xs: [names.add(threading.get_ident()) or x for x in xs], timeout_ms=0)
        barrier = threading.Barrier(50)

        def call(item: int, fn: Any = fn, barrier: Any = barrier) -> int:
            barrier.wait(PATIENCE_S)
            result: int = fn(item)
            return result

        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(call, range(50))) == list(range(50))
        assert len(names) == 1
        fn.shutdown()


class NotingLock:
    """A lock that notes how long each wait with a limit may last; -1 is no limit."""

    def __init__(self, limits: list[float]) -> None:
        self.limits = limits
        lock = _thread.allocate_lock()
        self.lock, self.locked, self.release = lock, lock.locked, lock.release

    def acquire(self, *args: Any) -> bool:
        """Note the limit, and wait."""
        if len(args) == 2:
            self.limits.append(args[1])
        return self.lock.acquire(*args)


@pytest.mark.parametrize("timeout_ms", [0, 5])
def test_an_idle_worker_never_wakes(monkeypatch: pytest.MonkeyPatch, timeout_ms: float) -> None:
    """Between calls the worker waits without a limit, with a window and without."""
    limits: list[float] = []
    locks = SimpleNamespace(allocate_lock=lambda: NotingLock(limits))
    monkeypatch.setattr(semaphores, "_thread", locks)
    fn = batched.dynamically(Gate(), timeout_ms=timeout_ms)
    for calls in (1, 2):
        assert fn(calls) == calls
        until(lambda calls=calls: limits.count(-1) == calls)
        assert limits[-1] == -1
    fn.shutdown()


def test_waiting_callers_do_not_wake_the_worker_one_by_one() -> None:
    """In its window the worker sleeps until the batch is full; a look at the stats changes nothing."""
    gate = Gate()
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=60_000)
    futures = [fn.submit(0)]
    until_asleep(fn, calls=7)
    for item in range(1, 4):
        futures.append(fn.submit(item))
    assert driver_of(fn).batcher.wake_after == 7
    assert fn.stats.queue_size == 4
    futures += [fn.submit([4, 5]), fn.submit(6), fn.submit(7)]
    wait(futures, PATIENCE_S)
    assert gate.batches == [list(range(8))]


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 100}, {"length": abs, "max_queue_size": 8}])
def test_a_deadline_that_is_far_wakes_nobody(options: dict[str, Any]) -> None:
    """Nor does a bound: the worker sleeps on in its window, until the batch is full or a deadline is near."""
    gate = Gate(note=sorted)
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=60_000, **options)
    soon = fn.options(deadline_ms=600)
    later = fn.options(deadline_ms=600_000)
    inbox = driver_of(fn).batcher

    async def main() -> None:
        tasks = [asyncio.create_task(later.acall(0))]
        await turns()
        await turns_until(lambda: inbox.wake_after == 7)
        tasks += [asyncio.create_task(later.acall(item)) for item in range(1, 4)]
        await turns()
        assert inbox.wake_after == 7
        assert len(inbox.arriving) == 3
        tasks.append(asyncio.create_task(soon.acall(4)))
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        tasks += [asyncio.create_task(later.acall(item)) for item in range(8)]
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert [task.result() for task in tasks] == [*range(5), *range(8)]

    asyncio.run(main())
    assert gate.batches == [list(range(5)), list(range(8))]


@pytest.mark.parametrize("error", NO_THREAD)
@pytest.mark.parametrize("shared", [False, True])
def test_callers_hear_of_it_when_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], shared: bool
) -> None:
    """They get the error instead of waiting for ever, and a later call works."""

    def start(self: threading.Thread) -> None:
        raise error("can't start new thread")

    pool = batched.Workers(2) if shared else None
    fn = batched.dynamically(Gate(), timeout_ms=0, workers=pool)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(error, match="can't start new thread"):
            fn(1)
        assert isinstance(fn.submit(1).exception(0), error)
    assert fn(2) == 2


@pytest.mark.usefixtures("restless")
def test_first_calls_at_the_same_time_find_a_function_that_is_ready() -> None:
    """Each call that sees its batcher can use it."""
    with ThreadPoolExecutor(4) as pool:
        for _ in range(times(200, 20)):
            fn = batched.dynamically(list, timeout_ms=0)
            barrier = threading.Barrier(4)

            def call(item: int, fn: Any = fn, barrier: Any = barrier) -> Any:
                barrier.wait(PATIENCE_S)
                return fn(item)

            assert list(pool.map(call, range(4))) == list(range(4))
            fn.shutdown(wait=False)


def test_a_caller_that_wakes_a_shared_worker_late_starts_none_for_a_call_that_was_answered() -> None:
    """Another thread may have found its call, and that no worker can start, before it comes to wake one."""
    tried: list[str] = []

    def load(name: str) -> None:
        tried.append(name)
        raise OSError("no device")

    with batched.Workers(["gpu"], initializer=load) as gpus:
        fn = batched.dynamically(list, workers=gpus)
        with pytest.raises(OSError, match="no device"):
            fn(1)
        driver_of(fn).workers.wake()
    assert tried == ["gpu"]
