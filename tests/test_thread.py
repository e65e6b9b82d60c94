"""The worker thread: waking, deadlines, the end. What is true of every flavour is in test_behaviour."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextvars import Context
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import batched
from batched import ClosedError
from batched._core.call import Call
from batched._drivers import futures, wakeups
from batched._drivers.deadline_watch import DeadlineWatch
from batched._drivers.wakeups import release
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batched: ")]


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


def test_an_idle_worker_never_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between calls the worker asks the clock nothing, with a window and without."""
    from batched._drivers import thread_dispatcher as _thread

    for timeout_ms in (0, 5):
        fn = batched.dynamically(Gate(), timeout_ms=timeout_ms)
        fn(1)
        asked = []

        def clock(asked: list[int] = asked) -> float:
            asked.append(threading.get_ident())
            return time.monotonic()

        until(lambda fn=fn: fn._batcher.batcher.inbox.wake_after == 1)
        monkeypatch.setattr(_thread, "monotonic", clock)
        threading.Event().wait(0.1)
        assert asked == []
        fn(1)
        assert asked
        monkeypatch.undo()


def test_the_window_counts_from_the_oldest_item() -> None:
    """What has waited behind a running batch is not made to wait again."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=2, timeout_ms=40)
    first = fn.submit([1, 2])
    gate.wait_for_batch()
    second = fn.submit(3)
    threading.Event().wait(0.06)
    started = time.monotonic()
    gate.open()
    assert second.result(PATIENCE_S) == 3
    assert first.done()
    gate.wait_for_batch()
    assert time.monotonic() - started < 0.04


def test_waiting_callers_do_not_wake_the_worker_one_by_one() -> None:
    """In its window the worker sleeps until the batch is full; a look at the stats changes nothing."""
    gate = Gate()
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=60_000)
    futures = [fn.submit(0)]
    until(lambda: fn._batcher.batcher.inbox.wake_after == 7)
    for item in range(1, 4):
        futures.append(fn.submit(item))
    assert fn._batcher.batcher.inbox.wake_after == 7
    assert fn.stats.queue_size == 4
    futures += [fn.submit([4, 5]), fn.submit(6), fn.submit(7)]
    wait(futures, PATIENCE_S)
    assert gate.batches == [list(range(8))]


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 100}, {"length": abs, "max_queue_size": 8}])
def test_a_deadline_that_is_far_wakes_nobody(options: dict[str, Any]) -> None:
    """Nor does a bound: the worker sleeps on in its window, until the batch is full or a deadline is near."""
    gate = Gate(note=sorted)
    fn = batched.dynamically(gate, batch_size=8, timeout_ms=60_000, **options)
    soon = fn.options(deadline_ms=200)
    later = fn.options(deadline_ms=600_000)

    async def main() -> None:
        tasks = [asyncio.create_task(later.acall(0))]
        await turns()
        await turns_until(lambda: fn._batcher.batcher.inbox.wake_after == 7)
        tasks += [asyncio.create_task(later.acall(item)) for item in range(1, 4)]
        await turns()
        assert fn._batcher.batcher.inbox.wake_after == 7
        assert len(fn._batcher.batcher.inbox.arriving) == 3
        tasks.append(asyncio.create_task(soon.acall(4)))
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        tasks += [asyncio.create_task(later.acall(item)) for item in range(8)]
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert [task.result() for task in tasks] == [*range(5), *range(8)]

    asyncio.run(main())
    assert gate.batches == [list(range(5)), list(range(8))]


def test_a_future_can_be_cancelled_until_its_result_is_there() -> None:
    """Also while its batch runs; `concurrent.futures.wait` hears of it."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)
    future = fn.submit(1)
    gate.wait_for_batch()
    assert not future.done()
    assert future.cancel()
    assert wait([future], PATIENCE_S).done == {future}
    gate.open()
    assert fn(2) == 2
    done = fn.submit(3)
    done.result(PATIENCE_S)
    assert not done.cancel()


