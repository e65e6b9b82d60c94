"""A batcher with a clock that is turned by hand: which batches start, when and why, without a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, TypeVar

from batched._api.function import DecoratedFunction
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.stats import Stats
from batched._drivers.current_worker import cause_of
from batched._drivers.manual_clock import ManualDriver
from batched._drivers.telling import Teller
from batched._drivers.thread import ThreadDriver
from batched._drivers.wakeups import error_of, own_errors
from batched.errors import RestartWorker, raise_as_was
from batched.testing.at_once import check_runs_here, forget_stand_in, loops_of, run_at_once, stand_in_of
from batched.testing.own_loops import result_of
from batched.testing.trial import check_on_instance

__all__ = ["ManualClock", "Pending", "Ran", "manual_clock"]

T = TypeVar("T")

_ABOUT_S = 1e-9  # sums of times differ in their last digits: 9 ms and 1 ms are 10 ms


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch that has run."""

    items: list[Any]
    """Its items, in their order; for arrays, the features of each row's call."""
    size: int
    """How many items it had."""
    reason: str
    """Why it started, as `stats.closed` names it."""
    started_ms: float
    """When it started, by the clock."""
    ended_ms: float
    """When it ended."""
    error: BaseException | None = field(default=None, compare=False)
    """What the function has raised."""


class Pending(Generic[T]):
    """A call on a clock that is turned by hand."""

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = name

    def done(self) -> bool:
        """Whether it has its answer."""
        return not self._call.missing

    def result(self) -> T:
        """Return or raise the answer.

        Raises:
            RuntimeError: There is none yet: turn the clock.

        """
        call = self._call
        if call.missing:
            raise RuntimeError(f"{self._name} has not answered this call yet: turn the clock")
        if call.error is not None or call.left == "expired":
            raise_as_was(error_of(call, self._name))
        found: T = own_errors(call) if call.keep_errors else call.results
        return found


def manual_clock(
    function: DecoratedFunction[Any], *, takes_ms: float | Callable[[int], float] = 0.0
) -> ManualClock:
    """Return a batcher for `function`, with a clock that stands still until it is turned.

    It has the options of `function`, and an empty queue. The function itself is called as batches start, in
    this thread. Nothing waits: a second of the clock takes as long as its batches do. A queue that is full,
    and deadlines, also of calls that run, are as ever. `on_batch` has been told when a turn returns.

    Args:
        function: A decorated function that does not stream.
        takes_ms: The milliseconds of the clock that a batch takes, at least 0; or a function that returns
            these for a number of items.

    Raises:
        TypeError: The function streams, is not decorated, or is one of another process.

    """
    return ManualClock(function, takes_ms)


