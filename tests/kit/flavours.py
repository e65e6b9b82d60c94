"""The ways to call a batched function, so that one suite can hold all of them to the same behaviour."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

import batched
import batched.aio.inference
import batched.inference
from batched import aio
from tests.kit.gate import PATIENCE_S, until


class Flavour:
    """One way to call: `start` queues a call and returns the future of its answer."""

    name = "submit"
    cancels = True
    in_tasks = False
    """Whether callers are tasks of an event loop."""
    blocks = True
    """Whether a call without `await` has its answer."""

    def decorate(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function` batched."""
        return batched.dynamically(function, **options)

    def decorate_arrays(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function`, over features, batched."""
        return batched.inference.dynamically(function, **options)

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call; it is queued when this returns."""
        future: Future[Any] = fn.submit(*args, **named)
        return future

    def call(self, fn: Any, /, *args: Any, **named: Any) -> Any:
        """Return or raise the answer."""
        return self.start(fn, *args, **named).result(PATIENCE_S)

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a call; the batcher knows when this returns."""
        assert future.cancel()

    def needs_threads(self) -> None:
        """Skip a test whose callers, some of them, are threads, if they cannot be."""
        if not self.blocks:
            pytest.skip("threads cannot call it")

    def close(self, fn: Any) -> None:
        """Shut `fn` down, with what is queued run to its end."""
        fn.shutdown()

    def map(self, fn: Any, items: Any, *more: Any) -> list[Any]:
        """Return all answers of a map."""
        return list(fn.map(items, *more))

    def stream(self, fn: Any, *args: Any, **named: Any) -> Any:
        """Begin a stream; it is queued when this returns."""
        return fn.stream(*args, **named)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Provide what callers run on."""
        yield


class Threads(Flavour):
    """A thread per caller, blocked in the call."""

    name = "threads"
    cancels = False

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call in a thread of its own."""
        future: Future[Any] = Future()
        before = fn.stats

        def work() -> None:
            try:
                future.set_result(fn(*args, **named))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        until(lambda: future.done() or _has_come(before, fn.stats))
        return future


def _has_come(before: batched.Stats, now: batched.Stats) -> bool:
    came, already = (
        stats.total_accepted + stats.total_cached + stats.total_rejected for stats in (now, before)
    )
    return came > already


class Tasks(Flavour):
    """A task per caller, on an event loop in another thread."""

    name = "acall"
    in_tasks = True

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run an event loop."""
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join(PATIENCE_S)
            left = asyncio.all_tasks(self.loop)  # of calls that the test did not wait for
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=PATIENCE_S))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(asyncio.sleep(0))  # ends a generator that was collected meanwhile
            self.loop.close()

    def run(self, coroutine: Any) -> Any:
        """Run `coroutine` on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call in a task of its own."""
        future = asyncio.run_coroutine_threadsafe(fn.acall(*args, **named), self.loop)
        self.run(asyncio.sleep(0))  # the task has run to its first wait
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Cancel the task of a call."""
        assert future.cancel()
        for _ in range(3):  # the loop hears of it, cancels the task, the task ends
            self.run(asyncio.sleep(0))

    def close(self, fn: Any) -> None:
        """Shut `fn` down, with what is queued run to its end."""
        self.run(fn.aclose())

    def map(self, fn: Any, items: Any, *more: Any) -> list[Any]:
        """Return all answers of a map."""

        async def answers() -> list[Any]:
            return [answer async for answer in fn.amap(items, *more)]

        result: list[Any] = self.run(answers())
        return result

    def stream(self, fn: Any, *args: Any, **named: Any) -> Any:
        """Begin a stream, to be read here."""

        async def begin() -> Any:
            return fn.astream(*args, **named)

        return Pieces(self, self.run(begin()))


class Pieces:
    """An asynchronous stream, read from outside of its loop."""

    def __init__(self, tasks: Tasks, stream: Any) -> None:
        self._tasks = tasks
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def following() -> Any:
            return await anext(self._stream)

        try:
            return self._tasks.run(following())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Leave the stream."""
        self._tasks.run(self._stream.aclose())


class Awaited(Tasks):
    """As a task per caller, of a function for event loops only: `async def`, on the loop of its callers."""

    name = "aio"
    blocks = False

    def decorate(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function` as an `async def`, batched."""
        return aio.dynamically(as_async(function), **options)

    def decorate_arrays(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function`, over features, as an `async def`, batched."""
        return aio.inference.dynamically(as_async(function), **options)

    def start(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call in a task of its own."""
        future = asyncio.run_coroutine_threadsafe(fn(*args, **named), self.loop)
        self.run(asyncio.sleep(0))  # the task has run to its first wait
        return future


class AwaitedPlain(Awaited):
    """The same, of a function that is no `async def`, and runs in a thread."""

    name = "aio-plain"

    def decorate(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function` batched."""
        return aio.dynamically(function, **options)

    def decorate_arrays(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return `function`, over features, batched."""
        return aio.inference.dynamically(function, **options)


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which may block, as an `async def` that leaves the loop free."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(as_async(function.__func__))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(type(function).__call__):
        return as_async_generator(function)

    @functools.wraps(function)
    async def asynchronous(*args: Any, **named: Any) -> Any:
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(function(*args, **named))
            except BaseException as error:
                outcome.extend((None, error))

        await asyncio.to_thread(work)
        if len(outcome) == 2:
            try:
                raise outcome.pop()
            finally:
                del outcome  # the error's traceback leads here
        return outcome.pop()

    return asynchronous


def as_async_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a generator function, which may block, as an asynchronous one that leaves the loop free."""

    @functools.wraps(function)
    async def steps(*args: Any, **named: Any) -> Any:
        generator = function(*args, **named)
        end = object()
        change = None

        def following() -> Any:
            try:
                return generator.send(change)
            except StopIteration:
                return end

        try:
            while (pieces := await asyncio.to_thread(following)) is not end:
                change = yield pieces
        finally:
            generator.close()

    return steps


FLAVOURS = [Flavour, Threads, Tasks, Awaited, AwaitedPlain]
STREAMING = [Flavour, Tasks, Awaited, AwaitedPlain]  # a thread of one's own reads a stream as any other does
