"""Event loops: many, their end, tasks, contexts. What is true of every flavour is in test_behaviour."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batched
import batched.aio.inference
from batched import BatchError, ClosedError, QueueFullError, aio
from batched._core.batcher import Batcher
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, turns, turns_until, until

ROOT = Path(__file__).parents[1]


async def echo(items: list[Any]) -> list[Any]:
    return items


def plain_echo(items: list[Any]) -> list[Any]:
    return items


# -- calling -------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_calls_that_were_cancelled_at_the_door(run: Any) -> None:
    """Where they waited for room: neither they nor their contexts, while nobody else calls."""
    request = contextvars.ContextVar[Any]("request")

    class Item:
        pass

    async def function(items: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        return items

    fn = aio.dynamically(function, timeout_ms=0, max_queue_size=2, on_full="wait")
    items: list[weakref.ref[Item]] = []

    async def leaver() -> None:
        item = Item()
        request.set(item)
        items.append(weakref.ref(item))
        task = asyncio.create_task(fn.acall(1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # a time limit would keep the context

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*(leaver() for _ in range(5))), PATIENCE_S)
        await turns_until(lambda: not fn.stats.running_items)
        await turns(3)
        gc.collect()
        assert [item() for item in items] == [None] * 5

    run(main())


def test_a_thread_that_a_woken_caller_starts_is_on_its_own_loop(run: Any) -> None:
    """Also while the loop that has woken it waits for that thread, and so wakes nobody else."""
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


def test_loops_that_are_made_to_nest_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nest_asyncio` makes them: another one runs while a task that was woken goes on."""
    fn = aio.dynamically(echo, timeout_ms=0)
    monkeypatch.setattr(asyncio, "_nest_patched", True, raising=False)

    def nested() -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        asyncio._set_running_loop(None)
        asyncio.tasks._leave_task(loop, task)
        try:
            return asyncio.run(asyncio.wait_for(fn(2), PATIENCE_S))
        finally:
            asyncio.tasks._enter_task(loop, task)
            asyncio._set_running_loop(loop)

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


@pytest.mark.parametrize("function", [echo, plain_echo])
def test_every_way_to_call(run: Any, function: Any) -> None:
    """A call, `acall`, `amap`, options, and the end."""
    fn = aio.dynamically(function, timeout_ms=0)

    async def main() -> None:
        async with fn as entered:
            assert entered is fn
            assert (await fn(2), await fn([2, 3]), await fn.acall(2), await fn([])) == (2, [2, 3], 2, [])
            assert [y async for y in fn.amap(range(100))] == list(range(100))
            assert await fn.options(deadline_ms=20_000, priority="bulk")([1]) == [1]
        for call in (fn, fn.acall):
            with pytest.raises(ClosedError, match="was shut down"):
                await call(1)
        with pytest.raises(ClosedError):
            await fn([])
        await fn.aclose()

    run(main())


def test_an_amap_may_be_made_where_no_loop_runs() -> None:
    """As any asynchronous iterator."""
    for function in (echo, plain_echo):
        answers = aio.dynamically(function, timeout_ms=0).amap([1, 2])

        async def main(answers: Any = answers) -> list[int]:
            return [answer async for answer in answers]

        assert asyncio.run(main()) == [1, 2]


def test_nothing_is_queued_before_a_call_is_awaited() -> None:
    """A call is a coroutine, whatever it is given."""
    fn = aio.dynamically(echo, timeout_ms=0)
    for call in (fn(1), fn.acall(1), fn(1, 2)):
        assert asyncio.iscoroutine(call)
        call.close()
    assert fn.stats.total_accepted == 0


@pytest.mark.parametrize("name", ["map", "submit", "shutdown", "__enter__"])
def test_nothing_blocks(name: str) -> None:
    """What would is not there."""
    assert not hasattr(aio.dynamically(echo), name)


@pytest.mark.parametrize("name", ["priority_strategy", "batch_item_cls"])
def test_what_the_old_library_had_is_refused(name: str) -> None:
    """The error names the options there are."""
    with pytest.raises(TypeError, match=f"no option '{name}'.*; it has batch_size, "):
        aio.dynamically(echo, **{name: None})
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        aio.dynamically(batch_size=0)


