"""`map` and `amap`: many items through a batcher, lazily, in order, in bounded memory.

They travel as calls of `size` elements each that keep errors in place, `ahead` items ahead of the consumer.
Knows a batcher only by the functions it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from batched._call import Row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from batched._call import Call

__all__ = ["amap_items", "as_async", "map_items"]


def map_items(  # noqa: PLR0913, PLR0917
    source: Iterator[Any],
    size: int,
    ahead: int,
    post: Callable[[list[Any]], Call],
    collect: Callable[[Call], Iterator[Any]],
    leave: Callable[[Call], None],
) -> Iterator[Any]:
    """Yield the answers that `collect` gives for the items of `source`."""
    calls: deque[Call] = deque()
    items = 0
    ended: BaseException | None = None
    try:
        while True:
            while ended is None and items < ahead:
                chunk, ended = _read(source, size)
                if chunk:
                    calls.append(post(chunk))
                    items += calls[-1].size
            if not calls:
                break
            yield from collect(calls[0])
            items -= calls.popleft().size
    finally:
        for call in calls:
            leave(call)
    if ended is not None and not isinstance(ended, StopIteration):
        raise ended


def _read(source: Iterator[Any], size: int) -> tuple[list[Any], BaseException | None]:
    """Return the next items, and what ended the source if they are fewer than `size`."""
    chunk: list[Any] = []
    try:
        chunk.extend(islice(source, size))
    except BaseException as error:  # noqa: BLE001  raised where the source broke, after the answers before it
        return chunk, error
    return chunk, None if len(chunk) == size else StopIteration()


async def amap_items(  # noqa: PLR0913, PLR0917
    source: AsyncIterator[Any],
    size: int,
    ahead: int,
    post: Callable[[list[Any]], Call],
    collect: Callable[[Call], Coroutine[Any, Any, Iterator[Any]]],
    leave: Callable[[Call], None],
) -> AsyncIterator[Any]:
    """Yield the answers that `collect` gives for the items of `source`, read by a task of its own."""
    reader = _Reader(size, ahead, post)
    reading = asyncio.create_task(reader.read(source))
    try:
        while call := await reader.oldest():
            for answer in await collect(call):
                yield answer
            reader.next()
    finally:
        reading.cancel()
        for call in reader.calls:
            leave(call)
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    if reader.error is not None:
        raise reader.error


class _Reader:
    """Reads items into calls, ahead of the consumer.

    What has been read goes off when a chunk is full or the source makes its reader wait, so that a slow
    source is answered as it comes.
    """

    def __init__(self, size: int, ahead: int, post: Callable[[list[Any]], Call]) -> None:
        self.calls: deque[Call] = deque()
        self.error: BaseException | None = None
        self._size = size
        self._ahead = ahead
        self._items = 0
        self._post = post
        self._chunk: list[Any] = []
        self._ended = False
        self._more = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, source: AsyncIterator[Any]) -> None:
        """Read `source` to its end; an error of its own is raised after the answers before it."""
        loop = asyncio.get_running_loop()
        try:
            async for item in source:
                if not self._chunk:
                    loop.call_soon(self._flush)  # runs as soon as the source waits for something
                self._chunk.append(item)
                if len(self._chunk) >= self._size:
                    self._flush()
                while self._items >= self._ahead:
                    self._room.clear()
                    await self._room.wait()
                if self.error is not None:
                    break
        except BaseException as error:  # noqa: BLE001  raised by `amap_items`
            self.error = error
        finally:
            self._flush()
            self._ended = True
            self._more.set()

    async def oldest(self) -> Call | None:
        """Return the call whose answers are next, None at the end."""
        while not self.calls and not self._ended:
            self._more.clear()
            await self._more.wait()
        return self.calls[0] if self.calls else None

    def next(self) -> None:
        """Forget the oldest call, which has been answered."""
        self._items -= self.calls.popleft().size
        self._room.set()

    def _flush(self) -> None:
        if self._chunk:
            chunk, self._chunk = self._chunk, []
            try:
                self.calls.append(self._post(chunk))
                self._items += self.calls[-1].size
            except Exception as error:  # noqa: BLE001  raised by `amap_items`
                self.error = error
                self._ended = True
            self._more.set()


def as_async(
    source: Iterable[Any] | AsyncIterable[Any], *more: Iterable[Any] | AsyncIterable[Any]
) -> AsyncIterator[Any]:
    """Return an asynchronous iterator over `source`, or over tuples of it and `more`."""
    if more:
        return _zipped([as_async(one) for one in (source, *more)])
    return aiter(source) if isinstance(source, AsyncIterable) else _waiting_for_nothing(iter(source))


async def _waiting_for_nothing(source: Iterator[Any]) -> AsyncIterator[Any]:
    for item in source:
        yield item


async def _zipped(sources: list[AsyncIterator[Any]]) -> AsyncIterator[Row]:
    while True:
        try:
            row = Row([await anext(source) for source in sources])
        except StopAsyncIteration:
            return
        yield row
