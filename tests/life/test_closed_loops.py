"""Event loops that stop or are closed while calls wait."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batched
import batched.aio.inference
import batched.inference
from batched import ClosedError, aio
from batched._drivers.private_python import end_silently
from tests.kit.effort import pairs
from tests.kit.flavours import Tasks
from tests.kit.functions import echo
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until, until
from tests.kit.kept import driver_of, kept_by
from tests.kit.script import ROOT
from tests.kit.steps import Steps, endless


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
    """What waits for company is run at once; what waits on a loop that has stopped cannot be."""
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


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("state", ["window", "batch", "backlog", "first step"])
def test_a_loop_closed_with_calls_pending_leaves_nothing_behind(state: str, keyed: bool) -> None:
    """Neither the loop, nor the items, nor the instance; and later loops find nothing amiss.

    Calls that have keys are queued as they come, and may wait for no task, but for a timer.
    """

    class Item:
        pass

    class Model:
        @aio.dynamically(
            batch_size=2,
            timeout_ms=60_000 if state == "window" else 0,
            group_by=(lambda _: 0) if keyed else None,
        )
        async def run(self, items: list[Any]) -> list[Any]:
            if isinstance(items[0], Item):
                await asyncio.Event().wait()
            return items

    model = Model()
    before = len(kept_by(driver_of(model.run), weakref.ref))
    loop = asyncio.new_event_loop()
    items = [Item() for _ in range(5 if state == "backlog" else 1)]
    tasks = [loop.create_task(model.run(item)) for item in items]
    loop.run_until_complete(turns(1 if state == "first step" else 5))
    said: list[str] = []
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    loop.close()
    stats = model.run.stats
    assert stats.queue_size + stats.running_items == 0  # though the loop is still there
    assert stats.total_accepted == stats.total_cancelled == len(items)
    references = [weakref.ref(thing) for thing in (loop, *items, *tasks)]
    del loop, items, tasks
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    stats = model.run.stats
    assert stats.queue_size + stats.running_items == 0
    assert stats.total_accepted == stats.total_cancelled == (5 if state == "backlog" else 1)
    if state != "window":
        assert asyncio.run(model.run(1)) == 1
    assert set(said) <= {"Task was destroyed but it is pending!"}  # those of this test
    driver = driver_of(model.run)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not driver.dispatchers()
    assert len(kept_by(driver, weakref.ref)) == before


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
        await asyncio.Event().wait()
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


@pytest.mark.parametrize(("kind", "debug"), pairs(["asyncio", "uvloop"], ["1", "0"]))
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


def test_a_closed_loop_harms_no_consumer_on_another() -> None:
    """Its tasks are gone, and so is the stream."""
    steps = Steps(endless, shut=True)
    fn = batched.dynamically(steps, batch_size=2, timeout_ms=60_000)
    tasks = Tasks()
    with tasks.running():
        lost = tasks.stream(fn, "lost")
    other = fn.stream("other")
    steps.open()
    assert [next(other) for _ in range(3)] == [("other", step) for step in range(3)]
    other.close()
    del lost
    gc.collect()
    assert steps.closed.wait(PATIENCE_S)


@pytest.mark.parametrize("closes", [False, True], ids=["stopped", "closed"])
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["threads", "aio"])
def test_a_consumer_of_a_map_may_end_after_its_loop(decorate: Any, closes: bool) -> None:
    """Nothing is raised in its place, though its reader can be waited for no more."""

    async def source() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def consume() -> None:
        async for answer in fn.amap(source()):
            answers.append(answer)
            loop.call_soon(loop.stop)

    fn = decorate(echo, timeout_ms=0)
    answers: list[int] = []
    loop = asyncio.new_event_loop()
    consumer = consume()
    task = loop.create_task(consumer)
    end_silently(task)
    loop.run_forever()
    assert answers == [1]
    if closes:
        loop.close()
    consumer.close()
    loop.close()


class Slow:
    """A cache that never answers."""

    async def get(self, key: object) -> object:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def set(self, key: object, value: object) -> None:
        """Keep nothing."""


def test_a_caller_that_asks_a_cache_until_its_deadline_may_end_after_its_loop() -> None:
    """Nothing is raised in its place, though what asks the cache cannot be cancelled any more."""
    fn = aio.dynamically(echo, cache=Slow(), default_deadline_ms=60_000)
    loop = asyncio.new_event_loop()
    caller = fn(1)
    end_silently(loop.create_task(caller))
    loop.run_until_complete(turns())
    asking = asyncio.all_tasks(loop)
    assert len(asking) == 2  # the caller, and what asks for it
    for task in asking:
        end_silently(task)
    loop.close()
    caller.close()


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["threads", "aio"])
def test_the_reader_of_a_map_may_end_after_its_loop(decorate: Any) -> None:
    """Before its consumer: it queues nothing more, and nothing is raised."""

    async def source() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()
        yield 2

    async def consume() -> None:
        async for answer in fn.amap(source()):
            answers.append(answer)
            loop.call_soon(loop.stop)

    fn = decorate(echo, timeout_ms=0)
    answers: list[int] = []
    loop = asyncio.new_event_loop()
    consumer = loop.create_task(consume())
    loop.run_forever()
    assert answers == [1]
    loop.run_until_complete(turns())  # the consumer waits once more
    (reader,) = asyncio.all_tasks(loop) - {consumer}
    for task in (reader, consumer):
        end_silently(task)
    loop.close()
    for task in (reader, consumer):
        coroutine: Any = task.get_coro()
        coroutine.close()
    assert fn.stats.total_accepted == 1


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["threads", "aio"])
def test_a_map_raises_whatever_its_source_does(run: Any, decorate: Any) -> None:
    """Also what usually ends a coroutine."""

    async def source() -> AsyncIterator[int]:
        yield 1
        raise GeneratorExit

    async def consume() -> None:
        async for answer in fn.amap(source()):
            answers.append(answer)

    async def main() -> None:
        with pytest.raises(GeneratorExit):
            await consume()

    fn = decorate(echo, timeout_ms=0)
    answers: list[int] = []
    run(main())
    assert answers == [1]
