"""A function that is free or not, and its callers, on a clock that is turned by hand."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.best_size import BestSizes
from batched._features.waiting import Waiting
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.window import Window

TIMEOUT_S = 0.005


FIXED_S = 0.004


EACH_S = 0.0001


class Server:
    """One function that is free or not, on a clock of its own, and those that call it."""

    def __init__(self, patience: Window, batch_size: int = 32) -> None:
        options = Options(batch_size=batch_size, adaptive=patience.learns)
        self.driver = ManualDriver(options, without=(BestSizes,))  # batches are as large as may be
        self.driver.batcher.feature(Waiting).use(patience)
        self.patience = patience
        self.now = 0.0
        self.slow = 1.0
        self.fails = False
        self.coming: list[tuple[float, int, Any]] = []  # when, how many items, and when that one comes back
        self.inbox: list[Call] = []
        self.batches: list[int] = []
        self.held: list[float] = []  # how long each batch waited while the function was free
        self.latencies: list[float] = []

    def call(self, at: float, back_s: Any = None, size: int = 1) -> None:
        """Have a caller call, and again `back_s()` seconds after each answer; None: never again."""
        self.coming.append((at, size, back_s))

    def let_come(self, until: float, number: float = math.inf) -> float:
        """Put into the inbox the calls that come until then; stop, and return when, after so many."""
        self.coming.sort(key=lambda entry: entry[0])
        while self.coming and self.coming[0][0] <= until:
            at, size, back_s = self.coming.pop(0)
            call = Call().begin(id, None, size, True, at)
            call.waiter = back_s
            self.inbox.append(call)
            number -= 1
            if number <= 0:
                return at
        return until

    def run(self, batches: int) -> None:
        """Run so many batches, as the worker does."""
        for _ in range(batches):
            free = self.now
            while True:
                self.let_come(self.now)
                self.take_in()
                delay = self.driver.delay(self.now)
                if delay is None:
                    assert self.coming, "no caller will ever come"
                    self.now = min(entry[0] for entry in self.coming)
                elif delay:
                    awaited = self.driver.batcher.wake_after or math.inf
                    self.now = self.let_come(self.now + delay, awaited)
                else:
                    break
            first = self.driver.queue.oldest()
            batch = self.driver.pop(self.now)
            self.held.append(self.now - max(free, first))
            self.batches.append(batch.size)
            self.now += (FIXED_S + EACH_S * batch.size) * self.slow
            batch.failed = batch.size if self.fails else 0
            for call in self.driver.finish(batch, self.now):
                self.latencies.append(self.now - call.arrived)
                if call.waiter is not None:
                    self.call(self.now + call.waiter(), call.waiter, call.size)
            self.let_come(math.nextafter(self.now, 0))

    def take_in(self) -> None:
        """Queue the calls of the inbox."""
        self.driver.batcher.arriving += self.inbox
        self.inbox.clear()


def adaptive(batch_size: int = 32, timeout_s: float | None = TIMEOUT_S) -> Server:
    """Return a server with the learned window."""
    return Server(AdaptiveWindow(timeout_s, batch_size), batch_size)


def soon() -> float:
    """Return the seconds after which an eager caller calls again."""
    return 50e-6


def crowd(server: Server, callers: int, seed: int = 0) -> None:
    """Have so many call and come back after 0.05 to 0.3 ms."""
    random = Random(seed)
    for _ in range(callers):
        server.call(server.now + random.uniform(0, 1e-4), lambda: random.uniform(5e-5, 3e-4))
