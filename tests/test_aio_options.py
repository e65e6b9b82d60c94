"""Options and streams as event loops have them. What is true of every flavour has a file of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from batched import DONE, ClosedError, QueueFullError, aio
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
    """For what waits already, and for a window that somebody waits in."""

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


# -- a bounded queue -----------------------------------------------------------------------------------


def test_who_is_cancelled_or_late_at_the_door_leaves(run: Any) -> None:
    """Those behind move up, in order; who closes does not leave anybody at the door."""

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


# -- an asynchronous cache -----------------------------------------------------------------------------


class Remote:
    """A cache whose answers wait at a gate."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.asked = asyncio.Semaphore(0)
        self.opened = asyncio.Event()
        self.opened.set()

    async def get(self, key: Any) -> Any:
        self.asked.release()
        await self.opened.wait()
        return self.kept.get(key)

    async def set(self, key: Any, value: Any) -> None:
        self.kept[key] = value


def test_lists_run_only_what_an_asynchronous_cache_does_not_know(run: Any) -> None:
    """In order; failures are not kept; equal items in flight run once."""

    async def main() -> None:
        remote = Remote()
        remote.kept["b"] = "B"
        gate = AsyncGate(lambda items: [OSError(x) if x == "bad" else x.upper() for x in items], shut=False)
        fn = aio.dynamically(gate, timeout_ms=0, cache=remote)
        assert await asyncio.gather(fn(["a", "b", "c"]), fn("c")) == [["A", "B", "C"], "C"]
        assert sorted(sum(gate.batches, [])) == ["a", "c"]
        with pytest.raises(OSError, match="bad"):
            await fn("bad")
        assert remote.kept == {"a": "A", "b": "B", "c": "C"}
        assert fn.stats.total_cached == 2

    run(main())


def test_a_map_asks_an_asynchronous_cache_and_keeps_what_it_did_not_know(run: Any) -> None:
    """Answers come in order; failures are raised at their place, and not kept."""

    async def main() -> None:
        remote = Remote()
        remote.kept.update({1: "one", 4: "four"})
        gate = AsyncGate(lambda items: [OSError(str(x)) if x == 7 else f"{x}" for x in items], shut=False)
        fn = aio.dynamically(gate, batch_size=3, timeout_ms=0, cache=remote)
        answers = []

        async def read() -> None:
            async for answer in fn.amap(range(9)):
                answers.append(answer)

        with pytest.raises(OSError, match="7"):
            await read()
        assert answers == ["0", "one", "2", "3", "four", "5", "6"]
        assert remote.kept.keys() >= {0, 1, 2, 3, 4, 5}
        assert 7 not in remote.kept
        ran = [item for batch in gate.batches for item in batch]
        assert not {1, 4} & set(ran)
        assert fn.stats.total_cached == 2
        assert [answer async for answer in fn.amap([4, 0, 1, 5])] == ["four", "0", "one", "5"]
        assert [item for batch in gate.batches for item in batch] == ran

    run(main())


def test_a_map_that_is_left_while_the_cache_is_asked_runs_nothing(run: Any) -> None:
    """Nothing of it is queued."""

    async def main() -> None:
        remote = Remote()
        remote.opened.clear()
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, batch_size=2, timeout_ms=0, cache=remote)
        answers = fn.amap(range(4))
        first = asyncio.ensure_future(anext(answers))
        await remote.asked.acquire()
        first.cancel()
        await turns()
        remote.opened.set()
        assert await fn(9) == 9
        assert gate.batches == [[9]]
        assert fn.stats.total_accepted == 1

    run(main())


