"""Batch functions that yield: each caller gets the pieces of its own item as they come."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batched
import batched.inference
from batched import DONE, AsyncStream, BatchError, ClosedError, QueueFullError, SlowConsumerError, Stream, aio
from tests.kit.flavours import Flavour, Tasks, blocked
from tests.kit.gate import PATIENCE_S, turns_until, until


class Steps:
    """A batch function that yields `rows(items, step)` until that is None; while shut, it holds each step."""

    def __init__(self, rows: Any, *, shut: bool = False) -> None:
        self.rows = rows
        self.batches: list[list[Any]] = []
        self.steps = 0
        self.closed = threading.Event()
        self.entered = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = not shut

    def __call__(self, items: list[Any]) -> Iterator[Any]:
        """Yield the pieces of a batch."""
        self.batches.append(list(items))
        step = 0
        try:
            while True:
                self.entered.release()
                if not self._open:
                    assert self._passes.acquire(timeout=PATIENCE_S), "nobody opened the gate"
                pieces = self.rows(items, step)
                if pieces is None:
                    return
                step += 1
                self.steps += 1
                yield pieces
        finally:
            self.closed.set()

    def let_through(self, steps: int = 1) -> None:
        """Let so many steps pass."""
        self._passes.release(steps)

    def open(self) -> None:
        """Hold no step any more."""
        self._open = True
        self._passes.release(1000)

    def wait_for_step(self) -> None:
        """Wait until one more step has begun."""
        assert self.entered.acquire(timeout=PATIENCE_S), "no further step came"


def counting(items: list[int], step: int) -> list[Any] | None:
    """Item `n` has the pieces `(n, 0)` to `(n, n - 1)`."""
    if step >= max(items):
        return None
    return [(item, step) if step < item else DONE for item in items]


def endless(items: list[Any], step: int) -> list[Any]:
    return [(item, step) for item in items]


# -- pieces ---------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    batch_size=st.integers(1, 5),
    asynchronous=st.booleans(),
)
@settings(max_examples=60)
def test_every_caller_gets_the_pieces_of_its_own_item_in_order(
    lengths: list[int], batch_size: int, asynchronous: bool
) -> None:
    """Whoever shares the batch, however long its own item is."""

    def count(items: list[int]) -> Iterator[list[Any]]:
        for step in range(max(items) + 1):
            yield [(item, step) if step < item else DONE for item in items]

    async def acount(items: list[int]) -> AsyncIterator[list[Any]]:
        for pieces in count(items):
            await asyncio.sleep(0)
            yield pieces

    fn = batched.dynamically(acount if asynchronous else count, batch_size=batch_size, timeout_ms=0)
    streams = [fn.stream(length) for length in lengths]
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in lengths]
    until(lambda: not fn.stats.running_items)
    assert fn.stats.total_processed == fn.stats.total_accepted == len(lengths)
    assert fn.stats.total_failed == 0
    fn.shutdown()


def test_callers_share_a_batch(streaming: Flavour) -> None:
    """Streams that are opened together run together, and end one by one."""
    steps = Steps(counting)
    fn = streaming.decorate(steps, batch_size=3, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in (1, 3, 2)]
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in (1, 3, 2)]
    assert steps.batches == [[1, 3, 2]]


def test_a_list_is_one_item_of_a_stream(streaming: Flavour) -> None:
    """There are no streams of many items."""
    fn = streaming.decorate(Steps(lambda items, step: items if step < 2 else None), timeout_ms=0)
    assert list(streaming.stream(fn, [1, 2])) == [[1, 2], [1, 2]]


def test_a_piece_comes_before_the_next_is_made(streaming: Flavour) -> None:
    """Nothing is held back until the end."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, timeout_ms=0)
    stream = streaming.stream(fn, "a")
    for step in range(5):
        steps.let_through()
        assert next(stream) == ("a", step)
    stream.close()
    steps.open()


