"""One callback wakes all tasks that are answered together."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batched
import batched._drivers.event_loop
import batched._drivers.wakeups
from batched import aio
from tests.kit.gate import PATIENCE_S

Run = Callable[[Coroutine[Any, Any, Any]], Any]


async def held(items: list[Any]) -> list[Any]:
    """Answer once all callers of the start have come."""
    await asyncio.sleep(0)
    return items


@pytest.fixture(params=["a thread's", "a loop's"])
def fn(request: pytest.FixtureRequest) -> Any:
    """A batched function, whose callers are woken from its thread or on their own loop."""
    return batched.dynamically(held) if request.param == "a thread's" else aio.dynamically(held)


def test_tasks_find_themselves_as_they_were(fn: Any, run: Run) -> None:
    """Each is the current task again, in its own context, though one callback wakes them all."""
    number = contextvars.ContextVar[int]("number")

    async def caller(item: int) -> None:
        number.set(item)
        me = asyncio.current_task()
        for _ in range(5):
            assert await fn.acall(item) == item
            assert asyncio.current_task() is me
            assert number.get() == item

    async def main() -> None:
        await asyncio.gather(*map(caller, range(50)))
        assert number.get(None) is None

    run(main())


def test_tasks_that_share_a_context_are_woken_one_after_another(fn: Any, run: Run) -> None:
    """A context can be entered once at a time."""
    seen = contextvars.ContextVar[int]("seen", default=0)

    async def caller(item: int) -> None:
        assert await fn.acall(item) == item
        seen.set(seen.get() + 1)

    async def main() -> None:
        context = contextvars.copy_context()
        tasks = [asyncio.create_task(caller(item), context=context) for item in range(20)]
        await asyncio.gather(*tasks)
        assert context[seen] == 20

    run(main())


def test_one_of_a_batch_can_cancel_another(fn: Any, run: Run) -> None:
    """The first to be woken ends those behind it, with the reason it gives, before they go on."""

    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []

        async def first() -> None:
            assert await fn.acall(0) == 0
            for task in tasks[1:]:
                task.cancel("enough")

        async def other(item: int) -> Any:
            try:
                await fn.acall(item)
            except asyncio.CancelledError as error:
                return (str(error), await fn.acall(-item))
            pytest.fail("it went on as if it had not been cancelled")

        tasks += [asyncio.create_task(first()), *(asyncio.create_task(other(item)) for item in range(1, 5))]
        results = await asyncio.gather(*tasks)
        assert results == [None, *(("enough", -item) for item in range(1, 5))]

    run(main())


def test_a_task_that_is_cancelled_as_it_begins_to_wait_is_cancelled(fn: Any, run: Run) -> None:
    """As with every future: what was said before is not lost."""

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await fn.acall(1)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(caller())
        assert await fn.acall(2) == 2

    run(main())


def test_an_error_of_one_task_is_its_own(fn: Any, run: Run) -> None:
    """Those woken after it have their answers."""

    async def caller(item: int) -> Any:
        answer = await fn.acall(item)
        return answer / (item - 1)

    async def main() -> None:
        results = await asyncio.gather(*map(caller, range(4)), return_exceptions=True)
        assert [results[0], *results[2:]] == [0, 2, 1.5]
        assert isinstance(results[1], ZeroDivisionError)

    run(main())


def test_other_kinds_of_tasks_are_woken_too(fn: Any, run: Run) -> None:
    """Those that asyncio has written in Python say what it asks of any."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, work, **named: asyncio.tasks._PyTask(work, loop=loop, **named))  # type: ignore[attr-defined]
        tasks = [loop.create_task(fn.acall(item)) for item in range(10)]
        tasks[3].cancel("gone")
        assert type(tasks[0]) is not asyncio.Task
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(3), asyncio.CancelledError)
        assert results == [0, 1, 2, 4, 5, 6, 7, 8, 9]

    run(main())


def test_a_batch_takes_one_callback_to_wake_its_callers(fn: Any) -> None:
    """However many they are: asyncio's own futures take one each."""
    calls: list[str] = []

    class Counting(asyncio.SelectorEventLoop):
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
            calls.append(repr(callback))
            return super().call_soon(callback, *args, context=context)

    async def main() -> None:
        await fn.acall(0)
        tasks = [asyncio.create_task(fn.acall(item)) for item in range(30)]
        await asyncio.sleep(0)
        calls.clear()
        while not all(task.done() for task in tasks):  # noqa: ASYNC110  to be told of it would wake somebody
            await asyncio.sleep(0)
        assert not [call for call in calls if "Wakeup" in call]

    with asyncio.Runner(loop_factory=Counting) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_loop_can_end_while_a_task_looks_who_comes_back() -> None:
    """It is cancelled with all the others, and says nothing."""
    fn = aio.dynamically(held, timeout_ms=0)
    for item in range(5):
        assert asyncio.run(fn.acall(item)) == item


def test_nothing_keeps_a_caller_that_is_done(fn: Any) -> None:
    """Neither its deadline, far away, nor a traceback: its task, its items and its context are gone."""

    class Item:
        """One that can be looked for."""

    request = contextvars.ContextVar[Item]("request")

    async def caller(item: Item) -> None:
        request.set(item)
        await fn.options(deadline_ms=3_600_000).acall(item)

    async def main() -> list[weakref.ref[Any]]:
        gone = []
        for cancels in (False, True):
            item = Item()
            task = asyncio.create_task(caller(item))
            await asyncio.sleep(0)
            if cancels:
                task.cancel()
            await asyncio.wait([task], timeout=PATIENCE_S)
            gone += [weakref.ref(task), weakref.ref(item)]
            del task, item
        for _ in range(5):
            await fn.acall(1)
        return gone

    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in asyncio.run(main())] == [None] * 4
    finally:
        gc.enable()
