"""Calling a batcher that has a worker thread from other threads: blocking, and for a future.

The same for lists and arrays: the collator knows which.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from concurrent.futures import Future
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from batched._api.binding import NO_OPTIONS, name_of
from batched._api.function import Face, is_bound, is_stream
from batched._api.map import map_items
from batched._api.streams import Stream
from batched._drivers.thread import Batcher
from batched._drivers.wakeups import own_errors
from batched._parts.store import AsynchronousCacheError, is_async
from batched.errors import for_iterator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from batched._api.function import Join
    from batched._core.call import Call
    from batched._core.options import Options

__all__ = ["ThreadedFunction"]


class ThreadedFunction(Face[Batcher]):
    """The ways to call a function whose batches run in a thread."""

    __slots__ = ()

    ways_to_call = frozenset({"acall", "amap", "astream", "map", "stream", "submit"})

    def __init__(self, func: Callable[..., Any], options: Options, join: Join) -> None:
        name = name_of(func, options)
        streams = is_stream(func, options)

        def make(owner: object) -> Batcher:
            collator, queue = join(func, options, name, is_bound(owner))
            return Batcher(options, queue, collator, name, owner, streams=streams)

        super().__init__(func, options, make, streams=streams)
        if is_async(options.cache):
            raise AsynchronousCacheError(name)

    # -- calling ------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Return the result of one item, or the results of a list of items; block until they are there.

        In a thread whose event loop runs, where no other task could join the batch, await `acall`: the first
        call that blocks there, be it this, `map` or `stream`, warns with a `BlockingCallWarning`.
        """
        batcher = self._shared.batcher or self._find()
        call = self._ask(batcher, args, named)
        if not call.missing:
            return self._at_once(batcher, call)
        if batcher.may_warn and _get_running_loop() is not None:  # each caller pays for a call to ask
            batcher.warn_on_loop("fn(x)", "await fn.acall(x)")
        batcher.post(call)
        batcher.collect(call)
        return call.results if not call.keep_errors else own_errors(call)

    def submit(self, /, *args: Any, **named: Any) -> Future[Any]:
        """Like a call, but return a `concurrent.futures.Future` at once.

        `cancel()` succeeds until the result is there; what has not started then never runs. A call that has
        not wholly started when its deadline passes raises `TimeoutError` then, also while the worker is busy;
        one that has is answered late: bound the wait with `result(timeout=...)`.
        """
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if call.missing:
            self._shared.collator.own(call)
            return batcher.submit(call)
        known: Future[Any] = Future()
        known.set_result(self._at_once(batcher, call))
        return known

    def map(self, items: Iterable[Any], /, *more: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Each element is one item, even a list; further iterables are further parameters. The error of an
        element comes at its place, after the answers of all before it, whether a callback refused it, the
        function failed or its deadline passed. It ends the map; `options(return_exceptions=True)` yields it
        instead. An error of the source, or `ClosedError` after the end of the batcher, is an end in any case.
        What has not started is dropped then, and when the consumer leaves.

        A bounded queue is never overrun: where others are refused, half of the room is left to them. Where
        one element is refused, `length`, `group_by` and `cache_key` are asked again for its neighbours. If
        every source has a length, so has what is returned: the number of answers still to come.
        """
        batcher = self._batcher or self._find()
        batcher.check()

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            call.waiter = None
            if call.missing:  # else the cache knew it all
                batcher.post(call, patient=True)
            else:
                batcher.count_cached(call)
            return call

        def collect(call: Call) -> Iterator[Any]:
            try:
                if call.waiter is not None:
                    batcher.warn_on_loop("fn.map(xs)", "async for y in fn.amap(xs)")
                    batcher.collect(call)
            except TimeoutError as error:
                return self._late(call, error)
            return self._in_order(call, for_iterator)

        return map_items((items, *more), self._ahead(batcher, post), collect, batcher.cancel)

    def stream(self, /, *args: Any, **named: Any) -> Stream[Any]:
        """Queue one item, even a list, and iterate over its pieces as the function yields them.

        For functions that are generators. A consumer that drops the iterator, or closes it, has left.
        """
        batcher = self._batcher or self._find()
        call = self._ask_one(batcher, args, named)
        batcher.open(call)
        return Stream(batcher, call)

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
        shared = self._shared
        call: Call = shared.read(self, args, named, monotonic())
        if shared.call_options is not NO_OPTIONS:
            self._apply_options(call)
        call.note_context()
        return call
