"""`map` and `amap`: many items through a batcher, lazily, in order, in bounded memory.

Each element of the source is one item, with an answer or an error of its own at its own place. Elements
travel ahead of the consumer, as calls of one or several that keep errors in place. Knows a batcher only by
the functions it is given.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterable
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self

from batched._core.call import Call, Row
from batched.errors import ClosedError, raise_as_was, without_own_frames

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
    )

__all__ = ["Ahead", "amap_items", "map_items"]


class Ahead:
    """The calls that are ahead of the consumer, oldest first, and how many more elements may be read."""

    def __init__(
        self,
        limits: Callable[[], tuple[int, int]],
        check: Callable[[], None],
        post: Callable[[list[Any]], Call],
        *,
        keeps_errors: bool,
    ) -> None:
        self.calls: deque[Call] = deque()
        self.ended = False
        self._errors: list[BaseException] = []
        self._items = 0
        self._limits = limits
        self._check = check
        self._post = post
        self._keeps_errors = keeps_errors

    def room(self) -> int:
        """Return how many elements may be read now, to travel as one call."""
        if self.ended:
            return 0
        size, ahead = self._limits()
        return max(min(size, ahead - self._items), 0)

    def take(self, elements: list[Any]) -> None:
        """Queue elements that have been read: as one call or, if one of them is refused, one by one.

        An element that is refused is answered with its error, and is the last one unless errors are kept. An
        error of the batcher is the end in any case.
        """
        try:
            self._check()
            call = self._posted(elements)
        except Exception as error:  # noqa: BLE001  raised after the answers of the elements before
            self.end(error)
            return
        if call is not None:
            self.calls.append(call)
            self._items += call.size
            return
        for element in elements:
            if not self.ended:
                self.take([element])

    def _posted(self, elements: list[Any]) -> Call | None:
        """Return the call of `elements`, None if they are several and one of them is refused."""
        try:
            return self._post(elements)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001  of a callback, say, or of a mapping of the caller's own
            if len(elements) > 1:
                return None
            self.ended = not self._keeps_errors
            return _refused(error)

    def pop(self) -> None:
        """Forget the oldest call: the consumer has its answers."""
        self._items -= self.calls.popleft().size

    def end(self, error: BaseException | None = None) -> None:
        """Read no more, and have `finish` raise `error`. Only the first end counts."""
        if not self.ended:
            self.ended = True
            if error is not None:
                self._errors.append(error)

    def finish(self) -> None:
        """Raise the error that ended the source, if one did."""
        if self._errors:
            raise_as_was(self._errors.pop())  # no longer found by way of its own traceback, which leads here


def _refused(error: Exception) -> Call:
    """Return the call of one element, answered already with `error`."""
    call = Call().begin(None, None, 1, False, 0.0)  # noqa: FBT003  it never runs
    call.waiter = call.loop = None
    call.waiting = call.missing = 0
    call.results = without_own_frames(error)
    return call


def map_items(
    sources: tuple[Iterable[Any], ...],
    ahead: Ahead,
    collect: Callable[[Call], Iterator[Any]],
    leave: Callable[[Call], None],
) -> Iterator[Any]:
    """Return an iterator over the answers that `collect` gives for the elements of the sources."""
    source = iter(sources[0]) if len(sources) == 1 else map(Row, zip(*sources, strict=False))
    answers = _answers(source, ahead, collect, leave)
    length = _length_of(sources)
    return answers if length is None else _Answers(answers, length)


def _answers(
    source: Iterator[Any],
    ahead: Ahead,
    collect: Callable[[Call], Iterator[Any]],
    leave: Callable[[Call], None],
) -> Generator[Any]:
    try:
        while True:
            while room := ahead.room():
                _read(source, room, ahead)
            if not ahead.calls:
                break
            yield from collect(ahead.calls[0])
            ahead.pop()
    finally:
        for call in ahead.calls:
            leave(call)
    ahead.finish()


def _read(source: Iterator[Any], room: int, ahead: Ahead) -> None:
    """Take the next elements of `source`, and note its end."""
    elements: list[Any] = []
    error: BaseException | None = None
    try:
        elements.extend(islice(source, room))
    except BaseException as broken:  # noqa: BLE001  raised after the answers of the elements before
        error = without_own_frames(broken)  # whose traceback would else lead here, and so to itself
    if elements:
        ahead.take(elements)
    if len(elements) < room:
        ahead.end(error)


def amap_items(
    sources: tuple[Iterable[Any] | AsyncIterable[Any], ...],
    ahead: Ahead,
    collect: Callable[[Call], Coroutine[Any, Any, Iterator[Any]]],
    leave: Callable[[Call], None],
) -> AsyncIterator[Any]:
    """Return an iterator over the answers that `collect` gives for the elements of the sources."""
    each = [_as_async(source) for source in sources]
    answers = _async_answers(each[0] if len(each) == 1 else _zipped(each), ahead, collect, leave)
    length = _length_of(sources)
    return answers if length is None else _AsyncAnswers(answers, length)


async def _async_answers(
    source: AsyncIterator[Any],
    ahead: Ahead,
    collect: Callable[[Call], Coroutine[Any, Any, Iterator[Any]]],
    leave: Callable[[Call], None],
) -> AsyncGenerator[Any]:
    reader = _Reader(ahead)
    reading = asyncio.create_task(reader.read(source))
    # An error may lead to frames of the consumer, and these to this iterator: the collector may then find all
    # of them at once, the reader first. The iterator ends it all the same.
    reading._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        while (call := await reader.oldest()) is not None:
            for answer in await collect(call):
                yield answer
            reader.pop()
    finally:
        ahead.end()  # first, so that the reader queues nothing more, and its being cancelled is no error
        for call in ahead.calls:
            leave(call)
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

    Elements are queued when they are as many as may travel as one call, or when the source makes its reader
    wait, so that a slow source is answered as it comes.
    """

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._elements: list[Any] = []
        self._is_at_end = False
        self._error: BaseException | None = None
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        # Weak: a consumer that was cancelled may be all that keeps its iterator, which would else keep it.
        self._consumer: Callable[[], asyncio.Task[Any] | None] = _nothing
        self._cancels = 0

    async def read(self, source: AsyncIterator[Any]) -> None:
        """Read `source` until it ends, or until nothing more is wanted."""
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
        """Queue what has been read, unless the consumer is about to leave; if it stays, it asks again."""
        consumer = self._consumer()
        if consumer is not None and consumer.cancelling() > self._cancels:
            return
        elements, self._elements = self._elements, []
        try:
            if elements and not self._ahead.ended:
                self._ahead.take(elements)
        except BaseException as error:  # noqa: BLE001  of a callback; raised where the consumer waits
            self._ahead.end(without_own_frames(error))
        if self._is_at_end:
            self._ahead.end(self._error)
            self._error = None
        self._more.set()

    async def oldest(self) -> Call | None:
        """Return the call whose answers are next, None at the end."""
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


class _Answers:
    """The answers of a `map` over a source that has a length, with theirs: `tqdm` and others ask for it."""

    __slots__ = ("_answers", "_left")

    def __init__(self, answers: Any, length: int) -> None:
        self._answers = answers
        self._left = length

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._left -= 1
        return next(self._answers)

    def __len__(self) -> int:
        """Return how many answers are still to come, as far as the source can tell."""
        return 0 if self._answers.gi_frame is None else max(self._left, 0)

    __length_hint__ = __len__

    def __bool__(self) -> bool:
        return True  # as any iterator is

    def close(self) -> None:
        """Leave: what has not started is dropped."""
        self._answers.close()


class _AsyncAnswers:
    """The same of an `amap`."""

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
        """Leave: what has not started is dropped."""
        await self._answers.aclose()


def _length_of(sources: tuple[object, ...]) -> int | None:
    """Return how many elements the shortest of the sources says that it has, None if one does not say."""
    try:
        length = min(length_hint(source, -1) for source in sources)
    except Exception:  # noqa: BLE001  of the source's own making, and nothing depends on it
        return None
    return None if length < 0 else length


def _as_async(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
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
