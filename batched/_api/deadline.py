"""`batched.deadline`: one deadline for all calls of a block of code. A web request is such a block, too."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import ref

from batched._clock import monotonic
from batched._core.call import Call
from batched._core.option_checks import a_time
from batched._drivers.arrivals import with_each
from batched._drivers.wakeups import FUTURE
from batched._locks import Freed, Guard

_inmost: ContextVar[Block | None] = ContextVar("batched.deadline", default=None)
_check = a_time(or_zero=False, or_none=False)
_using = Guard()
_is_used = False
_FEW = 16  # calls of a request, of which it is not worth asking which still wait


class BlockDeadline(float):
    """A deadline that a block of code has given to a call: no caller has asked for those milliseconds."""

    __slots__ = ()

    source = "`batched.deadline`"
    """What has set it, in messages."""


class RequestDeadline(BlockDeadline):
    """The deadline of a call that is that of its web request."""

    __slots__ = ()

    source = "request"


class Block:
    """A block of code that may have a deadline, and perhaps is inside of another one."""

    __slots__ = ("outer", "request", "until")

    def __init__(self, until: float, outer: Block | None) -> None:
        self.until = until
        self.outer = outer
        self.request: Request | None = None if outer is None else outer.request

    def lift(self) -> None:
        """End its deadline for what else it does, in whichever of its tasks and threads."""
        self.until = inf


class Request(Block):
    """The block of a web request, which knows the calls of its threads: a thread cannot be cancelled."""

    __slots__ = ("_calls", "_lock", "_most")

    def __init__(self, until: float, outer: Block | None) -> None:
        super().__init__(until, outer)
        self.request = self
        self._lock = threading.Lock()
        self._calls: list[tuple[ref[Any], ref[Call]]] = []
        self._most = _FEW

    def note(self, driver: Any, call: Call) -> None:
        """Note a call of a thread, or of a future."""
        with self._lock:
            self._calls.append((ref(driver), ref(call)))
            if len(self._calls) > self._most:
                self._calls = [each for each in self._calls if (known := each[1]()) and known.missing]
                self._most = _FEW + 2 * len(self._calls)

    def withdraw(self) -> None:
        """Have the calls of its threads that have not begun raise `CancelledError`: its client has left."""
        with self._lock:
            calls, self._calls = self._calls, []
        for its_driver, its_call in calls:
            driver, call = its_driver(), its_call()
            if driver is not None and call is not None:
                why = f"the client that {driver.name} was called for has left"
                driver.withdraw([call], CancelledError(why))


BlockT = TypeVar("BlockT", bound=Block)
P = ParamSpec("P")
R = TypeVar("R")


def deadline(ms: float) -> Deadline:
    """Give all calls of batched functions in a `with` block one deadline: they share what is left of it.

    A call that has a `deadline_ms` of its own has the sooner one, and so has an inner block; with
    `deadline_ms=None` it has that of the block. Calls in tasks and in `asyncio.to_thread` that the block
    starts are inside, too; those in threads of a pool are not, unless they run in a copy of the context.
    Nothing else is ended at the deadline. In an `async def` function, too, it is `with`.

    As a decorator of a function, `async def` too, it is such a block for each call of that function.

    Args:
        ms: The milliseconds from the beginning of the block.

    Raises:
        ValueError: `ms` is not above 0, or more than a week.
        TypeError: It decorates a generator function, which would run outside of the block, or no function.
        RuntimeError: The same object is used for a second block.

    """
    if callable(ms):
        name = getattr(ms, "__qualname__", None) or reprlib.repr(ms)
        raise TypeError(
            f"batched.deadline takes milliseconds before it decorates {name}: write `@batched.deadline(200)`"
        )
    return Deadline(_check("batched.deadline", ms))


class Deadline:
    """A `with` block that has a deadline, or what decorates functions with such blocks."""

    __slots__ = ("_block", "_ms")

    def __init__(self, ms: float) -> None:
        self._ms = ms
        self._block: AbstractContextManager[Block] | None = None

    def __enter__(self) -> None:
        if self._block is not None:
            raise RuntimeError(
                f"this batched.deadline({self._ms:.15g}) has had its block: write "
                f"`with batched.deadline({self._ms:.15g}):` for each block, as its time begins there"
            )
        self._block = block_of(self._ms, Block)
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._block is None else self._block.__exit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers are to refuse `async with`

        async def __aenter__(self) -> None:
            raise TypeError(f"write `with batched.deadline({self._ms:.15g}):`, without `async`, here too")

        async def __aexit__(self, *_: object) -> None:
            """Stand beside `__aenter__`, which raises: Python asks for both."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each of its calls is a block of its own."""
        ms = self._ms
        if (why := _why_not(function, f"batched.deadline({ms:.15g})")) is not None:
            name = getattr(function, "__qualname__", None) or reprlib.repr(function)
            raise TypeError(f"batched.deadline cannot decorate {name}, {why}")
        if _is_any(function, iscoroutinefunction):
            plain: Any = function

            @wraps(function)
            async def awaited(*args: P.args, **named: P.kwargs) -> Any:
                with Deadline(ms):
                    return await plain(*args, **named)

            return awaited  # type: ignore[return-value]

        @wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> R:
            with Deadline(ms):
                return function(*args, **named)

        return called


