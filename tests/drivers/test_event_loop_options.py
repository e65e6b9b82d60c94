"""Options as event loops have them: `configure` and a bounded queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batched import ClosedError, QueueFullError, aio
from batched._core.batcher import Batcher
from tests.kit.gate import AsyncGate, turns


async def held(**options: Any) -> tuple[AsyncGate, Any, asyncio.Task[Any]]:
    """Return a batcher whose first batch waits at the gate."""
    gate = AsyncGate()
    fn = aio.dynamically(gate, **{"timeout_ms": 0, "name": "f", **options})
    first = asyncio.create_task(fn("first"))
    await gate.entered.acquire()
    return gate, fn, first


# -- configure -----------------------------------------------------------------------------------------


def test_configure_holds_from_the_next_batch_on(run: Any) -> None:
    """For what waits already, and for a window that a call waits in."""

    async def main() -> None:
        gate, fn, first = await held(batch_size=8)
        tasks = [asyncio.create_task(fn(item)) for item in range(4)]
        await turns()
        fn.configure(batch_size=2)
        gate.opened.set()
        assert await asyncio.gather(first, *tasks) == ["first", 0, 1, 2, 3]
        assert gate.batches == [["first"], [0, 1], [2, 3]]
        fn.configure(timeout_ms=600_000)
        waiting = asyncio.create_task(fn(4))
        await turns()
        assert not waiting.done()
        fn.configure(timeout_ms=0)
        assert await waiting == 4
        with pytest.raises(TypeError, match="configure cannot change 'cache'"):
            fn.configure(cache={})

    run(main())


def test_configure_from_another_thread_wakes_the_loop(run: Any) -> None:
    """Whose callers wait for room."""

    async def main() -> None:
        gate, fn, first = await held(batch_size=2, max_queue_size=1, on_full="wait")
        tasks = [asyncio.create_task(fn(item)) for item in range(3)]
        await turns()
        assert fn.stats.queue_size == 1
        await asyncio.to_thread(fn.configure, max_queue_size=None)
        await turns()
        assert fn.stats.queue_size == 3
        gate.opened.set()
        assert await asyncio.gather(first, *tasks) == ["first", 0, 1, 2]

    run(main())


def test_an_interrupt_of_configure_in_another_thread_is_raised_there(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just as calls have moved into the queue: only the loop plans for these."""

    async def main() -> None:
        gate, fn, first = await held(batch_size=2)
        task = asyncio.create_task(fn(1))
        await turns()
        configure = Batcher.configure

        def interrupted(batcher: Batcher, options: Any) -> None:
            configure(batcher, options)
            batcher.effects.has_moved = True
            raise KeyboardInterrupt

        def change() -> None:
            with pytest.raises(KeyboardInterrupt):
                fn.configure(batch_size=3)

        monkeypatch.setattr(Batcher, "configure", interrupted)
        await asyncio.to_thread(change)
        monkeypatch.undo()
        gate.opened.set()
        assert await asyncio.gather(first, task) == ["first", 1]

    run(main())


# -- a bounded queue -----------------------------------------------------------------------------------


def test_a_caller_that_is_cancelled_or_late_at_the_door_leaves(run: Any) -> None:
    """Those behind move up, in order; `aclose` leaves no call at the door."""

    async def main() -> None:
        gate, fn, first = await held(batch_size=1, max_queue_size=1, on_full="wait")
        tasks = [asyncio.create_task(fn(item)) for item in range(4)]
        await turns()
        tasks[1].cancel()
        with pytest.raises(TimeoutError, match="deadline_ms=20"):
            await fn.options(deadline_ms=20)("late")
        closing = asyncio.create_task(fn.aclose())
        await turns()
        with pytest.raises(ClosedError):
            await fn("closed")
        gate.opened.set()
        await closing
        assert [await task for task in (first, tasks[0], *tasks[2:])] == ["first", 0, 2, 3]
        assert gate.batches == [["first"], [0], [2], [3]]
        assert (fn.stats.total_cancelled, fn.stats.total_expired) == (1, 1)

    run(main())


def test_every_loop_has_a_bound_of_its_own(run: Any) -> None:
    """One that is full refuses its own callers only."""
    fn = aio.dynamically(asyncio_echo, batch_size=1, timeout_ms=0, max_queue_size=2)

    async def fill() -> list[Any]:
        got = await asyncio.gather(fn([1, 1]), fn(2), fn(3), return_exceptions=True)
        return [type(one) if isinstance(one, Exception) else one for one in got]

    async def main() -> None:
        assert await fill() == [[1, 1], QueueFullError, QueueFullError]
        assert await asyncio.to_thread(asyncio.run, fill()) == [[1, 1], QueueFullError, QueueFullError]
        assert (fn.stats.total_rejected, fn.stats.total_processed) == (4, 4)

    run(main())


async def asyncio_echo(items: list[Any]) -> list[Any]:
    return items
