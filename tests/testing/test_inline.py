"""`inline`: each call is answered at once, in the thread of its caller, and all else is as ever."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import batched
import batched.inference
from batched import aio
from batched.testing import assert_independent, inline, manual_clock, own_loops
from tests.kit.gate import PATIENCE_S, Gate, turns, turns_until
from tests.kit.serving import served


class Watched:
    """A batch function that notes its batches, and the threads that they ran in."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.threads: set[int] = set()

    def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        self.threads.add(threading.get_ident())
        return [item * 2 for item in items]


def test_calls_of_threads_run_where_they_come_from() -> None:
    """Calls, futures and maps: each has a batch of its own, and there is no worker."""
    function = Watched()
    fn = batched.dynamically(function, batch_size=2, timeout_ms=60_000, adaptive=False)
    with inline():
        assert fn(1) == 2
        assert fn([1, 2, 3]) == [2, 4, 6]
        future = fn.submit("a")
        assert future.done()
        assert future.result() == "aa"
        assert list(fn.map(range(4))) == [0, 2, 4, 6]
    assert function.batches[:4] == [[1], [1, 2], [3], ["a"]]
    assert function.threads == {threading.get_ident()}
    assert fn.worker_stack() == ""
    assert fn.stats.total_processed == 9


def test_figures_know_what_runs() -> None:
    """Asked inside of the function: of threads, and of tasks, where nothing counts as cancelled."""
    seen: list[tuple[int, ...]] = []

    def note(stats: batched.Stats) -> None:
        counted = stats.queue_size, stats.running_items, stats.total_processed, stats.total_cancelled
        assert stats.total_accepted == sum(counted)
        seen.append(counted)

    def plain(items: list[int]) -> list[int]:
        note(fn.stats)
        return items

    async def awaited(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        note(on_loop.stats)
        return items

    fn = batched.dynamically(plain, batch_size=2)
    on_loop = aio.dynamically(awaited, batch_size=2)

    async def main() -> None:
        assert await on_loop([1, 2, 3]) == [1, 2, 3]

    expected = [(1, 2, 0, 0), (0, 1, 2, 0)]
    with inline():
        assert fn([1, 2, 3]) == [1, 2, 3]
        assert seen == expected
        asyncio.run(main())
    assert seen == 2 * expected
    assert fn.stats.running_items == on_loop.stats.running_items == 0


def test_calls_of_tasks_run_where_they_come_from() -> None:
    """With a worker thread, and on the loop."""
    function = Watched()
    fn = batched.dynamically(function, timeout_ms=60_000, adaptive=False)
    plain = aio.dynamically(function, timeout_ms=60_000, adaptive=False)

    async def main() -> None:
        assert await fn.acall(1) == 2
        assert await fn.acall([1, 2]) == [2, 4]
        assert [answer async for answer in fn.amap(range(3))] == [0, 2, 4]
        assert await plain(3) == 6

    with inline():
        asyncio.run(main())
    assert function.threads == {threading.get_ident()}


DECORATE = pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine function while calls are answered at once."""

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    with inline():
        asyncio.run(limited())


@DECORATE
def test_coroutine_functions_run_on_the_loop_of_the_task_that_calls(decorate: Any) -> None:
    """So they may wait for what other tasks of that loop do; from a list, a map and a stage, too."""
    loops = set()
    event = asyncio.Event()

    async def double(items: list[int]) -> list[int]:
        loops.add(asyncio.get_running_loop())
        await event.wait()
        assert batched.current_batch().size == len(items)
        return [item * 2 for item in items]

    async def add(items: list[int]) -> list[int]:
        loops.add(asyncio.get_running_loop())
        await event.wait()
        return [item + 1 for item in items]

    fn = decorate(double, batch_size=2)
    staged = aio.dynamically(double, prepare=add, finish=add)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(event.set)
        assert list(await asyncio.gather(fn.acall(1), fn.acall([2, 3, 4]))) == [2, [4, 6, 8]]
        assert [answer async for answer in fn.amap(range(5))] == [0, 2, 4, 6, 8]
        assert await staged(1) == 5
        assert loops == {asyncio.get_running_loop()}

    run(main)
    assert fn.stats.total_processed == 9


def test_coroutine_functions_have_a_loop_of_their_own_where_no_task_awaits() -> None:
    """From a thread, also one that runs a loop. And a plain function may return what is to be awaited."""

    async def double(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        assert batched.current_batch().size == len(items)
        return [item * 2 for item in items]

    def awaitable(items: list[int]) -> Any:
        return double(items)

    fn = batched.dynamically(double)
    plain = batched.dynamically(awaitable)

    async def main() -> None:
        assert fn.submit(1).result() == 2
        assert await plain.acall(1) == 2

    with inline():
        assert fn(5) == plain(5) == 10
    run(main)


def test_a_coroutine_function_keeps_the_loop_that_it_has_where_no_task_awaits() -> None:
    """As in its worker: for all batches, so that it may keep a lock, a session or a client of that loop."""
    loops: list[asyncio.AbstractEventLoop] = []
    variable: ContextVar[int] = ContextVar("variable")

    async def note(items: list[int]) -> list[int]:
        loops.append(asyncio.get_running_loop())
        assert variable.get(0) == 0
        variable.set(1)
        return items

    async def load(_: str) -> None:
        loops.append(asyncio.get_running_loop())

    def use_one() -> None:
        fn = batched.dynamically(note)

        async def main() -> None:
            fn.submit(6).result()

        with inline():
            assert (fn(1), fn([2, 3]), fn.submit(4).result(), list(fn.map([5]))) == (1, [2, 3], 4, [5])
        with inline():
            run(main)
        clock = manual_clock(fn)
        clock.call(7)
        clock.turn(100)
        assert_independent(fn, [1, 2, 3])
        assert not loops[0].is_closed()

    def use_workers() -> None:
        with inline():
            batched.dynamically(note, workers=batched.Workers(1, initializer=load))(1)

    use_one()
    assert len(set(map(id, loops))) == 1
    use_workers()
    assert len(set(map(id, loops))) == 2
    gc.collect()
    assert all(loop.is_closed() for loop in loops)


def test_coroutine_functions_in_several_threads_have_a_loop_each() -> None:
    """None waits for another: they may wait for each other."""
    both = threading.Barrier(2)

    async def meet(items: list[int]) -> list[int]:
        both.wait(PATIENCE_S)
        return items

    fn = batched.dynamically(meet)
    with inline(), ThreadPoolExecutor(2) as threads:
        assert list(threads.map(fn, [1, 2])) == [1, 2]


@DECORATE
@pytest.mark.parametrize("most", [1, 2])
def test_as_many_batches_run_at_once_as_may(decorate: Any, most: int) -> None:
    """A function that is used by one batch at a time has no lock of its own."""
    running, seen = 0, []

    async def watched(items: list[int]) -> list[int]:
        nonlocal running
        running += 1
        seen.append(running)
        await asyncio.sleep(0)
        running -= 1
        return items

    fn = decorate(watched, max_concurrent_batches=most)

    async def main() -> None:
        assert await asyncio.gather(*map(fn.acall, range(6))) == [*range(6)]

    run(main)
    assert max(seen) == most


@DECORATE
def test_a_task_that_is_cancelled_leaves_what_has_not_started(decorate: Any) -> None:
    """The batch that runs goes on; those behind it never run, and other calls are answered."""
    batches = []
    event = asyncio.Event()

    async def gated(items: list[int]) -> list[int]:
        batches.append(items)
        await event.wait()
        return items

    fn = decorate(gated, batch_size=1, max_concurrent_batches=2)

    async def main() -> None:
        left, other = asyncio.ensure_future(fn.acall([1, 2, 3])), asyncio.ensure_future(fn.acall(4))
        await turns_until(lambda: len(batches) == 2)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        event.set()
        assert await other == 4

    run(main)
    assert batches == [[1], [4]]
    assert (fn.stats.total_processed, fn.stats.total_cancelled, fn.stats.queue_size) == (2, 2, 0)


@DECORATE
@pytest.mark.parametrize("way", ["call", "stage", "stream"])
def test_a_loop_may_end_before_a_coroutine_function_has_had_its_turn(decorate: Any, way: str) -> None:
    """Python does not warn of the batch function that it was never awaited: its calls were."""
    began = []

    async def endless(items: list[int]) -> list[int]:
        began.append(items)
        await asyncio.Event().wait()
        return items

    async def pieces(items: list[int]) -> AsyncIterator[list[int]]:
        yield await endless(items)

    functions: dict[str, Any] = {
        "call": lambda: decorate(endless),
        "stage": lambda: aio.dynamically(endless, prepare=endless),
        "stream": lambda: decorate(pieces),
    }
    fn = functions[way]()

    async def main() -> None:
        calls = [asyncio.ensure_future(fn.acall(item)) for item in range(3)]
        await turns_until(lambda: bool(began))
        assert not any(call.done() for call in calls)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    assert began == [[0]]
    assert [str(each.message) for each in warned] == []


@DECORATE
@pytest.mark.parametrize("streams", [False, True])
def test_a_call_is_counted_if_its_loop_ends_as_its_batch_begins(decorate: Any, streams: bool) -> None:
    """The task that would run it is cancelled before it has had a turn."""

    async def same(items: list[int]) -> list[int]:
        return items

    async def pieces(items: list[int]) -> AsyncIterator[list[int]]:
        yield items

    fn = decorate(pieces if streams else same)
    calls: list[asyncio.Future[list[int]]] = []

    async def main() -> None:
        calls.append(asyncio.ensure_future(fn.acall(1)))

    run(main)
    assert fn.stats.total_accepted == fn.stats.total_processed == 1


VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


def sets(items: list[Any]) -> list[str]:
    """Return what the variable is, and set it."""
    found = [VARIABLE.get() for _ in items]
    VARIABLE.set("by the function")
    return found


async def sets_later(items: list[Any]) -> list[str]:
    await asyncio.sleep(0)
    return sets(items)


def sets_and_yields(items: list[Any]) -> Iterator[list[str]]:
    yield sets(items)


@DECORATE
@pytest.mark.parametrize("function", [sets, sets_later, sets_and_yields])
def test_context_variables_of_callers_are_not_set_in_the_function(decorate: Any, function: Any) -> None:
    """Nor those of the function in its callers, as in a service: a function that needs one fails here too."""
    fn = decorate(function)
    answer = ["unset"] if function is sets_and_yields else "unset"

    async def main() -> None:
        VARIABLE.set("by the caller")
        assert await fn.acall(1) == answer
        assert VARIABLE.get() == "by the caller"

    run(main)
    if decorate is batched.dynamically:
        with inline():
            copy_context().run(check_that_it_is_unset, fn, answer)


def check_that_it_is_unset(fn: Any, answer: Any) -> None:
    VARIABLE.set("by the caller")
    assert fn(1) == answer
    assert fn.submit(1).result() == answer
    assert VARIABLE.get() == "by the caller"


def test_no_deadline_passes_while_a_task_waits() -> None:
    """Whatever the function takes."""

    async def slow(items: list[int]) -> list[int]:
        began = monotonic()
        await turns_until(lambda: monotonic() > began + 0.005)
        return items

    async def main() -> None:
        for decorate in (batched.dynamically, aio.dynamically):
            assert await decorate(slow, default_deadline_ms=1).acall(1) == 1

    run(main)


def test_no_deadline_passes_while_a_cache_is_asked_and_told() -> None:
    """Whatever an asynchronous cache takes, and whether the deadline is the call's or that of a block."""
    kept: dict[int, int] = {}

    class Slow:
        async def get(self, key: int) -> int | None:
            began = monotonic()
            await turns_until(lambda: monotonic() > began + 0.005)
            return kept.get(key)

        async def set(self, key: int, result: int) -> None:
            began = monotonic()
            await turns_until(lambda: monotonic() > began + 0.005)
            kept[key] = result

    async def main() -> None:
        fn = aio.dynamically(lambda items: items, default_deadline_ms=1, cache=Slow())
        assert await fn(1) == 1
        with batched.deadline(1):
            assert await fn(2) == 2

    run(main)
    assert kept == {1: 1, 2: 2}


def test_a_function_that_calls_itself_is_told_so() -> None:
    """As ever: it would wait for itself."""

    def once_more(items: list[int]) -> list[int]:
        return plain(items)

    async def aonce_more(items: list[int]) -> list[int]:
        return await on_loop(items)

    plain, on_loop = batched.dynamically(once_more), aio.dynamically(aonce_more)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="inside its own batch function"):
            await on_loop(1)

    with inline(), pytest.raises(RuntimeError, match="inside its own batch function"):
        plain(1)
    run(main)