def test_a_slow_consumer_slows_nobody(streaming: Flavour) -> None:
    """Its pieces wait for it, however many, while its neighbour reads to the end."""
    steps = Steps(lambda items, step: [step] * len(items) if step < 5000 else None)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000)
    slow, fast = streaming.stream(fn, "slow"), streaming.stream(fn, "fast")
    assert [next(fast) for _ in range(300)] == list(range(300))
    assert steps.closed.wait(PATIENCE_S)
    assert [next(slow) for _ in range(300)] == list(range(300))
    slow.close()
    fast.close()


def test_a_consumer_that_is_too_far_behind_gets_an_error_of_its_own(streaming: Flavour) -> None:
    """After the pieces that wait for it; its neighbour goes on."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, max_pieces=3, name="generate")
    slow, fast = streaming.stream(fn, "slow"), streaming.stream(fn, "fast")
    for step in range(7):
        if step == 3:
            assert next(slow) == ("slow", 0)  # so that it is 3 behind, once more
        steps.let_through()
        assert next(fast) == ("fast", step)
    assert [next(slow) for _ in range(3)] == [("slow", step) for step in (1, 2, 3)]
    with pytest.raises(SlowConsumerError, match="generate: .* max_pieces=3 pieces behind.* raise max_pieces"):
        next(slow)
    assert list(slow) == []
    steps.let_through()
    assert next(fast) == ("fast", 7)
    fast.close()
    steps.open()
    until(lambda: fn.stats.total_processed == 2)
    assert fn.stats.total_failed == 1


def test_pieces_that_are_not_taken_end_by_themselves(streaming: Flavour) -> None:
    """The generator is closed when all of its consumers are too far behind, and the next batch runs."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, max_pieces=50)
    streams = [streaming.stream(fn, item) for item in range(2)]
    assert steps.closed.wait(PATIENCE_S)
    assert steps.steps == 51
    for item, stream in enumerate(streams):
        assert [next(stream) for _ in range(50)] == [(item, step) for step in range(50)]
        with pytest.raises(SlowConsumerError):
            next(stream)
    following = [streaming.stream(fn, item) for item in (2, 3)]
    assert next(following[0]) == (2, 0)
    for stream in following:
        stream.close()


def test_the_last_piece_comes_before_the_error_that_follows_it() -> None:
    """Both may come after a consumer has seen no piece, and before it asks whether that is all."""

    class Late:
        """Pieces that come, with the end, when the consumer has just seen that there are none."""

        def __init__(self, call: Any) -> None:
            self.call = call
            self.pieces: list[int] = []
            self.asked = False

        def __bool__(self) -> bool:
            if not self.asked:
                self.asked = True
                self.pieces.append(7)
                self.call.fail(ValueError("after it"))
                return False
            return bool(self.pieces)

        def popleft(self) -> int:
            return self.pieces.pop(0)

        def clear(self) -> None:
            self.pieces.clear()

    fn = batched.dynamically(Steps(counting), timeout_ms=0)

    def late() -> Any:
        call = fn._find().collator.one(list, (1,), {}, 0.0)
        call.results = Late(call)
        call.loop = None
        return call

    stream = Stream(fn._find(), late())
    assert next(stream) == 7
    with pytest.raises(ValueError, match="after it"):
        next(stream)

    async def read() -> None:
        call = late()
        call.waiter = asyncio.Event()
        astream = AsyncStream(fn._find(), call)
        assert await anext(astream) == 7
        with pytest.raises(ValueError, match="after it"):
            await anext(astream)

    asyncio.run(read())


@pytest.mark.parametrize("rows", [tuple, np.array], ids=["tuple", "ndarray"])
def test_any_sized_sequence_of_pieces_will_do(streaming: Flavour, rows: Any) -> None:
    """As for rows; those of an array that is used again are copied."""
    kept = np.zeros(2)

    def refill(items: list[float]) -> Iterator[Any]:
        for step in range(3):
            kept[: len(items)] = items
            kept[:] += step
            yield kept[: len(items)] if rows is np.array else rows(kept[: len(items)].tolist())

    fn = streaming.decorate(refill, timeout_ms=0)
    stream = streaming.stream(fn, 1.0)
    until(lambda: fn.stats.total_processed == 1)
    assert [float(piece) for piece in stream] == [1.0, 2.0, 3.0]


