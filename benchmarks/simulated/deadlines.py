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
from benchmarks.simulated.processes import Traffic

__all__ = ["End", "Fate", "Ran", "Server"]

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


class Server:
    """Serves `traffic` until no call is left, or until it is told.

    A batch of n items that starts at a moment takes `seconds(n, moment)`; a call that comes at a moment has
    `deadline(moment)` seconds, None for no deadline. With `tells=False` the batcher is not told of deadlines,
    so that it drops no call; they are judged all the same.
    """

    def __init__(
        self,
        options: Options,
        traffic: Traffic,
        seconds: Callable[[int, float], float],
        deadline: Callable[[float], float | None],
        *,
        tells: bool = True,
    ) -> None:
        self.driver = ManualDriver(options)
        self.now = 0.0
        self.fates: list[Fate] = []
        self.ran: list[Ran] = []
        self._traffic = traffic
        self._seconds = seconds
        self._deadline = deadline
        self._tells = tells
        self._due: dict[Call, float] = {}

    def run(self, until: float = math.inf) -> None:
        """Serve until a batch ends after `until`, or until no call is left to come or to be served."""
        while self.now < until and self.step():
            pass

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
        self.now += self._seconds(batch.size, started)
        self.ran.append(Ran(started, self.now, batch.size))
        # Calls that come while the batch runs are not looked at before its end.
        self._answer(self.driver.finish(batch, self.now))

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
        inbox = self.driver.batcher.inbox
        while (at := self._traffic.time()) <= until:
            call = self._traffic.call()
            seconds = self._deadline(at)
            self._due[call] = math.inf if seconds is None else at + seconds
            if self._tells and seconds is not None:
                call.deadline = at + seconds
            if self._refuses(call):
                continue
            inbox.arriving.append(call)
            if wakes and inbox.wakes(call):
                return at
        return None

    def _refuses(self, call: Call) -> bool:
        """Return whether `call` is refused at the door; its caller knows at once."""
        backlog = getattr(self.driver.batcher, "backlog", None)
        if backlog is None or call.deadline is None:
            return False
        try:
            backlog.refuse(call, call.arrived)
        except TimeoutError as error:
            call.error = error
            del self._due[call]
            self.fates.append(Fate(call.arrived, call.arrived, End.REFUSED))
            self._traffic.answer(call, call.arrived)
            return True
        return False

    def _answer(self, calls: Iterable[Call]) -> None:
        for call in calls:
            due = self._due.pop(call)
            end = End.ON_TIME if self.now <= due + _EXACT_S else End.LATE
            if call.error is not None:
                end = End.DROPPED
            self.fates.append(Fate(call.arrived, self.now, end))
            self._traffic.answer(call, self.now)