def test_nothing_needs_a_loop_before_the_first_call() -> None:
    """Neither import, nor decoration, nor the stats, in a thread that has none."""
    script = """if True:
        import asyncio, sys, threading
        asyncio.set_event_loop_policy(None)
        asyncio.new_event_loop = asyncio.get_event_loop = None
        import batched.aio, batched.aio.inference
        for dynamically in (batched.aio.dynamically, batched.aio.inference.dynamically):
            @dynamically(timeout_ms=0)
            async def f(items): return items
            @dynamically
            def g(items): return items
            assert f.stats.total_accepted == g.stats.total_accepted == 0
        assert threading.active_count() == 1
        assert not {"numpy", "torch"} & set(sys.modules)
    """
    command = [sys.executable, "-W", "error", "-c", script]
    subprocess.run(command, cwd=ROOT, timeout=30, check=True)


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


def test_a_plain_function_that_returns_an_awaitable_is_told_to_await_it() -> None:
    """It runs in a thread, where the loop that the awaitable belongs to is not."""
    fn = aio.dynamically(lambda xs: echo(xs), timeout_ms=0, name="look_up")
    with pytest.raises(TypeError, match="look_up returned an awaitable but is no `async def`"):
        asyncio.run(fn(1))


def test_plain_functions_need_nothing_of_the_loops_executor(run: Any) -> None:
    """Callers may hold all its threads, waiting for what only the function can give; the loop is free."""
    gate = Gate(shut=True)
    fn = aio.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        answered = threading.Event()
        blocked = loop.run_in_executor(None, answered.wait, PATIENCE_S)
        task = asyncio.create_task(fn(1))
        await turns_until(lambda: gate.batches)  # the loop runs while the function blocks
        gate.open()
        assert await task == 1
        answered.set()
        assert await blocked

    run(main())


def test_the_thread_of_a_plain_function_ends_with_its_instance() -> None:
    """It is named after the function, and starts with the first call."""

    class Model:
        @aio.dynamically(timeout_ms=0)
        def embed_all(self, items: list[int]) -> list[int]:
            return [threading.get_ident() for _ in items]

    model = Model()
    assert model.embed_all.stats.queue_size == 0
    names = {thread.name for thread in threading.enumerate()}
    first, second = asyncio.run(model.embed_all(1)), asyncio.run(model.embed_all(2))
    assert first == second != threading.get_ident()
    (thread,) = [thread for thread in threading.enumerate() if thread.name not in names]
    assert thread.name.endswith("Model.embed_all") or thread.name == "batched: Model.embed_all"
    del model
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# -- batches -------------------------------------------------------------------------------------------


def test_all_who_come_in_one_turn_of_the_loop_share_a_batch(run: Any) -> None:
    """Also with no window, also on a loop that starts tasks at once."""

    async def main() -> None:
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, timeout_ms=0)
        if sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        assert await asyncio.gather(*map(fn, range(10))) == list(range(10))
        assert gate.batches == [list(range(10))]

    run(main())


def test_who_comes_while_a_batch_awaits_is_in_the_next(run: Any) -> None:
    """One batch at a time; those just answered, who come straight back, are in it too."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, timeout_ms=0)

        async def twice(item: int) -> None:
            await fn(item)
            await fn(item)

        first = asyncio.create_task(twice(0))
        await gate.entered.acquire()
        others = [asyncio.create_task(fn(item)) for item in (1, 2)]
        await turns()
        assert gate.batches == [[0]]
        assert (fn.stats.running_items, fn.stats.queue_size) == (1, 2)
        gate.opened.set()
        await asyncio.gather(first, *others)
        assert gate.batches == [[0], [1, 2, 0]]

    run(main())


def test_a_function_that_never_waits_does_not_keep_the_loop_to_itself(run: Any) -> None:
    """Others have their turn between the batches of a long list."""

    async def main() -> None:
        fn = aio.dynamically(echo, batch_size=4, timeout_ms=0)
        task = asyncio.create_task(fn(list(range(100_000))))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        assert task.result() == list(range(100_000))
        assert ticks > 20

    run(main())


def test_as_many_batches_run_at_once_as_may(run: Any) -> None:
    """With two, two batches run at once; a third waits."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, batch_size=2, timeout_ms=0, max_concurrent_batches=2)
        tasks = [asyncio.create_task(fn([item, item])) for item in range(3)]
        for _ in range(2):
            await gate.entered.acquire()
        await turns()
        assert gate.batches == [[0, 0], [1, 1]]
        gate.opened.set()
        assert await asyncio.gather(*tasks) == [[0, 0], [1, 1], [2, 2]]
        await fn.aclose()

    run(main())


