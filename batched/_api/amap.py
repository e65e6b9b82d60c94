"""`amap`: a `map` for tasks, over plain and asynchronous sources."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any, Self

from batched._api.async_cache import answer_with_cache
from batched._api.map import Ahead, length_of
from batched._core.call import Row
from batched.errors import for_event_loop, without_own_frames

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
    )

    from batched._api.map import Chunks
    from batched._core.call import Call

__all__ = ["amap_items"]


def amap_items(
    chunks: Chunks, sources: tuple[Iterable[Any] | AsyncIterable[Any], ...], name: str, *, callers_ask: bool
) -> AsyncIterator[Any]:
    """Return an iterator over the answers for the elements of the sources.

    With `callers_ask`, the cache of the batcher is asynchronous.
    """
    calls = _Calls(chunks, name, callers_ask=callers_ask)
    each = [_as_async(source) for source in sources]
    source = each[0] if len(each) == 1 else _zipped(each)
    answers = _answers(source, Ahead(chunks, calls.post), calls)
    length = length_of(sources)
    return answers if length is None else _AsyncAnswers(answers, length)


class _Calls:
    """How the calls of an `amap` are queued, awaited and left."""

    def __init__(self, chunks: Chunks, name: str, *, callers_ask: bool) -> None:
        self._chunks = chunks
        self._batcher = chunks.batcher
        self._name = name
        self._callers_ask = callers_ask
        self._asking: dict[Call, asyncio.Task[None]] = {}
        """The tasks that ask an asynchronous cache, one for each call."""

    def post(self, call: Call) -> None:
        """Queue `call`, or let a task ask the cache for it."""
        call.loop = None  # it is not queued
        if not call.missing:  # the cache knew it all
            self._batcher.count_cached(call)
        elif self._callers_ask:
            asks = answer_with_cache(self._batcher, call, self._name, waits=True)
            self._asking[call] = asyncio.create_task(asks)
            self._asking[call].add_done_callback(_retrieve)  # it may have failed when the consumer has left
        else:
            self._batcher.post_async(call, waits=True)

    async def answers(self, call: Call) -> Iterator[Any]:
        """Wait until `call` is answered, and return an iterator over its answers."""
        asks = self._asking.pop(call, None)
        try:
            if asks is not None:
                await asks
            elif call.loop is not None:
                await call.wait()
            if call.missing or call.error is not None:
                self._batcher.refuse(call)
        except TimeoutError as error:
            return self._chunks.late(call, error)
        return self._chunks.answers(call, for_event_loop)

    def leave(self, call: Call) -> None:
        """Drop `call`, as the consumer has left."""
        if call in self._asking:
            self._asking.pop(call).cancel()
        if call.loop is not None:
            self._batcher.cancel(call)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at the error of a task, so that the loop does not log it."""
    if not task.cancelled():
        task.exception()


async def _answers(
    source: AsyncIterator[Any],
    ahead: Ahead,
    calls: _Calls,
) -> AsyncGenerator[Any]:
    reader = _Reader(ahead)
    reading = asyncio.create_task(reader.read(source))
    # An error may lead to frames of the consumer, and these to this iterator. The garbage collector may then
    # end all of them at once, the reader first; this iterator ends the reader in any case.
    reading._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        while (call := await reader.oldest()) is not None:
            for answer in await calls.answers(call):
                yield answer
            reader.pop()
    finally:
        ahead.end()  # first, so that the reader queues nothing more, and to cancel it is no error
        for call in ahead.calls:
            calls.leave(call)
        reading.cancel()
        if not reading.done():
            await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()  # its coroutine may have been collected
    ahead.finish()


def _nothing() -> None:
    return None


class _Reader:
    """Reads elements in a task of its own, and queues them ahead of the consumer.

    Elements are queued when there are enough for one call, or when the source makes its reader wait, so that
    the elements of a slow source are answered as they come.
    """

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._elements: list[Any] = []
        self._is_at_end = False
        self._error: BaseException | None = None
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        # Weak: a cancelled consumer may be all that refers to its iterator, which must not refer back to it.
        self._consumer: Callable[[], asyncio.Task[Any] | None] = _nothing
        self._cancels = 0

    async def read(self, source: AsyncIterator[Any]) -> None:
        """Read `source` until it ends, or until the consumer has left."""
        loop = asyncio.get_running_loop()
        room = 0
        try:
            async for element in source:
                self._elements.append(element)
                if len(self._elements) == 1:
                    room = self._ahead.room()
                if len(self._elements) >= room:
                    await self._wait_for_room()
                elif len(self._elements) == 1:
                    loop.call_soon(self._queue)  # runs as soon as the source waits for something
                if self._ahead.ended:
                    break
        except BaseException as error:  # noqa: BLE001  raised after the answers of the elements before
            self._error = without_own_frames(error)
        self._is_at_end = True
        self._queue()

    async def _wait_for_room(self) -> None:
        self._queue()
        while not self._ahead.ended and len(self._elements) >= self._ahead.room():
            self._room.clear()
            await self._room.wait()

    def _queue(self) -> None:
        """Queue the elements read, unless the consumer is about to leave; if it stays, it asks again."""
        consumer = self._consumer()
        if consumer is not None and consumer.cancelling() > self._cancels:
            return
        elements, self._elements = self._elements, []
        try:
            if elements and not self._ahead.ended:
                self._ahead.take(elements)
        except BaseException as error:  # noqa: BLE001  of a callback; raised in the consumer
            self._ahead.end(without_own_frames(error))
        if self._is_at_end:
            self._ahead.end(self._error)
            self._error = None
        self._more.set()

    async def oldest(self) -> Call | None:
        """Return the oldest call, which has the next answers; None at the end."""
        consumer = asyncio.current_task()
        if consumer is not None:
            self._consumer = weakref.ref(consumer)
            self._cancels = consumer.cancelling()
        self._queue()
        while not self._ahead.calls and not self._ahead.ended:
            self._more.clear()
            await self._more.wait()
        return self._ahead.calls[0] if self._ahead.calls else None

    def pop(self) -> None:
        """Forget the oldest call, and read on."""
        self._ahead.pop()
        self._room.set()


class _AsyncAnswers:
    """The answers of an `amap` over a source that has a length, with their number."""

    __slots__ = ("_answers", "_left")

    def __init__(self, answers: Any, length: int) -> None:
        self._answers = answers
        self._left = length

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Any]:
        self._left -= 1
        following: Awaitable[Any] = self._answers.__anext__()
        return following

    def __len__(self) -> int:
        """Return how many answers have not been asked for yet, as far as the source can tell."""
        return 0 if self._answers.ag_frame is None else max(self._left, 0)

    __length_hint__ = __len__

    def __bool__(self) -> bool:
        return True  # as any iterator is

    async def aclose(self) -> None:
        """Leave: drop the items that have not started."""
        await self._answers.aclose()


def _as_async(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    return aiter(source) if isinstance(source, AsyncIterable) else _without_waiting(iter(source))


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
