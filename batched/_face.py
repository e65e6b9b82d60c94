"""What every decorated function has in common: a collator, a driver, and what callers say of single calls.

A face joins the two. What may be passed is the collator's business; from where, threads or event loops,
that of the next layer.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from batched._binding import Bindable
from batched._options import CallOptions
from batched._patience import Window
from batched._scheduler import Scheduler
from batched.errors import copied, raise_as_was

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from batched._call import Call, Collator
    from batched._options import Options, Priority
    from batched._scheduler import AnyQueue
    from batched._stats import Stats

__all__ = ["Driver", "Face", "new_scheduler", "own_errors"]


class Driver(Protocol):
    """What a face asks of whatever runs its batches."""

    @property
    def stats(self) -> Stats:
        """A snapshot of the counters."""
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


def new_patience(options: Options) -> Window:
    """Return the rule by which batches that are not full wait."""
    return Window(options.timeout_ms / 1000)


def new_scheduler(options: Options, name: str, queue: Callable[[int, int], AnyQueue]) -> Scheduler:
    """Return a scheduler that follows `options`; `queue` is the kind of queue that it keeps."""
    return Scheduler(
        options,
        name=name,
        queue=queue(options.batch_size, options.small_batch_threshold),
        patience=new_patience(options),
    )


def own_errors(results: Any) -> Any:
    """Give a caller that keeps errors its own copies of them."""
    if isinstance(results, BaseException):
        return copied(results)
    if isinstance(results, list):
        return [copied(row) if isinstance(row, BaseException) else row for row in results]
    return results