def test_a_window_ends_when_the_batch_is_full_or_a_deadline_nears(run: Any) -> None:
    """With a window of a minute; a look at the stats, from another thread too, changes nothing."""

    async def main() -> None:
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, batch_size=4, timeout_ms=60_000)
        tasks = [asyncio.create_task(fn(item)) for item in range(3)]
        await turns()
        assert fn.stats.queue_size == 3
        assert (await asyncio.to_thread(lambda: fn.stats)).total_accepted == 3
        assert gate.batches == []
        tasks.append(asyncio.create_task(fn(3)))
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3]
        assert await fn.options(deadline_ms=500)(4) == 4
        assert gate.batches == [[0, 1, 2, 3], [4]]

    run(main())


def test_an_idle_loop_is_never_woken(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between calls there is no timer, no task and nobody who asks the clock."""

    async def main() -> None:
        fn = aio.dynamically(echo, timeout_ms=0)
        windowed = aio.dynamically(echo, timeout_ms=1)
        assert (await fn(1), await windowed(1)) == (1, 1)
        await turns()
        asked: list[int] = []
        monkeypatch.setattr(
            batched._drivers.event_loop, "monotonic", lambda: asked.append(1) or time.monotonic()
        )
        assert asyncio.all_tasks() == {asyncio.current_task()} | {
            task for task in asyncio.all_tasks() if "wait_for" in repr(task)
        }
        await asyncio.to_thread(threading.Event().wait, 0.1)
        assert asked == []
        for used in (fn, windowed):
            (dispatcher,) = used._batcher.dispatchers()
            assert (dispatcher._timer, dispatcher.running) == (None, set())

    run(main())


def test_a_deadline_fires_while_a_batch_runs(run: Any) -> None:
    """The late item never runs; one that runs is given up."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, batch_size=1, timeout_ms=0)
        running = asyncio.create_task(fn.options(deadline_ms=1000)("running"))
        await gate.entered.acquire()
        with pytest.raises(TimeoutError, match="deadline_ms=20"):
            await fn.options(deadline_ms=20)("late")
        with pytest.raises(TimeoutError, match="deadline_ms=1000"):
            await running
        gate.opened.set()
        assert await fn("next") == "next"
        assert gate.batches == [["running"], ["next"]]
        assert fn.stats.total_expired == 1

    run(main())


# -- leaving -------------------------------------------------------------------------------------------


def test_cancelling_the_first_task_cancels_no_batch(run: Any) -> None:
    """Not before its batch is chosen, and not while it runs: a batch belongs to no caller."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, timeout_ms=0)
        for ran in (False, True):
            gate.opened.clear()
            first, second = (asyncio.create_task(fn(item)) for item in ("first", "second"))
            await (gate.entered.acquire() if ran else asyncio.sleep(0))
            assert first.cancel()
            await turns()
            assert first.cancelled()
            gate.opened.set()
            assert await second == "second"
            await turns()
        assert fn.stats.queue_size + fn.stats.running_items == 0

    run(main())


def test_a_batch_whose_task_is_cancelled_fails_alone(run: Any) -> None:
    """By whoever cancels all tasks there are; before its first step it has not run, and is started anew."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, timeout_ms=0)
        before = asyncio.all_tasks()
        caller = asyncio.create_task(fn(1))
        await asyncio.sleep(0)
        (batch,) = asyncio.all_tasks() - before - {caller}
        batch.cancel()
        await gate.entered.acquire()
        (batch,) = asyncio.all_tasks() - before - {caller}
        batch.cancel()
        with pytest.raises(BatchError, match="CancelledError"):
            await caller
        gate.opened.set()
        assert await fn(2) == 2
        assert gate.batches == [[1], [2]]

    run(main())


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt])
def test_what_would_end_a_task_or_a_loop_reaches_callers_as_a_batch_error(run: Any, kind: Any) -> None:
    """Raised by the function itself, at once or after a wait."""

    @aio.dynamically(timeout_ms=0)
    async def fail(items: list[int]) -> list[int]:
        if items[0] > 1:
            await asyncio.sleep(0)
        if items[0]:
            raise kind
        return items

    async def main() -> None:
        for item in (1, 2):
            with pytest.raises(BatchError, match=kind.__name__) as caught:
                await fail(item)
            assert isinstance(caught.value.__cause__, kind)
        assert await fail(0) == 0
        assert fail.stats.total_failed == 2

    run(main())