def test_a_generator_that_yields_nothing_ends_every_stream(streaming: Flavour) -> None:
    """An empty stream is no error."""
    fn = streaming.decorate(Steps(lambda items, step: None), timeout_ms=0)
    assert list(streaming.stream(fn, 1)) == []


def test_an_async_generator_runs_in_one_task(streaming: Flavour) -> None:
    """What belongs to a task, `asyncio.timeout` or a context variable say, may span a `yield`."""
    tasks = set()

    async def generate(items: list[int]) -> AsyncIterator[list[int]]:
        async with asyncio.timeout(PATIENCE_S):
            for step in range(3):
                tasks.add(asyncio.current_task())
                await asyncio.sleep(0)
                yield [step] * len(items)

    fn = streaming.decorate(generate, timeout_ms=0)
    assert list(streaming.stream(fn, 1)) == [0, 1, 2]
    assert len(tasks) == 1


def test_methods_have_streams(streaming: Flavour) -> None:
    """Also through the class, and for a callable object."""

    class Model:
        @batched.dynamically(timeout_ms=0)
        def words(self, texts: list[str]) -> Iterator[list[Any]]:
            rows = [text.split() for text in texts]
            for step in range(max(map(len, rows))):
                yield [row[step] if step < len(row) else DONE for row in rows]

    model = Model()
    assert list(streaming.stream(model.words, "a b c")) == ["a", "b", "c"]
    assert list(Model.words.stream(model, "a b")) == ["a", "b"]
    assert list(model.words.stream(texts="a b")) == ["a", "b"]


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


def test_streams_of_several_parameters(streaming: Flavour) -> None:
    """A column each."""

    def repeat(texts: list[str], times: list[int]) -> Iterator[list[Any]]:
        for step in range(max(times)):
            yield [text if step < time else DONE for text, time in zip(texts, times, strict=True)]

    fn = streaming.decorate(repeat, timeout_ms=0)
    assert list(streaming.stream(fn, "a", 2)) == ["a", "a"]
    assert list(streaming.stream(fn, "b", times=3)) == ["b", "b", "b"]


# -- calling it wrong -----------------------------------------------------------------------------------


def test_a_function_that_streams_is_called_in_no_other_way(flavour: Flavour) -> None:
    """The error names what to call."""
    fn = flavour.decorate(Steps(counting), timeout_ms=0, name="generate")
    for ask in (lambda: flavour.call(fn, 1), lambda: flavour.call(fn, [1]), lambda: flavour.map(fn, [1])):
        with pytest.raises(TypeError, match="generate streams: call its stream or astream"):
            ask()


def test_a_function_that_does_not_stream_has_no_streams(streaming: Flavour) -> None:
    """The error says what does."""
    fn = streaming.decorate(lambda items: items, timeout_ms=0, name="embed")
    with pytest.raises(TypeError, match="embed does not stream: only a batch function that is a generator"):
        streaming.stream(fn, 1)


def test_what_does_not_go_with_streams_is_refused() -> None:
    """At decoration, and live."""

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items

    with pytest.raises(TypeError, match="isolate_errors does not go with a function that streams"):
        batched.dynamically(generate, isolate_errors=True)
    with pytest.raises(TypeError, match="cache does not go with a function that streams"):
        batched.dynamically(generate, cache={})
    with pytest.raises(TypeError, match="cannot stream"):
        batched.inference.dynamically(generate)
    with pytest.raises(TypeError, match="max_pieces=5 goes only with a function that streams"):
        batched.dynamically(lambda items: items, max_pieces=5)
    with pytest.raises(TypeError, match="max_pieces does not go with arrays"):
        batched.inference.dynamically(lambda features: features, max_pieces=5)  # type: ignore[call-overload]
    fn = batched.dynamically(generate)
    with pytest.raises(TypeError, match="isolate_errors does not go with a function that streams"):
        fn.configure(isolate_errors=True)
    fn.configure(isolate_errors=False, batch_size=2)


# -- errors ---------------------------------------------------------------------------------------------