def test_a_function_that_calls_another_on_the_same_workers_is_told_so() -> None:
    """As ever: a worker would wait for itself. On other workers it may."""
    workers, others = batched.Workers(1, name="pool"), batched.Workers(1)
    inner = batched.dynamically(list, workers=workers)

    def ask(items: list[int]) -> list[int]:
        return [inner(item) for item in items]

    async def ask_awaiting(items: list[int]) -> list[int]:
        return [await inner.acall(item) for item in items]

    async def main() -> None:
        with pytest.raises(RuntimeError, match="called from a worker of 'pool', on which it runs itself"):
            await batched.dynamically(ask_awaiting, workers=workers).acall(1)

    with inline():
        with pytest.raises(RuntimeError, match="called from a worker of 'pool', on which it runs itself"):
            batched.dynamically(ask, workers=workers)(1)
        assert batched.dynamically(ask, workers=others)(1) == 1
        assert batched.dynamically(ask)(1) == 1
    run(main)


def test_errors_of_coroutine_functions_reach_their_callers() -> None:
    """After a wait, too; items that fail are isolated."""

    async def invert(items: list[int]) -> list[float]:
        await asyncio.sleep(0)
        return [1 / item for item in items]

    async def main() -> None:
        for decorate in (batched.dynamically, aio.dynamically):
            fn = decorate(invert)
            with pytest.raises(ZeroDivisionError):
                await fn.acall(0)
            good, bad = await fn.options(return_exceptions=True).acall([4, 0])
            assert (good, type(bad)) == (0.25, ZeroDivisionError)

    run(main)


