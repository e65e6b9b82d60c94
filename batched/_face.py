"""What every decorated function has in common: a collator, a driver, and how event loops call it.

A face joins the two. What may be passed is the collator's business; how else it may be called, that of the
next layer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

from batched._binding import NO_OPTIONS, Bindable
from batched._map import amap_items, as_async
from batched._options import CallOptions
from batched._patience import Window
from batched._scheduler import Scheduler
from batched.errors import copied, for_event_loop, raise_as_was

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from batched._call import Call, Collator
    from batched._options import Options, Priority
    from batched._scheduler import AnyQueue
    from batched._stats import Counters, Stats

__all__ = ["Driver", "Face", "new_scheduler", "own_errors"]


class Driver(Protocol):
    """What a face asks of whatever runs its batches."""

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
        ...

    def check(self) -> None:
        """Raise if a call from here cannot be answered."""
        ...

    def check_outside(self) -> None:
        """Raise if this is inside the batch function, which cannot wait for its own end."""
        ...

    def post_async(self, call: Call) -> asyncio.Future[None]:
        """Queue `call`, whose caller is on the running loop, and return its waiter, unless `check` raises.

        The waiter is a future that is done once `call` is answered or late.
        """
        ...

    def cancel(self, call: Call) -> None:
        """Say that nobody waits for `call` any more."""
        ...

    def refuse(self, call: Call) -> NoReturn:
        """Raise the error of `call`, or that it is late."""
        ...

    async def aclose(self) -> None:
        """Take no more calls, run what is queued, and return when nothing runs any more."""
        ...


DriverT = TypeVar("DriverT", bound=Driver)


class Face(Bindable[DriverT]):
    """A decorated function, whose collator reads the arguments."""

    def __init__(
        self,
        func: Callable[..., Any],
        options: Options,
        collator: Collator,
        make: Callable[[object], DriverT],
    ) -> None:
        super().__init__(func, options, make)
        self._collator = collator
        self._read = collator.read  # found once: it is called by every caller

    def options(
        self,
        *,
        deadline_ms: float | None = None,
        priority: Priority | None = None,
        return_exceptions: bool = False,
    ) -> Self:
        """Return a view of this function, with the same methods, for calls that want something else.

        Args:
            deadline_ms: The most that a call may take, waiting and running, counted from the call; then it
                raises `TimeoutError`, and what has not started never runs.
            priority: "interactive" goes ahead of "bulk"; None lets the size decide.
            return_exceptions: Return an exception in its item's place instead of raising the first.

        """
        options = CallOptions(deadline_ms=deadline_ms, priority=priority, return_exceptions=return_exceptions)
        return self._view(_call_options=options, _key=self._owner())

    @property
    def stats(self) -> Stats:
        """What the batcher has done so far: a frozen snapshot, taken without waiting for a batch."""
        return (self._batcher or self._find()).stats

    async def acall(self, /, *args: Any, **named: Any) -> Any:
        """Await the result of one item, or the results of a list. Cancelling drops what has not started."""
        batcher = self._batcher or self._find()
        call = self._read(self._function, args, named, monotonic())
        if self._call_options is not NO_OPTIONS:
            self._apply_options(call)
        if not call.size:
            batcher.check()
            return []
        del args, named  # of many waiting tasks, none need keep them
        waiter = batcher.post_async(call)
        try:
            await waiter
        except BaseException:
            batcher.cancel(call)
            raise
        if call.missing or call.error is not None:
            batcher.refuse(call)
        return call.results if not call.keep_errors else own_errors(call.results)

    def amap(self, items: Iterable[Any] | AsyncIterable[Any], /) -> AsyncIterator[Any]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Each element is one item, even a list; an asynchronous source is answered as fast as it comes. The
        first that fails raises at its place. What has not started is dropped then, and when the consumer
        leaves. A deadline holds for each item.
        """
        batcher = self._batcher or self._find()
        batcher.check()
        size, ahead = self._chunks()
        source = aiter(items) if isinstance(items, AsyncIterable) else as_async(iter(items))

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            batcher.post_async(call)
            return call

        async def collect(call: Call) -> Iterator[Any]:
            await call.waiter
            if call.missing or call.error is not None:
                batcher.refuse(call)
            return self._in_order(call, for_event_loop)

        return amap_items(source, size, ahead, post, collect, batcher.cancel)

    async def aclose(self) -> None:
        """Run what is queued, wait until nothing runs any more, and take no more calls."""
        batcher = self._batcher or self._find()
        batcher.check_outside()
        await batcher.aclose()

    def _apply_options(self, call: Call) -> None:
        options = self._call_options
        if options.deadline_ms is not None:
            call.deadline = call.arrived + options.deadline_ms / 1000
        if options.priority is not None:
            call.bulk = options.priority == "bulk"
        call.keep_errors = options.return_exceptions

    def _chunk(self, items: list[Any]) -> Call:
        """Return the call for some elements of a `map`."""
        call = self._collator.chunk(self._function, items, monotonic())
        self._collator.own(call)
        self._apply_options(call)
        call.keep_errors = True
        if self._call_options.priority is None:
            call.bulk = True
        return call

    def _chunks(self) -> tuple[int, int]:
        """Return how many elements of a `map` travel as one call, and how many items go ahead."""
        size = self._collator.chunk_size if self._call_options.deadline_ms is None else 1
        return size, 3 * self._settings.batch_size

    def _in_order(self, call: Call, presentable: Callable[[BaseException], BaseException]) -> Iterator[Any]:
        """Yield the answers of a chunk, and raise what came in the place of one."""
        for answer in self._collator.answers(call):
            if not isinstance(answer, BaseException):
                yield answer
            elif self._call_options.return_exceptions:
                yield copied(answer)
            else:
                raise_as_was(presentable(copied(answer)))


def new_scheduler(
    options: Options,
    name: str,
    queue: Callable[[int, int], AnyQueue],
    counters: Counters | None = None,
) -> Scheduler:
    """Return a scheduler that follows `options`; `queue` is the kind of queue that it keeps.

    Schedulers that count together are given the same `counters`.
    """
    return Scheduler(
        name=name,
        queue=queue(options.batch_size, options.small_batch_threshold),
        batch_size=options.batch_size,
        patience=Window(options.timeout_ms / 1000),
        counters=counters,
    )


def own_errors(results: Any) -> Any:
    """Give a caller that keeps errors its own copies of them."""
    if isinstance(results, BaseException):
        return copied(results)
    if isinstance(results, list):
        return [copied(row) if isinstance(row, BaseException) else row for row in results]
    return results
