"""On loops of each kind that users have each way to call works, and callers of one turn share a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import batched
from batched import aio
from tests.kit.functions import echo, plain_echo
from tests.kit.gate import PATIENCE_S, AsyncGate, Gate, turns
from tests.kit.loops import new_loop

pytestmark = pytest.mark.thread_unsafe(reason="a loop runs in one thread")

KINDS = [
    "asyncio",
    "debug",
    "eager",
    "uvloop",
    "uvloop, debug",
    "uvloop, eager",
    "Python tasks",
    "Python tasks, debug",
]


@pytest.fixture(params=KINDS)
def runner(request: pytest.FixtureRequest) -> Any:
    """An `asyncio.Runner` whose loop is of a kind."""
    with asyncio.Runner(loop_factory=lambda: new_loop(request.param)) as runner:
        runner.get_loop()
        yield runner


async def each_way(decorate: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Ask for an item, lists, many at once and a `map`, with a deadline; have a call cancelled."""
    fn = decorate(function, batch_size=8, timeout_ms=0)
    assert await fn.acall(1) == 1
    assert await fn.acall([*range(20)]) == [*range(20)]
    assert await asyncio.gather(*map(fn.acall, range(50))) == [*range(50)]
    assert [item async for item in fn.amap(range(20))] == [*range(20)]
    assert await fn.options(deadline_ms=60_000).acall(2) == 2
    later = decorate(function, timeout_ms=600_000, adaptive=False)
    waiting = asyncio.create_task(later.acall(4))
    await turns()
    assert waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await later.aclose()
    assert (later.stats.queue_size, later.stats.total_cancelled) == (0, 1)
    await fn.aclose()


@pytest.mark.parametrize(
    ("decorate", "function"),
    [
        (batched.dynamically, plain_echo),
        (batched.dynamically, echo),
        (aio.dynamically, plain_echo),
        (aio.dynamically, echo),
    ],
    ids=["thread", "thread, async", "worker of a loop", "loop"],
)
def test_each_way_to_call_works_on_a_loop_of_each_kind(runner: Any, decorate: Any, function: Any) -> None:
    """The worker's too: a function that is `async def`, for threads, runs on a loop of the worker's own."""
    runner.run(asyncio.wait_for(each_way(decorate, function), PATIENCE_S))


@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "loop"])
def test_a_deadline_frees_a_caller_on_a_loop_of_each_kind(runner: Any, on_loop: bool) -> None:
    """While the function runs; a caller that waits longer is answered."""

    async def main() -> None:
        gate: Any = AsyncGate() if on_loop else Gate(shut=True)
        fn = (aio if on_loop else batched).dynamically(gate, timeout_ms=0)
        patient = asyncio.create_task(fn.acall(1))
        with pytest.raises(TimeoutError):
            await fn.options(deadline_ms=20).acall(2)
        if on_loop:
            gate.opened.set()
        else:
            gate.open()
        assert await patient == 1
        await fn.aclose()

    runner.run(asyncio.wait_for(main(), PATIENCE_S))


def test_streams_are_read_on_a_loop_of_each_kind(runner: Any) -> None:
    """Pieces that are made in a thread, and on the loop."""

    async def on_loop(items: list[int]) -> AsyncIterator[list[Any]]:
        for piece in range(3):
            yield [(item, piece) for item in items]
            await asyncio.sleep(0)

    def in_thread(items: list[int]) -> Any:
        for piece in range(3):
            yield [(item, piece) for item in items]

    async def read(fn: Any, item: int) -> list[Any]:
        return [piece async for piece in fn.astream(item)]

    async def main() -> None:
        for decorate, function in ((batched.dynamically, in_thread), (aio.dynamically, on_loop)):
            fn = decorate(function, timeout_ms=0)
            read_by_all = await asyncio.gather(*(read(fn, item) for item in range(4)))
            assert read_by_all == [[(item, piece) for piece in range(3)] for item in range(4)]
            await fn.aclose()

    runner.run(asyncio.wait_for(main(), PATIENCE_S))


