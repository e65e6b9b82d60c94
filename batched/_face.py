"""What every decorated function has in common: a collator, a driver, and what callers say of single calls.

A face joins the two. What may be passed is the collator's business; from where, threads or event loops,
that of the next layer.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from batched._binding import Bindable, name_of
from batched._family import Family
from batched._options import CallOptions, Changes
from batched.errors import copied, raise_as_was

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias, Unpack

    from batched._call import Call, Collator
    from batched._options import Options, Priority
    from batched._scheduler import AnyQueue
    from batched._stats import Stats

    Join: TypeAlias = Callable[[Any, Any, str, bool], tuple[Collator, type[AnyQueue]]]
    """From a function, its options and name, and whether it is bound, make its collator and kind of queue."""

__all__ = ["Driver", "Face", "is_stream", "own_errors"]

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


DriverT = TypeVar("DriverT", bound=Driver)


class Face(Bindable[DriverT]):
    """A decorated function, whose collator reads the arguments."""

    _collator: Collator
    _read: Callable[..., Call]
    _streams: bool

    def _find(self) -> DriverT:
        batcher = super()._find()
        self._collator = batcher.collator
        self._read = self._refuse_call
        if not self._streams:
            self._read = batcher.collator.read  # found once: it is called by every caller
        return batcher

    def _name(self) -> str:
        return name_of(self._function, self._settings)

    def _refuse_call(self, *_: Any) -> Call:
        raise TypeError(f"{self._name()} streams: call its stream or astream")

    def _read_stream(self, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Return the call for one item, whose pieces are wanted."""
        if not self._streams:
            raise TypeError(f"{self._name()} does not stream: only a batch function that is a generator does")
        call = self._collator.one(self._function, args, named, monotonic())
        self._apply_options(call)
        call.keep_errors = False  # there is no place in a stream but its end
        return call

    def configure(self, **changes: Unpack[Changes]) -> None:
        """Change options of this batcher, all at once; what is queued follows them from the next batch on.

        Any of `batch_size`, `timeout_ms`, `small_batch_threshold`, `max_queue_size`, `on_full` and
        `isolate_errors`; `TypeError` for others. Of a method, this changes only the instance's.
        """
        if fixed := changes.keys() - Changes.__annotations__.keys():
            raise TypeError(
                f"configure cannot change {min(fixed)!r}; it can change {', '.join(Changes.__annotations__)}"
            )
        if self._streams and changes.get("isolate_errors"):
            raise TypeError(_NO_ISOLATION)
        batcher = self._batcher or self._find()
        with _configuring:  # two that change different options must not undo each other
            batcher.configure(replace(batcher.options, **changes))

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

    def _apply_options(self, call: Call) -> None:
        options = self._call_options
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
        call = self._collator.chunk(self._function, items, monotonic())
        self._collator.own(call)
        self._apply_options(call)
        for part in [call, *call.members] if isinstance(call, Family) else [call]:
            part.keep_errors = True
            if self._call_options.priority is None:
                part.bulk = True
        return call

    def _chunks(self) -> tuple[int, int]:
        """Return how many elements of a `map` travel as one call, and how many items go ahead."""
        if self._streams:
            self._refuse_call()
        options = (self._batcher or self._find()).options
        size = self._collator.chunk_size if self._call_options.deadline_ms is None else 1
        if options.max_queue_size is not None:
            size = min(size, options.max_queue_size)
        return size, 3 * options.batch_size

    def _in_order(self, call: Call, presentable: Callable[[BaseException], BaseException]) -> Iterator[Any]:
        """Yield the answers of a chunk, and raise what came in the place of one."""
        for answer in self._collator.answers(call):
            if not isinstance(answer, BaseException):
                yield answer
            elif self._call_options.return_exceptions:
                yield copied(answer)
            else:
                raise_as_was(presentable(copied(answer)))


def is_stream(func: Any, options: Options) -> bool:
    """Whether a batch function yields its results piece by piece."""
    func = getattr(func, "__func__", func)  # of class and static methods
    candidates = [func, vars(type(func)).get("__call__")]
    streams = any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in candidates)
    if streams and options.isolate_errors:
        raise TypeError(_NO_ISOLATION)
    if streams and options.cache is not None:
        raise TypeError("cache does not go with a function that streams: it keeps results, not pieces")
    return streams


def own_errors(results: Any) -> Any:
    """Give a caller that keeps errors its own copies of them."""
    if isinstance(results, BaseException):
        return copied(results)
    if isinstance(results, list):
        return [copied(row) if isinstance(row, BaseException) else row for row in results]
    return results
