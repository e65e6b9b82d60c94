"""Callers that come at random, on the clock of a `Service`: they ask for the wait, fail, or come back."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import fmean
from typing import Any

from batched import QueueFullError
from batched._core.call import Call
from batched._features.backlog import Backlog
from tests.kit.known_service import FULL, FULL_S, Service, cost

__all__ = ["Callers"]

_NOISE = 0.05


class Callers:
    """Single calls come at a `load`, relative to what full batches can do; others as they are added."""

    def __init__(self, load: float, failing: float = 0.0, **options: Any) -> None:
        self.service = Service(**options)
        self.waits: list[tuple[int, float, float]] = []
        """Of each call its size, the wait that was expected, and that which it had."""
        self.back: list[bool] = []
        """Of each call that came back after `retry_after_s`, whether it was let in."""
        self._workers = options.get("workers")  # after each batch they run others for `lag_s`
        self._random = Random(1)
        self._failing = failing
        self._bad: set[Call] = set()
        self._expected: dict[Call, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        if load:
            self.poisson(load * FULL / FULL_S, 1)

    def at(self, when: float, then: Callable[[], None]) -> None:
        """Have something happen then."""
        heappush(self._events, (when, next(self._numbers), then))

    def poisson(self, rate: float, size: int) -> None:
        """Have so many calls of `size` come in a second."""

        def come() -> None:
            self.at(self.service.now + self._random.expovariate(rate), come)
            self.come(size)

        self.at(self.service.now + self._random.expovariate(rate), come)

    def come(self, size: int) -> None:
        """Have a call come now, and ask for its wait."""
        service = self.service
        expected = service.driver.batcher.feature(Backlog).wait_s(size, service.now)
        call = service.call(size)
        if self._random.random() < self._failing:
            self._bad.add(call)
        self._expected[call] = expected or 0.0
        service.driver.batcher.arrive(call)

    def enter(self, size: int, *, is_back: bool = False) -> None:
        """Have a call come now to a bounded queue; if it is refused it comes back when told."""
        calls, now = self.service.driver.batcher, self.service.now
        refused = None
        try:
            calls.admit(self.service.call(size), wait=False)
        except QueueFullError as error:
            refused = error.retry_after_s
            assert refused is not None
            self.at(now + refused, lambda: self.enter(size, is_back=True))
        if is_back:
            self.back.append(refused is None)

    def run(self, seconds: float) -> None:
        """Serve for so long."""
        service, driver = self.service, self.service.driver
        end = service.now + seconds
        while service.now < end:
            self._pass(service.now)
            delay = driver.delay(service.now)
            if delay != 0.0:
                service.now = max(self._events[0][0] if self._events else end, service.now)
                continue
            batch = driver.pop(service.now)
            self._pass(service.now + cost(batch.size) * max(self._random.gauss(1.0, _NOISE), 0.5))
            if self._bad.isdisjoint(batch.calls):
                done = driver.finish(batch, service.now)
            else:
                done = driver.fail(batch, ValueError(), service.now)
            for call in done:
                if call in self._expected:
                    self.waits.append((call.size, self._expected.pop(call), service.now - call.arrived))
            if self._workers is not None:
                self._workers.free = service.now + self._workers.lag_s
                self._pass(self._workers.free)

    def begin_anew(self, failing: float) -> None:
        """Forget the waits of all calls that have come so far; of later ones so many fail."""
        self.waits.clear()
        self._expected.clear()
        self._failing = failing

    def rest(self, seconds: float) -> None:
        """Have no caller call any more, and nothing happen for so long."""
        self.run(1.0)
        self._events.clear()
        self.run(seconds)

    def _pass(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.service.now, _, then = heappop(self._events)
            then()
        self.service.now = until

    @property
    def next_at(self) -> float:
        """When the next call comes."""
        return self._events[0][0]

    def ratio(self, size: int) -> float:
        """Return the mean wait that calls of `size` were told, relative to that which they had."""
        told = [(expected, had) for of, expected, had in self.waits if of == size]
        return fmean(expected for expected, _ in told) / fmean(had for _, had in told)
