"""`dynamically`, and what it makes of a function: one item or a list, called from threads and event loops."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import get_running_loop
from collections.abc import AsyncIterable
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypedDict, TypeVar, overload

from batched._binding import NO_OPTIONS, Bindable, name_of
from batched._call import Call
from batched._collate import ListCollator
from batched._map import amap_items, as_async, map_items
from batched._options import CallOptions, Options, Priority, decorate
from batched._patience import Regroup, Window
from batched._scheduler import Scheduler
from batched._thread import Batcher
from batched.errors import copied, for_event_loop, raise_as_was

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from types import TracebackType
    from typing import TypeAlias, Unpack

    from batched._stats import Stats

__all__ = ["BatchedFunction", "BatchedMethod", "dynamically"]

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)


class Rows(Protocol[U_co]):
    """What a batch function may return: sized, ordered, one row per item."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[U_co]: ...


Outputs: TypeAlias = "Rows[U] | Awaitable[Rows[U]]"  # of a plain batch function, or an `async def` one


class BatchedFunction(Bindable[Batcher], Generic[T, U]):
    """A batch function that callers pass one item or a list of items.

    `fn(item)` returns the item's result, `fn([item, ...])` the list of theirs; a `list` is many items,
    anything else, a tuple or an array too, is one. All callers share the batches of one worker thread. They
    get what the function would have returned for their own items alone, or what it would have raised.

    The function sees a new list of at most `batch_size` items. It must return one result per item, as a list,
    tuple, array or anything else that is sized and ordered; a result that is an exception fails its own item
    only. It runs in a thread of its own, so a caller's context variables do not reach it.

    A call raises `ClosedError` after `shutdown`, and `RuntimeError` from inside the batch function itself.
    """

    ways_to_call = frozenset({"acall", "amap", "map", "submit"})

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        super().__init__(func, options, partial(_batcher, options, name_of(func, options)))

    # -- calling ------------------------------------------------------------------------------------

    @overload
    def __call__(self, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    def __call__(self, item: T = ..., /, **named: T) -> U: ...
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Return the result of one item, or the results of a list of items; block until they are there."""
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if not call.size:
            return []
        batcher.post(call)
        batcher.collect(call)
        return call.results if not call.keep_errors else _own_errors(call.results)

    @overload
    async def acall(self, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    async def acall(self, item: T = ..., /, **named: T) -> U: ...
    async def acall(self, /, *args: Any, **named: Any) -> Any:
        """Like a call, without blocking the event loop. Cancelling it drops what has not started."""
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if not call.size:
            return []
        del args, named  # of many waiting tasks, none need keep them
        try:
            await batcher.post_async(call, get_running_loop())
        except BaseException:
            batcher.cancel(call)
            raise
        if call.missing or call.error is not None:
            batcher.refuse(call)
        return call.results if not call.keep_errors else _own_errors(call.results)

    @overload
    def submit(self, items: list[T] = ..., /, **named: list[T]) -> Future[list[U]]: ...
    @overload
    def submit(self, item: T = ..., /, **named: T) -> Future[U]: ...
    def submit(self, /, *args: Any, **named: Any) -> Future[Any]:
        """Like a call, but return a `concurrent.futures.Future` at once.

        `cancel()` succeeds until the result is there; what has not started then never runs. A deadline only
        drops what has not started: bound the wait with `result(timeout=...)`.
        """
        batcher = self._batcher or self._find()
        call = self._ask(batcher, args, named)
        if call.size:
            return batcher.submit(call)
        nothing: Future[Any] = Future()
        nothing.set_result([])
        return nothing

    def map(self, items: Iterable[T], /) -> Iterator[U]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Each element is one item, even a list. The first that fails raises at its place. What has not
        started is dropped then, and when the consumer leaves. A deadline holds for each item.
        """
        batcher = self._batcher or self._find()
        batcher.check()
        size, ahead = self._chunks()

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            batcher.post(call)
            return call

        def collect(call: Call) -> Iterator[Any]:
            batcher.collect(call)
            return self._in_order(call.results, _as_it_is)

        return map_items(iter(items), size, ahead, post, collect, batcher.cancel)

    def amap(self, items: Iterable[T] | AsyncIterable[T], /) -> AsyncIterator[U]:
        """Like `map`, from and for an event loop. An asynchronous source is answered as fast as it comes."""
        batcher = self._batcher or self._find()
        batcher.check()
        size, ahead = self._chunks()
        source = aiter(items) if isinstance(items, AsyncIterable) else as_async(iter(items))

        def post(chunk: list[Any]) -> Call:
            call = self._chunk(chunk)
            batcher.post_async(call, get_running_loop())
            return call

        async def collect(call: Call) -> Iterator[Any]:
            await call.waiter
            if call.missing or call.error is not None:
                batcher.refuse(call)
            return self._in_order(call.results, for_event_loop)

        return amap_items(source, size, ahead, post, collect, batcher.cancel)

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

    # -- looking and ending ---------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """What the batcher has done so far: a frozen snapshot, taken without waiting for a batch."""
        return (self._batcher or self._find()).stats

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

    # -- from arguments to calls, and back --------------------------------------------------------------

    def _ask(self, batcher: Batcher, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call that the arguments mean."""
        if batcher.closed or batcher.ident == get_ident():
            batcher.check()
        items = args[0] if len(args) == 1 and not named else self._argument(args, named)
        if not isinstance(items, list):
            call = Call(self._function, items, 1, False, monotonic())  # noqa: FBT003
        else:
            call = Call(self._function, list(items), len(items), True, monotonic())  # noqa: FBT003
        if self._call_options is not NO_OPTIONS:
            self._apply_options(call)
        return call

    def _chunk(self, items: list[Any]) -> Call:
        """Return the call for some items of a `map`."""
        call = Call(self._function, items.copy(), len(items), True, monotonic())  # noqa: FBT003
        self._apply_options(call)
        call.keep_errors = True
        if self._call_options.priority is None:
            call.bulk = True
        return call

    def _chunks(self) -> tuple[int, int]:
        """Return how many items of a `map` travel together, and how many such calls go ahead."""
        size = self._settings.batch_size
        return (size, 3) if self._call_options.deadline_ms is None else (1, 3 * size)

    def _apply_options(self, call: Call) -> None:
        options = self._call_options
        if options.deadline_ms is not None:
            call.deadline = call.arrived + options.deadline_ms / 1000
        if options.priority is not None:
            call.bulk = options.priority == "bulk"
        call.keep_errors = options.return_exceptions

    def _in_order(
        self, results: list[Any], presentable: Callable[[BaseException], BaseException]
    ) -> Iterator[Any]:
        for result in results:
            if not isinstance(result, BaseException):
                yield result
            elif self._call_options.return_exceptions:
                yield copied(result)
            else:
                raise_as_was(presentable(copied(result)))

    def _argument(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the one argument, however it was passed."""
        parameter = next(iter(inspect.signature(self._function).parameters), "items")
        if not args and list(named) == [parameter]:
            return named[parameter]
        given = ", ".join([*("..." for _ in args), *(f"{name}=..." for name in named)])
        raise TypeError(
            f"{name_of(self._function, self._settings)} takes one argument, {parameter!r} (an item or a "
            f"list of items), got ({given})"
        )


def _batcher(options: Options, name: str, owner: object) -> Batcher:
    """Join a scheduler, a collator and a worker thread."""
    timeout_s = options.timeout_ms / 1000

    def make_scheduler() -> Scheduler:
        return Scheduler(
            name=name,
            batch_size=options.batch_size,
            small_batch_threshold=options.small_batch_threshold,
            patience=Regroup(timeout_s, options.batch_size)
            if options.adaptive and timeout_s and options.batch_size > 1
            else Window(timeout_s),
        )

    return Batcher(make_scheduler, ListCollator(name), name, owner)


def _own_errors(results: Any) -> Any:
    """Give a caller that keeps errors its own copies of them."""
    if isinstance(results, BaseException):
        return copied(results)
    if isinstance(results, list):
        return [copied(row) if isinstance(row, BaseException) else row for row in results]
    return results


def _as_it_is(error: BaseException) -> BaseException:
    return error


def _set_unless_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class BatchedMethod(Protocol[S_contra, T, U]):
    """What a type checker sees of a batched method in its class.

    The first `__get__` is for class methods, whose `self` is a class.
    """

    @overload
    def __get__(
        self: BatchedMethod[type[S], T, U], instance: S | None, owner: type[S], /
    ) -> BatchedFunction[T, U]: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None, /) -> BatchedFunction[T, U]: ...

    @overload
    def __call__(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    def __call__(self, instance: S_contra, item: T = ..., /, **named: T) -> U: ...
    @overload
    async def acall(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> list[U]: ...
    @overload
    async def acall(self, instance: S_contra, item: T = ..., /, **named: T) -> U: ...
    @overload
    def submit(self, instance: S_contra, items: list[T] = ..., /, **named: list[T]) -> Future[list[U]]: ...
    @overload
    def submit(self, instance: S_contra, item: T = ..., /, **named: T) -> Future[U]: ...
    def map(self, instance: S_contra, items: Iterable[T], /) -> Iterator[U]: ...
    def amap(self, instance: S_contra, items: Iterable[T] | AsyncIterable[T], /) -> AsyncIterator[U]: ...


class KeywordOptions(TypedDict, total=False):
    """The options of `dynamically` that are not positional too."""

    adaptive: bool
    name: str | None


class Decorator(Protocol):
    """`dynamically` with its options given and the function still to come."""

    @overload
    def __call__(self, func: Callable[[list[T]], Outputs[U]], /) -> BatchedFunction[T, U]: ...
    @overload
    def __call__(self, func: Callable[[S, list[T]], Outputs[U]], /) -> BatchedMethod[S, T, U]: ...


@overload
def dynamically(
    func: Callable[[list[T]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> BatchedFunction[T, U]: ...
@overload
def dynamically(
    func: Callable[[S, list[T]], Outputs[U]],
    /,
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> BatchedMethod[S, T, U]: ...
@overload
def dynamically(
    batch_size: int = ...,
    timeout_ms: float = ...,
    small_batch_threshold: int = ...,
    **options: Unpack[KeywordOptions],
) -> Decorator: ...
def dynamically(*args: Any, **options: Any) -> Any:  # noqa: D417  its arguments are the options
    """Batch the calls of a function that takes a list.

    `@dynamically`, `@dynamically(batch_size=64)` and `dynamically(model.encode, batch_size=64)` all work.
    On a method every instance has a batcher of its own, made at first use.

    Args:
        batch_size: The most items in one batch.
        timeout_ms: The most that a batch which is not full is delayed to gain company while the function is
            free. 0 never waits.
        small_batch_threshold: Calls of at most this many items go ahead of larger ones.
        adaptive: Wait only while it pays, which is learned from the first batches on: for callers that were
            just answered and come straight back, and for the rest of a burst. The first few batches, and all
            with False, start when their oldest item is `timeout_ms` old, time behind a running batch
            included.
        name: For the thread, the logs and the errors; the function's own by default.

    Raises:
        TypeError: An option, or the function, is of the wrong type.
        ValueError: An option is out of range.

    """
    return decorate(BatchedFunction, args, options)