def test_a_callback_that_raises_harms_nobody() -> None:
    """Not even one that raises SystemExit, or calls the batcher again."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=3, timeout_ms=60_000)
    futures = [fn.submit(item) for item in range(3)]
    raised = []

    def leave(_: Any) -> None:
        raise SystemExit

    def again(_: Any) -> None:
        try:
            fn(1)
        except RuntimeError as error:
            raised.append(error)

    futures[0].add_done_callback(leave)
    futures[1].add_done_callback(again)
    gate.open()
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 2]
    assert fn([1, 2, 3]) == [1, 2, 3]
    assert len(raised) == 1


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


def test_an_exception_thrown_into_the_worker_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was running is answered with it, and the next call works."""
    import ctypes

    entered: SimpleQueue[int] = SimpleQueue()
    passes: SimpleQueue[None] = SimpleQueue()

    def hold(items: list[int]) -> list[int]:
        entered.put(threading.get_ident())
        passes.get(timeout=PATIENCE_S)
        return items

    fn = batched.dynamically(hold, timeout_ms=0)
    future = fn.submit(1)
    ident = ctypes.c_ulong(entered.get(timeout=PATIENCE_S))
    # A queue that is written in C lets the worker go on: under a tracer, CPython 3.11 enters no Python
    # function while an exception waits to be taken by another thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(ZeroDivisionError))
    passes.put(None)
    assert isinstance(future.exception(PATIENCE_S), ZeroDivisionError)
    passes.put(None)
    assert fn(2) == 2


@pytest.mark.parametrize("items", [2, [2]])
def test_what_a_worker_has_just_chosen_is_answered_too_when_an_exception_hits_it(
    items: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two batches as well: nobody waits for a batch that was taken and never ran."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    running = fn.submit(1)
    gate.wait_for_batch()
    chosen = fn.submit(items)
    scheduler = fn._batcher.batcher
    pop = scheduler.pop

    def pop_and_fail(*args: Any) -> Any:
        assert pop(*args)
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler, "pop", pop_and_fail)
    gate.open()
    assert running.result(PATIENCE_S) == 1
    assert isinstance(chosen.exception(PATIENCE_S), ZeroDivisionError)
    assert fn(3) == 3
    assert fn.stats.running_items == 0


def test_an_idle_batcher_holds_nobodys_items() -> None:
    """Items, results and errors are the callers' alone once they are answered."""

    class Item:
        pass

    def fail(items: list[Item]) -> list[Item]:
        if len(items) == 3:
            raise ValueError("three")
        return items

    fn = batched.dynamically(fail, timeout_ms=0)
    items = [Item(), Item(), Item()]
    references = [weakref.ref(item) for item in items]
    fn(items[0])
    with pytest.raises(ValueError, match="three"):
        fn(items)
    fn.submit(items[1]).result(PATIENCE_S)
    asyncio.run(fn.acall(items[2]))
    until(lambda: fn._batcher.batcher.inbox.wake_after == 1)
    del items
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


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
    with pytest.raises(TypeError, match="not iterable"):
        fn.map(3)


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


def test_two_loops_and_threads_share_one_worker() -> None:
    """Each gets its own answers, one after another and at once; a closed loop harms nobody."""
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


def test_callers_hear_of_it_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the error instead of waiting for ever, and a later call works."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fn = batched.dynamically(Gate(), timeout_ms=0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            fn(1)
        assert isinstance(fn.submit(1).exception(0), RuntimeError)
    assert fn(2) == 2


@pytest.fixture
def untraced() -> Iterator[None]:
    """Trace neither the test nor the threads that it starts.

    An interrupted tracer keeps its lock, and the next call waits for it for ever. And a traced worker enters
    no function while a signal waits for the main thread (CPython 3.11), which waits for the worker.
    """
    of_this, of_new = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    yield
    threading.settrace(of_new)  # type: ignore[arg-type]
    sys.settrace(of_this)


