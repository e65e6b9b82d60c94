"""A workload of which all is known: a function, its callers and a clock that is turned by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from batched._collate.item_length import length_in_list
from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.explanation import explain
from batched._core.keyed_queues import KeyedQueues
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._core.queue import Queue
from batched._core.stats import Stats
from batched._drivers.manual_clock import ManualDriver
from batched._features.best_size import BestSizes
from batched._policy.auto_lengths import AutoLengths
from batched.errors import OverloadError, QueueFullError
from tests.kit.batcher_rules import COLLATOR, echo

Cost = Callable[[list[Any]], float]
"""The milliseconds that a batch of these items takes."""
Fault = Callable[[list[Any]], Exception | None]
"""The error that a batch of these items raises."""


@dataclass
class Run:
    """One batch that has run."""

    items: list[Any]
    seconds: float
    held_s: float
    """For how long it was held back while the function was free."""
    reason: str
    changes: int
    """How often options had been changed when it ended."""
    waits_s: list[float]
    """Of its items."""
    looked_at: bool
    failed: bool = False

    @property
    def size(self) -> int:
        """The number of its items."""
        return len(self.items)


@dataclass
class _Caller:
    at: float
    items: list[Any]
    think: Callable[[], float] | None
    deadline_s: float | None
    key: Any


class Workload:
    """Runs batches of callers that are told to call, and notes what is true of them."""

    def __init__(self, cost: Cost, queue: Any = Queue, *, fault: Fault | None = None, **options: Any) -> None:
        self.options = Options(**options)
        self.driver = ManualDriver(self.options, queue, COLLATOR, without=(BestSizes,))
        self.cost = cost
        self.fault: Fault = fault or (lambda _: None)
        self.now = 1000.0
        self.runs: list[Run] = []
        self.changes = 0
        self.accepted = self.refused = self.rejected = self.late = self.given_up = self.left = 0
        self.amid: Callable[[], None] | None = None
        """What happens while the next batch runs."""
        self._coming: list[_Caller] = []
        self._callers: dict[Call, _Caller] = {}

    # -- callers ------------------------------------------------------------------------------------------

    def call(
        self,
        items: Any = "a",
        think: Callable[[], float] | None = None,
        *,
        after: float = 0.0,
        deadline_s: float | None = None,
        key: Any = None,
    ) -> None:
        """Have a caller call, and again `think()` seconds after each answer; None: never again."""
        listed = items if isinstance(items, list) else [items]
        self._coming.append(_Caller(self.now + after, listed, think, deadline_s, key))

    def _push(self, caller: _Caller) -> None:
        size = len(caller.items)
        deadline = None if caller.deadline_s is None else caller.at + caller.deadline_s
        inputs = [*caller.items] if size > 1 else caller.items[0]
        call = Call().begin(echo, inputs, size, size > 1, caller.at, deadline)
        call.key = caller.key
        self._callers[call] = caller
        calls = self.driver.batcher
        if self.options.max_queue_size is None:
            self.driver.push(call)
        else:
            try:
                calls.admit(call, wait=False)
            except QueueFullError:
                self.rejected += size
                self._again(call)
                return
        if isinstance(call.error, OverloadError):
            self.refused += size
        else:
            self.accepted += size
        self._answered(self.driver.take_answered(), waited=False)

    def _let_come(self, until: float, number: float = math.inf) -> float:
        self._coming.sort(key=lambda caller: caller.at)
        while self._coming and self._coming[0].at <= until:
            caller = self._coming.pop(0)
            self._push(caller)
            number -= 1
            if number <= 0:
                return caller.at
        return until

    def _answered(self, calls: list[Call], *, waited: bool = True) -> None:
        for call in calls:
            if waited and isinstance(call.error, OverloadError):
                self.given_up += call.size
            elif waited and isinstance(call.error, TimeoutError):
                self.late += call.size
            self._again(call)

    def _again(self, call: Call) -> None:
        caller = self._callers.pop(call)
        if caller.think is not None:
            self._coming.append(replace(caller, at=self.now + caller.think()))

    def leave(self) -> None:
        """Have all callers leave that wait."""
        for call in [*self.driver.batcher.waiting()]:
            call.left = "cancelled"
            self.left += call.waiting
            self.driver.drop(call)
            del self._callers[call]

    # -- batches ------------------------------------------------------------------------------------------

    def run(self, batches: int = 1) -> None:
        """Run so many batches, or until no caller comes any more."""
        for _ in range(batches):
            batch = self._next()
            if batch is None:
                return
            self._run(*batch)

    def _next(self) -> tuple[Batch, float] | None:
        free = self.now
        while True:
            self._let_come(self.now)
            delay = self.driver.delay(self.now)
            self._answered(self.driver.take_answered())
            if delay == 0.0:
                break
            if delay is not None:
                self.now = self._let_come(self.now + delay, self.driver.batcher.wake_after or math.inf)
            elif self._coming:
                self.now = min(caller.at for caller in self._coming)
            else:
                return None
        first = self.driver.queue.oldest() if self.driver.queue.items else 0.0
        batch = self.driver.pop(self.now)
        self._answered(self.driver.take_answered())
        return batch, self.now - max(free, first)

    def _run(self, batch: Batch, held_s: float) -> None:
        items = COLLATOR.collate(batch)
        started, waits = (
            self.now,
            [self.now - call.arrived for call, at, to in batch.slices for _ in range(at, to)],
        )
        run = Run(items, 0.0, held_s, batch.reason, self.changes, waits, batch.padded > 0)
        if self.amid is not None:
            amid, self.amid = self.amid, None
            amid()
        self.now += self.cost(items) / 1000
        run.seconds, run.changes = self.now - started, self.changes
        self._let_come(math.nextafter(self.now, 0))
        self.runs.append(run)
        error = self.fault(items)
        run.failed = error is not None
        if error is not None:
            self._answered(self.driver.fail(batch, error, self.now))
        else:
            self._answered(self.driver.finish(batch, self.now, items))

    def configure(self, **changes: Any) -> None:
        """Change options."""
        self.options = replace(self.options, **changes)
        self.driver.batcher.configure(self.options)
        self.changes += 1

    # -- what is said of it -------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Return the figures."""
        self.driver.batcher.take_in()
        return self.driver.stats(self.now)

    def said(self) -> list[str]:
        """Return the sentences."""
        return explain(self.stats(), self.options).splitlines()

    @property
    def latest(self) -> list[Run]:
        """The runs that have ended since options were last changed."""
        return [run for run in self.runs if run.changes == self.changes]


def by_length() -> Any:
    """Return the queue of `length="auto"`."""
    return partial(LengthQueue, lengths=AutoLengths(length_in_list))


def by_length_and_key() -> Any:
    """Return the queues of `length="auto"` and a `group_by`."""
    return partial(KeyedQueues, lengths=AutoLengths(length_in_list))
