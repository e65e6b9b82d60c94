"""The iterators over a stream, in threads and on event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

import batched
import batched.inference
from batched import DONE, AsyncStream, SlowConsumerError, Stream, aio
from batched._core.call import Call
from batched._drivers.thread import ThreadDriver
from batched._drivers.wakeups import resolve_on_loop
from tests.kit.gate import PATIENCE_S, turns_until, until
from tests.kit.interrupts import Interrupt
from tests.kit.kept import driver_of
from tests.kit.stats import check_sums
from tests.kit.steps import Steps, counting, endless


def test_the_last_piece_comes_before_the_error_that_follows_it() -> None:
    """Both may come after a consumer has seen no piece, and before it asks whether that is all."""

    class Late:
        """Pieces that come, with the end, when the consumer has just seen that there are none."""

        def __init__(self, call: Any) -> None:
            self.call = call
            self.pieces: list[int] = []
            self.asked = False

        def __bool__(self) -> bool:
            return bool(self.pieces)

        def popleft(self) -> int:
            if not self.asked:
                self.asked = True
                self.pieces.append(7)
                self.call.fail(ValueError("after it"))
                raise IndexError
            return self.pieces.pop(0)

        def clear(self) -> None:
            self.pieces.clear()

    fn = batched.dynamically(Steps(counting), timeout_ms=0)

    def late() -> Any:
        call = driver_of(fn).collator.one(list, (1,), {}, 0.0)
        call.results = Late(call)
        call.waits_at = None
        call.waiter = threading.Lock()
        return call

    stream = Stream(driver_of(fn), late())
    assert next(stream) == 7
    with pytest.raises(ValueError, match="after it"):
        next(stream)

    async def read() -> None:
        call = late()
        call.waiter = asyncio.Event()
        astream = AsyncStream(driver_of(fn), call)
        assert await anext(astream) == 7
        with pytest.raises(ValueError, match="after it"):
            await anext(astream)

    asyncio.run(read())


@pytest.mark.parametrize("error", [None, ValueError("bad")])
def test_of_several_threads_that_read_a_stream_each_piece_goes_to_one_and_all_see_the_end(error: Any) -> None:
    """None of them waits for ever, or takes another that was faster for the end."""
    steps = Steps(lambda items, step: counting(items, step) if step < 300 else [error or DONE], shut=True)
    fn = batched.dynamically(steps, max_pieces=1000)
    stream = fn.stream(301)
    found: list[Any] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            found.extend(stream)
        except ValueError as raised:
            errors.append(raised)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    until(lambda: fn.stats.running_items == 1)
    steps.open()
    for reader in readers:
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
    assert sorted(found) == [(301, step) for step in range(300)]
    assert len(errors) == bool(error)


def test_no_thread_waits_for_a_piece_that_is_there() -> None:
    """Though two have come before the thread had a turn that was woken for the first."""
    go_on, hold = threading.Semaphore(0), threading.Semaphore(0)

    def pairs(items: list[int]) -> Iterator[list[int]]:
        while True:
            assert go_on.acquire(timeout=PATIENCE_S)
            yield items
            yield items
            hold.release()

    fn = batched.dynamically(pairs, timeout_ms=0)
    stream = fn.stream(7)
    for _ in range(20):
        found: list[int] = []
        begun = threading.Barrier(3)

        def read(begun: threading.Barrier = begun, found: list[int] = found) -> None:
            begun.wait(PATIENCE_S)
            found.append(next(stream))

        readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
        for reader in readers:
            reader.start()
        begun.wait(PATIENCE_S)
        go_on.release()
        assert hold.acquire(timeout=PATIENCE_S)
        until(lambda found=found: found == [7, 7])
    stream.close()
    go_on.release()


class Inherits(Steps):
    pass


class AsyncSteps:
    async def __call__(self, items: list[Any]) -> AsyncIterator[Any]:
        """Yield two pieces of each item."""
        for step in range(2):
            yield [(item, step) for item in items]


class InheritsAsync(AsyncSteps):
    pass


@pytest.mark.parametrize(
    "steps",
    [Inherits(lambda items, step: [(item, step) for item in items] if step < 2 else None), InheritsAsync()],
    ids=["generator", "asynchronous"],
)
@pytest.mark.parametrize(
    "wrapped",
    [lambda f: f, lambda f: f.__call__, partial, lambda f: partial(partial(f.__call__)), staticmethod],
    ids=["object", "method", "partial", "partials", "static method"],
)
def test_whatever_is_a_generator_streams(steps: Any, wrapped: Any) -> None:
    """A callable object whose class inherits that, its method, and what either is wrapped in."""

    async def pieces() -> list[Any]:
        return [piece async for piece in aio.dynamically(wrapped(steps), timeout_ms=0).astream(5)]

    assert list(batched.dynamically(wrapped(steps), timeout_ms=0).stream(5)) == [(5, 0), (5, 1)]
    assert asyncio.run(pieces()) == [(5, 0), (5, 1)]


def test_a_cancelled_task_has_left() -> None:
    """And its cancellation is its own."""
    steps = Steps(endless, shut=True)
    fn = batched.dynamically(steps, timeout_ms=0)

    async def read() -> None:
        async for _ in fn.astream(1):
            pass

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.to_thread(steps.wait_for_step)
        steps.let_through(3)
        await asyncio.to_thread(lambda: until(lambda: steps.steps == 3))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        steps.open()
        assert await asyncio.to_thread(steps.closed.wait, PATIENCE_S)

    asyncio.run(main())


def never_waiting(items: list[Any]) -> Iterator[list[Any]]:
    for _ in range(5_000_000):  # for ever, but that a loop that has no turn ends
        yield items


async def never_awaiting(items: list[Any]) -> AsyncIterator[list[Any]]:
    for pieces in never_waiting(items):
        yield pieces


NEVER_WAIT = pytest.mark.parametrize("function", [never_waiting, never_awaiting])
DECORATORS = pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically], ids=["", "aio"])


@DECORATORS
@NEVER_WAIT
def test_callers_of_a_function_that_never_waits_leave_in_time(run: Any, decorate: Any, function: Any) -> None:
    """By a deadline, or cancelled by another task, on an event loop that has its turns."""
    taken = 0

    async def read(view: Any) -> None:
        nonlocal taken
        async for _ in view.astream(1):
            taken += 1

    async def main() -> None:
        fn = decorate(function, timeout_ms=0, max_pieces=1_000_000_000)
        task = asyncio.create_task(read(fn))
        await turns_until(lambda: taken)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError, match="did not answer within deadline_ms=30"):
            await read(fn.options(deadline_ms=30))
        await fn.aclose()

    run(main())


@DECORATORS
@NEVER_WAIT
def test_a_consumer_that_finds_all_pieces_leaves_turns_to_others(
    decorate: Any, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop does not stand still until it has taken them; each look at the clock takes 0.1 ms here."""

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        fn = decorate(function, timeout_ms=0, max_pieces=10_000)
        stream = fn.astream(1)
        await turns_until(lambda: fn.stats.total_processed == 1)  # it is as far behind as it may be
        task = asyncio.create_task(others())
        with pytest.raises(SlowConsumerError):
            async for _ in stream:
                pass
        task.cancel()
        await fn.aclose()

    turns = 0
    looks = count()
    monkeypatch.setattr("batched._api.streams.monotonic", lambda: next(looks) / 10_000)
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert turns > 100


