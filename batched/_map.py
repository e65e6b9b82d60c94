"""`map` and `amap`: many items through a batcher, lazily, in order, in bounded memory.

Items travel as calls of `size` items each that keep errors in place, `ahead` of them ahead of the consumer.
Knows a batcher only by the functions it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from batched._call import Call

__all__ = ["amap_items", "as_async", "map_items"]


def map_items(  # noqa: PLR0913
    source: Iterator[Any],
    size: int,
    ahead: int,
    post: Callable[[list[Any]], Call],
    collect: Callable[[Call], Iterator[Any]],
    leave: Callable[[Call], None],
) -> Iterator[Any]:
    """Yield the answers that `collect` gives for the items of `source`."""
    calls: deque[Call] = deque()
    ended: BaseException | None = None
    try:
        while True:
            while ended is None and len(calls) < ahead:
                chunk, ended = _read(source, size)
                if chunk:
                    calls.append(post(chunk))
            if not calls:
                break
            yield from collect(calls[0])
            calls.popleft()
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
    except Exception as error:  # noqa: BLE001  raised where the source broke, after the answers before it
        return chunk, error
    return chunk, None if len(chunk) == size else StopIteration()


async def amap_items(  # noqa: PLR0913
    source: AsyncIterator[Any],
    size: int,
    ahead: int,
    post: Callable[[list[Any]], Call],
    collect: Callable[[Call], Coroutine[Any, Any, Iterator[Any]]],
    leave: Callable[[Call], None],
) -> AsyncIterator[Any]:
    """Yield the answers that `collect` gives for the items of `source`.

    A task of its own reads the source. What it has read goes off when a chunk is full or the source makes it
    wait, so that a slow source is answered item by item.
    """
    calls: deque[Call] = deque()
    chunk: list[Any] = []
    ended: BaseException | None = None
    changed = asyncio.Event()
    room = asyncio.Event()
    loop = asyncio.get_running_loop()

    def flush() -> None:
        nonlocal ended
        if chunk:
            try:
                calls.append(post(chunk))
            except Exception as error:  # noqa: BLE001  raised below, to the consumer
                ended = error
            chunk.clear()
            changed.set()

    async def read() -> None:
        nonlocal ended
        try:
            async for item in source:
                if not chunk:
                    loop.call_soon(flush)
                chunk.append(item)
                if len(chunk) >= size:
                    flush()
                while len(calls) >= ahead:
                    room.clear()
                    await room.wait()
                if ended is not None:
                    return
            flush()
            ended = ended or StopAsyncIteration()
        except Exception as error:  # noqa: BLE001  raised below, after the answers before it
            flush()
            ended = error
        finally:
            changed.set()

    reader = loop.create_task(read())
    try:
        while True:
            while not calls and ended is None:
                changed.clear()
                await changed.wait()
            if not calls:
                break
            for answer in await collect(calls[0]):
                yield answer
            calls.popleft()
            room.set()
    finally:
        reader.cancel()
        for call in calls:
            leave(call)
        with contextlib.suppress(asyncio.CancelledError):
            await reader
    if ended is not None and not isinstance(ended, StopAsyncIteration):
        raise ended


async def as_async(source: Iterator[Any]) -> AsyncIterator[Any]:
    """Return `source`, which does not wait, as an asynchronous iterator."""
    for item in source:
        yield item