def test_cancelling_propagates_and_cancel_is_not_swallowed(run: Any) -> None:
    """A cancelled caller's task is cancelled, and a time limit of asyncio's own works."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, timeout_ms=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fn(1), 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await fn([2, 3])
        gate.opened.set()
        assert await fn(4) == 4
        assert gate.batches == [[1], [4]]

    run(main())


@pytest.mark.parametrize("refused", ["full", "too large"])
def test_a_refused_call_leaves_no_timer_behind(
    run: Any, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """However far its deadline."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, batch_size=1, timeout_ms=0, max_queue_size=1)
        first = asyncio.create_task(fn(1))
        await gate.entered.acquire()
        second = asyncio.create_task(fn(2))
        await turns()
        timers: list[Any] = []
        monkeypatch.setattr(batched._drivers.event_loop, "watch", lambda *args: timers.append(args))
        with pytest.raises(QueueFullError if refused == "full" else ValueError):
            await fn.options(deadline_ms=600_000)(3 if refused == "full" else [3, 4])
        monkeypatch.undo()
        assert timers == []
        gate.opened.set()
        assert await asyncio.gather(first, second) == [1, 2]

    run(main())


@pytest.mark.parametrize("options", [{}, {"max_queue_size": 100}, {"length": abs, "max_queue_size": 8}])
def test_a_deadline_that_is_far_starts_nothing(run: Any, options: dict[str, Any]) -> None:
    """Nor does a bound: what waits in its window waits on, until the batch is full or a deadline is near."""

    async def main() -> None:
        gate = AsyncGate(shut=False, note=sorted)
        fn = aio.dynamically(gate, batch_size=8, timeout_ms=60_000, **options)
        soon = fn.options(deadline_ms=1000)
        later = fn.options(deadline_ms=600_000)
        tasks = [asyncio.create_task(later(0))]
        await turns()
        (dispatcher,) = fn._batcher.dispatchers()
        timer = dispatcher._timer
        tasks += [asyncio.create_task(later(item)) for item in range(1, 4)]
        await turns()
        assert dispatcher._timer is timer is not None
        tasks.append(asyncio.create_task(soon(4)))
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        tasks += [asyncio.create_task(later(item)) for item in range(8)]
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert [task.result() for task in tasks] == [*range(5), *range(8)]
        assert gate.batches == [list(range(5)), list(range(8))]

    run(main())


@pytest.mark.parametrize("options", ["group_by", "cache", "both"])
def test_a_batch_knows_that_a_list_has_left(run: Any, options: str) -> None:
    """Though it was divided or looked up: `current_batch().cancelled()` says so while the batch runs."""

    async def main() -> None:
        entered, left = asyncio.Event(), asyncio.Event()

        async def look(items: list[int]) -> list[int]:
            batch = batched.current_batch()
            assert not batch.cancelled()
            entered.set()
            await turns_until(batch.cancelled)
            left.set()
            return items

        layers: dict[str, Any] = {"cache": {}, "group_by": lambda item: item % 2}
        fn = aio.dynamically(
            look, timeout_ms=0, **layers if options == "both" else {options: layers[options]}
        )
        task = asyncio.create_task(fn([1, 2, 3, 4]))
        await entered.wait()
        task.cancel()
        await left.wait()
        await turns()
        assert fn.stats.queue_size + fn.stats.running_items == 0

    run(main())


