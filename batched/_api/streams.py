"""The iterators over a stream: the pieces of one item, as the batch function yields them.

`call.results` holds the pieces that the consumer has not taken yet. So a slow consumer never slows the other
streams of its batch; a consumer that is too far behind gets an error. One that drops its iterator leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Generic, NoReturn, Self, TypeVar

from batched._api.binding import Driver
from batched._clock import monotonic
from batched._core.call import Call
from batched._drivers.thread import ThreadDriver
from batched._drivers.timers import call_later
from batched.errors import for_iterator

T = TypeVar("T")

_TURN_S = 0.001  # a consumer may take pieces for so long without a turn of its loop


class _Consumer(Generic[T]):
    def __init__(self, driver: Driver, call: Call) -> None:
        self._driver = driver
        self._call = call
        self._ended = False

    def _must_wait(self) -> bool:
        """Whether the next piece is still to come; raise the error that has ended the stream."""
        call = self._call
        if self._ended or call.results:
            return False
        if call.missing:
            return True
        if not call.results:  # asked again: the last pieces may have come in between
            if call.error is not None:
                self._refuse()
            self._end()
        return False

    def _take(self, end: type[Exception]) -> T:
        """Return the next piece; raise `end` after the last, `IndexError` if another thread was faster."""
        if self._ended:
            self._end()  # once more: of several threads that wait, one at a time is woken
            raise end
        piece: T = self._call.results.popleft()
        return piece

    def _check_deadline(self) -> None:
        """Raise if the stream is late, even if pieces are there: a stream may be endless."""
        call = self._call
        if call.deadline is not None and call.missing and not self._ended and monotonic() >= call.deadline:
            self._refuse()

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

    def close(self) -> None:
        """End the stream, and drop the pieces that have not been taken. Any thread may close a `Stream`."""
        self._end()
        self._driver.cancel(self._call)
        self._call.results.clear()

    def __del__(self) -> None:
        self._driver.cancel(self._call)


class Stream(_Consumer[T]):
    """An iterator over the pieces of one item, from `fn.stream`; it blocks for the next piece."""

    _driver: ThreadDriver

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        call = self._call
        self._check_deadline()
        while True:
            while self._must_wait():
                self._driver.warn_on_loop("fn.stream(x)", "async for piece in fn.astream(x)")
                if not call.waiter.acquire(timeout=-1 if call.deadline is None else _left_s(call)):
                    self._check_deadline()  # the wait may have ended early
            try:
                return self._take(StopIteration)
            except IndexError:
                continue

    def _take(self, end: type[Exception]) -> T:
        piece = super()._take(end)
        if self._call.results:  # of two pieces that came at once, only one has woken a thread
            self._wake()
        return piece

    def _end(self) -> None:
        super()._end()
        self._wake()

    def _wake(self) -> None:
        """Have a thread look that waits, if one does."""
        waiter = self._call.waiter
        if waiter.locked():
            with suppress(RuntimeError):  # another thread was faster
                waiter.release()


class AsyncStream(_Consumer[T]):
    """An asynchronous iterator over the pieces of one item, from `fn.astream`."""

    _turn_due = 0.0
    """The time of the loop's next turn, even if pieces are there: a stream may be endless."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        call = self._call
        if call.results and monotonic() >= self._turn_due:
            await self._wait(asyncio.sleep(0))
        self._check_deadline()
        while True:
            while self._must_wait():
                call.waiter.clear()  # the loop sets it after any piece that has come meanwhile
                if call.deadline is None:
                    await self._wait(call.waiter.wait())
                else:
                    await self._wait_for_deadline()
                    self._check_deadline()
            try:
                return self._take(StopAsyncIteration)
            except IndexError:
                continue

    def _end(self) -> None:
        super()._end()
        self._call.waiter.set()

    async def _wait_for_deadline(self) -> None:
        """Wait for the next piece, or for the deadline; a timer may come early."""
        waiter = self._call.waiter
        timer = call_later(asyncio.get_running_loop(), _left_s(self._call), waiter.set)
        try:
            await self._wait(waiter.wait())
        finally:
            timer.cancel()

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


def _left_s(call: Call) -> float:
    return max((call.deadline or 0.0) - monotonic(), 0.0)
