"""What decides when a batch starts: the shipped scheduler, and others' rules as their sources have them.

The others are told of every call and have no cost of their own; what they sleep is what their source says.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.best_size import BestSizes
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.window import Window
from benchmarks.kit.features import use_window

__all__ = ["BentoML", "Mixedbread", "RayServe", "Shipped", "Triton", "greedy", "learned", "window"]


class Shipped:
    """The batcher that ships, with the delay policy that it is given."""

    def __init__(self, batch_size: int, policy: Window) -> None:
        options = Options(batch_size=batch_size, adaptive=policy.learns)
        self._driver = ManualDriver(options, without=(BestSizes,))  # compared by how they wait, at one size
        self._batcher = self._driver.batcher
        use_window(self._batcher, policy)
        self.push = self._batcher.arrive
        self._batch: Batch | None = None

    def awaited(self) -> int:
        """Return how many calls are worth to wake up for."""
        return self._batcher.wake_after or 1

    def delay(self, now: float) -> float | None:
        """Ask the batcher."""
        return self._driver.delay(now)

    def pop(self, now: float) -> int:
        """Take what the batcher gives."""
        self._batch = self._driver.pop(now)
        return self._batch.size

    def done(self, started: float, now: float) -> list[Call]:  # noqa: ARG002  the batcher knows
        """Answer the calls of the batch."""
        assert self._batch is not None
        return self._driver.finish(self._batch, now)


def learned(batch_size: int) -> Shipped:
    """Return what ships by default."""
    return Shipped(batch_size, AdaptiveWindow(None, batch_size))


def window(batch_size: int, timeout_s: float) -> Shipped:
    """Return what ships as `adaptive=False`."""
    return Shipped(batch_size, Window(timeout_s))


def greedy(batch_size: int) -> Shipped:
    """Return what ships as `timeout_ms=0`."""
    return window(batch_size, 0.0)


class _Published:
    """A queue of whole calls, first come first served; `due` is the rule, told of nothing but `now`."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.waiting: deque[Call] = deque()
        self.items = 0
        self.running: list[Call] = []

    def push(self, call: Call) -> None:
        """Queue a call."""
        self.waiting.append(call)
        self.items += call.size

    def awaited(self) -> int:
        """Be asked again at every call."""
        return 1

    def delay(self, now: float) -> float | None:
        """Return the seconds until `due`."""
        due = self.due(now)
        return None if due == math.inf else max(due - now, 0.0)

    def due(self, now: float) -> float:
        """Return when a batch starts if no other call comes."""
        raise NotImplementedError

    def pop(self, now: float) -> int:  # noqa: ARG002  others use it
        """Start what waits, up to a batch of it."""
        return self.take(self.batch_size)

    def take(self, most: int) -> int:
        """Start up to so many items; return how many, always a whole call."""
        size = 0
        while self.waiting and (not size or size + self.waiting[0].size <= most):
            call = self.waiting.popleft()
            size += call.size
            self.running.append(call)
        self.items -= size
        return size

    def done(self, started: float, now: float) -> Iterable[Call]:  # noqa: ARG002  others learn from it
        """Answer all of the batch."""
        answered, self.running = self.running, []
        return answered


