"""The tasks that run batches: cancelled, failing, calling, and their contexts."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batched import BatchError, aio
from tests.kit.gate import PATIENCE_S, AsyncGate, turns


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


@pytest.mark.parametrize("how", ["await", "list", "gather", "amap", "cache"])
def test_functions_that_call_each_other_in_a_circle_get_an_error(run: Any, how: str) -> None:
    """The inner call would wait for the place of the outer one. The error says what to write."""

    async def ask(fn: Any, item: int) -> int:
        match how:
            case "list":
                return (await fn([item]))[0]
            case "gather":
                return (await asyncio.gather(fn(item)))[0]
            case "amap":
                (result,) = [each async for each in fn.amap([item])]
                return result
            case _:
                return await fn(item)

    def decorate(function: Any) -> Any:
        return aio.dynamically(function, timeout_ms=0, cache={} if how == "cache" else None)

    @decorate
    async def first(items: list[int]) -> list[int]:
        return [await ask(second, item - 1) if item else item for item in items]

    @decorate
    async def second(items: list[int]) -> list[int]:
        return [await ask(first, item - 1) if item else item for item in items]

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RuntimeError, match=r"first was called from inside .*first\.__wrapped__"):
                await first(2)
            assert await first(1) == 0
            assert await second(1) == 0

    run(main())


@pytest.mark.parametrize("stage", ["prepare", "finish"])
def test_a_circle_by_way_of_a_stage_is_an_error_while_others_run(run: Any, stage: str) -> None:
    """A batch that could start all the same would wait at that stage."""

    async def ask(items: list[int]) -> list[int]:
        return [await second(item - 1) if item == 2 else item for item in items]  # type: ignore[misc]

    async def same(items: list[int]) -> list[int]:
        return items

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(8):  # so that it is known how long its stages take
                await first(0)
            is_held.set()
            both = [[2, 2], [0, 0]] if stage == "finish" else [[0, 0], [2, 2]]
            ran.clear()
            one = asyncio.ensure_future(first(both[0]))
            await ran.wait()
            other = asyncio.ensure_future(first(both[1]))
            asks, plain = (one, other) if stage == "finish" else (other, one)
            if stage == "finish":
                go_on.set()
            with pytest.raises(RuntimeError, match=r"first was called from inside .*first\.__wrapped__"):
                await asks
            assert await plain == await first([0, 0]) == [0, 0]

    async def hold(items: list[int]) -> list[int]:
        ran.set()
        if is_held.is_set():
            await go_on.wait()
        return items

    async def ask_back(items: list[int]) -> list[int]:
        try:
            return [await first(item) for item in items]
        finally:
            go_on.set()

    ran, is_held, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stages: dict[str, Any] = {"prepare": same, "finish": same, stage: ask}
    options: dict[str, Any] = {"batch_size": 2, "timeout_ms": 0, "adaptive": False}
    first = aio.dynamically(hold, name="first", **stages, **options)
    second = aio.dynamically(ask_back, name="second", timeout_ms=0)
    run(main())


def test_functions_in_a_circle_with_room_for_the_inner_batch_are_answered(run: Any) -> None:
    """With two batches at once the inner call has a place; a third one has not."""

    @aio.dynamically(timeout_ms=0, max_concurrent_batches=2)
    async def first(items: list[int]) -> list[int]:
        return [await second(item - 1) if item else item for item in items]

    @aio.dynamically(timeout_ms=0, max_concurrent_batches=2)
    async def second(items: list[int]) -> list[int]:
        return [await first(item - 1) if item else item for item in items]

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await first(3) == 0
            with pytest.raises(RuntimeError, match="inside a batch function that its own batch waits for"):
                await first(4)

    run(main())


def test_a_circle_by_way_of_an_item_that_has_joined_is_an_error(run: Any) -> None:
    """Also where the batch has called the busy function before that item came."""
    gate = asyncio.Event()

    @aio.dynamically(batch_size=1, timeout_ms=0)
    async def other(items: list[str]) -> list[Any]:
        if items == ["busy"]:
            await gate.wait()
        return [await steps("joins") if item == "circle" else item for item in items]

    @aio.dynamically(batch_size=2, timeout_ms=0, continuous=True)
    async def steps(items: list[str]) -> AsyncIterator[list[str]]:
        rows = [*items]
        await other("first")
        while True:
            if "joins" in rows:
                await other("again")
            change = yield rows
            rows = [row for at, row in enumerate(rows) if at not in change.left] + [*change.joined]

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            busy = asyncio.create_task(other("busy"))
            await turns()
            live = steps.astream("live")
            await turns()
            gate.set()
            assert await anext(live) == "live"
            with pytest.raises(RuntimeError, match="other was called from inside a batch function"):
                await other("circle")
            assert await busy == "busy"

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


def test_a_task_with_a_context_of_its_own_may_call_the_function_that_has_started_it(run: Any) -> None:
    """Whether the batch awaits a task cannot be seen; one that it says is its own business is not refused."""
    started: list[asyncio.Task[int]] = []

    @aio.dynamically(timeout_ms=0)
    async def fn(items: list[int]) -> list[int]:
        if items == [1]:
            for context in (contextvars.Context(), None):
                started.append(asyncio.create_task(ask(), context=context))
            await turns()
        return items

    async def ask() -> int:
        return await fn(2)

    async def main() -> None:
        assert await fn(1) == 1
        async with asyncio.timeout(PATIENCE_S):
            assert await started[0] == 2
            with pytest.raises(RuntimeError, match="inside its own batch function"):
                await started[1]

    run(main())


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


@pytest.mark.parametrize("waits", [True, False])
def test_a_full_batch_starts_without_a_turn_of_the_loop(run: Any, waits: bool) -> None:
    """The function is idle for no turn, and still the loop gets one after every other batch at least."""

    async def main() -> None:
        passed = 0
        begun: list[int] = []
        ended: list[int] = []

        async def echo(items: list[int]) -> list[int]:
            begun.append(passed)
            if waits:
                await asyncio.sleep(0)
            ended.append(passed)
            return items

        async def count() -> None:
            nonlocal passed
            while True:
                passed += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        fn = aio.dynamically(echo, batch_size=2, timeout_ms=0)
        assert await fn([*range(40)]) == [*range(40)]
        counting.cancel()
        between = [begin - end for begin, end in zip(begun[1:-1], ended, strict=False)]
        if waits:
            assert between == [0] * 18
        else:
            assert set(between) == {0, 1}
            assert not any(first == second == 0 for first, second in itertools.pairwise(between))

    run(main())


def test_a_caller_that_comes_straight_back_is_in_each_batch_beside_a_list(
    run: Any, wakes_at_once: bool
) -> None:
    """It has a turn of the loop between two batches, however many items of the list wait."""

    async def main() -> None:
        batches: list[list[int]] = []

        async def echo(items: list[int]) -> list[int]:
            batches.append(items)
            await asyncio.sleep(0)
            return items

        fn = aio.dynamically(echo, batch_size=8, timeout_ms=0)
        listed = asyncio.create_task(fn([*range(400)]))
        await turns(2)
        for number in range(20):
            assert await fn(-1 - number) == -1 - number
        single = [at for at, items in enumerate(batches) if min(items) < 0]
        assert [after - before for before, after in itertools.pairwise(single)] == [
            1 if wakes_at_once else 2
        ] * 19
        assert await listed == [*range(400)]

    run(main())
