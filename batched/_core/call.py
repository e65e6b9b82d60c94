"""What a caller asks for: the unit of queueing, answering and cancelling."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MappingView, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, Protocol, Self, TypeAlias
from weakref import ProxyTypes

from batched._core.task_awaitable import TaskAwaitable
from batched.errors import is_error

_EMPTY = Context()

_COLLECTIONS = (tuple, set, frozenset, range, deque, MappingView)
"""What is no list, and may have been meant as one."""


Left: TypeAlias = Literal["cancelled", "expired", "rejected"]
"""Why a call is not wanted any more."""

BELONGS = ("flow", "key", "tenant")
"""The slots of a call that say what it belongs to: its map, and what `group_by` and `fair_by` have returned.

They are unset where it belongs to nothing. A call in the place of another belongs to the same.
"""


class Row(tuple[Any, ...]):
    """An element of a `map` over several iterables: one item of several columns."""

    __slots__ = ()


class MapFlow:
    """The calls of one `map`: they take turns as one, and share what room there is for maps."""

    __slots__ = ("__weakref__", "parts")

    def __init__(self) -> None:
        self.parts: list[Call] = []
        """Those that are in a bounded queue, and perhaps some that were. Needs the lock of the batcher."""


class Pieces(deque[Any]):
    """The results of a stream: the pieces that its consumer has not taken yet. No answer is of this class."""


class Wrapper(Protocol):
    """A decorated function, or its view of an instance: it has the batch function as its `__wrapped__`."""

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...


class Call(TaskAwaitable):
    """The items that one caller asks for at once, and their answer.

    A task waits for the call itself; other callers for its `waiter`.
    """

    __slots__ = (
        "arrived",
        "began",
        "bulk",
        "context",
        "deadline",
        "error",
        "failed_at",
        "flow",
        "function",
        "inputs",
        "keep_errors",
        "key",
        "large",
        "left",
        "lengths",
        "many",
        "missing",
        "note",
        "owns_error",
        "parent",
        "results",
        "size",
        "tenant",
        "waiter",
        "waiting",
        "waits_at",
    )

    # Unset to begin with.
    began: float
    """When it began to run in a batch that is refilled; unset until the end of its first step."""
    failed_at: int
    """Where in its caller's list the first item is that has failed so far."""
    flow: MapFlow
    """What it shares its turns with, if it is large: its `map`; unset where it has turns of its own."""
    large: bool
    """Its class, as the queue has found when the call came in."""
    key: Any
    """Only calls of one key share a batch; unset where all calls do."""
    lengths: float | list[float]
    """Of all items, or of each; unset where lengths are not measured."""
    note: str | None
    """What its error says besides, with `{name}` for the batcher's; unset unless the function has failed."""
    owns_error: bool
    """Whether no other caller has its error, nor those of its results; unset where the function gave none."""
    tenant: Any
    """What `fair_by` says that it belongs to; unset where tenants take no turns."""
    waiter: Any
    """What the caller waits for, if that is not the call itself; set by the driver."""
    waits_at: Any
    """Where the caller waits: a loop, a `LoopDispatcher`, `FUTURE`, or None for a thread."""

    is_divided = False
    """Whether other calls run in the place of this one."""
    hits = 0
    """Items that a cache has answered."""

    def begin(  # noqa: PLR0913, PLR0917  flat and positional: it is asked once per call, on the caller's time
        self,
        function: Any,
        inputs: Any,
        size: int,
        many: bool,  # noqa: FBT001
        arrived: float,
        deadline: float | None = None,
        bulk: bool | None = None,  # noqa: FBT001
    ) -> Self:
        """Set what a new call asks for; as `__init__` it would take a quarter longer.

        With `many` the answer is a list of one result for each item. Without it there is one answer, whatever
        the number of items: one result, or the rows of arrays.
        """
        # A `Wrapper`: it travels with the call, so that an idle worker keeps no instance alive.
        self.function: Any = function
        self.inputs: Any = inputs
        self.size: int = size
        self.many: bool = many
        self.arrived: float = arrived
        self.deadline: float | None = deadline
        self.bulk: bool | None = bulk  # the priority that the caller has set; None lets the size decide
        self.context: Context | None = None
        self.keep_errors: bool = False
        self.waiting: int = size  # items not yet chosen for a batch
        self.missing: int = size  # items not yet answered; 0 means done
        self.results: Any = None
        self.error: BaseException | None = None
        self.left: Left | None = None
        self.parent: Divides | None = None
        self.is_woken = False
        self._go_on = self._go_on_in = None
        return self

    @property
    def has_all_results(self) -> bool:
        """Whether every item has been answered, so that no part runs; asked as the last answer comes."""
        is_answered = not self.missing and self.error is None and self.left is None
        # A caller that has its answer may have taken it away.
        return is_answered and self.results is not None and not is_error(self.results)

    # -- a call and its parts: most calls are their only part ---------------------------------------------

    @property
    def parts(self) -> Sequence[Call]:
        """The calls that run in the place of this one; none if it runs itself."""
        return ()

    @property
    def unstarted(self) -> int:
        """How many items wait in the queue for this call."""
        return self.waiting

    @property
    def unanswered(self) -> int:
        """How many items have no answer yet."""
        return self.missing

    @property
    def siblings(self) -> Sequence[Call]:
        """The calls that are parts of the same list; this one alone if it is no part."""
        return (self,)

    @property
    def whole(self) -> Call:
        """The list of which this call is a part; this call if it is no part."""
        return self

    @property
    def is_shared(self) -> bool:
        """Whether several callers wait for it, as for items that a cache does not know."""
        return self.parent is not None and self.parent.is_shared

    @property
    def is_wanted(self) -> bool:
        """Whether a caller of a cache waits for it."""
        return self.parent is not None and self.parent.is_wanted

    @property
    def has_expired(self) -> bool:
        """Whether no caller waits for it any more, because of a deadline; it may yet be in the inbox."""
        return self.left == "expired" or (self.parent is not None and self.parent.has_expired)

    def enter(self, batcher: Any) -> Sequence[Call]:  # noqa: ARG002  of calls that a cache may answer
        """Return the calls to queue in the place of this one."""
        return (self,)

    def extend(self, deadline: float | None) -> None:
        """Extend the deadline, if it has one, to that of a call that waits for the same items."""
        for part in self.parts or (self,):
            if part.deadline is not None:
                part.deadline = None if deadline is None else max(part.deadline, deadline)

    def belong_with(self, call: Call) -> None:
        """Belong to what `call` belongs to, in the place of which this one runs."""
        for slot in BELONGS:
            if hasattr(call, slot):
                setattr(self, slot, getattr(call, slot))

    def leave(self) -> Sequence[Call]:
        """Return the calls to drop, now that this one is not wanted any more."""
        return (self,)

    # -- the caller -------------------------------------------------------------------------------------

    def note_context(self) -> None:
        """Note the caller's context variables, for `current_batch`. A task that waits has told its own."""
        self.context = copy_context() or _EMPTY  # most are empty, and of those there need not be one for each

    def caller_context(self) -> Context:
        """Return a copy of what `note_context` has noted, or else of the context of the task that waits."""
        # The context of a task is no worker's to read: it may change meanwhile.
        context = self._go_on_in if self.context is None else self.context
        return Context() if context is None else context.copy()

    def caller_variable(self, variable: ContextVar[Any]) -> Any:
        """Return the value of a variable in that context, None if there is none. Only for its own thread."""
        context = self._go_on_in if self.context is None else self.context
        return None if context is None else context.get(variable)

    def take_pieces(self) -> None:
        """Have the call, which is not queued yet, take piece after piece as its results."""
        self.results = Pieces()

    @property
    def takes_pieces(self) -> bool:
        """Whether its caller takes piece after piece; else, of a function that streams, all at the end."""
        return isinstance(self.results, Pieces)

    def fail(self, error: BaseException) -> None:
        """Answer the whole call with `error`; the items that still wait are for the batcher to drop."""
        self.error = error
        self.missing = 0

    # -- the order of its caller's list: most calls are in it -----------------------------------------------

    def place_of(self, at: int) -> int:
        """Return the place in its caller's list of the item that is `at` this place here."""
        return at

    def is_in_order(self, start: int, stop: int) -> bool:  # noqa: ARG002  of parts
        """Whether the items from `start` to `stop` are neighbours in its caller's list, in that order."""
        return True

    def before(self, place: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return which of the items from `start` to `stop` are before a `place` of its caller's list."""
        return [(start, min(stop, place))] if start < place else []

    def fail_part(self, start: int, stop: int, error: BaseException, place: int | None = None) -> bool:
        """Note that the items from `start` to `stop` have ended with `error`; return whether it is done.

        A list fails with the first error in its own order: as long as earlier items may fail, it waits. The
        item that has failed is at a `place` of the caller's list; else it is the first of these items.
        """
        if not self.missing:
            return False
        if not self.many and self.keep_errors:
            self.results = error
            self.missing = 0
        elif not self.many:
            if self.results is None:  # a stream takes one item, whatever it is
                self.note = _taken_for_one(self.inputs)
            self.fail(error)
        else:
            is_known = place is not None or stop - start == 1
            if place is None:
                in_order = self.is_in_order(start, stop)
                place = self.place_of(start) if in_order else min(map(self.place_of, range(start, stop)))
            if self.error is None or place < self.failed_at:
                self.error = error
                self.failed_at = place
                self.note = note_of_item(place, self.whole.size) if is_known else None
            self.missing -= stop - start  # last: its caller may be looking
        return not self.missing

    def is_over(self, now: float) -> bool:
        """Whether nothing more of it is wanted: it is done, its caller has left, or it is late."""
        is_late = self.deadline is not None and now >= self.deadline
        return not self.missing or self.left is not None or is_late

    def latest_start(self) -> float:
        """Return until when it waits for company: for half of its time at most. It must have a deadline."""
        return (self.arrived + (self.deadline or 0.0)) / 2

    def overdue(self, name: str) -> str:
        """Return the sentence that says that its deadline has passed."""
        return f"{name} did not answer within {self.allowed('had')}"

    def allowed(self, has: str = "has") -> str:
        """Return how long it may take, as messages say it: what its block `has` left, or had."""
        allowed_ms = ((self.deadline or self.arrived) - self.arrived) * 1000
        source = getattr(self.deadline, "source", None)  # of one that no caller has asked for
        if source is not None:
            return f"the {round(allowed_ms, 1):.15g} ms that its {source} {has} left"
        # Rounded, because a clock that counts from a start months ago is exact to 0.001 us only.
        return f"deadline_ms={round(allowed_ms, 4) or allowed_ms:.15g}"


def note_of_item(place: int, size: int) -> str | None:
    """Return the note of an error of the item at a `place` of a list; None if the list has no other."""
    return f"item {place + 1} of {size} of {{name}}" if size > 1 else None


def _taken_for_one(item: Any) -> str | None:
    """Return a note for an item, or a row of several columns, that may have been meant as many items."""
    for each in item if type(item) is list else (item,):
        kind = type(each)  # a proxy may fail when asked for its class
        # An open file is meant as one, and so is what a proxy of Python's own stands for.
        is_source = issubclass(kind, Iterator) and kind not in ProxyTypes and not hasattr(kind, "read")
        if is_source or issubclass(kind, _COLLECTIONS) or hasattr(kind, "__array__"):
            name = kind.__name__
            return f"{'an' if name[0] in 'aeiou' else 'a'} {name} is one item; pass a list for several"
    return None


class Divides(Protocol):
    """What has parts, and puts their answers together."""

    @property
    def is_shared(self) -> bool:
        """Whether several callers wait for it."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whether a caller of a cache waits for it."""
        ...

    @property
    def has_expired(self) -> bool:
        """Whether no caller waits for it any more, because of a deadline."""
        ...

    def take(self, part: Call) -> tuple[Sequence[Call], Sequence[Call]]:
        """Take the answer of a part; return the calls that are done with it, and the parts to drop."""
        ...

    def abandon(self, error: BaseException) -> Sequence[Call]:
        """End the calls that wait for it, with `error` where they have no answer; return them."""
        ...


def release_inputs(calls: list[Call]) -> None:
    """Forget the inputs of `calls`, and the answers of lists that their callers will not get.

    Not under a lock: the finalizer of an item may call the batcher.
    """
    for call in calls:
        call.function = call.inputs = None
        if call.many and (call.error is not None or call.left is not None):
            call.results = None


def completed(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """Return the calls to answer now that `calls` are done, and the parts that no call waits for any more.

    In the place of a part comes the call that it is a part of, once that has all of its answers.
    """
    answered: list[Call] = []
    unwanted: list[Call] = []
    for call in calls:
        if call.parent is None:
            answered.append(call)
        else:
            done, rest = call.parent.take(call)
            unwanted += rest
            if done:
                more, rest = completed([*done])
                answered += more
                unwanted += rest
    return answered, unwanted


Slice: TypeAlias = tuple[Call, int, int]
"""Items `start` to `stop` of a call. Plain, because a named tuple takes ten times as long to make."""


def runs_of(places: list[int]) -> list[tuple[int, int]]:
    """Return the ranges that sorted `places` make up."""
    runs: list[tuple[int, int]] = []
    for at in places:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs
