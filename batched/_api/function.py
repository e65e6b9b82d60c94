"""What every decorated function has in common: a collator, a driver, and how event loops call it.

A face joins the two. What may be passed is the collator's business; how else it may be called, that of the
next layer.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

from batched._api.binding import NO_OPTIONS, Bindable, name_of
from batched._api.map import Ahead, amap_items
from batched._api.streams import AsyncStream
from batched._core.options import (
    DEFAULT_MAX_PIECES,
    SELF,
    CallChanges,
    Changes,
    check_names,
    knows_lengths,
    takes,
    with_changes,
)
from batched._drivers.wakeups import own_errors, within
from batched._parts.cache import Lookup
from batched._parts.group_by import Family
from batched.errors import copied, for_event_loop, raise_as_was, without_own_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
    from typing import TypeAlias, Unpack

    from batched._core.call import Call, Collator
    from batched._core.options import Options
    from batched._core.scheduler import NewQueue
    from batched._core.stats import Stats

    Join: TypeAlias = Callable[[Any, Any, str, bool], tuple[Collator, NewQueue]]
    """From a function, its options and name, and whether it is bound, make its collator and kind of queue."""

__all__ = ["Driver", "Face", "code_of", "is_bound", "is_stream"]

_NO_ISOLATION = "isolate_errors does not go with a function that streams: items cannot run twice"

_configuring = Lock()


class Driver(Protocol):
    """What a face asks of whatever runs its batches."""

    @property
    def collator(self) -> Collator:
        """How its calls become batches."""
        ...

    @property
    def options(self) -> Options:
        """What it has been told, last."""
        ...

    def configure(self, options: Options) -> None:
        """Follow new options from the next batch on."""
        ...

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

    def post_async(self, call: Call, patient: bool = False) -> None:  # noqa: FBT001, FBT002
        """Queue `call` for the running task, unless `check` raises.

        It then waits for `call.wait()`, until that is answered or late. One that is `patient` waits for room
        in a queue that is bounded and full, whatever the options say.
        """
        ...

    def open_async(self, call: Call) -> None:
        """Queue `call`, whose pieces a task of the running loop will take as they come."""
        ...

    def count_cached(self, call: Call) -> None:
        """Count the items of a call of which nothing is queued: the cache knew them, or has been too slow."""
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

    __slots__ = ()

    def __init__(
        self,
        func: Callable[..., Any],
        options: Options,
        make: Callable[[object], DriverT],
        *,
        streams: bool,
        callers_ask: bool = False,
    ) -> None:
        super().__init__(func, options, make)
        self._shared.streams = streams
        self._shared.callers_ask = callers_ask

    def _find(self) -> DriverT:
        owner = self._owner()
        if isinstance(owner, Face) and owner is not self and owner._batcher is None:  # noqa: SLF001
            owner._find()  # noqa: SLF001  so that further views of it need not
        batcher = super()._find()
        shared = self._shared
        shared.collator = batcher.collator
        shared.read = partial(_refuse_call, self._name()) if shared.streams else batcher.collator.read
        shared.batcher = batcher  # last: a thread that sees it uses the others
        self._share()
        return batcher

    def _name(self) -> str:
        return name_of(self._shared.function, self._shared.settings)

    def _read_stream(self, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call for one item, whose pieces are wanted."""
        if not self._shared.streams:
            raise TypeError(f"{self._name()} does not stream: only a batch function that is a generator does")
        call: Call = self._shared.collator.one(self, args, named, monotonic())
        self._apply_options(call)
        call.keep_errors = False  # there is no place in a stream but its end
        call.note_context()
        return call

    @takes(SELF, Changes)
    def configure(self, **changes: Unpack[Changes]) -> None:
        """Change options of this batcher, all at once; what is queued follows them from the next batch on.

        Any of `batch_size`, `timeout_ms`, `small_batch_threshold`, `adaptive`, `max_queue_size`, `on_full`,
        `isolate_errors`, `max_concurrent_batches` and, where lengths have been known from the start,
        `max_batch_length`; `TypeError` for others. Of a method, this changes only the instance's. Where more
        batches run than may from now on, they are finished, and their threads end as they are.
        """
        check_names("configure cannot change", "can change", changes, Changes.__annotations__)
        if self._shared.streams and changes.get("isolate_errors"):
            raise TypeError(_NO_ISOLATION)
        settings = self._shared.settings
        if changes.get("max_batch_length") is not None and not knows_lengths(settings):
            raise TypeError(
                "configure cannot set max_batch_length where neither it nor length was given to begin with: "
                "nobody has measured what waits"
            )
        batcher = self._batcher or self._find()
        with _configuring:  # two that change different options must not undo each other
            batcher.configure(replace(batcher.options, **changes))

    @takes(SELF, CallChanges)
    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """Return a view of this function, with the same methods, for calls that want something else.

        A view of a view keeps what it does not change.

        Args:
            deadline_ms: The most that a call may take, waiting and running, counted from the call; then it
                raises `TimeoutError`, and what has not started never runs. None means no deadline.
            priority: "interactive" goes ahead of "bulk"; None lets the size decide.
            return_exceptions: Return an exception in its item's place instead of raising the first.

        """
        options = None
        try:  # noqa: SIM105  on the caller's time
            options = with_changes(self._shared.call_options, **changes)
        except TypeError:  # not hashable, or refused
            pass
        if options is None:
            options = with_changes.__wrapped__(self._shared.call_options, **changes)
        return self.with_call_options(options)

    @property
    def stats(self) -> Stats:
        """What the batcher has done so far: a frozen snapshot, taken without waiting for a batch."""
        return (self._batcher or self._find()).stats

    async def acall(self, /, *args: Any, **named: Any) -> Any:
        """Await the result of one item, or the results of a list. Cancelling drops what has not started."""
        shared = self._shared
        batcher = shared.batcher or self._find()
        call = shared.read(self, args, named, monotonic())
        if shared.call_options is not NO_OPTIONS:
            self._apply_options(call)
        if shared.callers_ask and isinstance(call, Lookup):
            await self._answer(batcher, call)
            return call.results if not call.keep_errors else own_errors(call)
        if not call.missing:
            batcher.check()
            return self._at_once(batcher, call)
        del args, named  # of many waiting tasks, none need keep them
        batcher.post_async(call)
        try:
            await call.wait()
        except BaseException:
            batcher.cancel(call)
            raise
        if call.missing or call.error is not None:
            batcher.refuse(call)
        return call.results if not call.keep_errors else own_errors(call)

    def _at_once(self, batcher: DriverT, call: Call) -> Any:
        """Return the answer of a call for which nothing is to be queued."""
        if not call.size:
            return []
        batcher.count_cached(call)
        return own_errors(call) if call.keep_errors else call.results

    def astream(self, /, *args: Any, **named: Any) -> AsyncStream[Any]:
        """Queue one item, even a list, and iterate over its pieces as the function yields them.

        For functions that are generators, and callers on an event loop. A consumer that drops the iterator,
        or closes it, has left.
        """
        batcher = self._batcher or self._find()
        call = self._ask_one(batcher, args, named)
        batcher.open_async(call)
        return AsyncStream(batcher, call)

    def _ask_one(self, batcher: DriverT, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call for the stream that the arguments mean."""
        batcher.check()
        return self._read_stream(args, named)

    def amap(
        self, items: Iterable[Any] | AsyncIterable[Any], /, *more: Iterable[Any] | AsyncIterable[Any]
    ) -> AsyncIterator[Any]:
        """Yield the result of each item, in order, reading ahead of the consumer by three batches at most.

        Each element is one item, even a list; further iterables are further parameters; an asynchronous
        source is answered as fast as it comes. The error of an element comes at its place, after the answers
        of all before it, whether a callback refused it, the function failed or its deadline passed. It ends
        the map; `options(return_exceptions=True)` yields it instead. An error of the source, or `ClosedError`
        after the end of the batcher, is an end in any case. What has not started is dropped then, and when
        the consumer leaves.

        A bounded queue is never overrun: where others are refused, half of the room is left to them. Where
        one element is refused, `length`, `group_by` and `cache_key` are asked again for its neighbours. If
        every source has a length, so has what is returned: the number of answers still to come.
        """
        batcher = self._batcher or self._find()
        batcher.check()
        looking: dict[Call, asyncio.Task[None]] = {}  # those for which an asynchronous cache is asked

        async def collect(call: Call) -> Iterator[Any]:
            looks = looking.pop(call, None)
            try:
                if looks is not None:
                    await looks
                elif call.loop is not None:
                    await call.wait()
                if call.missing or call.error is not None:
                    batcher.refuse(call)
            except TimeoutError as error:
                return self._late(call, error)
            return self._in_order(call, for_event_loop)

        def leave(call: Call) -> None:
            if call in looking:
                looking.pop(call).cancel()
            if call.loop is not None:
                batcher.cancel(call)

        ahead = self._ahead(batcher, partial(self._post_chunk, batcher, looking))
        return amap_items((items, *more), ahead, collect, leave)

    def _post_chunk(
        self, batcher: DriverT, looking: dict[Call, asyncio.Task[None]], chunk: list[Any]
    ) -> Call:
        call = self._chunk(chunk)
        call.loop = None  # it is not queued
        if not call.missing:  # the cache knew it all
            batcher.count_cached(call)
        elif self._shared.callers_ask and isinstance(call, Lookup):
            looking[call] = asyncio.create_task(self._answer(batcher, call, patient=True))
            looking[call].add_done_callback(_retrieved)  # it may have failed when the consumer has left
        else:
            batcher.post_async(call, patient=True)
        return call

    async def _answer(self, batcher: DriverT, call: Lookup, *, patient: bool = False) -> None:
        """Ask the cache, run what it does not know, and tell it; raise what the caller is to get.

        Asking counts into the deadline. Telling is given up at the deadline: the results are there already.
        """
        batcher.check()
        collator = call.collator
        try:
            collator.watch(call)
            in_time = await within(call.deadline, collator.look(call))
            if not in_time or not call.missing:
                batcher.count_cached(call)
                if call.missing:
                    call.left = "expired"
                    raise TimeoutError(call.overdue(self._name()))
                return
            batcher.post_async(call, patient)
            try:
                await call.wait()
            except BaseException:
                batcher.cancel(call)
                raise
            await within(call.deadline, collator.keep(call))
            if call.missing or call.error is not None:
                batcher.refuse(call)
        finally:
            call.watches.clear()  # an error's traceback may keep the call, but must not keep them

    async def aclose(self) -> None:
        """Run what is queued, wait until nothing runs any more, and take no more calls."""
        batcher = self._batcher or self._find()
        batcher.check_outside()
        await batcher.aclose()

    def _apply_options(self, call: Call) -> None:
        options = self._shared.call_options
        if options.deadline_ms is not None:
            call.deadline = call.arrived + options.deadline_ms / 1000
        if options.priority is not None:
            call.bulk = options.priority == "bulk"
        call.keep_errors = options.return_exceptions
        if isinstance(call, Family):
            for member in call.members:
                member.deadline, member.bulk = call.deadline, call.bulk
                member.keep_errors = call.keep_errors

    def _chunk(self, items: list[Any]) -> Call:
        """Return the call for some elements of a `map`."""
        call: Call = self._shared.collator.chunk(self, items, monotonic())
        self._shared.collator.own(call)
        call.note_context()
        self._apply_options(call)
        for part in [call, *call.members] if isinstance(call, Family) else [call]:
            part.keep_errors = True
            if self._shared.call_options.priority is None:
                part.bulk = True
        return call

    def _ahead(self, batcher: DriverT, post: Callable[[list[Any]], Call]) -> Ahead:
        """Return what a `map` knows of the elements that it has read and not answered yet."""
        if self._shared.streams:
            _refuse_call(self._name())
        return Ahead(
            partial(self._limits, batcher),
            batcher.check,
            post,
            keeps_errors=self._shared.call_options.return_exceptions,
        )

    def _limits(self, batcher: DriverT) -> tuple[int, int]:
        """Return how many elements of a `map` travel as one call, and how many items go ahead."""
        options = batcher.options
        size = batcher.collator.chunk_size or options.batch_size
        if self._shared.call_options.deadline_ms is not None:
            size = 1  # it holds for each item
        if options.max_queue_size is not None:
            bound = options.max_queue_size
            if options.on_full == "raise":
                bound //= 2  # the rest of the room is left to those who would be turned away
            size = min(size, max(bound, 1))
        return size, 3 * options.batch_size

    def _in_order(self, call: Call, presentable: Callable[[BaseException], BaseException]) -> Iterator[Any]:
        """Yield the answers of a chunk, and raise what came in the place of one."""
        for answer in call.results if call.many else (call.results,):
            if not isinstance(answer, BaseException):
                yield answer
            elif self._shared.call_options.return_exceptions:
                yield copied(answer)
            else:
                raise_as_was(presentable(copied(answer)))

    def _late(self, call: Call, error: TimeoutError) -> Iterator[Any]:
        """Return the answer of a chunk, of one element, whose deadline has passed."""
        if call.left != "expired" or not self._shared.call_options.return_exceptions:
            raise_as_was(error)
        return iter([without_own_frames(error)])


def _retrieved(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _refuse_call(name: str, *_: Any) -> Call:
    raise TypeError(f"{name} streams: call its stream or astream")


def is_bound(owner: object) -> bool:
    """Whether the function of `owner`'s batcher has bound its first parameter."""
    return not isinstance(owner, Face)  # the decorated function itself


def code_of(func: Any) -> tuple[Any, Any]:
    """Return what `func` wraps, and the `__call__` of its class: one of the two says what a call returns."""
    func = getattr(func, "__func__", func)  # of class and static methods
    while isinstance(func, partial):
        func = func.func
    return func, getattr(type(func), "__call__", None)  # noqa: B004  not whether there is one


def is_stream(func: Any, options: Options) -> bool:
    """Whether a batch function yields its results piece by piece."""
    streams = any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in code_of(func))
    if streams and options.isolate_errors:
        raise TypeError(_NO_ISOLATION)
    if streams and options.cache is not None:
        raise TypeError("cache does not go with a function that streams: it keeps results, not pieces")
    if not streams and options.max_pieces != DEFAULT_MAX_PIECES:
        raise TypeError(
            f"max_pieces={options.max_pieces} goes only with a function that streams: make it a generator"
        )
    return streams