class Mixedbread(_Published):
    """`batched` 0.1.5: sleeps whenever less than a batch waits, then commits itself to all whole batches."""

    def __init__(self, batch_size: int, timeout_s: float = 0.005) -> None:
        super().__init__(batch_size)
        self._timeout_s = timeout_s
        self._committed = 0
        self._asleep_until: float | None = None

    def due(self, now: float) -> float:
        """Return when the sleep ends, at which it looks, or now while it is committed."""
        if self._committed:
            return now
        if self._asleep_until is None:  # the loop begins anew
            if self.items >= self.batch_size:
                return now
            self._asleep_until = now + self._timeout_s
        if not self.items:
            return math.inf
        first = self.waiting[0].arrived
        if self._asleep_until < first:  # it woke up without a call, and slept again
            naps = math.ceil((first - self._asleep_until) / self._timeout_s) if self._timeout_s else 0
            self._asleep_until = max(first, self._asleep_until + naps * self._timeout_s)
        return self._asleep_until

    def pop(self, now: float) -> int:  # noqa: ARG002  it does not matter
        """Start the next of the batches that it is committed to."""
        if not self._committed:
            self._committed = max(1, self.items // self.batch_size)
        self._committed -= 1
        self._asleep_until = None
        return self.take(self.batch_size)


class RayServe(_Published):
    """Ray Serve: a batch is closed when full, or so long after its first call, be the server free or not."""

    def __init__(self, batch_size: int, timeout_s: float = 0.01) -> None:
        super().__init__(batch_size)
        self._timeout_s = timeout_s
        self._closed: deque[int] = deque()
        self._open = 0
        self._closes = math.inf

    def push(self, call: Call) -> None:
        """Put a call into the open batch."""
        if self._closes <= call.arrived:
            self._close()
        if not self._open:
            self._closes = call.arrived + self._timeout_s
        super().push(call)
        self._open += call.size
        if self._open >= self.batch_size:
            self._close()

    def due(self, now: float) -> float:
        """Return now if a batch is closed, else when one will be."""
        if self._closes <= now:
            self._close()
        return now if self._closed else self._closes

    def pop(self, now: float) -> int:  # noqa: ARG002  the batch was closed before
        """Start the oldest of the closed batches."""
        return self.take(self._closed.popleft())

    def _close(self) -> None:
        self._closed.append(self._open)
        self._open = 0
        self._closes = math.inf


class Triton(_Published):
    """Triton: the largest preferred size that is there, else until the oldest is `timeout_s` old."""

    def __init__(self, batch_size: int, timeout_s: float = 0.005) -> None:
        super().__init__(batch_size)
        self._timeout_s = timeout_s
        self._preferred = sorted({batch_size, max(batch_size // 2, 1), max(batch_size // 4, 1)}, reverse=True)

    def due(self, now: float) -> float:
        """Return now if there is a preferred size, else when the oldest has waited long enough."""
        if not self.items:
            return math.inf
        if self.items >= self._preferred[-1]:
            return now
        return self.waiting[0].arrived + self._timeout_s

    def pop(self, now: float) -> int:  # noqa: ARG002  what is there decides
        """Start the largest preferred size, or all."""
        return self.take(next((size for size in self._preferred if size <= self.items), self.batch_size))


class BentoML(_Published):
    """BentoML's CORK: looks every millisecond, and waits while that seems to cost less than is usual.

    Without its training phase and its limit on latency: all are answered.
    """

    _TICK_S = 0.001
    _KEPT = 50
    _REFRESH_S = 5.0

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size)
        self._seen: deque[tuple[int, float, float]] = deque(maxlen=self._KEPT)
        self._each = 0.001
        self._usual_wait = 0.0
        self._refreshed = -math.inf
        self._looks = 0.0  # when next
        self._first = 0.0

    def push(self, call: Call) -> None:
        """Take a call; the first is looked at as it comes."""
        if not self.waiting and call.arrived > self._looks:
            self._looks = call.arrived
        super().push(call)

    def due(self, now: float) -> float:
        """Return now if waiting on costs more than is usual, else when it looks again."""
        if not self.items:
            return math.inf
        if now >= self._looks and self.items < self.batch_size:
            age = now - self.waiting[-1].arrived
            if len(self.waiting) * (age + self._TICK_S + self._each) <= 0.95 * self._usual_wait:
                self._looks = now + self._TICK_S
        return self._looks

    def pop(self, now: float) -> int:
        """Start what waits."""
        self._first = now - self.waiting[0].arrived
        return super().pop(now)

    def done(self, started: float, now: float) -> Iterable[Call]:
        """Learn from the batch; all the while it has gone on looking."""
        ticks = math.ceil((now - started) / self._TICK_S)
        self._looks = max(now, started + ticks * self._TICK_S)
        size = sum(call.size for call in self.running)
        self._seen.append((size, now - started, self._first))
        if now - self._refreshed >= self._REFRESH_S:
            self._refreshed = now
            sizes, durations, waits = zip(*self._seen, strict=True)
            design = np.column_stack((sizes, np.ones(len(sizes))))
            self._each = max(1e-6, float(np.linalg.lstsq(design, durations, rcond=None)[0][0]))
            self._usual_wait = float(np.mean(waits))
        return super().done(started, now)