class ManualClock:
    """A batcher with a clock that is turned by hand; `manual_clock` makes one."""

    def __init__(
        self, function: DecoratedFunction[Any], takes_ms: float | Callable[[int], float] = 0.0
    ) -> None:
        check_on_instance(function, "manual_clock")
        if not isinstance(function, DecoratedFunction):
            raise TypeError(f"manual_clock is for decorated functions, got {function!r}")
        self._name: str = function._name  # noqa: SLF001
        if function._shared.settings.streams:  # noqa: SLF001
            raise TypeError(f"{self._name} streams: manual_clock is for functions that return results")
        driver = function._driver  # noqa: SLF001
        check_runs_here(driver, self._name)
        self._function = function
        self._collator: Any = driver.collator
        self._teller = Teller(self._name, driver.options.on_batch)
        self._driver = ManualDriver(
            driver.options, driver.new_queue, driver.collator, self._name, teller=self._teller
        )
        self._has_worker = isinstance(driver, ThreadDriver)
        self._loops = loops_of(driver)
        self._options = driver.options
        self._takes_ms = takes_ms
        self._now_s = 0.0
        self._running: list[tuple[float, int, Batch, list[Any], float, Any, BaseException | None]] = []
        self._deadlines: list[tuple[float, int, Call]] = []
        self._numbers = count()
        self.ran: list[Ran] = []
        """The batches that have ended, in order."""

    @property
    def now_ms(self) -> float:
        """The milliseconds that the clock has been turned by."""
        return self._now_s * 1000

    @property
    def stats(self) -> Stats:
        """The figures of this batcher, as `fn.stats`."""
        return self._driver.stats(self._now_s)

    def call(self, /, *args: Any, **named: Any) -> Pending[Any]:
        """Have a call come now; return its answer to be, which has `done()` and `result()`.

        Where the queue is full and `on_full="wait"`, the call waits for room as the clock is turned.

        Raises:
            QueueFullError: The queue is full.
            OverloadError: The call would be late.

        """
        return self.call_with({}, *args, **named)

    def call_with(self, options: dict[str, Any], /, *args: Any, **named: Any) -> Pending[Any]:
        """Have a call come now, with options as `fn.options` takes them. Raises what `call` does."""
        view: Any = self._function.options(**options) if options else self._function
        view._driver  # noqa: B018, SLF001  the view finds how it reads arguments
        call: Call = view._shared.read(view, args, named, self._now_s)  # noqa: SLF001
        call.note_context()
        call.waits_at = None
        asks = view._shared.callers_ask and call.size  # noqa: SLF001  of an asynchronous cache
        if asks:
            call.collator.watch(call)  # type: ignore[attr-defined]
            result_of(self._loops, call.collator.look(call))  # type: ignore[attr-defined]
        if call.missing:
            self._driver.admit(call, wait=self._options.on_full == "wait")
            if call.deadline is not None:
                heappush(self._deadlines, (call.deadline, next(self._numbers), call))
        elif not call.size:
            call.results = []
        else:
            self._driver.batcher.counters.unqueued(call.hits, 0)
        if asks and not call.missing:
            call.forget_watches()  # type: ignore[attr-defined]
        return Pending(call, self._name)

    def turn(self, ms: float) -> list[Ran]:
        """Turn the clock on; return the batches that have ended meanwhile."""
        if not ms >= 0:
            raise ValueError(f"ms must be at least 0, got {ms}: a clock is not turned back")
        end = round(self._now_s + ms / 1000, 9)
        before = len(self.ran)
        while (at := self._next(end)) is not None:
            self._now_s = at
        self._now_s = max(end, self._now_s)
        self._teller.flush()
        return self.ran[before:]

    def step(self) -> Ran | None:
        """Turn the clock on until one more batch has ended; return it, or None if no call waits."""
        before = len(self.ran)
        while (at := self._next(inf)) is not None:
            self._now_s = at
            if len(self.ran) > before:
                self._teller.flush()
                return self.ran[before]
        return None

    def _next(self, end: float) -> float | None:
        """Take the next step that is due by `end`; return its time, None if there is none."""
        ends_at = self._running[0][0] if self._running else None
        if ends_at is not None and ends_at <= self._now_s:
            self._end()
            return ends_at
        late_at = self._expire()
        starts_at = None
        if len(self._running) < self._options.max_concurrent_batches:
            delay = self._driver.delay(self._now_s)
            starts_at = None if delay is None else self._now_s + delay
            if delay == 0.0:
                self._start()
                return self._now_s
        due = min((at for at in (ends_at, starts_at, late_at) if at is not None), default=None)
        return due if due is not None and due <= end + _ABOUT_S else None

    def _expire(self) -> float | None:
        """Answer the calls that are late, whether they wait or run; return when the next one will be."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= self._now_s or not deadlines[0][2].missing):
            _, _, call = heappop(deadlines)
            if call.missing:
                call.left = "expired"
                self._driver.drop(call)
        return deadlines[0][0] if deadlines else None

    def _start(self) -> None:
        batch = self._driver.pop(self._now_s)
        items = [item for call, start, stop in batch.slices for item in self._items(call)[start:stop]]
        takes_ms = self._takes_ms(batch.size) if callable(self._takes_ms) else self._takes_ms
        if not takes_ms >= 0:
            raise ValueError(f"takes_ms must be at least 0, got {takes_ms}: a batch ends after its start")
        found: Any = None
        failure: BaseException | None = None
        try:
            worker = stand_in_of(self._options) if self._has_worker else None
            found = run_at_once(batch, self._collator, partial(result_of, self._loops), worker)
        except BaseException as error:  # noqa: BLE001  for its callers
            failure = error
        ends_at = self._now_s + takes_ms / 1000
        heappush(self._running, (ends_at, next(self._numbers), batch, items, self._now_s, found, failure))

    def _items(self, call: Call) -> list[Any]:
        found = [
            args[0] if len(args) == 1 and not named else (*args, *named.values())
            for args, named in self._collator.items(call)
        ]
        return found if len(found) == call.size else found * call.size

    def _end(self) -> None:
        now, _, batch, items, started, found, error = heappop(self._running)
        size, reason = batch.size, str(batch.reason)
        done: list[Call] = []
        if error is None:
            try:
                done = self._driver.finish(batch, now, found)
            except Exception as wrong:  # noqa: BLE001  results of another number, or kind
                error = wrong
        if isinstance(error, RestartWorker):
            forget_stand_in(self._options)
            error = cause_of(error)
            batch.blames_worker = True
        if error is not None:
            done = self._driver.fail(batch, error, now)
        if self._function._shared.callers_ask:  # noqa: SLF001
            for call in done:
                result_of(self._loops, call.collator.keep(call))  # type: ignore[attr-defined]
                call.forget_watches()  # type: ignore[attr-defined]
        self.ran.append(Ran(items, size, reason, started * 1000, now * 1000, error))