# The signal may come in a destructor, where no exception can be raised, only shown.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("untraced")
@pytest.mark.timeout(method="thread")  # the other method has the timer that the test takes for itself
@pytest.mark.parametrize("interrupted_s", [0.00001, 0.0005])
def test_a_first_call_that_is_interrupted_leaves_a_batcher_that_works(interrupted_s: float) -> None:
    """Ctrl-C while the worker thread is being started."""

    class Interrupted(BaseException):
        pass

    interrupts = 0

    def interrupt(*_: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(100):
            fn = batched.dynamically(Gate(), timeout_ms=0)
            try:
                signal.setitimer(signal.ITIMER_REAL, interrupted_s)
                fn(1)
                while interrupts == number:  # a wait of `threading` would fall over the interrupt
                    pass
            except Interrupted:
                pass
            assert fn.submit(2).result(PATIENCE_S) == 2
            fn.shutdown()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_outputs_do_not_outlive_their_batch() -> None:
    """Of a list in many batches, one block is there at a time; an error that is kept keeps none."""
    blocks: list[weakref.ref[Any]] = []
    alive = []

    @batched.dynamically(batch_size=4, timeout_ms=0)
    def fn(items: list[int]) -> Any:
        alive.append(sum(block() is not None for block in blocks))
        if -1 in items:
            raise ValueError("no more")
        block = np.zeros((len(items), 2))
        blocks.append(weakref.ref(block))
        return block

    fn([1] * 40)
    assert alive == [0] * 10
    with pytest.raises(ValueError, match="no more") as raised:
        fn([1] * 20 + [-1] * 20)
    assert raised.value.__traceback__ is not None
    assert not any(block() is not None for block in blocks)


def test_an_instance_is_collected_after_a_failed_call_with_a_deadline() -> None:
    """Also if the deadline is far, a list was cut short, or an async function broke its loop."""

    class Model:
        @batched.dynamically(batch_size=4, timeout_ms=0)
        def fails(self, items: list[int]) -> list[int]:
            raise ValueError

        @batched.dynamically(timeout_ms=0)
        async def breaks(self, items: list[int]) -> list[int]:
            raise SystemExit

    model = Model()
    for call in (model.fails.options(deadline_ms=60_000), model.breaks):
        for items in (1, [1] * 20):
            with pytest.raises((ValueError, SystemExit)):
                call(items)
    reference = weakref.ref(model)
    del model, call
    until(lambda: gc.collect() is not None and reference() is None)


def test_an_instance_is_collected_after_a_call_that_its_deadline_has_started() -> None:
    """Where lengths are known, such a call goes first; it is not kept as the one that goes first."""

    class Model:
        @batched.dynamically(timeout_ms=60_000, adaptive=False, length=len, max_concurrent_batches=2)
        def fails(self, items: list[str]) -> list[int]:
            raise MemoryError if len(items) > 1 else ZeroDivisionError

    model = Model()
    with pytest.raises(ZeroDivisionError):
        model.fails.options(deadline_ms=1000)(["of a list", "of three", "fails"])
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


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


# -- event loops are woken --------------------------------------------------------------------------------


def test_a_loop_that_is_behind_is_woken_once_for_all_that_is_answered_meanwhile() -> None:
    """A wake-up costs as much as many answers: while one is under way there is no other."""
    fn = batched.dynamically(Gate(), batch_size=1, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake_up = loop.call_soon_threadsafe
        woken = []

        def wake_up_and_count(*args: Any, **named: Any) -> Any:
            woken.append(args)
            return wake_up(*args, **named)

        loop.call_soon_threadsafe = wake_up_and_count  # type: ignore[method-assign]
        for round_ in range(1, 3):
            calls = [asyncio.create_task(fn.acall(item)) for item in range(5)]
            await asyncio.sleep(0)
            until(lambda round_=round_: fn.stats.total_processed == 5 * round_)  # and the loop stands still
            assert await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S) == list(range(5))
            assert len(woken) == round_

    asyncio.run(main())


class Loop:
    """What `release` asks of an event loop."""

    def __init__(self) -> None:
        self.ready: list[Any] = []
        self.error: type[BaseException] | None = None

    def call_soon_threadsafe(self, callback: Any) -> None:
        if self.error is not None:
            raise self.error
        self.ready.append(callback)

    def call_on(self) -> Call:
        call = Call().begin(list, None, 1, False, 0.0)
        call.loop = self
        call.missing = 0
        return call


def test_no_answer_is_lost_between_two_wake_ups() -> None:
    """What comes after the loop has begun to empty its outbox is told of again."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(4)]
    release(calls[:1])
    release(calls[1:2])
    assert len(loop.ready) == 1
    calls[0].add_done_callback(lambda _: release(calls[2:3]), context=Context())  # in the middle of it
    loop.ready[0]()
    assert [call.is_woken for call in calls[:3]] == [True, True, False]
    loop.ready[1]()
    assert calls[2].is_woken
    release(calls[3:])
    loop.ready[2]()
    assert calls[3].is_woken


def test_loops_are_not_taken_for_others() -> None:
    """Each is told of its own calls: one where another of the same id has been, and any of very many."""
    gone, loop = Loop(), Loop()
    release([gone.call_on()])
    wakeups._outboxes[id(loop)] = wakeups._outboxes[id(gone)]  # its wake-up is still to come
    loops = [loop, *(Loop() for _ in range(3000))]
    calls = [each.call_on() for _ in range(2) for each in loops]
    for call in calls:
        release([call])
    for each in loops:
        for callback in each.ready:
            callback()
    assert all(call.is_woken for call in calls)
    assert len(wakeups._outboxes) < 2000


def test_a_loop_that_is_closed_keeps_no_calls() -> None:
    """Nobody will ever come for them."""
    loop = Loop()
    told = loop.call_on()
    calls = [weakref.ref(told)]
    release([told])
    loop.ready.clear()  # as `close` does
    loop.error = RuntimeError
    call = loop.call_on()
    calls.append(weakref.ref(call))
    release([call])
    del told, call
    assert [call() for call in calls] == [None, None]


def test_a_wake_up_that_is_interrupted_is_made_up_for() -> None:
    """In the thread of the worker or of the loop: later calls are answered."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(3)]
    loop.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        release(calls[:1])
    loop.error = None
    release(calls[1:2])
    loop.ready.clear()  # the loop had just taken it out
    release(calls[2:])
    loop.ready[0]()
    assert calls[2].is_woken


def test_who_is_told_goes_on_after_an_interruption() -> None:
    """Those behind the caller who was being released are released in the next turn."""

    async def main() -> None:
        loop = Loop()
        calls = [loop.call_on() for _ in range(4)]
        release(calls[:3])
        release(calls[3:])

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        calls[1].add_done_callback(interrupt, context=Context())
        with pytest.raises(KeyboardInterrupt):
            loop.ready[0]()
        assert [call.is_woken for call in calls] == [True, True, False, False]
        await asyncio.sleep(0)
        assert [call.is_woken for call in calls] == [True, True, True, True]

    asyncio.run(main())


def test_a_loop_that_is_closed_with_a_wake_up_pending_is_collected() -> None:
    """And what it was to be woken for: nobody will run it."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)

    async def give_up() -> None:
        call = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        gate.wait_for_batch()
        call.cancel()
        await asyncio.wait([call])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(give_up())
    gate.open()
    until(
        lambda: fn._batcher.batcher.inbox.wake_after == 1
    )  # a look at the stats would tell the worker which calls were left
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
    fn.shutdown()


def test_first_calls_at_the_same_time_find_a_function_that_is_ready() -> None:
    """Whoever sees its batcher can use it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(200):
                fn = batched.dynamically(list, timeout_ms=0)
                barrier = threading.Barrier(4)

                def call(item: int, fn: Any = fn, barrier: Any = barrier) -> Any:
                    barrier.wait(PATIENCE_S)
                    return fn(item)

                assert list(pool.map(call, range(4))) == list(range(4))
                fn.shutdown(wait=False)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_waits_for_no_wake_up_of_its_parents() -> None:
    """One that was under way when it was forked may never come there."""
    loop = Loop()
    calls = [loop.call_on() for _ in range(2)]
    release(calls[:1])
    child = os.fork()
    if not child:
        release(calls[1:])
        os._exit(len(loop.ready))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


class Item:
    """One that can be looked for."""


@pytest.mark.parametrize("end", ["raise", "return an error", "cancel", "shutdown"])
def test_a_list_that_ends_midway_lets_go_of_its_items_and_answers(end: str) -> None:
    """At once, not when the collector comes: but for those of the batch whose frames its error leads to."""
    gate = Gate(shut=True, note=len)

    @batched.dynamically(batch_size=4, timeout_ms=0)
    def fn(items: list[Any]) -> list[Any]:
        gate(items)
        if len(gate.batches) == 3 and end == "raise":
            raise ValueError
        return [
            ValueError() if len(gate.batches) == 3 and end == "return an error" else Item() for _ in items
        ]

    items = [Item() for _ in range(100)]
    alive = weakref.WeakSet(items)
    future = fn.submit(items)
    del items
    gate.wait_for_batch()
    gc.disable()
    try:
        for _ in range(2):
            gate.let_through()
            gate.wait_for_batch()
        assert len(alive) == 92
        if end == "cancel":
            future.cancel()
        elif end == "shutdown":
            fn.shutdown(wait=False, cancel_futures=True)
        gate.open()
        with pytest.raises((ValueError, CancelledError)):
            future.result(PATIENCE_S)
        until(lambda: fn.stats.running_items == 0)
        until(lambda: len(alive) <= 4)
    finally:
        gc.enable()
    assert fn.stats.total_processed == 12
    assert fn.stats.total_cancelled == 88


def test_a_future_that_is_dropped_lets_go_of_its_results() -> None:
    """It keeps its callbacks, and one of them leads to the call."""
    fn = batched.dynamically(lambda items: [Item() for _ in items], batch_size=2, timeout_ms=0)
    gc.disable()
    try:
        for asked in (1, [1, 2], [1, 2, 3, 4, 5]):
            future = fn.submit(asked)
            results = future.result(PATIENCE_S)
            alive = weakref.WeakSet(results if isinstance(results, list) else [results])
            until(lambda: fn.stats.running_items == 0)
            del future, results
            until(lambda alive=alive: not alive)
    finally:
        gc.enable()


def test_who_is_answered_twice_has_the_first_answer() -> None:
    """A worker that has just answered a call does not fail because another, or a shutdown, has too."""
    call = Call().begin(list, None, 1, False, 0.0)
    call.loop, call.waiter, call.missing = None, threading.Lock(), 0
    call.waiter.acquire()
    assert release([call]) == release([call]) == []
    assert not call.waiter.locked()
    call.loop, call.waiter, call.results = wakeups.FUTURE, Future(), "first"
    future = call.waiter
    futures.settle(release([call]))
    call.error = ValueError()
    futures.settle(release([call]))
    assert future.result(0) == "first"


def test_a_batch_is_not_lost_where_answering_those_who_are_late_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of this library in the wake-up of callers hinders no other caller, with several workers too."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0, max_concurrent_batches=2)
    first = [fn.submit(item) for item in (1, 2)]
    gate.wait_for_batch()
    gate.wait_for_batch()

    def fail(calls: list[Any]) -> None:
        monkeypatch.undo()
        raise RuntimeError("a fault")

    monkeypatch.setattr(futures, "release", fail)
    monkeypatch.setattr(DeadlineWatch, "add", lambda *_: None)  # so that the worker finds the late call
    late = fn.options(deadline_ms=1e-6).submit(3)
    due = fn.submit(4)
    gate.open()
    assert isinstance(late.exception(PATIENCE_S), TimeoutError)
    assert due.result(PATIENCE_S) == 4
    assert [future.result(PATIENCE_S) for future in first] == [1, 2]
    assert fn(5) == 5


def test_a_callback_of_a_future_comes_before_the_next_batch() -> None:
    """A call that it cancels never runs, and its time is not that of a batch."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, batch_size=1, timeout_ms=0)
    first, second = fn.submit("first"), fn.submit("second")
    cancelled: list[bool] = []
    first.add_done_callback(lambda _: cancelled.append(second.cancel()))
    gate.open()
    assert first.result(PATIENCE_S) == "first"
    assert fn("third") == "third"
    assert cancelled == [True]
    assert gate.batches == [["first"], ["third"]]


def test_a_worker_ends_though_a_task_that_the_function_left_behind_exits() -> None:
    """Its loop is closed as the worker ends; what a task raises then holds up no `aclose`."""

    async def lingering() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise SystemExit

    kept = []

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
