"""The iterators over a stream: the pieces of one item, as the batch function yields them.

`call.results` holds the pieces that the consumer has not taken yet. So a slow consumer never slows the other
streams of its batch; a consumer that is too far behind gets an error. One that drops its iterator leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Generic, NoReturn, Self, TypeVar

from batched._api.binding import Driver
from batched._clock import monotonic
from batched._core.call import Call
from batched._drivers.alarms import watch
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.semaphores import release
from batched._drivers.thread import ThreadDriver, seconds_left
from batched.errors import for_iterator

T = TypeVar("T")

_TO_COME = object()
_TURN_S = 0.001  # a consumer may take pieces for so long without a turn of its loop


class _Consumer(Generic[T]):
    def __init__(self, driver: Driver, call: Call, post: Callable[[Call], object]) -> None:
        self._driver = driver
        self._call = call
        self._ended = False
        post(call)

    def _take(self, end: type[Exception]) -> Any:
        """Return the next piece, or `_TO_COME`; raise `end` after the last, or the error of the stream."""
        call = self._call
        if not self._ended:
            goes_on = call.missing  # asked first: the last pieces may come meanwhile
            # Even if pieces are there: a stream may be endless.
            if goes_on and call.deadline is not None and monotonic() >= call.deadline:
                self._refuse()
            try:
                return call.results.popleft()
            except IndexError:  # none is there
                if goes_on:
                    return _TO_COME
            if call.error is not None:
                self._refuse()
        self._end()  # each time: of several threads that wait, one at a time is woken
        raise end

    def _refuse(self) -> NoReturn:
        """End the stream with the error of the call, or with `TimeoutError`."""
        call = self._call
        self._end()
        call.results.clear()
        try:
            self._driver.raise_error(call)
        except (StopIteration, StopAsyncIteration) as error:
            raise for_iterator(error) from error
        finally:
            call.error = None  # its traceback would live as long as the consumer keeps the iterator

    def _end(self) -> None:
        """Have no more pieces. What waits for the next one stops waiting."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        """Have what waits for the next piece look, if anything does."""

    def close(self) -> None:
        """End the stream, and drop the pieces that have not been taken. Any thread may close a `Stream`."""
        self._end()
        self._driver.cancel(self._call)
        self._call.results.clear()

    def __del__(self) -> None:
        if hasattr(self, "_ended") and hasattr(self._call, "waits_at"):  # else Ctrl-C came first
            self._driver.cancel(self._call)


class Stream(_Consumer[T]):
    """An iterator over the pieces of one item, from `fn.stream`; it blocks for the next piece."""

    _driver: ThreadDriver

    def __init__(self, driver: ThreadDriver, call: Call) -> None:
        super().__init__(driver, call, driver.post)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        call = self._call
        try:
            while (piece := self._take(StopIteration)) is _TO_COME:
                self._driver.warn_on_loop("fn.stream(x)", "async for piece in fn.astream(x)")
                call.waiter.acquire(timeout=seconds_left(call))  # it may end early
            if call.results:  # of two pieces that came at once, only one has woken a thread
                self._wake()
        except BaseException:  # Ctrl-C: what it has been woken for, another thread may take
            self._wake()
            raise
        found: T = piece
        return found

    def _wake(self) -> None:
        release(self._call.waiter)


class Bell(asyncio.Event):
    """What the consumers of a stream wait for on their event loop; the call wakes one task only."""

    done = asyncio.Event.is_set
    """As of a task: it is asked after a Ctrl-C has come as the bell was rung."""

    def ring(self, _: object) -> None:
        """Wake the consumers; the call does so once for each time that they begin to wait."""
        self.set()


class AsyncStream(_Consumer[T]):
    """An asynchronous iterator over the pieces of one item, from `fn.astream`."""

    _turn_due = 0.0
    """The time of the loop's next turn, even if pieces are there: a stream may be endless."""

    def __init__(self, driver: Driver, call: Call) -> None:
        if running_loop_or_none() is None:
            raise RuntimeError(
                f"{driver.name}: no running event loop: write `async for piece in fn.astream(item)` in a "
                f"coroutine"
            )
        call.waiter = Bell()
        super().__init__(driver, call, driver.post_async)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        call = self._call
        if call.results and monotonic() >= self._turn_due:
            await self._wait(asyncio.sleep(0))
        while (piece := self._take(StopAsyncIteration)) is _TO_COME:
            call.waiter.clear()
            call.is_woken = False  # so it is rung for what comes meanwhile, and at the deadline
            call.add_done_callback(call.waiter.ring, context=Context())
            if call.deadline is not None:
                watch(call, asyncio.get_running_loop())
            await self._wait(call.waiter.wait())
        found: T = piece
        return found

    def _wake(self) -> None:
        self._call.waiter.set()

    async def _wait(self, waiting: Awaitable[object]) -> None:
        try:
            await waiting
        except BaseException:  # cancelled
            self.close()
            raise
        self._turn_due = monotonic() + _TURN_S

    async def aclose(self) -> None:
        """Do the same as `close`, for `contextlib.aclosing`."""
        self.close()