def test_a_caller_that_leaves_while_the_cache_is_asked_never_runs(run: Any) -> None:
    """Nothing of it is queued; the next caller is answered."""

    async def main() -> None:
        remote = Remote()
        remote.opened.clear()
        gate = AsyncGate(shut=False)
        fn = aio.dynamically(gate, timeout_ms=0, cache=remote)
        gone = asyncio.create_task(fn(1))
        await remote.asked.acquire()
        gone.cancel()
        await turns()
        assert gone.cancelled()
        remote.opened.set()
        assert await fn(2) == 2
        assert gate.batches == [[2]]
        assert fn.stats.total_accepted == 1

    run(main())


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_result_is_kept_by_whoever_still_waits_for_it(run: Any, leaver: int) -> None:
    """Also if its caller who sent the item off has left, and others share the run."""

    async def main() -> None:
        remote = Remote()
        gate = AsyncGate(lambda items: [item.upper() for item in items])
        fn = aio.dynamically(gate, timeout_ms=0, cache=remote)
        callers = [asyncio.create_task(fn("a"))]
        await gate.entered.acquire()
        callers.append(asyncio.create_task(fn("a")))
        await turns()
        callers[leaver].cancel()
        await turns()
        gate.opened.set()
        assert await callers[1 - leaver] == "A"
        assert remote.kept == {"a": "A"}
        assert gate.batches == [["a"]]

    run(main())


# -- streams -------------------------------------------------------------------------------------------


class Steps:
    """Yields each item with the number of the step, as often as the item says."""

    def __init__(self, *, plain: bool) -> None:
        self.batches: list[list[int]] = []
        self.closed = 0
        steps = self.plainly if plain else self.asynchronously
        self.fn = aio.dynamically(steps, batch_size=3, timeout_ms=0, name="f")

    def plainly(self, items: list[int]) -> Iterator[list[Any]]:
        self.batches.append(list(items))
        try:
            for step in range(max(map(abs, items)) + 1):
                if -1 in items and step:
                    raise OSError("mid stream")
                yield [(item, step) if step < abs(item) else DONE for item in items]
        finally:
            self.closed += 1

    async def asynchronously(self, items: list[int]) -> AsyncIterator[list[Any]]:
        for pieces in self.plainly(items):
            await asyncio.sleep(0)
            yield pieces


async def read(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


@pytest.mark.parametrize("plain", [False, True])
def test_streams_share_a_batch_and_each_has_its_own_pieces(run: Any, plain: bool) -> None:
    """In order, to its own end; the next batch is another."""

    async def main() -> None:
        steps = Steps(plain=plain)
        streams = [steps.fn.astream(item) for item in (0, 3, 1, 2)]
        assert await asyncio.gather(*map(read, streams)) == [[(n, k) for k in range(n)] for n in (0, 3, 1, 2)]
        assert sum(steps.batches, []) == [0, 3, 1, 2]
        await steps.fn.aclose()
        assert steps.closed == len(steps.batches)
        assert steps.fn.stats.total_processed == 4
        with pytest.raises(ClosedError):
            steps.fn.astream(1)

    run(main())


@pytest.mark.parametrize("plain", [False, True])
def test_a_stream_that_fails_or_is_left_harms_no_other(run: Any, plain: bool) -> None:
    """The pieces before an error are there; when nobody is left the generator is closed."""

    async def main() -> None:
        steps = Steps(plain=plain)
        failing = steps.fn.astream(-1)
        assert await anext(failing) == (-1, 0)
        with pytest.raises(OSError, match="mid stream"):
            await read(failing)
        async with aclosing(steps.fn.astream(1_000_000)) as endless:
            async for piece in endless:
                if piece[1] == 2:
                    break
        await steps.fn.aclose()  # which would else wait for a million steps
        assert steps.closed == len(steps.batches) == 2

    run(main())


@pytest.mark.parametrize("plain", [False, True])
def test_a_stream_has_no_other_way_to_be_called(run: Any, plain: bool) -> None:
    """And what does not stream has no streams."""

    async def main() -> None:
        fn = Steps(plain=plain).fn
        for call in (fn(1), fn.acall([1])):
            with pytest.raises(TypeError, match="f streams: call its stream or astream"):
                await call
        with pytest.raises(TypeError, match="f does not stream"):
            aio.dynamically(asyncio_echo, name="f").astream(1)

    run(main())