def test_an_error_mid_stream_reaches_all_live_consumers(streaming: Flavour) -> None:
    """After their pieces; who has ended before is not told, and each has its own copy."""

    def rows(items: list[int], step: int) -> list[Any]:
        if step == 2:
            raise ValueError("mid-stream")
        return [DONE if item == 0 and step == 1 else (item, step) for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=3, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(3)]
    assert list(streams[0]) == [(0, 0)]
    errors = []
    for item in (1, 2):
        assert [next(streams[item]), next(streams[item])] == [(item, 0), (item, 1)]
        with pytest.raises(ValueError, match="^mid-stream$") as caught:
            next(streams[item])
        errors.append(caught.value)
        assert list(streams[item]) == []
    assert errors[0] is not errors[1]
    until(lambda: fn.stats.total_processed == 3)
    assert fn.stats.total_failed == 2


def test_an_exception_as_a_piece_fails_its_own_item(streaming: Flavour) -> None:
    """Its neighbour goes on."""

    def rows(items: list[int], step: int) -> list[Any] | None:
        if step == 3:
            return None
        return [KeyError("bad") if item == 1 and step == 1 else step for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=2, timeout_ms=60_000)
    good, bad = streaming.stream(fn, 0), streaming.stream(fn, 1)
    assert list(good) == [0, 1, 2]
    assert next(bad) == 0
    with pytest.raises(KeyError, match="bad"):
        next(bad)
    assert list(bad) == []
    until(lambda: fn.stats.total_processed == 2)
    assert fn.stats.total_failed == 1


def test_an_error_is_raised_even_to_who_wants_exceptions_returned(streaming: Flavour) -> None:
    """A stream has no other place for it."""

    def rows(items: list[int], step: int) -> list[Any]:
        if step:
            raise ValueError("batch")
        return [KeyError("item") if item else "piece" for item in items]

    fn = streaming.decorate(Steps(rows), batch_size=2, timeout_ms=60_000)
    view = fn.options(return_exceptions=True)
    first, second = streaming.stream(view, 0), streaming.stream(view, 1)
    with pytest.raises(KeyError, match="item"):
        next(second)
    assert next(first) == "piece"
    with pytest.raises(ValueError, match="^batch$"):
        next(first)