def test_streams_of_a_task_come_from_its_own_loop() -> None:
    """A generator may wait for the consumer of its pieces."""
    taken = asyncio.Event()

    async def echo(items: list[int]) -> AsyncIterator[list[int]]:
        for step in range(3):
            yield [item + step for item in items]
            await taken.wait()
            taken.clear()

    async def main() -> None:
        for decorate in (batched.dynamically, aio.dynamically):
            pieces = []
            async for piece in decorate(echo).astream(1):
                pieces.append(piece)
                taken.set()
            assert pieces == [1, 2, 3]

    run(main)


def test_streams_have_all_pieces_at_once() -> None:
    """Plain and asynchronous generators, from threads and tasks."""

    def count(items: list[int]) -> Iterator[list[int]]:
        for step in range(3):
            yield [item + step for item in items]

    async def acount(items: list[int]) -> AsyncIterator[list[int]]:
        for pieces in count(items):
            yield pieces

    fn, also = batched.dynamically(count), batched.dynamically(acount)
    on_loop = aio.dynamically(acount)

    async def main() -> list[list[int]]:
        return [[piece async for piece in each.astream(1)] for each in (fn, also, on_loop)]

    with inline():
        assert list(fn.stream(1)) == list(also.stream(1)) == [1, 2, 3]
        assert asyncio.run(main()) == [[1, 2, 3]] * 3


