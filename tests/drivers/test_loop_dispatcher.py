"""When batches start on an event loop, and what timers they take."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from batched import BatchError, QueueFullError, aio
from batched._drivers import event_loop
from batched._drivers.loop_dispatcher import LoopDispatcher
from tests.kit.effort import pairs
from tests.kit.functions import echo
from tests.kit.gate import PATIENCE_S, AsyncGate, turns
from tests.kit.loops import KINDS, eager, noting


def test_all_who_come_in_one_turn_of_the_loop_share_a_batch(run: Any) -> None:
    """Also with no window, also on a loop that starts tasks at once."""

    async def main() -> None:
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, timeout_ms=0)
        if sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(eager)
        assert await asyncio.gather(*map(fn, range(10))) == list(range(10))
        assert gate.batches == [list(range(10))]

    run(main())


def test_who_comes_while_a_batch_awaits_is_in_the_next(run: Any, wakes_at_once: bool) -> None:
    """One batch at a time; callers that were just answered, and come straight back, are in it too."""

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
        assert gate.batches == ([[0], [1, 2, 0]] if wakes_at_once else [[0], [1, 2], [0]])

    run(main())


def test_a_function_that_never_waits_does_not_keep_the_loop_to_itself(run: Any) -> None:
    """Others have their turn between the batches of a long list."""

    async def main() -> None:
        fn = aio.dynamically(echo, batch_size=4, timeout_ms=0)
        task = asyncio.create_task(fn(list(range(10_000))))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        assert task.result() == list(range(10_000))
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


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_loop_is_never_woken(kind: str) -> None:
    """Between calls there is no timer and no task, with a window and without."""

    async def main() -> None:
        fn = aio.dynamically(echo, timeout_ms=0)
        windowed = aio.dynamically(echo, timeout_ms=1)
        assert (await fn(1), await windowed(1)) == (1, 1)
        await turns()
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop.timers if not timer.cancelled() and timer.when() > loop.time()] == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=lambda: noting(kind)) as runner:
        runner.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_is_woken_once_however_often_options_change(kind: str) -> None:
    """Else a thread that changes them faster than the loop plans would keep it from all else."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, batch_size=2, timeout_ms=0)
        first = asyncio.create_task(fn(["first"] * 2))
        await gate.entered.acquire()
        loop: Any = asyncio.get_running_loop()
        for _ in range(2):  # again, once the loop has planned
            before = loop.woken
            for size in range(1, 1001):
                fn.configure(batch_size=size)
            assert loop.woken == before + 1
            await turns()
        gate.opened.set()
        assert await first == ["first"] * 2

    with asyncio.Runner(loop_factory=lambda: noting(kind)) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))


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
        monkeypatch.setattr(event_loop, "watch", lambda *args: timers.append(args))
        with pytest.raises(QueueFullError if refused == "full" else ValueError):
            await fn.options(deadline_ms=600_000)(3 if refused == "full" else [3, 4])
        monkeypatch.undo()
        assert timers == []
        gate.opened.set()
        assert await asyncio.gather(first, second) == [1, 2]

    run(main())


@pytest.mark.parametrize(
    ("kind", "options"),
    pairs(KINDS, [{}, {"max_queue_size": 100}, {"length": abs, "max_queue_size": 8}]),
)
def test_a_deadline_that_is_far_starts_nothing(kind: str, options: dict[str, Any]) -> None:
    """Nor does a bound: what waits in its window waits on, until the batch is full or a deadline is near."""

    async def main() -> None:
        gate = AsyncGate(shut=False, note=sorted)
        fn = aio.dynamically(gate, batch_size=8, timeout_ms=60_000, **options)
        soon = fn.options(deadline_ms=1000)
        later = fn.options(deadline_ms=600_000)
        tasks = [asyncio.create_task(later(0))]
        await turns()
        loop: Any = asyncio.get_running_loop()
        timers = list(loop.timers)
        assert len(timers) == 2  # of the window, and of the deadline
        tasks += [asyncio.create_task(later(item)) for item in range(1, 4)]
        await turns()
        assert loop.timers == timers
        assert not any(timer.cancelled() for timer in timers)
        tasks.append(asyncio.create_task(soon(4)))
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        tasks += [asyncio.create_task(later(item)) for item in range(8)]
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert [task.result() for task in tasks] == [*range(5), *range(8)]
        assert gate.batches == [list(range(5)), list(range(8))]

    with asyncio.Runner(loop_factory=lambda: noting(kind)) as runner:
        runner.run(main())


@pytest.mark.parametrize("name", ["_stop_timer", "_wait"])
def test_a_ctrl_c_while_a_loop_plans_loses_no_call(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The timer of the last plan is gone by then; the loop plans once more when it goes on."""
    fn = aio.dynamically(echo, timeout_ms=60_000, adaptive=False)
    right = getattr(LoopDispatcher, name)

    def interrupted(self: LoopDispatcher, *args: Any) -> None:
        right(self, *args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    call = loop.create_task(fn(1))
    loop.run_until_complete(turns())
    fn.configure(timeout_ms=1)
    monkeypatch.setattr(LoopDispatcher, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(turns())
    assert loop.run_until_complete(asyncio.wait_for(call, PATIENCE_S)) == 1
    loop.close()


def test_a_batch_that_is_taken_as_ctrl_c_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its callers have an error; no task would ever run it."""
    plan = LoopDispatcher.plan
    came: list[bool] = []

    def interrupted(self: LoopDispatcher, loop: asyncio.AbstractEventLoop) -> None:
        if not came and self.batcher.running:
            came.append(True)
            raise KeyboardInterrupt
        plan(self, loop)

    monkeypatch.setattr(LoopDispatcher, "plan", interrupted)

    async def ask() -> list[Any]:
        return await asyncio.gather(*[fn(item) for item in range(4)], return_exceptions=True)

    fn = aio.dynamically(echo, batch_size=4, timeout_ms=0, max_concurrent_batches=2)
    loop = asyncio.new_event_loop()
    try:
        answers = loop.run_until_complete(asyncio.wait_for(ask(), PATIENCE_S))
        assert all(isinstance(answer, BatchError) for answer in answers)
        assert loop.run_until_complete(asyncio.wait_for(fn(7), PATIENCE_S)) == 7
    finally:
        loop.close()