@pytest.mark.parametrize(
    ("pieces", "error", "message"),
    [
        (None, TypeError, "must return one result per item, .* not NoneType"),
        ("ab", TypeError, "not str"),
        ([1], BatchError, "returned 1 results for a batch of 2 items"),
        ([1, 2, 3], BatchError, "returned 3 results for a batch of 2 items"),
    ],
)
def test_pieces_that_are_not_one_per_item_fail_the_stream(
    streaming: Flavour, pieces: Any, error: Any, message: str
) -> None:
    """And close the generator; the next batch works."""
    closed = threading.Event()

    def generate(items: list[int]) -> Iterator[Any]:
        try:
            yield items
            yield pieces if items == [1, 2] else items
        finally:
            closed.set()

    fn = streaming.decorate(generate, batch_size=2, timeout_ms=60_000)
    for stream in [streaming.stream(fn, item) for item in (1, 2)]:
        next(stream)
        with pytest.raises(error, match=message):
            next(stream)
    assert closed.wait(PATIENCE_S)
    assert [list(stream) for stream in [streaming.stream(fn, item) for item in (3, 4)]] == [[3, 3], [4, 4]]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopAsyncIteration])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_is_raised_reaches_the_consumer_and_not_the_worker(kind: Any, asynchronous: bool) -> None:
    """From a generator and an asynchronous one; the next stream works."""
    broken = True

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items
        if broken:
            raise kind("stop")

    async def agenerate(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        if broken:
            raise kind("stop")

    fn = batched.dynamically(agenerate if asynchronous else generate, timeout_ms=0)
    stream = fn.stream(1)
    assert next(stream) == 1
    with pytest.raises((kind, RuntimeError)):  # which Python makes of a StopAsyncIteration
        next(stream)
    broken = False
    assert list(fn.stream(2)) == [2]
    fn.shutdown()


def test_a_generator_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its consumers have their pieces, and the worker goes on."""

    def stubborn(items: list[int]) -> Iterator[list[Any]]:
        try:
            yield items
            yield [DONE] * len(items)
        finally:
            raise OSError("no")

    async def astubborn(items: list[int]) -> AsyncIterator[list[Any]]:
        try:
            yield items
            yield [DONE] * len(items)
        finally:
            raise OSError("no")

    for function in (stubborn, astubborn):
        fn = batched.dynamically(function, timeout_ms=0)
        with caplog.at_level(logging.ERROR, "batched"):
            assert list(fn.stream(1)) == [1]
            assert list(fn.stream(2)) == [2]
        fn.shutdown()
        assert "the generator could not be closed" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("known", [False, True])
def test_out_of_memory_before_the_first_piece_divides_the_batch(streaming: Flavour, known: bool) -> None:
    """Nobody has got anything yet; later the pieces cannot be taken back, so it is an error."""

    def rows(items: list[int], step: int) -> list[Any] | None:
        if len(items) > 2 and step == int(known):
            raise MemoryError
        return items if step < 2 else None

    steps = Steps(rows)
    fn = streaming.decorate(steps, batch_size=4, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(4)]
    if known:
        for item, stream in enumerate(streams):
            assert next(stream) == item
            with pytest.raises(MemoryError):
                next(stream)
    else:
        assert [list(stream) for stream in streams] == [[item, item] for item in range(4)]
        assert steps.batches == [[0, 1, 2, 3], [0, 1], [2, 3]]
        assert fn.stats.fits_memory == 2


# -- leaving --------------------------------------------------------------------------------------------


def leave_by_close(stream: Any) -> None:
    stream.close()


def leave_by_break(stream: Any) -> None:
    for _ in stream:
        break
    stream.close()


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_break])
def test_when_nobody_is_left_the_generator_is_closed(streaming: Flavour, leave: Any) -> None:
    """At its next step, and not before the last has left."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000)
    first, last = streaming.stream(fn, "first"), streaming.stream(fn, "last")
    next(last)
    leave(first)
    assert list(first) == []
    for _ in range(20):
        next(last)
    assert not steps.closed.is_set()
    leave(last)
    assert steps.closed.wait(PATIENCE_S)
    until(lambda: fn.stats.total_processed == 2)


def test_a_consumer_that_drops_its_iterator_has_left() -> None:
    """Breaking out of a loop is enough, in a thread and in a task."""

    async def one_piece(fn: Any) -> None:
        async for _ in fn.astream("b"):
            break

    for leave in (lambda fn: next(fn.stream("a")), lambda fn: asyncio.run(one_piece(fn))):
        steps = Steps(endless)
        fn = batched.dynamically(steps, timeout_ms=0)
        leave(fn)
        gc.collect()
        assert steps.closed.wait(PATIENCE_S)
        fn.shutdown()


def test_a_consumer_that_left_keeps_no_pieces(streaming: Flavour) -> None:
    """While its neighbour goes on."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000)
    gone, stays = streaming.stream(fn, "gone"), streaming.stream(fn, "stays")
    steps.let_through()
    next(stays)
    call = (gone if not hasattr(gone, "_stream") else gone._stream)._call
    gone.close()
    steps.let_through(100)
    for _ in range(100):
        next(stays)
    assert not call.results
    stays.close()
    steps.open()


def test_a_stream_that_is_closed_while_it_waits_never_runs(streaming: Flavour) -> None:
    """Its place is taken by the next."""
    steps = Steps(lambda items, step: items if not step else None, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running = streaming.stream(fn, "running")
    steps.wait_for_step()
    waiting = [streaming.stream(fn, item) for item in range(3)]
    waiting[1].close()
    steps.open()
    assert list(running) == ["running"]
    assert [list(stream) for stream in waiting] == [[0], [], [2]]
    assert steps.batches == [["running"], [0], [2]]
    assert fn.stats.total_cancelled == 1


def test_a_stream_that_is_closed_ends_for_a_reader_that_waits(streaming: Flavour) -> None:
    """By another thread, or another task: it has no further piece, even if one is on its way."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, timeout_ms=0)
    stream = streaming.stream(fn, "a")
    steps.let_through()
    pieces: list[Any] = []
    reader = threading.Thread(target=lambda: pieces.extend([*map(pieces.append, stream), "end"]), daemon=True)
    reader.start()
    until(lambda: pieces)
    stream.close()
    reader.join(PATIENCE_S)
    assert pieces == [("a", 0), None, "end"]
    steps.open()
    until(lambda: not fn.stats.running_items)
    assert list(stream) == []


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


def test_a_deadline_ends_a_stream_that_waits_and_one_that_runs(streaming: Flavour) -> None:
    """With a TimeoutError; then the generator is closed."""
    steps = Steps(endless, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running = streaming.stream(fn.options(deadline_ms=30), "running")
    waiting = streaming.stream(fn.options(deadline_ms=30), "waiting")
    for stream in (running, waiting):
        with pytest.raises(TimeoutError, match="did not answer within deadline_ms=30"):
            next(stream)
        assert list(stream) == []
    steps.open()
    assert steps.closed.wait(PATIENCE_S)
    until(lambda: fn.stats.total_expired == 1)
    assert steps.batches == [["running"]]


def test_a_deadline_ends_a_stream_whose_pieces_never_stop(streaming: Flavour) -> None:
    """However fast they come."""
    steps = Steps(endless)
    fn = streaming.decorate(steps, timeout_ms=0, max_pieces=1_000_000_000)
    with pytest.raises(TimeoutError):
        for _ in streaming.stream(fn.options(deadline_ms=30), 1):
            pass
    until(lambda: not fn.stats.queue_size + fn.stats.running_items)
    assert steps.closed.is_set() or not steps.batches  # it was late before it could start


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
def test_a_consumer_that_finds_all_pieces_leaves_turns_to_others(decorate: Any, function: Any) -> None:
    """Its loop does not stand still until it has taken them."""

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
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert turns > 2


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


def test_pieces_that_came_in_time_are_there_after_the_deadline(streaming: Flavour) -> None:
    """A stream that has ended is not late."""
    fn = streaming.decorate(Steps(counting), timeout_ms=0)
    stream = streaming.stream(fn.options(deadline_ms=5000), 3)
    until(lambda: fn.stats.total_processed == 1)
    call = (stream if not hasattr(stream, "_stream") else stream._stream)._call
    call.deadline = call.arrived
    assert list(stream) == [(3, 0), (3, 1), (3, 2)]


# -- together with the rest -----------------------------------------------------------------------------


def test_a_bounded_queue_holds_streams_too(streaming: Flavour) -> None:
    """Refused at once, or let in when there is room."""
    steps = Steps(lambda items, step: items if not step else None, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0, max_queue_size=1)
    streams = [streaming.stream(fn, 0)]
    steps.wait_for_step()
    streams.append(streaming.stream(fn, 1))
    with pytest.raises(QueueFullError):
        streaming.stream(fn, 2)
    fn.configure(on_full="wait")
    streams += [streaming.stream(fn, item) for item in (3, 4)]
    streams[2].close()
    steps.open()
    assert [list(stream) for stream in streams] == [[0], [1], [], [4]]
    assert not blocked(fn)


def test_streams_are_grouped(streaming: Flavour) -> None:
    """Only items of one key share a batch."""
    steps = Steps(lambda items, step: items if not step else None)
    fn = streaming.decorate(steps, batch_size=2, timeout_ms=60_000, group_by=lambda item: item % 2)
    streams = [streaming.stream(fn, item) for item in range(4)]
    assert [list(stream) for stream in streams] == [[0], [1], [2], [3]]
    assert steps.batches == [[0, 2], [1, 3]]


def test_batches_stream_at_once(streaming: Flavour) -> None:
    """As many as there may be."""
    streaming.needs_threads()
    steps = Steps(endless)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0, max_concurrent_batches=3)
    streams = [streaming.stream(fn, item) for item in range(3)]
    for step in range(5):
        assert [next(stream) for stream in streams] == [(item, step) for item in range(3)]
    for stream in streams:
        stream.close()
    until(lambda: fn.stats.running_items == 0)
    fn.shutdown()


def test_a_stream_knows_its_batch(streaming: Flavour) -> None:
    """At every step; when all have left it can see that before the next."""
    seen = []

    def generate(items: list[int]) -> Iterator[list[int]]:
        while not batched.current_batch().cancelled():
            seen.append(batched.current_batch().size)
            yield items

    fn = streaming.decorate(generate, batch_size=2, timeout_ms=60_000)
    streams = [streaming.stream(fn, item) for item in range(2)]
    assert [next(stream) for stream in streams] == [0, 1]
    for stream in streams:
        stream.close()
    until(lambda: fn.stats.running_items == 0)
    assert set(seen) == {2}


def test_shutdown_lets_streams_end(streaming: Flavour) -> None:
    """What is queued runs too, and later streams are refused."""
    streaming.needs_threads()
    steps = Steps(counting, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    streams = [streaming.stream(fn, 2), streaming.stream(fn, 3)]
    steps.wait_for_step()
    fn.shutdown(wait=False)
    with pytest.raises(ClosedError):
        streaming.stream(fn, 1)
    steps.open()
    assert [list(stream) for stream in streams] == [[(n, k) for k in range(n)] for n in (2, 3)]
    fn.shutdown()


def test_cancelling_at_shutdown_spares_the_stream_that_runs(streaming: Flavour) -> None:
    """What is queued gets a CancelledError, in a task that of asyncio."""
    streaming.needs_threads()
    steps = Steps(counting, shut=True)
    fn = streaming.decorate(steps, batch_size=1, timeout_ms=0)
    running, queued = streaming.stream(fn, 2), streaming.stream(fn, 3)
    steps.wait_for_step()
    fn.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        next(queued)
    steps.open()
    assert list(running) == [(2, 0), (2, 1)]
    fn.shutdown()


def test_an_instance_is_collected_once_its_streams_have_ended() -> None:
    """Those that were read, those that were dropped, and those that failed."""

    class Model:
        @batched.dynamically(batch_size=1, timeout_ms=0)
        def generate(self, items: list[int]) -> Iterator[list[Any]]:
            yield items
            if items == [2]:
                raise ValueError

    model = Model()
    kept = [model.generate.stream(item) for item in range(4)]
    next(kept[0])
    kept[1].close()
    with contextlib.suppress(ValueError):
        list(kept[2])
    list(kept[3])
    batcher = model.generate._find()
    until(lambda: batcher.stats.running_items == 0)
    reference = weakref.ref(model)
    del model
    until(lambda: gc.collect() is not None and reference() is None)


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
    until(lambda: fn.stats.queue_size + fn.stats.running_items == 0)
    stats = fn.stats
    assert stats.total_accepted == stats.total_processed + stats.total_cancelled + stats.total_expired
    assert not fn._batcher.batcher.running.calls()
    fn.shutdown()


def test_a_loop_that_was_closed_harms_no_other_consumer() -> None:
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


@pytest.mark.parametrize(
    "options", [{"group_by": lambda item: 0}, {"max_queue_size": 4}], ids=["keys", "bound"]
)
def test_a_stream_that_is_late_at_the_door_harms_nobody(options: dict[str, Any]) -> None:
    """It raises `TimeoutError`, and who waits beside it gets its pieces."""

    async def once(items: list[int]) -> AsyncIterator[list[Any]]:
        yield items
        yield [DONE] * len(items)

    fn = batched.aio.dynamically(once, batch_size=4, timeout_ms=100, adaptive=False, **options)

    async def pieces(view: Any, item: int) -> list[Any]:
        return [piece async for piece in view.astream(item)]

    async def main() -> None:
        waiting = asyncio.create_task(pieces(fn, 1))
        await asyncio.sleep(0)
        late = fn.options(deadline_ms=1e-6, priority="bulk")
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await pieces(late, 2)
        assert await asyncio.wait_for(waiting, PATIENCE_S) == [1]

    asyncio.run(main())
