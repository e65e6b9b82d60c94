"""Calling a batcher that has a worker thread: blocking, from event loops, and for a future.

The same for lists and arrays: the collator knows which.
"""

from __future__ import annotations

from asyncio import get_running_loop
from concurrent.futures import Future
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from batched._binding import NO_OPTIONS, name_of
from batched._cache import is_async
from batched._call import Row
from batched._face import Face, is_stream, own_errors
from batched._map import amap_items, as_async, map_items
from batched._stream import AsyncStream, Stream
from batched._thread import Batcher
from batched.errors import for_event_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
    from types import TracebackType

    from batched._call import Call
    from batched._face import Join
    from batched._options import Options

__all__ = ["ThreadedFunction"]


class ThreadedFunction(Face[Batcher]):
    """The ways to call a function whose batches run in a thread."""

    ways_to_call = frozenset({"acall", "amap", "astream", "map", "stream", "submit"})

    def __init__(self, func: Callable[..., Any], options: Options, join: Join) -> None:
        name = name_of(func, options)
        self._streams = streams = is_stream(func, options)

        def make(owner: object) -> Batcher:
            # All but the decorated function itself have bound the first parameter.
            collator, queue = join(func, options, name, not isinstance(owner, Face))
            return Batcher(options, queue, collator, name, owner, streams)

        if is_async(options.cache):
            raise TypeError("a cache with asynchronous get and set is for the flavours of batched.aio")
        super().__init__(func, options, make)

    # -- calling ------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Return the result of one item, or the results of a list of items; block until they are there."""
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if not call.missing:
            return self._at_once(batcher, call)
        batcher.post(call)
        batcher.collect(call)
        return call.results if not call.keep_errors else own_errors(call.results)

    async def acall(self, /, *args: Any, **named: Any) -> Any:
        """Like a call, without blocking the event loop. Cancelling it drops what has not started."""
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if not call.missing:
            return self._at_once(batcher, call)
        del args, named  # of many waiting tasks, none need keep them
        try:
            await batcher.post_async(call, get_running_loop())
        except BaseException:
            batcher.cancel(call)
            raise
        if call.missing or call.error is not None:
            batcher.refuse(call)
        return call.results if not call.keep_errors else own_errors(call.results)

    def submit(self, /, *args: Any, **named: Any) -> Future[Any]:
        """Like a call, but return a `concurrent.futures.Future` at once.

        `cancel()` succeeds until the result is there; what has not started then never runs. A deadline only
        drops what has not started: bound the wait with `result(timeout=...)`.
        """
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if call.missing:
            self._collator.own(call)
            return batcher.submit(call)
        known: Future[Any] = Future()
        known.set_result(self._at_once(batcher, call))
        return known

    def map(self, items: Iterable[Any], /, *more: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Each element is one item, even a list; further iterables are further parameters. The first that fails
        raises at its place. What has not started is dropped then, and when the consumer leaves. A deadline
        holds for each item. A bounded queue is never overrun.
        """
        batcher = self._batcher or self._find()
        batcher.check()
        size, ahead = self._chunks()

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            if call.missing:
                batcher.post(call, patient=True)
            else:
                batcher.count_cached(call)
            return call

        def collect(call: Call) -> Iterator[Any]:
            if hasattr(call, "waiter"):  # else the cache knew it all
                batcher.collect(call)
            return self._in_order(call, _as_it_is)

        source = map(Row, zip(items, *more, strict=False)) if more else iter(items)
        return map_items(source, size, ahead, post, collect, batcher.cancel)

    def amap(
        self, items: Iterable[Any] | AsyncIterable[Any], /, *more: Iterable[Any] | AsyncIterable[Any]
    ) -> AsyncIterator[Any]:
        """Like `map`, from and for an event loop. An asynchronous source is answered as fast as it comes."""
        batcher = self._batcher or self._find()
        batcher.check()
        size, ahead = self._chunks()
        source = as_async(items, *more)

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            if call.missing:
                batcher.post_async(call, get_running_loop(), patient=True)
            else:
                batcher.count_cached(call)
            return call

        async def collect(call: Call) -> Iterator[Any]:
            if hasattr(call, "waiter"):  # else the cache knew it all
                await call.waiter
            if call.missing or call.error is not None:
                batcher.refuse(call)
            return self._in_order(call, for_event_loop)

        return amap_items(source, size, ahead, post, collect, batcher.cancel)

    def stream(self, /, *args: Any, **named: Any) -> Stream[Any]:
        """Queue one item, even a list, and iterate over its pieces as the function yields them.

        For functions that are generators. A consumer that drops the iterator, or closes it, has left.
        """
        batcher = self._batcher or self._find()
        call = self._ask_one(batcher, args, named)
        batcher.open(call)
        return Stream(batcher, call)

    def astream(self, /, *args: Any, **named: Any) -> AsyncStream[Any]:
        """Like `stream`, on the event loop that runs."""
        batcher = self._batcher or self._find()
        call = self._ask_one(batcher, args, named)
        batcher.open_async(call, get_running_loop())
        return AsyncStream(batcher, call)

    # -- looking and ending ---------------------------------------------------------------------------

    def worker_stack(self) -> str:
        """Return where the worker is, as a traceback would show it: what to look at when a batch hangs."""
        return (self._batcher or self._find()).stack()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Run what is queued, end the worker, and take no more calls.

        Args:
            wait: Return only when the worker has ended. Not possible inside the batch function.
            cancel_futures: Cancel what is queued instead of running it; the running batch is finished.

        """
        (self._batcher or self._find()).shutdown(wait=wait, cancel_futures=cancel_futures)

    async def aclose(self) -> None:
        """Like `shutdown()`, without blocking the event loop."""
        batcher = self._batcher or self._find()
        batcher.check_outside()
        batcher.shutdown(wait=False, cancel_futures=False)
        loop = get_running_loop()
        ended = loop.create_future()
        batcher.when_ended(lambda: loop.call_soon_threadsafe(_set_unless_done, ended))
        await ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _ask(self, batcher: Batcher, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call that the arguments mean."""
        if batcher.closed or get_ident() in batcher.idents:
            batcher.check()
        call = self._read(self._function, args, named, monotonic())
        if self._call_options is not NO_OPTIONS:
            self._apply_options(call)
        return call

    def _at_once(self, batcher: Batcher, call: Call) -> Any:
        """Return the answer of a call for which nothing is to be queued."""
        if not call.size:
            return []
        batcher.count_cached(call)
        return own_errors(call.results) if call.keep_errors else call.results

    def _ask_one(self, batcher: Batcher, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call for the stream that the arguments mean."""
        batcher.check()
        return self._read_stream(args, named)


def _as_it_is(error: BaseException) -> BaseException:
    return error


def _set_unless_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
