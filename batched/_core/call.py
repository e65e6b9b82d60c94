"""What callers ask for, and the batches made of it.

Knows nothing of time, threads or how callers wait: that is the drivers' business, who ask a batch which calls
it finished.
"""

from __future__ import annotations

from collections import deque
from contextvars import Context, copy_context
from enum import Enum
from functools import partial
from itertools import accumulate, pairwise
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from batched._core.task_awaitable import Waiter
from batched.errors import SlowConsumerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DONE", "Batch", "Call", "Collator", "Row", "Slice", "Wrapper", "holds_no_error"]

# Only integers have a common divisor, and once that is 1 the others are only looked at: nothing is faster.
_check_integers = partial(gcd, 1)


class Done(Enum):
    """The type of `DONE`."""

    DONE = "DONE"

    def __repr__(self) -> str:
        return "batched.DONE"


DONE = Done.DONE
"""What a batch function that streams yields in the place of an item that has ended."""


class Wrapper(Protocol):
    """A decorated function, or its view of an instance: it has the batch function as its `__wrapped__`."""

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...


class Row(tuple[Any, ...]):
    """An element of a `map` over several iterables: one item of several columns."""

    __slots__ = ()


class Call(Waiter):
    """One caller's items: the unit of queueing, answering and cancelling, whatever its size.

    A task waits for the call itself; other callers for its `waiter`.
    """

    __slots__ = (
        "arrived",
        "bulk",
        "context",
        "deadline",
        "error",
        "function",
        "inputs",
        "keep_errors",
        "key",
        "large",
        "left",
        "lengths",
        "loop",
        "many",
        "missing",
        "order",
        "results",
        "size",
        "waiter",
        "waiting",
    )

    # Unset to begin with.
    large: bool
    """Which class it is in, as the queue has found."""
    key: Any
    """Only calls of one key share a batch; unset where all do."""
    lengths: float | list[float]
    """Of all items, or of each; unset where nobody asks."""
    order: list[int]
    """Where in the caller's list each item was; unset if it is as it was."""
    waiter: Any
    """What its caller waits for, if that is not the call itself; set by the driver, ..."""
    loop: Any
    """... as is where it waits."""

    def begin(  # noqa: PLR0913, PLR0917  flat and positional: it is asked once per call, on the caller's time
        self,
        function: Any,
        inputs: Any,
        size: int,
        many: bool,  # noqa: FBT001
        arrived: float,
        deadline: float | None = None,
        bulk: bool | None = None,  # noqa: FBT001
        keep_errors: bool = False,  # noqa: FBT001, FBT002
    ) -> Self:
        """Set what a new call asks for; as `__init__` it would take a quarter longer."""
        # A `Wrapper`: it travels with the call, so that an idle worker keeps no instance alive.
        self.function: Any = function
        self.inputs: Any = inputs
        self.size = size
        self.many = many
        self.arrived = arrived
        self.deadline = deadline
        self.bulk = bulk  # what its caller says; None lets the size decide whether it is `large`
        self.context: Context | None = None
        self.keep_errors = keep_errors
        self.waiting = size  # items not yet chosen for a batch
        self.missing = size  # items not yet answered; 0 means done
        self.results: Any = None
        self.error: BaseException | None = None
        self.left: Literal["cancelled", "expired"] | None = None
        self.is_woken = False
        self._go_on = self._go_on_in = None
        return self

    @property
    def whole_size(self) -> int:
        """How many items the caller asked for at once: the whole list, where this is a part of one."""
        return self.size

    def note_context(self) -> None:
        """Note the caller's context variables, for `current_batch`. A task that waits has told its own."""
        self.context = copy_context() or None  # most are empty, and of those there need not be one for each

    def caller_context(self) -> Context:
        """Return a copy of what `note_context` has noted, or else of the context of the task that waits."""
        context = self.context or self._go_on_in
        return Context() if context is None else context.copy()

    def take_pieces(self) -> None:
        """Have the call, which is not queued yet, take piece after piece as its results."""
        self.results = deque()

    def fail(self, error: BaseException) -> None:
        """Answer the whole call with `error`; what of it still waits is the scheduler's to drop."""
        self.error = error
        self.missing = 0

    def let_go(self) -> None:
        """Forget what nobody needs any more: the inputs, and the answers of a list that nobody will get."""
        self.function = self.inputs = None
        if self.many and (self.error is not None or self.left is not None):
            self.results = None

    def latest_start(self) -> float:
        """Return until when it waits for company: for half of its time at most. It must have a deadline."""
        return (self.arrived + (self.deadline or 0.0)) / 2

    def overdue(self, name: str) -> str:
        """Say that its deadline has passed."""
        allowed_ms = ((self.deadline or self.arrived) - self.arrived) * 1000
        # Rounded, because a clock that counts from a start months ago is exact to 0.001 us only.
        return f"{name} did not answer within deadline_ms={round(allowed_ms, 4) or allowed_ms:.15g}"