def test_errors_options_and_caches_are_as_ever() -> None:
    """Items that fail, exceptions in the place of results, a cache, keys, and a full queue."""

    def invert(items: list[int]) -> list[float]:
        return [1 / item for item in items]

    fn = batched.dynamically(invert, cache={}, max_queue_size=8, group_by=lambda item: item % 2)
    with inline():
        assert fn(2) == 0.5
        with pytest.raises(ZeroDivisionError):
            fn(0)
        assert isinstance(fn.submit(0).exception(), ZeroDivisionError)
        good, bad = fn.options(return_exceptions=True)([4, 0])
        assert (good, type(bad)) == (0.25, ZeroDivisionError)
        assert fn(2) == 0.5
        assert fn.stats.total_cached == 1
        with pytest.raises(ValueError, match="max_queue_size"):
            fn(list(range(1, 20)))


@pytest.mark.parametrize("returns_at_once", [True, False])
def test_what_listens_has_been_told_of_a_batch_when_its_call_returns(returns_at_once: bool) -> None:
    """Of threads, futures and tasks; and though it calls the function."""
    told: list[int] = []

    def listen(record: batched.BatchRecord) -> None:
        if record.size == 1:
            fn([1, 2])
        told.append(record.size)

    async def awaited(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return items

    def plain(items: list[int]) -> list[int]:
        return items

    function: Any = plain if returns_at_once else awaited
    fn = batched.dynamically(function, on_batch=listen)
    on_loop = aio.dynamically(function, on_batch=listen)

    async def main() -> None:
        for size in range(2, 12):
            await fn.acall([0] * size)
            await on_loop([0] * size)
            assert [told.pop(), told.pop()] == [size, size]

    with inline():
        for size in range(2, 12):
            fn([0] * size)
            fn.submit([0] * size).result()
            assert [told.pop(), told.pop()] == [size, size]
        asyncio.run(main())
        fn(1)
        assert told[0] == 1


def test_arrays_and_methods() -> None:
    """Features are padded and cut as ever; an instance is its own."""

    @batched.inference.dynamically
    def total(features: dict[str, Any]) -> Any:
        return features["x"].sum(axis=1)

    class Model:
        @batched.dynamically
        def name(self, items: list[str]) -> list[tuple[int, str]]:
            return [(id(self), item) for item in items]

    model = Model()
    with inline():
        assert total({"x": np.ones((2, 3))}).tolist() == [3.0, 3.0]
        assert model.name("a") == (id(model), "a")


@DECORATE
def test_a_function_that_is_closed_waits_for_what_runs(decorate: Any) -> None:
    """The batch of a task ends before `aclose` returns; a call that comes later is refused."""
    ended: list[int] = []

    async def main() -> None:
        entered, gate = asyncio.Event(), asyncio.Event()

        async def note(items: list[int]) -> list[int]:
            entered.set()
            await gate.wait()
            ended.extend(items)
            return items

        fn = decorate(note)
        call = asyncio.create_task(fn.acall(1))
        await entered.wait()
        closing = asyncio.create_task(fn.aclose())
        await turns()
        assert not closing.done()
        with pytest.raises(batched.ClosedError):
            await fn.acall(2)
        gate.set()
        await closing
        assert ended == [1]
        assert await call == 1

    with inline():
        run(main)


def test_a_function_that_is_shut_down_waits_for_what_runs_in_other_threads() -> None:
    """Without `wait` it does not."""
    gate = Gate(shut=True)
    fn = batched.dynamically(gate)
    with inline(), ThreadPoolExecutor(2) as threads:
        call = threads.submit(fn, 1)
        gate.wait_for_batch()
        fn.shutdown(wait=False)
        ending = threads.submit(fn.shutdown)
        assert not ending.done()
        gate.open()
        ending.result(PATIENCE_S)
        assert call.result(PATIENCE_S) == 1
        assert fn.stats.total_processed == 1


@pytest.mark.parametrize("how", ["shutdown", "aclose", "acall"])
def test_a_function_that_is_closed_from_inside_is_told_so(how: str) -> None:
    """As ever: it would wait for its own end."""

    async def end_on_loop(items: list[int]) -> list[int]:
        await fn.aclose()
        return items

    def end(items: list[int]) -> list[int]:
        fn.shutdown()
        return items

    fn: Any = batched.dynamically(end if how == "shutdown" else end_on_loop)

    async def main() -> None:
        await fn.acall(1)

    with inline(), pytest.raises(batched.ClosedError, match="from inside its own batch function"):
        run(main) if how == "acall" else fn(1)


def test_it_ends_with_the_block_and_may_be_nested() -> None:
    """Afterwards a worker runs batches again; a function that was shut down says so inside, too."""
    function = Watched()
    fn = batched.dynamically(function, timeout_ms=0)
    with inline():
        with inline():
            fn(1)
        fn(2)
    assert function.threads == {threading.get_ident()}
    fn(3)
    assert len(function.threads) == 2
    fn.shutdown()
    with inline(), pytest.raises(batched.ClosedError):
        fn(4)


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_a_server_in_this_process_answers_its_clients_as_ever(decorate: Any) -> None:
    """In its worker, or on its loop: the caller, in its thread, is in another process."""
    double = Watched()
    with served(decorate(double, name="double")) as server, server.connect() as client, inline():
        remote = client.double.options(deadline_ms=1000 * PATIENCE_S)
        assert client.double.submit(1).result(PATIENCE_S) == 2
        assert remote(1) == 2
        assert remote([1, 2]) == [2, 4]
        assert list(remote.map(range(3))) == [0, 2, 4]

        async def main() -> list[int]:
            return await asyncio.gather(*map(remote.acall, range(5)))

        assert asyncio.run(main()) == [0, 2, 4, 6, 8]
    assert threading.get_ident() not in double.threads


@pytest.mark.parametrize("deadline_ms", [None, 1000 * PATIENCE_S])
@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_a_server_in_this_process_answers_elements_one_by_one_as_ever(
    decorate: Any, deadline_ms: float | None
) -> None:
    """Of a map of which one is refused."""
    double = Watched()
    known = dict.fromkeys(range(3), 0)
    function = decorate(double, name="double", group_by=known.__getitem__)
    with served(function) as server, server.connect() as client, inline(), ThreadPoolExecutor(1) as pool:
        kept = client.double.options(return_exceptions=True, deadline_ms=deadline_ms)
        answers = pool.submit(lambda: list(kept.map(range(4)))).result(PATIENCE_S)
    assert answers[:3] == [0, 2, 4]
    assert isinstance(answers[3], batched.BatchError)


def test_stages_and_the_current_batch() -> None:
    """A batch passes its stages, and its function can ask for it."""

    def sized(items: list[int]) -> list[int]:
        return [item + batched.current_batch().size for item in items]

    staged = batched.dynamically(
        lambda items: items,
        prepare=lambda items: [item * 2 for item in items],
        finish=lambda items: [item + 1 for item in items],
    )
    with inline():
        assert batched.dynamically(sized)([1, 2]) == [3, 4]
        assert staged([1, 2]) == [3, 5]


def test_a_function_finds_the_first_of_its_workers_and_its_state() -> None:
    """Which is made once, and anew when the function says so; without workers there is a first one, too."""
    made: list[str] = []

    async def load(name: str) -> int:
        made.append(name)
        return len(made)

    def states(items: list[int]) -> list[Any]:
        if items == [13]:
            raise batched.RestartWorker from ValueError("broken")
        worker = batched.current_worker()
        return [(worker.name, worker.state)] * len(items)

    async def names(items: list[int]) -> list[str]:
        return [batched.current_worker().name for _ in items]

    workers = batched.Workers(["cuda:0", "cuda:1"], initializer=load)
    fn = batched.dynamically(states, workers=workers)
    with inline():
        assert fn([1, 2]) == [("cuda:0", 1)] * 2
        with pytest.raises(ValueError, match="broken"):
            fn(13)
        assert fn(1) == ("cuda:0", 3)  # its batch has run once more
        alone = batched.dynamically(states)
        with pytest.raises(ValueError, match="broken"):
            alone(13)
        assert alone(1) == ("0", None)
        assert batched.dynamically(names, workers=workers)(1) == "cuda:0"
        with pytest.raises(RuntimeError, match="outside a worker"):
            batched.current_worker()
    assert made == ["cuda:0"] * 3


def test_each_stage_finds_the_worker_of_its_batch() -> None:
    """And none outlives it."""

    def note(values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(*value, batched.current_worker().state) for value in values]

    workers = batched.Workers(["a", "b"], initializer=str.upper)
    fn = batched.dynamically(note, prepare=note, finish=note, workers=workers)
    with inline():
        assert fn([(1,), (2,)]) == [(1, "A", "A", "A"), (2, "A", "A", "A")]


def test_a_batch_that_breaks_its_worker_runs_once_more() -> None:
    """As in a service, with a new state: no caller notices."""
    made: list[str] = []

    def run(items: list[int]) -> list[int]:
        if len(made) == 1:
            raise batched.RestartWorker from ValueError("broken")
        return items

    workers = batched.Workers(1, initializer=made.append)
    fn = batched.dynamically(run, workers=workers)
    with inline():
        assert fn([1, 2]) == [1, 2]
    assert len(made) == 2


def test_the_loop_of_a_function_that_two_threads_call_first_is_closed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have found that the function has no loops yet."""

    class Loops(WeakKeyDictionary[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            found = super().get(key, default)
            if found is None and "other" not in seen:
                seen.append("other")
                own_loops._own.of(key)  # noqa: SLF001  as another thread does
            return found

    seen: list[Any] = []
    monkeypatch.setattr(own_loops._own, "_free", Loops())  # noqa: SLF001
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    @batched.dynamically
    async def double(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    with inline():
        assert double(1) == 2
    del double
    gc.collect()
    assert seen == ["other"]