# -- re-entrance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["await", "list", "task", "amap", "aclose"])
def test_a_call_from_inside_the_batch_function_is_an_error(run: Any, how: str) -> None:
    """It would wait for itself; by way of a task too. The outer caller gets the error."""

    @aio.dynamically(timeout_ms=0)
    async def again(items: list[int]) -> list[int]:
        if 0 in items:
            match how:
                case "await":
                    await again(1)
                case "list":
                    await again([1])
                case "task":
                    await asyncio.gather(again(1))
                case "amap":
                    [y async for y in again.amap([1])]
                case "aclose":
                    await again.aclose()
        return items

    async def main() -> None:
        with pytest.raises(RuntimeError, match="inside its own batch function"):
            await again(0)
        assert await again(2) == 2

    run(main())


def test_what_does_not_wait_for_itself_may_be_called_from_a_batch_function(run: Any) -> None:
    """Another function, another instance, another loop, and a task that outlives the batch."""

    class Model:
        def __init__(self, inner: Model | None = None) -> None:
            self.inner = inner

        @aio.dynamically(timeout_ms=0)
        async def run(self, items: list[int]) -> list[int]:
            return items if self.inner is None else await self.inner.run(items)

    left: list[asyncio.Task[int]] = []

    @aio.dynamically(timeout_ms=0)
    async def fn(items: list[int]) -> list[int]:
        if items == [0]:
            return [await asyncio.to_thread(asyncio.run, fn(1))]
        if items == [2]:
            left.append(asyncio.create_task(later()))
        return items

    gate = asyncio.Event()

    async def later() -> int:
        await gate.wait()
        return await fn(3)

    async def main() -> None:
        assert await Model(Model()).run([1, 2]) == [1, 2]
        assert await fn(0) == 1
        assert await fn(2) == 2
        gate.set()
        assert await left[0] == 3

    run(main())


# -- contexts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_context_variables_of_callers_reach_neither_the_function_nor_each_other(run: Any, kind: str) -> None:
    """And what the function sets is gone with its batch."""
    request = contextvars.ContextVar("request", default="none")
    seen = []

    def look(items: list[str]) -> list[str]:
        seen.append(request.get())
        if kind == "async":
            request.set("left by a batch")
        return items

    async def look_async(items: list[str]) -> list[str]:
        await asyncio.sleep(0)
        return look(items)

    fn = aio.dynamically(look_async if kind == "async" else look, batch_size=2, timeout_ms=1)

    async def caller(name: str) -> str:
        request.set(name)
        await fn(name)
        await fn([name, name, name])
        return request.get()

    async def main() -> None:
        assert await asyncio.gather(*map(caller, "abc")) == ["a", "b", "c"]
        assert request.get() == "none"

    run(main())
    assert set(seen) == {"none"}


# -- loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [echo, plain_echo])
def test_ten_loops_one_after_another(run: Any, function: Any) -> None:
    """Each gets its answers, the stats are one, and nothing of a loop is left."""
    fn = aio.dynamically(function, timeout_ms=0)
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
        assert not fn._batcher.resting
        assert not fn._batcher._dispatchers


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


def test_aclose_waits_for_the_running_batches_of_all_loops() -> None:
    """And runs what is queued on them."""
    entered, opened = threading.Event(), threading.Event()
    ran = []

    @aio.dynamically(batch_size=1, timeout_ms=60_000)
    async def fn(items: list[str]) -> list[str]:
        entered.set()
        await asyncio.to_thread(opened.wait, PATIENCE_S)
        ran.extend(items)
        return items

    async def other() -> list[str]:
        return await asyncio.gather(fn("running"), fn("queued"))

    async def main() -> None:
        closing = asyncio.create_task(fn.aclose())
        await turns()
        assert not closing.done()
        with pytest.raises(ClosedError):
            await fn("late")
        opened.set()
        await asyncio.wait_for(closing, PATIENCE_S)
        assert ran == ["running", "queued"]

    with ThreadPoolExecutor(1) as pool:
        callers = pool.submit(asyncio.run, other())
        assert entered.wait(PATIENCE_S)
        until(lambda: fn.stats.total_accepted == 2)
        asyncio.run(main())
        assert callers.result(PATIENCE_S) == ["running", "queued"]


