"""A function of 20 ms and 1 ms an item, on a clock that is turned by hand; its cost is known."""

from __future__ import annotations

from random import Random
from typing import Any

from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from batched._features.backlog import Backlog

FULL = 32
FULL_S = 0.052


def cost(size: int) -> float:
    """Return the seconds that a batch takes."""
    return 0.02 + 0.001 * size


class Service:
    """The function, with a driver and its calls."""

    def __init__(self, queue: Any = Queue, workers: Any = None, **options: Any) -> None:
        options = {"batch_size": FULL, "timeout_ms": 0, **options}
        self.driver = ManualDriver(Options(**options), queue, workers=workers)
        self.now = 100.0
        self.calls: list[Call] = []
        self.driver.batcher.feature(Backlog).learn()
        random = Random(1)
        for _ in range(300):
            self.push(random.randint(1, FULL))
            self.run()

    def push(self, size: int = 1, allowed_s: float | None = None) -> Call:
        """Have a call come now."""
        call = self.call(size, allowed_s)
        self.driver.push(call)
        return call

    def call(self, size: int = 1, allowed_s: float | None = None) -> Call:
        """Return a call that comes now."""
        deadline = None if allowed_s is None else self.now + allowed_s
        call = Call().begin(id, None, size, size > 1, self.now, deadline)
        call.key = call.tenant = 0
        self.calls.append(call)
        return call

    def start(self) -> Any:
        """Return the next batch, None if no call is left."""
        assert self.driver.delay(self.now) in {0.0, None}
        return self.driver.pop(self.now) if self.driver.delay(self.now) == 0.0 else None

    def run(self) -> int:
        """Run the next batch; return its size."""
        batch = self.start()
        if batch is None:
            return 0
        size = len(batch)
        self.now += cost(size)
        self.driver.finish(batch, self.now)
        return size