def test_callers_of_one_turn_share_a_batch_on_a_loop_of_each_kind(runner: Any) -> None:
    """So do those that come while a batch runs."""

    async def main() -> None:
        gate = AsyncGate()
        fn = aio.dynamically(gate, timeout_ms=0)
        tasks = [asyncio.create_task(fn(item)) for item in range(5)]
        await gate.entered.acquire()
        tasks += [asyncio.create_task(fn(item)) for item in range(5, 9)]
        await turns()
        gate.opened.set()
        assert await asyncio.gather(*tasks) == [*range(9)]
        assert gate.batches == [[*range(5)], [*range(5, 9)]]
        await fn.aclose()

    runner.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["thread", "loop"])
def test_a_runner_runs_several_times_and_others_come_after_it(runner: Any, decorate: Any) -> None:
    """One queue per loop: what a task asked for in one run, another can await in the next."""
    fn = decorate(plain_echo if decorate is batched.dynamically else echo, timeout_ms=0)

    async def ask(item: int) -> Any:
        return await fn.acall(item)

    async def start(item: int) -> asyncio.Task[Any]:
        task = asyncio.create_task(ask(item))
        await asyncio.sleep(0)
        return task

    async def both(task: asyncio.Task[Any], item: int) -> list[Any]:
        return await asyncio.gather(task, ask(item))

    assert runner.run(ask(1)) == 1
    task = runner.run(start(2))
    assert runner.run(asyncio.wait_for(both(task, 3), PATIENCE_S)) == [2, 3]
    with asyncio.Runner() as other:
        assert other.run(asyncio.wait_for(ask(4), PATIENCE_S)) == 4
    assert runner.run(asyncio.wait_for(ask(5), PATIENCE_S)) == 5
    runner.run(fn.aclose())


@pytest.mark.parametrize("kind", ["asyncio", "debug", "eager", "Python tasks"])
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["thread", "loop"])
def test_a_loop_that_is_run_once_more_inside_itself_answers_both(kind: str, decorate: Any) -> None:
    """From a task that was just woken with others, which are woken in the inner run or after it."""
    fn = decorate(plain_echo if decorate is batched.dynamically else echo, timeout_ms=0)

    async def several(first: int) -> list[Any]:
        return [
            *await asyncio.gather(*map(fn.acall, range(first, first + 5))),
            await fn.acall([first, first]),
        ]

    async def caller(item: int) -> list[Any]:
        loop: Any = asyncio.get_running_loop()
        before = await fn.acall(item)
        inner = loop.nested(asyncio.wait_for(several(item + 10), PATIENCE_S))
        return [before, inner, await fn.acall(item + 1)]

    async def main() -> None:
        for first in (0, 100):
            found = await asyncio.gather(*map(caller, range(first, first + 4)))
            assert found == [
                [item, [*range(item + 10, item + 15), [item + 10] * 2], item + 1]
                for item in range(first, first + 4)
            ]
        await fn.aclose()

    with asyncio.Runner(loop_factory=lambda: new_loop(kind)) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("kind", ["asyncio", "debug", "Python tasks"])
def test_a_batch_function_that_runs_its_loop_inside_itself_lets_calls_wait(kind: str) -> None:
    """The calls that come meanwhile are in the next batch, as of any function that takes a while."""
    batches: list[list[int]] = []

    async def nesting(items: list[int]) -> list[int]:
        batches.append(items)
        loop: Any = asyncio.get_running_loop()
        loop.nested(turns())
        return items

    async def main() -> None:
        fn = aio.dynamically(nesting, timeout_ms=0)
        first = asyncio.create_task(fn(0))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(fn(item)) for item in (1, 2)]
        assert await asyncio.gather(first, *rest) == [0, 1, 2]
        assert batches == [[0], [1, 2]]
        await fn.aclose()

    with asyncio.Runner(loop_factory=lambda: new_loop(kind)) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))


def test_debug_mode_finds_no_thread_that_calls_the_loop_as_if_it_were_its_own() -> None:
    """There `call_soon` of another thread raises: workers and a shutdown from elsewhere do it rightly."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate, timeout_ms=0)

    async def main() -> None:
        first = asyncio.create_task(fn.acall(0))
        await asyncio.to_thread(gate.wait_for_batch)
        late = asyncio.create_task(fn.acall(1))
        await turns()
        await asyncio.to_thread(fn.shutdown, wait=False, cancel_futures=True)
        gate.open()
        assert await first == 0
        with pytest.raises(asyncio.CancelledError):
            await late

    with asyncio.Runner(debug=True) as runner:
        runner.run(asyncio.wait_for(main(), PATIENCE_S))
    fn.shutdown()