def test_a_loop_that_is_busy_is_told_once_of_all_pieces() -> None:
    """However many come meanwhile."""
    told = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **named: Any) -> Any:
            told.append(args)
            return super().call_soon_threadsafe(*args, **named)

    async def main() -> None:
        steps = Steps(lambda items, step: [step] if step < 100 else None)
        stream = batched.dynamically(steps, timeout_ms=0).astream(1)
        assert steps.closed.wait(PATIENCE_S)
        assert len(told) == 1
        assert [piece async for piece in stream] == list(range(100))

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


@pytest.mark.thread_unsafe(reason="it traces its thread")
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("inside", ["wake_all", "Bell.ring"])
def test_a_ctrl_c_as_consumers_are_woken_keeps_none_waiting(inside: str) -> None:
    """At each bytecode: each of two tasks that read one stream has a piece, or its end, all the same."""

    async def woken(at: int) -> bool:
        fn = batched.dynamically(Steps(endless, shut=True), timeout_ms=60_000, adaptive=False)
        stream = fn.astream(1)
        call = driver_of(fn).batcher.unanswered_calls()[0]
        readers = [asyncio.ensure_future(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        call.results.extend("ab")
        interrupt = Interrupt(at, inside)
        asyncio.get_running_loop().call_soon(interrupt.during, lambda: resolve_on_loop([call]))
        assert sorted(await asyncio.wait_for(asyncio.gather(*readers), PATIENCE_S)) == ["a", "b"]
        stream.close()
        fn.shutdown()
        return interrupt.came

    # Twice: from Python 3.14 on, a function may have no bytecodes for a tracer when it is first traced.
    at = next(at for at in count(1) if not (asyncio.run(woken(at)) or asyncio.run(woken(at))))
    assert at > 2


class Arriving:
    """What a thread waits for, in the place of a lock: two pieces of its call have come as its wait ends."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._is_free = False

    def acquire(self, timeout: float) -> bool:
        self._is_free = False
        self._call.results.extend("ab")
        return True

    def locked(self) -> bool:
        return not self._is_free

    def release(self) -> None:
        self._is_free = True


@pytest.mark.thread_unsafe(reason="it traces its thread")
@pytest.mark.usefixtures("untraced")
def test_a_ctrl_c_in_one_consumer_leaves_no_other_asleep() -> None:
    """At each bytecode: a piece that it has not taken wakes another thread that reads the stream."""

    def is_told(at: int) -> bool:
        stream = fn.stream(1)
        call = stream._call  # noqa: SLF001
        worker, call.waiter = call.waiter, Arriving(call)
        interrupt = Interrupt(at, "Stream.__next__")
        interrupt.during(lambda: next(stream))
        if call.results and call.waiter.locked():
            untold.append(interrupt.place)
        call.waiter = worker
        stream.close()
        return interrupt.came

    fn = batched.dynamically(Steps(endless, shut=True), timeout_ms=60_000, adaptive=False)
    untold: list[str] = []
    at = next(at for at in count(1) if not (is_told(at) or is_told(at)))  # twice, as above
    fn.shutdown()
    assert at > 2
    assert untold == []


def read_in_a_thread(fn: Any, seed: int) -> None:
    """Read streams to the end or not, close them or drop them."""
    for turn in range(40):
        item, want = (seed * 7 + turn * 3) % 12, (seed + turn) % 15
        stream = fn.options(deadline_ms=20_000).stream(item) if turn % 2 else fn.stream(item)
        pieces = [piece for _, piece in zip(range(want), stream, strict=False)]
        assert pieces == [(item, step) for step in range(min(item, want))]
        if turn % 3:
            stream.close()


async def read_in_a_task(fn: Any, seed: int) -> None:
    """Read streams to the end or not."""
    for turn in range(40):
        item, want = (seed * 5 + turn * 3) % 12, 1 + (seed + turn) % 15
        pieces: list[Any] = []
        async for piece in fn.astream(item):
            pieces.append(piece)
            if len(pieces) == want:
                break
        assert pieces == [(item, step) for step in range(min(item, want))]


def test_consumers_at_random_get_their_own_pieces_or_leave() -> None:
    """Threads and tasks, ending, leaving early, dropped; then nothing is left."""

    def generate(items: list[int]) -> Iterator[list[Any]]:
        for step in range(max(items) + 1):
            yield [(item, step) if step < item else DONE for item in items]

    fn = batched.dynamically(generate, batch_size=8, timeout_ms=0.5, max_concurrent_batches=2)

    async def tasks() -> None:
        await asyncio.gather(*(read_in_a_task(fn, seed) for seed in range(20)))

    readers: list[tuple[Any, ...]] = [(read_in_a_thread, fn, seed) for seed in range(4)]
    readers += [(lambda: asyncio.run(tasks()),)] * 2
    over: list[int] = []
    threads = [
        threading.Thread(target=lambda read, *args: over.append(read(*args)), args=reader, daemon=True)
        for reader in readers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert over == [None] * 6
    gc.collect()
    check_sums(fn)
    assert not driver_of(fn).batcher.running_calls()
    fn.shutdown()


@pytest.mark.parametrize("kind", [Stream, AsyncStream])
def test_a_stream_that_cannot_be_made_is_not_in_the_queue(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C may come as it is made: without a consumer it would run to its end, for no caller."""
    fn = batched.dynamically(Steps(counting), timeout_ms=60_000, adaptive=False)
    way = "post" if kind is Stream else "post_async"
    post = getattr(ThreadDriver, way)

    def interrupted(driver: ThreadDriver, call: Any) -> None:
        post(driver, call)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadDriver, way, interrupted)

    async def begin() -> None:
        fn.astream(1)

    with pytest.raises(KeyboardInterrupt):
        fn.stream(1) if kind is Stream else asyncio.run(begin())
    gc.collect()
    stats = fn.stats
    assert (stats.queue_size, stats.running_items, stats.total_cancelled) == (0, 0, 1)
    fn.shutdown()
