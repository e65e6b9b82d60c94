"""A function that is slow with more than 8 items, and always more calls than a batch has."""

from __future__ import annotations

from typing import Any

from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver

KNEE = 8
MOST = Options().batch_size


class Backlog:
    """A function that is slow with more than 8 items, and always more calls than a batch has."""

    def __init__(self, options: Options, queue: Any = Queue, deadline_s: float | None = None) -> None:
        self.driver = ManualDriver(options, queue)
        self.deadline_s = deadline_s
        self.now = 0.0
        self.sizes: list[int] = []

    def call(self, size: int = 1) -> Call:
        """Return a call, which arrives now."""
        deadline = None if self.deadline_s is None else self.now + self.deadline_s
        call = Call().begin(id, None, size, size > 1, self.now, deadline)
        call.key = call.lengths = 1
        return call

    def run(self, batches: int, waiting: int = 100) -> list[int]:
        """Run so many batches; return their sizes."""
        for _ in range(batches):
            while self.driver.queue.items < waiting:
                self.driver.push(self.call())
            assert self.driver.delay(self.now) == 0.0
            batch = self.driver.pop(self.now)
            self.sizes.append(batch.size)
            self.now += 0.004 if batch.size <= KNEE else 0.004 * (batch.size / KNEE) ** 1.5
            self.driver.finish(batch, self.now)
        return self.sizes[-batches:]
