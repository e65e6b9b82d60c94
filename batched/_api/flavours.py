"""The two kinds of decorated functions: called from threads and tasks, or from tasks only.

Both are for lists and for arrays: the collator knows the difference.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from batched._api.decorate import is_async, name_of
from batched._api.function import DecoratedFunction
from batched._api.map import map_items
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
from batched._parts.store import AsynchronousCacheError


class ThreadedFunction(DecoratedFunction[ThreadDriver]):
    """A decorated function with a worker thread, called from threads and event loops."""

    __slots__ = ()

    ways_to_call: ClassVar[frozenset[str]] = frozenset(
        {"acall", "amap", "astream", "map", "stream", "submit"}
    )

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        super().__init__(func, options, ThreadDriver)
        if is_async_cache(options.cache):
            raise AsynchronousCacheError(name_of(func, options))

    # -- calling ------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Return the result of one item, or the results of a list of items; block until they are there.

        In a thread with a running event loop, where no other task could join the batch, await `acall`: the
        first call that blocks there, be it this, `map` or `stream`, warns with a `BlockingCallWarning`.
        """
        shared = self._shared
        driver = shared.driver or self._find()
        call: Call = shared.read(self, args, named, monotonic())
        if not call.missing:
            return self._at_once(driver, call)
        if driver.warn_on_loop.may_warn and running_loop_or_none() is not None:
            driver.warn_on_loop("fn(x)", "await fn.acall(x)")
        call.note_context()
        driver.post(call)
        driver.collect(call)
        return call.results if not call.keep_errors else own_errors(call)

    def submit(self, /, *args: Any, **named: Any) -> Future[Any]:
        """Like a call, but return a `concurrent.futures.Future` at once.

        `cancel()` succeeds until the result is there; items that have not started then never run. A call that
        has not wholly started when its deadline passes raises `TimeoutError` then, also while the worker is
        busy; a call that has is answered late: bound the wait with `result(timeout=...)`.
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

    def map(self, items: Iterable[Any], /, *more: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Blocks for the next result. The rules of elements, errors and ends are those of `amap`.
        """
        return map_items(self, self._shared, self._open_map(), (items, *more))

    def stream(self, /, *args: Any, **named: Any) -> Stream[Any]:
        """Queue one item, even a list, and iterate over its pieces as the function yields them.

        For functions that are generators. A consumer that drops the iterator, or closes it, leaves.
        """
        driver = self._open()
        call = self._ask_one(args, named)
        driver.open(call)
        return Stream(driver, call)

    # -- looking and ending ---------------------------------------------------------------------------

    def worker_stack(self) -> str:
        """Return where the worker is, as a traceback would show it; to look at when a batch hangs."""
        return self._driver.workers.stack()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Run the queued calls, end the worker, and take no more calls.

        Args:
            wait: Return only when the worker has ended. Not possible inside the batch function.
            cancel_futures: Cancel the queued calls instead of running them; the running batch is finished.

        """
        self._driver.shutdown(wait=wait, cancel_futures=cancel_futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class LoopedFunction(DecoratedFunction["ThreadDriver | LoopDriver"]):
    """A decorated function that only tasks call.

    The batches of an `async def` function run on the loop of their callers; those of any other callable in a
    thread, so that the loops stay free.
    """

    __slots__ = ()

    ways_to_call: ClassVar[frozenset[str]] = frozenset({"acall", "amap", "astream"})

    def __init__(self, func: Callable[..., Any], options: Options) -> None:
        new_driver: Any = _loop_driver if is_async(func) else partial(ThreadDriver, awaits=False)
        super().__init__(func, options, new_driver, callers_ask=not is_mapping(options.cache))

    if not TYPE_CHECKING:  # subclasses say what it takes
        __call__ = DecoratedFunction.acall

    # To web frameworks it is a coroutine function: `inspect` asks for a mark; before Python 3.12, for code.
    if sys.version_info >= (3, 12):
        _is_coroutine_marker: Any = vars(inspect.markcoroutinefunction(lambda: None)).get(
            "_is_coroutine_marker"
        )
    else:
        __code__: Any = DecoratedFunction.acall.__code__
        __defaults__ = __kwdefaults__ = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _loop_driver(
    options: Any, queue: Any, collator: Any, name: str, _: object, *, streams: bool
) -> LoopDriver:
    return LoopDriver(options, queue, collator, name, streams=streams)