def test_aclose_drains_a_window_and_does_not_wait_for_a_loop_that_has_stopped(run: Any) -> None:
    """What waits for company is run at once; what waits on a loop nobody runs has nobody to run it."""
    fn = aio.dynamically(echo, timeout_ms=60_000)
    stopped = asyncio.new_event_loop()
    task = stopped.create_task(fn(0))
    stopped.run_until_complete(turns())

    async def main() -> None:
        tasks = [asyncio.create_task(fn(item)) for item in range(3)]
        await turns()
        await fn.aclose()
        assert [task.result() for task in tasks] == [0, 1, 2]

    run(main())
    task.cancel()
    stopped.run_until_complete(asyncio.wait([task]))
    stopped.close()


@pytest.mark.parametrize("closes", [False, True])
def test_aclose_ends_though_another_loop_stops_while_it_drains(run: Any, closes: bool) -> None:
    """With a batch that runs there, and a call that waits, whether that loop may run again or is closed."""
    entered, end = threading.Event(), asyncio.Event()

    @aio.dynamically(batch_size=1, timeout_ms=60_000)
    async def fn(items: list[int]) -> list[int]:
        entered.set()
        await asyncio.Event().wait()
        return items

    other = asyncio.new_event_loop()
    callers = [other.create_task(fn(item)) for item in range(2)]

    def work() -> None:
        other.run_until_complete(end.wait())
        if closes:
            other.close()

    async def main() -> None:
        closing = asyncio.create_task(fn.aclose())
        await turns()
        assert not closing.done()
        other.call_soon_threadsafe(end.set)
        await closing

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert entered.wait(PATIENCE_S)
    until(lambda: fn.stats.total_accepted == 2)
    run(main())
    thread.join(PATIENCE_S)
    if not closes:
        for caller in callers:
            caller.cancel()
        other.run_until_complete(asyncio.wait(callers))
        other.close()


def test_what_is_learned_is_that_of_the_loop_that_has_learned_most() -> None:
    """Neither of the newest loop, which may know nothing, nor of the first."""
    fn = aio.dynamically(echo, timeout_ms=5)

    async def call(times: int) -> None:
        for _ in range(times):
            await fn.acall([1, 2])

    few, many, none = (asyncio.new_event_loop() for _ in range(3))
    few.run_until_complete(call(5))
    of_few = fn.stats.learned
    assert of_few is not None
    many.run_until_complete(call(9))
    of_many = fn.stats.learned
    assert of_many not in (None, of_few)
    none.run_until_complete(call(1))
    assert fn.stats.learned == of_many
    few.run_until_complete(call(1))
    assert fn.stats.learned == of_many
    for loop in (few, many, none):
        loop.close()


@pytest.mark.parametrize("state", ["window", "batch", "backlog", "first step"])
def test_a_loop_closed_with_calls_pending_leaves_nothing_behind(state: str) -> None:
    """Neither the loop, nor the items, nor the instance; and later loops find nothing amiss."""

    class Item:
        pass

    class Model:
        @aio.dynamically(batch_size=2, timeout_ms=60_000 if state == "window" else 0)
        async def run(self, items: list[Any]) -> list[Any]:
            if isinstance(items[0], Item):
                await asyncio.Event().wait()
            return items

    model = Model()
    loop = asyncio.new_event_loop()
    items = [Item() for _ in range(5 if state == "backlog" else 1)]
    tasks = [loop.create_task(model.run(item)) for item in items]
    loop.run_until_complete(turns(1 if state == "first step" else 5))
    for task in tasks:
        task._log_destroy_pending = False  # the tasks are this test's own
    loop.close()
    stats = model.run.stats
    assert stats.queue_size + stats.running_items == 0  # though the loop is still there
    assert stats.total_accepted == stats.total_cancelled == len(items)
    references = [weakref.ref(thing) for thing in (loop, *items, *tasks)]
    del loop, items, tasks, task
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    stats = model.run.stats
    assert stats.queue_size + stats.running_items == 0
    assert stats.total_accepted == stats.total_cancelled == (5 if state == "backlog" else 1)
    if state != "window":
        assert asyncio.run(model.run(1)) == 1
    batcher = model.run._find()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not batcher._dispatchers