def _why_not(function: Any, deadline: str) -> str | None:
    """Return why `function` cannot be decorated, and what to write; None if it can."""
    if isinstance(function, type):
        return f"a class: write `@{deadline}` above its methods"
    if isinstance(function, classmethod | staticmethod | property):
        kind = type(function).__name__
        return f"a {kind}: write `@{deadline}` below `@{kind}`, right above the function"
    if hasattr(type(function), "ways_to_call"):
        return "which is batched: use its option `default_deadline_ms`, or `options(deadline_ms=...)`"
    if not callable(function):
        return "which cannot be called"
    if _is_any(function, isgeneratorfunction, isasyncgenfunction):
        return (
            f"a generator function: its body runs after the call has returned; write `with {deadline}:` in "
            f"its body"
        )
    return None


def _is_any(function: object, *kinds: Callable[[object], bool]) -> bool:
    """Whether a function, or an object that is called like one, is of any of these kinds."""
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return any(kind(function) or kind(call) for kind in kinds)


@contextmanager
def block_of(ms: float | None, kind: type[BlockT]) -> Iterator[BlockT]:
    """Do what `deadline` does, with a block of a `kind`; with None there is no deadline."""
    global _is_used  # noqa: PLW0603
    outer = _inmost.get()
    while outer is not None and outer.until == inf and outer is not outer.request:
        outer = outer.outer  # so that blocks that generators could not leave are not kept
    block = kind(inf if ms is None else monotonic() + ms / 1000, outer)
    if not _is_used:
        with Freed(_using.lock), _using.lock:
            if not _is_used:
                with_each(_bound)
                _is_used = True
    token = _inmost.set(block)
    try:
        yield block
    finally:
        # A generator may end in another context, or while a later block of its consumer goes on: it cannot
        # leave its block there.
        if _inmost.get() is not block:
            block.lift()
        else:
            try:
                _inmost.reset(token)
            except ValueError:
                block.lift()


def _bound(driver: Any, call: Call) -> None:
    """Give `call` the deadline of the block, if it is in one and has none that is sooner."""
    found = _inmost.get()
    if found is None:
        return
    if found.request is not None:
        waits_at = getattr(call, "waits_at", call)
        if waits_at is None or waits_at is FUTURE:
            found.request.note(driver, call)
    until, outer = found.until, found.outer
    while outer is not None:
        until = min(until, outer.until)
        outer = outer.outer
    if until == inf:
        return
    of_request = found.request is not None and found.request.until == until
    kind = RequestDeadline if of_request else BlockDeadline
    for each in (call, *call.parts):
        if each.deadline is None or each.deadline > until:
            each.deadline = kind(max(each.arrived, until))
