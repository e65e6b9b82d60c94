"""What a task waits for, without a batcher: how it is woken, cancelled, and left asleep."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batched._core.task_awaitable import TaskAwaitable, still_asleep, wake_all

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Wait = Callable[[TaskAwaitable], Any]

DONE = object()
"""The future that tasks are shown."""
TURNS = 3
"""As many of a loop as it takes a task to go on, however it waits."""
NAME = contextvars.ContextVar[str]("NAME", default="none")


def awaitable(loop: Any = None) -> TaskAwaitable:
    """Return one that no task waits for yet."""
    made = TaskAwaitable()
    made.is_woken = False
    made._loop = loop
    made._go_on = made._go_on_in = None
    return made


class Task:
    """What stands for a task: it notes what it is shown, in which context, and may end with an error."""

    def __init__(self, log: list[tuple[str, Any]], name: str, error: BaseException | None = None) -> None:
        self.log = log
        self.error = error
        self.ends = True
        self.is_done = False
        self.context = contextvars.copy_context()
        self.context.run(NAME.set, name)

    def wake(self, future: Any) -> None:
        """Go on."""
        self.log.append((NAME.get(), future))
        if self.error is not None:
            self.is_done = self.ends
            raise self.error

    def done(self) -> bool:
        """Whether it has ended."""
        return self.is_done

    def waits(self) -> TaskAwaitable:
        """Begin to wait, and return for what."""
        made = awaitable()
        made.add_done_callback(self.wake, context=self.context)
        return made


async def awaited(wait: Wait, waiter: TaskAwaitable) -> None:
    """Wait, as a coroutine: from Python 3.12 on a task takes no generator."""
    await wait(waiter)


@pytest.fixture(params=[TaskAwaitable.wait, TaskAwaitable.wait_by_future], ids=["itself", "by a future"])
def wait(request: pytest.FixtureRequest) -> Wait:
    """Each way to wait."""
    way: Wait = request.param
    return way


def test_tasks_are_woken_one_after_another_each_in_its_context() -> None:
    """And shown the future that is done."""
    log: list[tuple[str, Any]] = []
    waiters = [Task(log, name).waits() for name in "abc"]
    wake_all(waiters, DONE)
    assert log == [("a", DONE), ("b", DONE), ("c", DONE)]
    assert all(waiter.is_woken for waiter in waiters)
    assert NAME.get() == "none"


def test_a_task_is_woken_once() -> None:
    log: list[tuple[str, Any]] = []
    waiters = [Task(log, name).waits() for name in "ab"]
    wake_all(waiters[:1], DONE)
    wake_all(waiters, DONE)
    wake_all(waiters, DONE)
    assert log == [("a", DONE), ("b", DONE)]


def test_a_task_is_not_kept_by_what_it_has_waited_for() -> None:
    """A call may be kept for longer than its task."""
    task = Task([], "a")
    gone = weakref.ref(task)
    waiter = task.waits()
    del task
    gc.collect()
    assert gone() is not None
    wake_all([waiter], DONE)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("ends", [True, False])
def test_after_an_error_the_tasks_behind_it_are_asleep_and_can_be_woken(ends: bool) -> None:
    """And the one at which it was, unless it has ended with it: as when Ctrl-C comes just before its turn."""
    log: list[tuple[str, Any]] = []
    tasks = [Task(log, name) for name in "abcd"]
    tasks[1].error, tasks[1].ends = KeyboardInterrupt(), ends
    waiters = [task.waits() for task in tasks]
    with pytest.raises(KeyboardInterrupt):
        wake_all(waiters, DONE)
    tasks[1].error = None
    asleep = still_asleep(waiters)
    assert asleep == waiters[2 if ends else 1 :]
    assert not any(waiter.is_woken for waiter in asleep)
    log.clear()
    wake_all(waiters, DONE)
    assert [name for name, _ in log] == list("cd" if ends else "bcd")


def test_a_task_that_has_ended_with_an_error_is_not_kept() -> None:
    task = Task([], "a", SystemExit())
    gone = weakref.ref(task)
    waiter = task.waits()
    with pytest.raises(SystemExit):
        wake_all([waiter], DONE)
    still_asleep([waiter])
    del task
    gc.collect()
    assert gone() is None


def test_what_is_no_task_has_been_woken_whatever_it_has_raised() -> None:
    """As the function that settles a future, which does not say whether it has ended."""

    def go_on(_: object) -> None:
        raise SystemExit

    waiter = awaitable()
    waiter.add_done_callback(go_on, context=contextvars.copy_context())
    with pytest.raises(SystemExit):
        wake_all([waiter], DONE)
    assert still_asleep([waiter]) == []
    assert waiter.is_woken


def test_where_all_have_been_woken_none_is_asleep() -> None:
    waiters = [Task([], "a").waits(), awaitable()]
    assert still_asleep(waiters) == waiters
    wake_all(waiters, DONE)
    assert still_asleep(waiters) == []


def test_a_task_goes_on_only_once_it_has_been_woken(wait: Wait, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        shown = loop.create_future()
        shown.set_result(None)
        waiters = [awaitable(loop) for _ in range(3)]
        tasks = [loop.create_task(awaited(wait, waiter)) for waiter in waiters]
        for woken in ([], [1, 2], [0]):
            loop.call_soon(wake_all, [waiters[at] for at in woken], shown)
            before = [task.done() for task in tasks]
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert [task.done() for task in tasks] == [was or at in woken for at, was in enumerate(before)]
        assert [task.result() for task in tasks] == [None] * 3

    run(main())


def test_a_task_that_has_been_woken_before_it_waits_does_not_wait(wait: Wait) -> None:
    """It asks no loop for anything."""
    waiter = awaitable()
    wake_all([waiter], DONE)
    with pytest.raises(StopIteration):
        next(wait(waiter))


def test_a_task_that_is_cancelled_raises_the_reason_and_is_woken_no_more(wait: Wait, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiter = awaitable(loop)
        task = loop.create_task(awaited(wait, waiter))
        await asyncio.sleep(0)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert waiter.is_woken
        assert still_asleep([waiter]) == []
        loop.call_soon(wake_all, [waiter], None)  # which no task takes
        await asyncio.sleep(0)

    run(main())


def test_what_has_been_woken_cannot_be_cancelled() -> None:
    """Its task is about to go on, with its answer."""
    log: list[tuple[str, Any]] = []
    waiter = Task(log, "a").waits()
    wake_all([waiter], DONE)
    assert waiter.cancel("late") is False
    assert log == [("a", DONE)]


def test_what_is_cancelled_before_its_task_waits_is_not_waited_for(wait: Wait) -> None:
    """The task raises the error itself, at its next step."""
    waiter = awaitable()
    assert waiter.cancel() is True
    assert waiter.cancel() is False
    with pytest.raises(StopIteration):
        next(wait(waiter))


def test_a_task_is_told_of_a_cancelled_future_in_its_own_context(run: Run) -> None:
    """In the next turn of its loop, and once."""

    async def main() -> None:
        log: list[tuple[str, Any]] = []
        waiter = Task(log, "a").waits()
        waiter._loop = asyncio.get_running_loop()
        assert waiter.cancel("enough") is True
        assert log == []
        await asyncio.sleep(0)
        ((name, future),) = log
        assert (name, future.cancelled()) == ("a", True)
        wake_all([waiter], DONE)
        assert len(log) == 1

    run(main())