CLOSED_LOOPS = """
import asyncio, gc, sys
from batched import aio

@aio.dynamically(timeout_ms=600_000)
async def patient(items): return items

@aio.dynamically(timeout_ms=0)
async def stuck(items):
    await asyncio.Event().wait()

@aio.dynamically(timeout_ms=600_000)
def patient_thread(items): return items

@aio.dynamically(timeout_ms=0)
async def stubborn(items):
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
    return items

async def amap(fn):
    async for _ in fn.amap(range(100)): pass

def new_loop():
    if "uvloop" in sys.argv:
        import uvloop
        loop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    loop.slow_callback_duration = 60  # else a busy machine is what is printed
    return loop

for fn in (patient, stuck, patient_thread, stubborn):
    async def main(turns):
        tasks = [asyncio.create_task(fn(item)) for item in range(100)] + [asyncio.create_task(amap(fn))]
        for _ in range(turns):
            await asyncio.sleep(0)
    for turns in (0, 1, 2, 3, 10):
        with asyncio.Runner(loop_factory=new_loop) as runner:  # cancels what is left
            runner.run(main(turns))
        loop = new_loop()  # closed with everything as it is
        tasks = [loop.create_task(fn(item)) for item in range(100)]
        for task in tasks:
            task._log_destroy_pending = False
        for _ in range(turns or 1):  # so that the calls have begun
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del loop, task, tasks
        gc.collect()
        stats = fn.stats
        assert stats.queue_size == 0 or fn is patient_thread, stats
print("ok")
"""


