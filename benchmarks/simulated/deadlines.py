"""The shipped batcher with a clock of its own, and callers that have deadlines: what became of each call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog
from batched.errors import OverloadError
from benchmarks.simulated.processes import Caller, Draw, Traffic

__all__ = ["Client", "End", "Fate", "Ran", "Server"]

_LATE_S = 70e-6  # what a timer is late on a common Linux
_EXACT_S = 1e-9


class End(Enum):
    """What became of a call."""

    ON_TIME = "on time"
    LATE = "ran, and was late"
    DROPPED = "dropped before it ran"
    REFUSED = "refused at the door"


@dataclass(frozen=True)
class Fate:
    """One call: when it came, when it was answered, and what became of it."""

    arrived: float
    answered: float
    end: End
    expected_s: float | None = None
    """The wait that the batcher expected when it came, if it is asked."""
    is_returning: bool = False
    """Whether its client was told before to come back."""
    told_s: float | None = None
    """After how many seconds its client may come back, if it was refused."""

    @property
    def latency(self) -> float:
        """The seconds that its caller waited."""
        return self.answered - self.arrived


@dataclass(frozen=True)
class Ran:
    """One batch."""

    started: float
    ended: float
    size: int


class Client(Caller):
    """Calls, thinks and calls again; where it was told when to come back, it comes back then."""

    def __init__(self, think_s: Draw, seed: str) -> None:
        super().__init__(think_s, seed)
        self.is_returning = False
        """Whether the call that it made last was one that was told to come back."""
        self._told_s: float | None = None

    def told(self, error: BaseException | None) -> None:
        """Take the answer: a result, or an error that may say when to come back."""
        self._told_s = getattr(error, "retry_after_s", None)
        self.is_returning = self._told_s is not None

    def back(self) -> float:
        """Return after how many seconds it calls again."""
        return super().back() if self._told_s is None else self._told_s


class Server:
    """Serves `traffic` until no call is left, or until it is told.

    A batch of n items that starts at a moment takes `seconds(n, moment)`; a call that comes at a moment has
    `deadline(moment)` seconds, None for no deadline. With `tells=False` the batcher is not told of deadlines,
    so that it drops no call; they are judged all the same. With `asks=True` it is asked for the wait that it
    expects, for each call.
    """

    def __init__(  # noqa: PLR0913  what a run depends on
        self,
        options: Options,
        traffic: Traffic,
        seconds: Callable[[int, float], float],
        deadline: Callable[[float], float | None],
        *,
        tells: bool = True,
        asks: bool = False,
    ) -> None:
        self.driver = ManualDriver(options)
        self.now = 0.0
        self.fates: list[Fate] = []
        self.ran: list[Ran] = []
        self._traffic = traffic
        self._seconds = seconds
        self._deadline = deadline
        self._tells = tells
        self._backlog = self.driver.batcher.feature(Backlog)
        self._asks = asks
        if asks:
            self._backlog.learn()
        self._expected: dict[Call, float | None] = {}
        self._due: dict[Call, float] = {}

    def run(self, until: float = math.inf) -> None:
        """Serve until a batch ends after `until`, or until no call is left to come or to be served."""
        while self.now < until and self.step():
            pass

    def known_s(self, size: int) -> float | None:
        """Return what the batcher expects a batch of `size` to take, if it knows."""
        if self._backlog.times.is_known:
            return self._backlog.times.seconds(size)
        learned = self.driver.stats(self.now).learned
        if learned is None or learned.batch_ms is None or learned.item_ms is None:
            return None
        return (learned.batch_ms + learned.item_ms * size) / 1000

    def step(self) -> bool:
        """Run the next batch; return False if there is none, as no call is left."""
        while (delay := self._delay()) is not None:
            if delay > 0.0:
                self._sleep(delay)
                continue
            self._run(self.driver.pop(self.now))
            return True
        return False

    def _run(self, batch: Batch) -> None:
        started = self.now
        ended = started + self._seconds(batch.size, started)
        self._let_come(ended)
        self.now = ended
        self.ran.append(Ran(started, ended, batch.size))
        self._answer(self.driver.finish(batch, ended))

    def _delay(self) -> float | None:
        """Return the seconds until the next batch is due, if no other call comes; None: none ever will."""
        while True:
            self._let_come(self.now)
            delay = self.driver.delay(self.now)
            self._answer(self.driver.take_answered())
            if delay is not None:
                return delay
            self.now = max(self.now, self._traffic.time())
            if self.now == math.inf:
                return None

    def _sleep(self, seconds: float) -> None:
        """Sleep until then, or until a call comes for which the batcher wants to be asked."""
        until = self.now + seconds + _LATE_S
        came = self._let_come(until, wakes=True)
        self.now = until if came is None else came

    def _let_come(self, until: float, *, wakes: bool = False) -> float | None:
        """Have the calls come that come until then; with `wakes` return when the first wakes the server."""
        inbox = self.driver.batcher
        while (at := self._traffic.time()) <= until:
            call = self._traffic.call()
            seconds = self._deadline(at)
            self._due[call] = math.inf if seconds is None else at + seconds
            if self._tells and seconds is not None:
                call.deadline = at + seconds
            if self._asks:
                self._expected[call] = self._backlog.wait_s(1, at)
            if self._refuses(call):
                continue
            inbox.arriving.append(call)
            if wakes and inbox.wakes(call):
                return at
        return None

    def _refuses(self, call: Call) -> bool:
        """Return whether `call` is refused at the door; its caller knows at once."""
        if call.deadline is None:
            return False
        try:
            self.driver.batcher.door(call, call.arrived)
        except OverloadError as error:
            call.error = error
            self._note(call, call.arrived, End.REFUSED)
            return True
        return False

    def _answer(self, calls: Iterable[Call]) -> None:
        for call in calls:
            end = End.ON_TIME if self.now <= self._due[call] + _EXACT_S else End.LATE
            self._note(call, self.now, end if call.error is None else End.DROPPED)

    def _note(self, call: Call, now: float, end: End) -> None:
        client = call.waiter
        is_returning = isinstance(client, Client) and client.is_returning
        del self._due[call]
        expected = self._expected.pop(call, None)
        told_s = getattr(call.error, "retry_after_s", None)
        self.fates.append(Fate(call.arrived, now, end, expected, is_returning, told_s))
        if isinstance(client, Client):
            client.told(call.error)
        self._traffic.answer(call, now)