Slice: TypeAlias = tuple[Call, int, int]
"""Items `start` to `stop` of a call. Plain, because a named tuple takes ten times as long to make."""


class Collator(Protocol):
    """How arguments become calls, many inputs one, and one output many. Knows no caller, nor what waits."""

    chunk_size: int | None
    """How many elements of a `map` travel as one call at most; None for as many as share a batch."""

    def read(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call that the arguments mean. A size of 0 is answered by an empty list at once."""
        ...

    def one(self, function: Wrapper, args: tuple[Any, ...], named: dict[str, Any], now: float) -> Call:
        """Return the call for one item, even a list; `TypeError` if the collator knows no single items."""
        ...

    def chunk(self, function: Wrapper, items: list[Any], now: float) -> Call:
        """Return a call of `chunk_size` elements of a `map` or fewer; the list is its own from now on.

        What is wrong with one of them is raised.
        """
        ...

    def own(self, call: Call) -> None:
        """Copy what of the inputs the caller could still change, before `call` has run."""
        ...

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        ...

    def split(self, outputs: Any, batch: Batch) -> list[Any]:
        """Return one part per slice of `batch`, collated before; a part that is an exception fails its call.

        Adds the failed items of lists to `batch.failed`. Raises `TypeError` or `BatchError` if
        `outputs` are not one row per item.
        """
        ...

    def place(self, piece: Slice, part: Any) -> object:
        """Keep `part` as the results of a slice that is not its whole call; return what it overwrites."""


_NOTHING: list[Any] = []  # never added to


class Batch:
    """Slices of calls that run together, at most once."""

    __slots__ = (
        "_ended",
        "_overwritten",
        "_slices",
        "begun",
        "failed",
        "has_lists",
        "least",
        "midway",
        "padded",
        "real",
        "reason",
        "shapes",
        "singles",
        "size",
    )

    def __init__(
        self, slices: list[Slice], size: int, reason: str = "", singles: list[Call] | None = None
    ) -> None:
        self._slices = slices
        # What `let_go` forgets: calls that are answered, and items in whose place there is an answer.
        self._ended: list[Call] = _NOTHING
        self._overwritten: list[Any] = _NOTHING
        # Instead of slices: calls of one item each, no lists. Most batches are of nothing else.
        self.singles = singles
        self.size = size
        self.reason = reason  # why it started, as `Stats.closed` names it
        self.begun = False  # whether its callers have got the first of several pieces
        self.failed = 0  # items
        self.has_lists = False  # whether some slice is of a list, as the collator found
        # Whether it is a slice of one list, of which some has run and some waits: as the answers are written
        # over its inputs, there is nothing to collate nor to split.
        self.midway = False
        self.shapes: Any = None  # what the rows of each feature were padded to, by collators that pad
        self.least: Any = None  # what they are padded to at least, as parts of a call have to be alike
        self.real = 0  # elements, for collators that pad
        self.padded = 0  # the same with their padding

    def __len__(self) -> int:
        return self.size

    @property
    def slices(self) -> list[Slice]:
        """The slices of any batch; one of singles becomes one of slices when they are asked for."""
        if self.singles is not None:
            self._slices = [(call, 0, 1) for call in self.singles]
            self.singles = None
        return self._slices

    @property
    def calls(self) -> list[Call]:
        """The call of each slice."""
        if self.singles is not None:
            return self.singles
        slices = self._slices
        return [slices[0][0]] if len(slices) == 1 else [call for call, _, _ in slices]

    def clear(self) -> None:
        """Forget the calls: an error that one of them raised would keep all."""
        self._slices.clear()
        if self.singles is not None:
            self.singles.clear()

    def go_on(self, piece: Slice) -> None:
        """Be the batch of the next slice of a list of which one has run."""
        self._slices.clear()  # as at the end of any batch, for who still looks at it
        self._slices = [piece]
        self.midway = True

    def halves(self) -> list[Batch]:
        """Return two batches of what of this one still has callers, none or one if that is all there is.

        A call is cut only where it is alone, and then both parts are padded as this batch was: outputs of one
        call that were padded to different lengths need not be alike.
        """
        slices = [piece for piece in self.slices if piece[0].missing]
        ends = list(accumulate(stop - start for _, start, stop in slices))
        if not ends:
            return []
        size = ends[-1]
        between = [
            end
            for end, (piece, following) in zip(ends, pairwise(slices), strict=False)
            if piece[0] is not following[0]
        ]
        middle = min(between, key=lambda end: abs(2 * end - size), default=size // 2)
        parts: tuple[list[Slice], list[Slice]] = [], []
        for end, (call, start, stop) in zip(ends, slices, strict=True):
            cut = min(max(stop - end + middle, start), stop)
            for part, begin, to in ((parts[0], start, cut), (parts[1], cut, stop)):
                if begin < to:
                    part.append((call, begin, to))
        sizes = middle, size - middle
        halves = [Batch(part, items, "retry") for part, items in zip(parts, sizes, strict=True) if part]
        if not between:
            for half in halves:
                half.least = self.shapes
        return halves

    def prune(self) -> list[Slice]:
        """Remove and return what has no callers any more."""
        gone = [piece for piece in self.slices if not piece[0].missing]
        self.slices[:] = [piece for piece in self.slices if piece[0].missing]
        self.size -= sum(stop - start for _, start, stop in gone)
        return gone

    def run(self, collator: Collator) -> Any:
        """Return what the batch function returns for the batch's items."""
        # The call gets no name here: an error of its function would keep it alive.
        if self.singles is not None:
            return self.singles[0].function.__wrapped__(collator.collate(self))
        slices = self._slices
        if self.midway:
            return slices[0][0].function.__wrapped__(slices[0][0].inputs[slices[0][1] : slices[0][2]])
        return slices[0][0].function.__wrapped__(collator.collate(self))

    def deliver(self, outputs: Any, collator: Collator) -> list[Call]:
        """Hand each call its part of `outputs` and return the calls that are now done.

        Raises, before any call has got anything, if `outputs` are not one row per item.
        """
        done = self.answer(collator.split(outputs, self), collator)
        self.let_go()
        return done

    def answer(self, parts: list[Any], collator: Collator) -> list[Call]:
        """Hand each call its part, as the collator has split them; return the calls that are now done.

        Needs the lock of the scheduler, as `fail` does: what a call still misses decides what runs. Then
        `let_go` is to follow, without the lock.
        """
        if self.singles is not None:
            self._ended = self.singles
            return self._answer(self.singles, parts)
        done: list[Call] = []
        self._ended = []
        self._overwritten = []
        at = 0
        for piece in self._slices:
            part = parts[at]
            at += 1  # noqa: SIM113  for one slice, `zip` or `enumerate` take as long as all else here
            call, start, stop = piece
            if stop - start == call.size:
                self._ended.append(call)
                done += self._answer([call], [part])
            elif isinstance(part, BaseException):
                if self._refuses(call, part, stop - start):
                    done.append(call)
            elif call.missing and self._place(piece, part, collator):
                done.append(call)
        return done

    def _answer(self, calls: list[Call], parts: list[Any]) -> list[Call]:
        """Hand each of `calls` its part, which is all that it waits for; return those that still waited."""
        done: list[Call] = []
        at = 0
        fine = None  # the type of the last part: to ask those of one type only once takes half of the time
        for call in calls:
            part = parts[at]
            at += 1  # as in `deliver`
            kind = type(part)
            if kind is not fine:
                if issubclass(kind, BaseException):
                    if self._refuses(call, part, call.size):
                        done.append(call)
                    continue
                fine = kind
            if call.missing:  # else its caller has left
                call.results = part
                call.missing = 0
                done.append(call)
        return done

    def let_go(self) -> None:
        """Forget the inputs of answered calls. Not under a lock: their finalizers may call the batcher."""
        for call in self._ended:
            call.function = call.inputs = None
        self._ended = self._overwritten = _NOTHING

    def _refuses(self, call: Call, error: BaseException, items: int) -> bool:
        """Answer `call`, of which so many `items` failed, with `error`; return whether it still waited."""
        if not call.many:  # else the collator has counted them
            self.failed += items
        return _refused(call, error)

    def step(self, pieces: list[Any], name: str, max_pieces: int) -> tuple[list[Call], bool]:
        """Hand each call that streams its piece, as the collator has split them. Needs the lock, as `answer`.

        A call is done when its piece is `DONE` or an exception; one for which `max_pieces` wait fails.
        Returns the calls that have something new, and whether any of the batch wants more.
        """
        told = []
        wanted = False
        self.begun = True
        for call, piece in zip(self.calls, pieces, strict=True):
            if call.left is not None or not call.missing:
                continue
            if piece is DONE:
                call.missing = 0
            elif isinstance(piece, BaseException):
                self.failed += 1
                call.fail(piece)
            elif len(call.results) >= max_pieces:
                self.failed += 1
                call.fail(
                    SlowConsumerError(
                        f"{name}: the consumer of this stream was max_pieces={max_pieces} pieces behind, so "
                        f"no more are made for it; take pieces faster, or raise max_pieces"
                    )
                )
            else:
                call.results.append(piece)
                wanted = True
            told.append(call)
        return told, wanted

    def end(self) -> list[Call]:
        """Say that there are no more pieces; return the calls that waited for some. As `answer`, else."""
        done = [call for call in self.calls if call.missing]
        self._ended = self.calls
        for call in self._ended:
            call.missing = 0
        return done

    def fail(self, error: BaseException, collator: Collator) -> list[Call]:
        """Answer each call with `error` and return the calls that are now done. As `answer`, else."""
        self.failed = self.size
        self._ended = []
        self._overwritten = []
        done = []
        for piece in self.slices:
            call, start, stop = piece
            if not call.many or not call.keep_errors:
                if _refused(call, error):
                    done.append(call)
            elif self._place(piece, [error] * (stop - start), collator):
                done.append(call)
        return done

    def _place(self, piece: Slice, part: Any, collator: Collator) -> bool:
        """Give a call one of its parts; return whether it is done."""
        call, start, stop = piece
        if not call.missing:  # an earlier part failed, or its caller has left
            return False
        try:
            self._overwritten.append(collator.place(piece, part))
        except Exception as error:  # noqa: BLE001  its caller's to handle, and nobody else's
            self.failed += stop - start
            return _refused(call, error)
        call.missing -= stop - start
        if call.missing:
            return False
        self._ended.append(call)
        return True


def holds_no_error(rows: list[Any]) -> bool:
    """Return whether no row, of which there must be one, is an exception."""
    # Asking every row takes as long as many a batch function. Most lists are of one type, and counting that
    # is three times as fast. Only numbers add up to a number, which is eight times as fast to try.
    kind = type(rows[0])
    try:
        if kind is int or kind is bool:
            _check_integers(*rows)
            return True
        if kind is float and type(sum(rows)) is float:
            return True
    except Exception:  # noqa: BLE001, S110  not numbers all, so they are asked below
        pass
    types = list(map(type, rows))
    if types.count(kind) == len(types):
        return not issubclass(kind, BaseException)
    return not any(isinstance(row, BaseException) for row in rows)


def _refused(call: Call, error: BaseException) -> bool:
    """Answer a call that still waits with `error`; return whether it did."""
    if not call.missing:
        return False
    if call.keep_errors and not call.many:
        call.results = error
        call.missing = 0
    else:
        call.fail(error)
    return True