def test_a_loop_is_not_taken_for_one_that_is_gone_and_had_its_id(run: Any) -> None:
    """A caller who was never resumed may keep a queue that nobody will come back to."""
    fn = aio.dynamically(AsyncGate(shut=False), timeout_ms=0)
    batcher = fn._find()
    loop = asyncio.new_event_loop()
    left = fn("left")
    loop.call_soon(left.send, None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    (stale,) = batcher.dispatchers()
    loop.close()
    del loop

    async def main() -> None:
        batcher._dispatchers[id(asyncio.get_running_loop())] = weakref.ref(stale)
        assert await fn(1) == 1
        assert await fn([2, 3]) == [2, 3]

    run(main())
    left.close()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_loop_closed_with_calls_pending_prints_nothing(kind: str, debug: str) -> None:
    """In any state, with warnings as errors and asyncio's debug mode."""
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CLOSED_LOOPS, kind],
        cwd=ROOT,
        env={"PYTHONASYNCIODEBUG": debug, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_caller_may_end_with_its_loop_while_a_plain_function_runs() -> None:
    """The thread goes on with the callers of other loops."""
    gate = Gate(shut=True)
    fn = aio.dynamically(gate, timeout_ms=0)

    async def leave() -> None:
        task = asyncio.create_task(fn("left"))
        await turns_until(lambda: gate.batches)
        assert not task.done()

    asyncio.run(leave())
    gate.open()
    assert asyncio.run(fn("next")) == "next"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_fork_works_in_the_child_and_the_parent() -> None:
    """Also from inside a loop with calls pending: those are the parent's."""
    script = """if True:
        import asyncio, os, sys
        from batched import aio

        async def echo(items): return items
        def plain(items): return items
        functions = [aio.dynamically(function, timeout_ms=0) for function in (echo, plain)]
        patient = aio.dynamically(echo, timeout_ms=600_000)

        async def main():
            waiting = asyncio.create_task(patient(1))
            for fn in functions:
                assert await fn(1) == 1
            pid = os.fork()
            if pid == 0:
                return True
            assert os.waitpid(pid, 0)[1] == 0
            assert [await fn(2) for fn in functions] == [2, 2]
            await patient.aclose()
            assert await waiting == 1

        def child():
            for fn in functions:
                assert fn.stats.total_accepted == 0
                assert asyncio.new_event_loop().run_until_complete(fn([1, 2])) == [1, 2]
            assert patient.stats.queue_size == 0

        loop = asyncio.new_event_loop()
        if loop.run_until_complete(main()):
            child()
            os._exit(0)
        loop.close()
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


# -- life ----------------------------------------------------------------------------------------------


@aio.dynamically(batch_size=7, timeout_ms=0)
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @aio.dynamically(batch_size=7, timeout_ms=0)
    async def run(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles_have_their_own_queue(copied: Any) -> None:
    """Of functions and instances, after use."""
    model = Model(3)
    assert (asyncio.run(model.run(1)), asyncio.run(double(1))) == (3, 2)
    twin, function = copied(model), copied(double)
    assert (asyncio.run(twin.run([1, 2])), asyncio.run(function(2))) == ([3, 6], 4)
    assert model.run.stats.total_accepted == 1
    assert "batch_size=7" in repr(function)


def test_an_instance_is_collected_when_its_calls_are_answered(run: Any) -> None:
    """Without the collector, also after failures and long deadlines, while the loop goes on."""

    class Item:
        pass

    class Failing:
        @aio.dynamically(batch_size=2, timeout_ms=0)
        async def run(self, items: list[Any]) -> list[Any]:
            if len(items) == 2:
                raise ValueError
            return items

    async def main() -> None:
        model = Failing()
        item = Item()
        references = [weakref.ref(model), weakref.ref(item)]
        for call in (model.run, model.run.options(deadline_ms=60_000)):
            await call(item)
            with pytest.raises(ValueError):  # noqa: PT011
                await call([item] * 5)
        await turns()
        del model, item, call
        gc.collect()  # for pytest's own cycle
        assert [reference() for reference in references] == [None, None]

    run(main())


def test_ten_thousand_tasks_start_no_thread() -> None:
    """And each gets its own answer."""

    async def main() -> None:
        before = set(threading.enumerate())
        fn = aio.dynamically(echo, timeout_ms=0)
        assert await asyncio.gather(*map(fn, range(10_000))) == list(range(10_000))
        assert set(threading.enumerate()) <= before

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_soak_on_two_loops_answers_everyone_exactly_once() -> None:
    """Random sizes, deadlines, priorities, failures and cancellations."""
    from tests.test_soak import Caller, function

    async def asynchronously(items: list[int]) -> list[Any]:
        await asyncio.sleep(0)
        return function(items)

    for batch_function in (asynchronously, function):
        fn = aio.dynamically(batch_function, batch_size=32, timeout_ms=0.5, small_batch_threshold=4)
        until_s = time.monotonic() + 1
        with ThreadPoolExecutor(2) as pool:
            loops = [pool.submit(asyncio.run, Caller(fn, seed, until_s).tasks(20)) for seed in (1, 2)]
            callers = [caller for loop in loops for caller in loop.result(PATIENCE_S)]
        for caller in callers:
            assert caller.asked == caller.answered + caller.failed + caller.late + caller.cancelled
        assert sum(caller.answered for caller in callers) > 100
        until(lambda fn=fn: fn.stats.queue_size + fn.stats.running_items == 0)
        stats = fn.stats
        assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
        asyncio.run(fn.aclose())


# -- arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_arrays_are_padded_and_cut(run: Any, kind: str) -> None:
    """The array flavour has the same options and the same ways to call."""
    batches: list[Any] = []

    def model(features: dict[str, np.ndarray]) -> np.ndarray:
        batches.append(features["ids"].tolist())
        return features["ids"] * 2

    async def model_async(features: dict[str, np.ndarray]) -> np.ndarray:
        await asyncio.sleep(0)
        return model(features)

    fn = aio.inference.dynamically(
        model_async if kind == "async" else model,
        batch_size=2,
        timeout_ms=60_000,
        pad_tokens={"ids": 9},
        unpad_outputs=True,
    )

    async def main() -> None:
        short, long = await asyncio.gather(fn({"ids": np.array([[1]])}), fn(ids=np.array([[2, 3]])))
        assert (short.tolist(), long.tolist()) == ([[2]], [[4, 6]])
        assert [y.tolist() async for y in fn.amap([{"ids": np.array([[1]])}] * 2)] == [[[2]]] * 2
        assert fn.stats.padding.padded == 6
        await fn.aclose()

    run(main())
    assert batches[0] == [[1, 9], [2, 3]]


def test_a_ctrl_c_while_a_batch_is_taken_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch has left the queue, and no task knows it: its caller has an answer all the same."""
    fn = aio.dynamically(echo, timeout_ms=0)
    take = Batcher.next
    armed = [True]

    def interrupted(self: Batcher, now: float) -> Any:
        found = take(self, now)
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Batcher, "next", interrupted)

    async def call(item: int) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await fn(item)

    with asyncio.Runner() as runner:
        with pytest.raises(BatchError, match="KeyboardInterrupt"):
            runner.run(call(1))
        assert runner.run(call(2)) == 2
