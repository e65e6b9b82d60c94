"""`amap`: a `map` for tasks, over plain and asynchronous sources."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from typing import Any, Self

from batched._api.binding import Driver, Shared
from batched._api.map import ReadAhead, SizedAnswers, beside_items, iterator_over, length_of
from batched._api.map_types import AsyncAnswers
from batched._core.call import Call, Row
from batched._drivers.alarms import cancel_task
from batched._drivers.private_python import end_silently, running_loop_or_none
from batched.errors import for_async_iterator, without_own_frames


def amap_items(
    calls: TaskReadAhead, sources: tuple[Iterable[Any] | AsyncIterable[Any], ...]
) -> AsyncAnswers[Any]:
    """Return an iterator over the answers for the elements of the sources."""
    name = f"{calls.name}.amap"
    each = [
        aiter(source) if isinstance(source, AsyncIterable) else _without_waiting(iterator_over(source, name))
        for source in sources
    ]
    answers = calls.follow(each[0] if len(each) == 1 else _zipped(each))
    length = length_of(sources)
    return answers if length is None else _AsyncAnswers(answers, length)


class TaskReadAhead(ReadAhead):
    """The calls of a map with a task as its consumer.

    Another task reads the elements. They are queued when there are enough for one call, or when the source
    makes its reader wait, so that the elements of a slow source are answered as they come.

    With `ask`, the cache is asynchronous: `ask(call)` asks it for a call.
    """

    def __init__(
        self,
        function: Any,
        shared: Shared[Any],
        driver: Driver,
        ask: Callable[[Call], Coroutine[Any, Any, None]] | None,
        *,
        with_items: bool,
    ) -> None:
        super().__init__(function, shared, driver, with_items=with_items)
        self._ask = ask
        self._asking: dict[Call, asyncio.Task[None]] = {}
        """The tasks that ask an asynchronous cache, one for each call."""
        self._elements: list[Any] = []
        self._is_at_end = False
        self._error: BaseException | None = None
        self._more = asyncio.Event()
        self._has_room = asyncio.Event()
        # Weak: the iterator must not keep a cancelled consumer alive, which may be all that refers to it.
        self._consumer: Callable[[], asyncio.Task[Any] | None] = lambda: None
        self._cancels = 0

    async def follow(self, source: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        """Yield the answers for the elements of `source`."""
        reading = asyncio.create_task(self._read(source))
        # An error may lead to frames of the consumer, and these to this iterator. The garbage collector may
        # then end all of them at once, the reader first; this iterator ends the reader in any case.
        end_silently(reading)
        reading.add_done_callback(self._reader_ended)
        try:
            while (call := await self._oldest()) is not None:
                answers = await self._collect(call)
                for answer in answers if self.queued is None else beside_items(answers, self.queued):
                    yield answer
                self.pop()
                self._has_room.set()
        finally:
            self.end()  # first: now the reader queues nothing more, and its cancel is no error
            for call in self.calls:
                self._leave(call)
            self.leave()
            cancel_task(reading)
            # A consumer that ends after its loop, as that was stopped or closed, can wait for nothing.
            if not reading.done() and running_loop_or_none() is reading.get_loop():
                await asyncio.wait([reading])
            if reading.done():
                _retrieve(reading)
        self.finish()

    # -- the reader ---------------------------------------------------------------------------------------

    async def _read(self, source: AsyncIterator[Any]) -> None:
        """Read `source` until it ends, or until the consumer has left."""
        loop = asyncio.get_running_loop()
        room = 0
        try:
            async for element in source:
                self._elements.append(element)
                if len(self._elements) == 1:
                    room = self.room()
                if len(self._elements) >= room:
                    await self._wait_for_room()
                elif len(self._elements) == 1:
                    loop.call_soon(self._queue)  # runs as soon as the source waits for something
                if self.ended:
                    break
        except GeneratorExit:  # it is collected, with its consumer and their loop, or the source raises it
            raise
        except BaseException as error:  # noqa: BLE001  raised after the answers of the elements before
            self._error = without_own_frames(error)
        self._is_at_end = True
        self._queue()

    def _reader_ended(self, reading: asyncio.Task[None]) -> None:
        """Raise in the consumer what has ended the reader before it could say so: a Ctrl-C, at any place."""
        error = None if reading.cancelled() else reading.exception()
        if error is not None and not self.ended:
            self._is_at_end = True
            self._error = without_own_frames(error)
            self._queue()

    async def _wait_for_room(self) -> None:
        self._queue()
        while not self.ended and len(self._elements) >= self.room():
            self._has_room.clear()
            await self._has_room.wait()

    def _queue(self) -> None:
        """Queue the elements read, unless the consumer is being cancelled; if it goes on, it asks again."""
        consumer = self._consumer()
        if consumer is not None and consumer.cancelling() > self._cancels:
            return
        elements, self._elements = self._elements, []
        try:
            if elements and not self.ended:
                self.take(elements)
        except BaseException as error:  # noqa: BLE001  of a callback; raised in the consumer
            self.end(without_own_frames(error))
        if self._is_at_end:
            self.end(self._error)
            self._error = None
        self._more.set()

    def _post(self, call: Call) -> None:
        call.waits_at = None  # it is not queued
        if not call.missing:
            self._driver.count_cached(call)
        elif self._ask is not None:
            self._asking[call] = asyncio.create_task(self._ask(call))
            self._asking[call].add_done_callback(_retrieve)  # it may have failed when the consumer has left
        else:
            self._driver.post_async(call, waits=True)

    # -- the consumer -------------------------------------------------------------------------------------

    async def _oldest(self) -> Call | None:
        """Return the oldest call, which has the next answers; None at the end."""
        consumer = asyncio.current_task()
        if consumer is not None:
            self._consumer = weakref.ref(consumer)
            self._cancels = consumer.cancelling()
        self._queue()
        while not self.calls and not self.ended:
            self._more.clear()
            await self._more.wait()
        return self.calls[0] if self.calls else None

    async def _collect(self, call: Call) -> Iterable[Any]:
        """Wait until `call` is answered, and return its answers."""
        asks = self._asking.pop(call, None)
        try:
            if asks is not None:
                await asks
            elif call.waits_at is not None:
                await call.wait()
            if call.missing or call.error is not None:
                self._driver.raise_error(call)
        except TimeoutError as error:
            return self.late(call, error)
        return self.answers(call, for_async_iterator)

    def _leave(self, call: Call) -> None:
        """Drop `call`, as the consumer has left."""
        if call in self._asking:
            cancel_task(self._asking.pop(call))
        if call.waits_at is not None:
            self._driver.cancel(call)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a task, so that the loop does not log it."""
    if not task.cancelled():
        task.exception()


class _AsyncAnswers(SizedAnswers):
    __slots__ = ()

    frame = "ag_frame"

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Any:
        self._left -= 1
        return self._answers.__anext__()

    async def aclose(self) -> None:
        """Stop: drop the items that have not started."""
        await self._answers.aclose()


async def _without_waiting(source: Iterator[Any]) -> AsyncIterator[Any]:
    for item in source:
        yield item


async def _zipped(sources: list[AsyncIterator[Any]]) -> AsyncIterator[Row]:
    while True:
        try:
            row = Row([await anext(source) for source in sources])
        except StopAsyncIteration:
            return
        yield row
