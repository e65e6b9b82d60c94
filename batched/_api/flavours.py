"""The two kinds of decorated functions: called from threads and tasks, or from tasks only.

Both are for lists and for arrays: the collator knows the difference.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from batched._api.absent import Absent
from batched._api.decorate import is_async, name_of
from batched._api.function import DecoratedFunction
from batched._api.map import map_items, of_sources
from batched._api.map_types import Answers
from batched._api.streams import Stream
from batched._clock import monotonic
from batched._core.call import Call
from batched._core.option_checks import is_async_cache, is_mapping
from batched._core.options import Options
from batched._drivers.event_loop import LoopDriver
from batched._drivers.futures import submit
from batched._drivers.private_python import running_loop_or_none
from batched._drivers.thread import ThreadDriver
from batched._drivers.wakeups import own_errors
from batched._drivers.workers import stacks_of
from batched._parts.stages import refuse_async
from batched._parts.store import AsynchronousCacheError


class ThreadedFunction(DecoratedFunction[ThreadDriver]):
    """A decorated function with a worker thread, called from threads and event loops."""

    __slots__ = ()

    ways_to_call: ClassVar[frozenset[str]] = frozenset(
        {"acall", "amap", "astream", "map", "stream", "submit"}
    )

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        refuse_async(options, is_async=False, name=name_of(func, options))
        super().__init__(func, options, ThreadDriver)
        if is_async_cache(options.cache):
            raise AsynchronousCacheError(name_of(func, options))

    # -- calling ------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Return the result of one item, or the results of a list; block until they are there.

        In a thread with a running event loop, await `acall` instead: a call that blocks the loop keeps other
        tasks from joining its batch. The first such call, also of `map` or `stream`, warns with
        `BlockingCallWarning`.

        It raises the function's own error, if these items met one.

        Raises:
            TypeError: The function takes no such arguments.
            ValueError: The lists of several parameters differ in length, or a list is longer than
                `max_queue_size`.
            QueueFullError: The queue has no room (`max_queue_size`).
            OverloadError: The call would miss its deadline, so it was refused early. Also a `TimeoutError`.
            TimeoutError: The call has missed its deadline (`deadline_ms`).
            BatchError: The function did not return one result per item, or `group_by` or the like failed.
            ClosedError: The batcher was shut down.
            RuntimeError: The call came from inside the batch function, and would wait for itself.

        """
        shared = self._shared
        driver = shared.driver or self._find()
        read = shared.read  # by a variable: Python 3.11 is slow to call an attribute that is no method
        call: Call = read(self, args, named, monotonic())
        if not call.missing:
            return self._at_once(driver, call)
        if driver.warn_on_loop.may_warn and running_loop_or_none() is not None:
            driver.warn_on_loop("fn(x)", "await fn.acall(x)")
        call.note_context()
        driver.post(call)
        driver.collect(call)
        return call.results if not call.keep_errors else own_errors(call)

    def submit(self, /, *args: Any, **named: Any) -> Future[Any]:
        """Queue a call, and return a `concurrent.futures.Future` of its result at once.

        A call that cannot be queued raises here: `QueueFullError`, `OverloadError`, `ClosedError`,
        `TypeError`, `ValueError`, or `BatchError` if `group_by` or the like failed. Any other error is in the
        future. With `on_full="wait"` it blocks until there is room.

        `future.cancel()` works until the result is there, and drops items that have not started. At the
        deadline the future has a `TimeoutError`, unless all items have started: then it is answered late, so
        bound the wait with `future.result(timeout=...)`, in seconds. With `continuous=True` an item that has
        started leaves its batch, and has that error, at the next step.

        When the interpreter exits, calls in the queue are cancelled, so wait for those that you need.
        """
        driver = self._shared.driver or self._find()
        call: Call = self._shared.read(self, args, named, monotonic())
        if not call.missing:
            known: Future[Any] = Future()
            known.set_result(self._at_once(driver, call))
            return known
        self._shared.collator.own(call)
        call.note_context()
        return submit(driver, call)

    @of_sources
    def map(self, items: Iterable[Any], /, *more: Iterable[Any], with_items: bool = False) -> Answers[Any]:
        """Yield the result of each item, in order; block for the next one.

        `items` may be endless: at most three batches are read ahead of the consumer, and one more for each
        further worker. They are read before the first answer is yielded, so a source that blocks, such as a
        queue, holds answers back; `amap` over an asynchronous source does not. Each element is one item, even
        a list. The error of an item is raised in its place, and ends the map. With `with_items` each result
        comes as a pair, `(item, result)`. The other rules are those of `amap`.
        """
        return map_items(self, self._shared, self._open_map(), (items, *more), with_items=with_items)

    def stream(self, /, *args: Any, **named: Any) -> Stream[Any]:
        """Queue one item, even a list, and return an iterator over its pieces; it blocks for the next one.

        All else is as `astream` says.
        """
        return Stream(self._open(), self._ask_one(args, named))

    def warm_up(
        self,
        /,
        *example: Any,
        progress: Callable[[int, int], object] | None = None,
        **named: Any,
    ) -> None:
        """Have the function run once for each of its `shapes`, before there are calls; block until it has.

        All else is as `awarm_up` says.
        """
        driver = self._open()
        driver.warn_on_loop("fn.warm_up(x)", "await fn.awarm_up(x)")
        for calls in self._warm_ups(example, named, progress, in_task=False):
            for call in calls:
                driver.collect(call)

    # -- looking and ending ---------------------------------------------------------------------------

    def worker_stack(self) -> str:
        """Return the traceback of the worker thread, to see where a batch hangs; "" if there is none."""
        return stacks_of(self._driver.idents)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Take no more calls, run those in the queue, and end the worker.

        Later calls raise `ClosedError`. It may be called more than once.

        Args:
            wait: Return only when the worker has ended.
            cancel_futures: Cancel the calls in the queue instead of running them: they raise
                `CancelledError`. The running batch is finished.

        Raises:
            ClosedError: It was called inside the batch function itself, with `wait=True`.

        """
        self._driver.shutdown(wait=wait, cancel_futures=cancel_futures)

    def __enter__(self) -> Self:
        return self._for_block("with")

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _in_threads_only(name: str, instead: str) -> Absent:
    """Return what stands for a way to call that blocks, which a function of `batched.aio` has not."""
    why = (
        f"a function of batched.aio has no attribute {name!r}, as only tasks call it: write {instead}, or "
        f"decorate it with batched.dynamically, which has both"
    )
    return Absent(name, why)


class LoopedFunction(DecoratedFunction["ThreadDriver | LoopDriver"]):
    """A decorated function that only tasks call.

    The batches of an `async def` function run on the loop of their callers; those of any other callable in a
    thread, so that the loops stay free.
    """

    __slots__ = ()

    ways_to_call: ClassVar[frozenset[str]] = frozenset({"acall", "amap", "astream"})

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        awaits, name = is_async(func), name_of(func, options)
        if awaits and options.workers is not None:
            raise TypeError(
                f"{name} is `async def`, so its batches run on the event loop of "
                f"its callers and cannot use workers: leave workers out, or use batched.dynamically, "
                f"which runs it on a loop of each worker"
            )
        refuse_async(options, is_async=awaits, name=name)
        new_driver: Any = _loop_driver if awaits else partial(ThreadDriver, awaits=False)
        super().__init__(func, options, new_driver, callers_ask=not is_mapping(options.cache))

    if not TYPE_CHECKING:  # subclasses say what it takes
        __call__ = DecoratedFunction.acall
        submit = _in_threads_only("submit", "`asyncio.create_task(fn(item))`")
        map = _in_threads_only("map", "`async for result in fn.amap(items)`")
        stream = _in_threads_only("stream", "`async for piece in fn.astream(item)`")
        shutdown = _in_threads_only("shutdown", "`await fn.aclose()`")
        warm_up = _in_threads_only("warm_up", "`await fn.awarm_up(example)`")

    # To web frameworks it is a coroutine function: `inspect` asks for a mark; before Python 3.12, for code.
    if sys.version_info >= (3, 12):
        _is_coroutine_marker: Any = vars(inspect.markcoroutinefunction(lambda: None)).get(
            "_is_coroutine_marker"
        )
    else:
        __code__: Any = DecoratedFunction.acall.__code__
        __defaults__ = __kwdefaults__ = None

    async def __aenter__(self) -> Self:
        return self._for_block("async with")

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _loop_driver(options: Any, queue: Any, collator: Any, name: str, _: object) -> LoopDriver:
    return LoopDriver(options, queue, collator, name)
