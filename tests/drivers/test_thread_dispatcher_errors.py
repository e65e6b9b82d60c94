"""Errors that end a thread elsewhere, and workers that run out of memory at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import batched
from batched._core.call import Call
from batched._core.queue import Queue
from batched._core.stream_batcher import StreamBatcher
from batched._drivers import telling
from batched._drivers.step_lock import new_step_lock
from tests.kit.failing_log import log_fails
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, turns_until
from tests.kit.kept import driver_of


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_not_isolated(kind: type[BaseException]) -> None:
    """It is meant to end the function, not an item."""
    runs = []

    def leave(items: list[int]) -> list[int]:
        runs.append(items)
        raise kind

    fn = batched.dynamically(leave, batch_size=4, timeout_ms=0, isolate_errors=True)
    with pytest.raises(kind):
        fn([1, 2, 3, 4])
    assert len(runs) == 1


def test_several_workers_that_run_out_of_memory_lose_nothing() -> None:
    """All halves come back to the caller in order."""
    both = threading.Barrier(2)
    first = threading.local()

    def function(items: list[int]) -> list[int]:
        if not hasattr(first, "met"):
            first.met = both.wait(PATIENCE_S)
        if len(items) > 4:
            raise MemoryError
        return items

    fn = batched.dynamically(function, batch_size=16, timeout_ms=0, max_concurrent_batches=2)
    assert fn(list(range(64))) == list(range(64))
    assert fn.stats.fits_memory == 4
    fn.shutdown()


def change(fn: Any, how: str, patch: pytest.MonkeyPatch) -> None:
    """Have the queue of `fn` classed anew, and memory run out once meanwhile."""
    push_all, errors = Queue.push_all, iter([MemoryError()])

    def fails_once(queue: Queue, calls: list[Call]) -> int:
        if queue.in_hand:  # those that wait
            for error in errors:
                raise error
        return push_all(queue, calls)

    with patch.context() as patched:
        patched.setattr(Queue, "push_all", fails_once)
        with pytest.raises(MemoryError):
            fn.configure(batch_size=2) if how == "configure" else driver_of(fn).take_turns()


@pytest.mark.parametrize("how", ["configure", "take_turns"])
def test_a_change_that_runs_out_of_memory_loses_no_call(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that wait go on waiting, and run."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0, batch_size=4)
    futures = [fn.submit(0)]
    gate.wait_for_batch()
    futures += [fn.submit(item) for item in range(1, 6)]
    assert fn.stats.queue_size == 5
    change(fn, how, monkeypatch)
    assert fn.stats.queue_size == 5
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == list(range(6))
    fn.shutdown()


def test_nor_does_one_on_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same."""
    gate = AsyncGate(shut=True)
    fn = batched.aio.dynamically(gate, timeout_ms=0, batch_size=4)

    async def main() -> list[int]:
        tasks = [asyncio.create_task(fn.acall(0))]
        await turns_until(lambda: gate.batches)
        tasks += [asyncio.create_task(fn.acall(item)) for item in range(1, 6)]
        await turns_until(lambda: fn.stats.queue_size == 5)
        change(fn, "configure", monkeypatch)
        gate.opened.set()
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(range(6))


@pytest.fixture
def _logs_fail() -> Iterator[None]:
    with log_fails():
        yield


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
@pytest.mark.parametrize(
    "options",
    [dict, lambda: {"workers": batched.Workers(1)}, lambda: {"finish": lambda items: items}],
    ids=["own", "shared", "staged"],
)
def test_a_log_that_fails_ends_no_worker(options: Any) -> None:
    """The log is asked as a callback fails; all other callers are answered, and later ones."""
    gate = threading.Event()

    def echo(items: list[int]) -> list[int]:
        gate.wait(PATIENCE_S)
        return items

    fn = batched.dynamically(echo, timeout_ms=0, **options())
    futures = [fn.submit(item) for item in range(4)]
    futures[1].add_done_callback(lambda _: 1 // 0)
    gate.set()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2, 3]
    assert fn.submit(4).result(PATIENCE_S) == 4
    fn.shutdown()


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_a_worker_is_made_anew_though_the_log_fails() -> None:
    """Its calls have their answers, and not the error of the log."""
    made: list[str] = []
    broken = [1]

    def echo(items: list[int]) -> list[int]:
        if items == broken:
            broken.clear()
            raise batched.RestartWorker from OSError("lost")
        return items

    with batched.Workers(["a"], initializer=made.append) as workers:
        fn = batched.dynamically(echo, batch_size=1, timeout_ms=0, workers=workers)
        assert [fn.submit(item).result(PATIENCE_S) for item in range(3)] == [0, 1, 2]
        fn.shutdown()
    assert made == ["a", "a"]


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_a_worker_ends_though_its_loop_and_the_log_fail() -> None:
    """Whatever waits for the end of the worker hears of it."""

    async def no_end() -> None:
        raise OSError

    async def echo(items: list[int]) -> list[int]:
        asyncio.get_running_loop().shutdown_asyncgens = no_end  # type: ignore[method-assign]
        return items

    fn = batched.dynamically(echo, timeout_ms=0)
    assert fn.submit(1).result(PATIENCE_S) == 1
    asyncio.run(asyncio.wait_for(fn.aclose(), PATIENCE_S))


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_a_step_that_was_postponed_fails_and_the_log_too() -> None:
    """The step that it waited for is taken, and so are the others that were postponed."""
    lock = new_step_lock()
    taken: list[int] = []
    with lock.later, lock:
        lock.later.extend((lambda: 1 // 0, lambda: taken.append(1)))
    assert taken == [1]


@pytest.mark.usefixtures("_logs_fail")
@pytest.mark.thread_unsafe(reason="the log is that of the process")
def test_on_batch_is_slow_and_the_log_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is answered though it is not told of a batch of it."""
    monkeypatch.setattr(telling, "_MOST", 0)
    fn = batched.dynamically(lambda items: items, batch_size=1, timeout_ms=0, on_batch=print)
    assert fn.submit([0, 1, 2]).result(PATIENCE_S) == [0, 1, 2]
    fn.shutdown()


def test_a_step_of_a_stream_that_runs_out_of_memory_logs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As no consumer was to be woken for it, there was an `IndexError` in the log."""

    @batched.dynamically(timeout_ms=0)
    def repeat(items: list[int]) -> Iterator[list[int]]:
        for _ in range(3):
            yield items

    def fails(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(StreamBatcher, "_hand_out", fails)
    with pytest.raises(MemoryError):
        list(repeat.stream(1))
    assert list(repeat.stream(1)) == [1, 1, 1]
    repeat.shutdown()
    assert not [record for record in caplog.records if record.exc_info]
