"""The base of all decorated functions: calls from event loops, options, `configure` and `stats`.

A decorated function joins a collator, which reads its arguments, and a driver, which runs its batches. The
other ways to call it stand in `flavours`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from batched._api.amap import TaskReadAhead, amap_items
from batched._api.binding import Bindable, Driver, DriverT
from batched._api.decorate import check_names, owner_in, takes_changes
from batched._api.map import of_sources
from batched._api.map_types import AsyncAnswers
from batched._api.option_types import CallChanges, Changes
from batched._api.streams import AsyncStream
from batched._api.workers import explain_workers
from batched._clock import monotonic
from batched._core.call import Call
from batched._core.explanation import explain
from batched._core.option_checks import a_function, an_int
from batched._core.options import NO_OPTIONS, CallOptions, Options, knows_lengths, live_options
from batched._core.stats import Stats
from batched._drivers.alarms import within
from batched._drivers.wakeups import own_errors
from batched._parts.request_cache import RequestCaches
from batched._parts.shapes import Example, shapes_of


class DecoratedFunction(Bindable[DriverT]):
    """A batch function that callers call item by item, or with lists."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Return the type for annotations; that of the decorated function, the last one, is left out."""
            given = len(cls.__parameters__)
            shorter = isinstance(types, tuple) and len(types) == given + 1
            return super().__class_getitem__(types[:given] if shorter else types)

    @property
    def _driver(self) -> DriverT:
        return self._shared.driver or self._find()

    def _find(self) -> DriverT:
        """Find the driver, for this view and for further views of the same instance."""
        shared, owner = self._shared, self._owner()
        if shared.binds and (first := owner_in(shared.binding.func)) is not None:
            raise self._misplaced(first)
        if isinstance(owner, DecoratedFunction) and owner is not self:
            owner._find()  # noqa: SLF001  so that further views of it have the driver from the start
        driver = shared.binding.driver(owner)
        collator = self._collator_of(driver)
        read = collator.one if shared.settings.streams else collator.read
        options = shared.call_options.with_default(driver.options.default_deadline_ms)
        if options is not NO_OPTIONS:
            read = partial(options.read, read)
        # Whole, and the driver last: other threads that see it call already.
        shared.collator, shared.effective, shared.read = collator, options, read
        shared.driver = driver
        if shared.is_method and shared.call_options is NO_OPTIONS:
            shared.binding.share(owner, shared)
        return driver

    def _collator_of(self, driver: DriverT) -> Any:
        """Return the collator that reads the calls of this view."""
        options = self._shared.call_options
        if options.request_cache is None:
            return driver.collator
        has, owner = vars(driver), self._owner()
        caches: RequestCaches = has.get("request_caches") or has.setdefault("request_caches", RequestCaches())
        bound = not isinstance(owner, DecoratedFunction)
        found = caches.of(options, self._shared.settings, driver.collator, self._name, bound=bound)
        return found.claim(self._shared.function, owner)

    # -- calling ------------------------------------------------------------------------------------

    async def acall(self, /, *args: Any, **named: Any) -> Any:
        """Await the result of one item, or the results of a list.

        If the task is cancelled, items that have not started never run. What is raised, and when, is the same
        as with a call.
        """
        shared = self._shared
        driver = shared.driver or self._find()
        read = shared.read  # by a variable: Python 3.11 is slow to call an attribute that is no method
        call: Call = read(self, args, named, monotonic())
        if shared.callers_ask and call.size:
            await answer_with_cache(driver, call, self._name)
            return call.results if not call.keep_errors else own_errors(call)
        if not call.missing:
            return self._at_once(driver, call)
        del args, named  # they would stay in memory as long as this task waits
        driver.post_async(call)
        try:
            await call.wait()
        except BaseException:
            driver.cancel(call)
            raise
        if call.missing or call.error is not None:
            driver.raise_error(call)
        return call.results if not call.keep_errors else own_errors(call)

    def _at_once(self, driver: DriverT, call: Call) -> Any:
        """Return the answer of a call of which nothing is to be queued."""
        driver.check()
        if not call.size:
            return []
        driver.count_cached(call)
        return own_errors(call) if call.keep_errors else call.results

    @of_sources
    def amap(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        *more: Iterable[Any] | AsyncIterable[Any],
        with_items: bool = False,
    ) -> AsyncAnswers[Any]:
        """Yield the result of each item, in order.

        `items` may be asynchronous, and endless: at most three batches are read ahead of the consumer, and
        one more for each further one that may run at once. Each element is one item, even a list. A function
        of several parameters takes an iterable for each that can be passed by position, as the built-in `map`
        does, and the map ends with the shortest.

        The error of an item is raised in its place, after the results of all items before it, and ends the
        map. With `options(return_exceptions=True)` it is yielded instead, and the map goes on. An error of
        the source, `ClosedError` or `DisconnectedError` always ends the map. When a map ends, or its consumer
        leaves, items that have not started never run.

        A map never raises `QueueFullError`: it waits for room. If every source has a length, so has the
        iterator: the number of results still to come. `length`, `group_by` and `cache_key` may be called
        more than once for an item near one that they refuse.

        With `with_items` each result comes as a pair, `(item, result)`; an item of several parameters is the
        tuple of these. An error that is yielded has its item beside it, too.

        Raises:
            TypeError: The function streams, so it has no maps.

        """
        driver = self._open_map()
        ask = None
        if self._shared.callers_ask:
            ask = partial(answer_with_cache, driver, name=self._name, waits=True)
        calls = TaskReadAhead(self, self._shared, driver, ask, with_items=with_items)
        return amap_items(calls, (items, *more))

    def astream(self, /, *args: Any, **named: Any) -> AsyncStream[Any]:
        """Queue one item, even a list, and return an asynchronous iterator over its pieces.

        Each piece arrives as soon as the batch function, a generator, has yielded it. An error ends the
        stream, and so does `TimeoutError` at the deadline. To leave early, close or drop the iterator.

        Raises:
            TypeError: The batch function is no generator.
            SlowConsumerError: By the iterator, after the pieces that waited: more than `max_pieces` did.

        """
        return AsyncStream(self._open(), self._ask_one(args, named))

    def _ask_one(self, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call of one item that the arguments mean, for a stream."""
        if not self._driver.options.streams:
            raise TypeError(f"{self._name} does not stream: only a batch function that is a generator does")
        call: Call = self._shared.collator.one(self, args, named, monotonic())
        self._shared.effective.apply_to(call)
        call.keep_errors = False  # a stream has no place for an error but its end
        call.take_pieces()
        call.note_context()
        return call

    def _open_map(self) -> DriverT:
        """Return the driver, for a map."""
        if self._shared.settings.streams:
            raise TypeError(
                f"{self._name} yields, so it streams, and has no map: call stream or astream for each item, "
                f"as in `for piece in {self._name}.stream(item)`"
            )
        return self._open()

    def _open(self) -> DriverT:
        """Return the driver; raise if it takes no calls from here."""
        driver = self._shared.driver or self._find()
        driver.check()
        return driver

    # -- changing, looking, ending --------------------------------------------------------------------

    @takes_changes(Options)
    def configure(self, **changes: Unpack[Changes]) -> None:
        """Change options of this batcher from the next batch on, all at once.

        It may be called at any time. On a method, it changes the batcher of that instance only. Batches that
        run are finished as they began.

        Args:
            changes: Each one says in an editor what it means, as `help` says of all.

        Raises:
            TypeError: An option cannot be changed, or is of the wrong type. `max_batch_length` can be set
                only if it, or a function as `length`, was given to begin with.
            ValueError: An option is out of range.

        """
        check_names("configure cannot change", "can change", changes, live_options(Options))
        settings = self._shared.settings
        if changes.get("max_batch_length") is not None and not knows_lengths(settings):
            raise TypeError(
                "configure cannot set max_batch_length unless the decorator was given it or length: the "
                "items in the queue have not been measured"
            )
        if settings.workers is not None and "max_concurrent_batches" in changes:
            raise TypeError(
                f"configure cannot change max_concurrent_batches: {self._name} uses workers, of which there "
                f"are {len(settings.workers.names)}"
            )
        driver = self._driver
        driver.configure(changes)
        for each in tuple(driver.followers):
            each.follow()

    @takes_changes(CallOptions)
    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """Return a view of this function with other options for its calls.

        It has the same methods and the same batcher. A view of a view keeps the options that it does not
        change. It may be made for each call, or once for many.

        Args:
            changes: Each one says in an editor what it means, as `help` says of all.

        Raises:
            TypeError: There is no such option, or it is of the wrong type.
            ValueError: An option is out of range.

        """
        shared = self._shared
        if shared.is_method and shared.call_options is NO_OPTIONS and shared.driver is None:
            self._find()  # else the instance would not keep what is made for these options
        return self._with(changes)

    @property
    def stats(self) -> Stats:
        """A snapshot of the batcher's counters, taken without waiting for a batch. Printed, it is a table."""
        return self._driver.stats

    def expected_wait_ms(self, items: int = 1) -> float | None:
        """Return how many milliseconds a call of `items` items would take, from now to its answer.

        It is estimated from the queue, the age of the running batches, and how long batches have taken so
        far; None while that is not known. With `batched.aio` it is that of the running loop or, if none runs,
        of the loop with the longest wait. With `fair_by`, a tenant with little in the queue waits for less.

        Raises:
            ValueError: `items` is less than 1.

        """
        seconds = self._driver.expected_wait_s(an_int(1)("items", items))
        return None if seconds is None else seconds * 1000

    def shapes(self) -> list[int] | list[tuple[int, int]] | dict[Any, list[tuple[int, int]]]:
        """Return the shapes that the function can be given: the sizes of batches, as `batch_sizes` has them.

        For arrays, pairs of a size and a length, as `pad_to_lengths` has them; or, if that is a dict, such
        pairs for each feature. `max_batch_length` leaves out those that it does not allow.

        Raises:
            ValueError: An option is missing without which there is no end of shapes. The message names it.

        """
        return shapes_of(self._driver.options, self._name)

    async def awarm_up(  # noqa: D417  an example may be passed by name
        self,
        /,
        *example: Any,
        progress: Callable[[int, int], object] | None = None,
        **named: Any,
    ) -> None:
        """Have the function run once for each of its `shapes`, before there are calls.

        A compiled model compiles then, and not while callers wait. It runs where batches run: in the worker
        thread, or in each if there are several, or on the running loop. It counts in no figure, and nothing
        is learned from it. Calls that come meanwhile run in batches of their own, in between.

        Args:
            example: One item, as a call takes it. For arrays, the features of a call: of their first rows
                and, repeated or cut to each length, batches are made. Features of equal length in the example
                have equal lengths in each batch; lengths of others are tried in each combination.
            progress: Called after each shape, with how many have run and how many there are.

        Raises:
            ValueError: There is no end of shapes, as `shapes` says.
            Exception: Whatever the function raises.

        """
        driver = self._open()
        for calls in self._warm_ups(example, named, progress, in_task=True):
            try:
                for call in calls:
                    await call.wait()
                    if call.missing or call.error is not None:
                        driver.raise_error(call)
            except BaseException:
                for call in calls:
                    driver.cancel(call)
                raise

    def _warm_ups(
        self,
        example: tuple[Any, ...],
        named: dict[str, Any],
        progress: Callable[[int, int], object] | None,
        *,
        in_task: bool,
    ) -> Iterator[list[Call]]:
        """Yield the calls of each shape, which have to be answered before the next are asked for."""
        if progress is not None:
            a_function("progress", progress, of="two numbers", takes=2)
        driver = self._driver
        found = Example(driver.collator, driver.options, self._name, self, example, named)
        shapes = found.batches()
        for done, shape in enumerate(shapes, 1):
            yield driver.warm_up(partial(found.slices, *shape, monotonic()), in_task=in_task)
            if progress is not None:
                progress(done, len(shapes))

    def explain(self) -> str:
        """Return what the batcher does and has found out, and what would help, in one sentence per line."""
        driver = self._driver
        told = explain(driver.stats, driver.options)
        workers = driver.options.workers
        return told if workers is None else f"{told}\n{explain_workers(workers, self._name)}"

    async def aclose(self) -> None:
        """Take no more calls, run those in the queue, and wait until they are answered.

        Later calls raise `ClosedError`. It may be awaited more than once.

        Raises:
            ClosedError: It was called inside the batch function itself, which would wait for its own end.

        """
        await self._driver.aclose()


async def answer_with_cache(driver: Driver, call: Any, name: str, *, waits: bool = False) -> None:
    """Ask an asynchronous cache, run the misses, and store their results; raise the error for the caller.

    `get` counts into the deadline. `set` is given up at the deadline: the results are there already.
    """
    driver.check()
    driver.expect(call)
    collator = call.collator
    try:
        collator.watch(call)
        in_time = await within(call.deadline, collator.look(call))
        if not in_time or not call.missing:
            driver.count_cached(call)
            if call.missing:
                call.left = "expired"
                raise TimeoutError(call.overdue(name))
            return
        driver.post_async(call, waits)
        try:
            await call.wait()
        except BaseException:
            driver.cancel(call)
            raise
        await within(call.deadline, collator.keep(call))
        if call.missing or call.error is not None:
            driver.raise_error(call)
    finally:
        call.forget_watches()
