"""Functions of which full batches may have the wrong size, and a server with its own clock that runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from statistics import fmean

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.batch_cost import OVERHEAD_S
from benchmarks.kit.features import fix_size
from benchmarks.simulated.lengths import draw
from benchmarks.simulated.processes import Traffic

__all__ = ["COSTS", "SIZES", "Cost", "capacity", "serve"]

SIZES = (1, 2, 4, 8, 16, 32, 64)
_NOISE = 0.05
_LATE_S = 70e-6  # what a timer is late on a common Linux
_KNEE = 8
_TILE = 16


def _same(random: Random) -> float:
    del random
    return 1.0


def _two_kinds(random: Random) -> float:
    return 4.0 if random.random() < 0.05 else 0.2  # noqa: PLR2004  one in twenty


def _flat(weights: Sequence[float]) -> float:
    del weights
    return 5.0


def _linear(weights: Sequence[float]) -> float:
    return 5.0 + 0.125 * len(weights)


def _loop(weights: Sequence[float]) -> float:
    return 1.0 * len(weights)


def _padded(weights: Sequence[float]) -> float:
    return 1.0 + 0.02 * len(weights) * max(weights)


def _superlinear(weights: Sequence[float]) -> float:
    size = len(weights)
    return 2.0 + 0.25 * size if size <= _KNEE else 4.0 * (size / _KNEE) ** 1.5


def _steps(weights: Sequence[float]) -> float:
    return 4.0 * math.ceil(len(weights) / _TILE)


def _kinds(weights: Sequence[float]) -> float:
    return 1.0 + len(weights) * max(weights)


@dataclass(frozen=True)
class Cost:
    """What a batch takes, in milliseconds, by the weights of its items, which no option tells."""

    name: str
    first: Callable[[Sequence[float]], float]
    second: Callable[[Sequence[float]], float] | None = None
    """What it takes once half of the items are served, if that is something else."""
    weight: Callable[[Random], float] = _same

    @property
    def halves(self) -> tuple[Callable[[Sequence[float]], float], ...]:
        """What a batch takes in either half of a run."""
        return (self.first, self.second or self.first)


COSTS = (
    Cost("flat", _flat),
    Cost("fixed + linear", _linear),
    Cost("one by one", _loop),
    Cost("hidden lengths", _padded, weight=draw),
    Cost("superlinear from 8 on", _superlinear),
    Cost("tiles of 16", _steps),
    Cost("two kinds of items", _kinds, weight=_two_kinds),
    Cost("linear, later superlinear", _linear, _superlinear),
    Cost("superlinear, later linear", _superlinear, _linear),
)


@cache
def capacity(cost: Cost) -> float:
    """Return the items a second of batches of the size that is best for the slower half of a run."""
    return min(max(_rate(half, cost.weight, size) for size in SIZES) for half in cost.halves)


def _rate(half: Callable[[Sequence[float]], float], weight: Callable[[Random], float], size: int) -> float:
    random = Random(5)  # noqa: S311  no secret
    mean = fmean(half([weight(random) for _ in range(size)]) for _ in range(2000))
    return size / (mean / 1000 + OVERHEAD_S)


class _Server:
    """The shipped batcher with a clock of its own, and its callers."""

    def __init__(self, options: Options, traffic: Traffic, cost: Cost, seed: int) -> None:
        self.driver = ManualDriver(options)
        self.now = 0.0
        self._traffic = traffic
        self._cost = cost
        self._noise, self._random = Random(seed), Random(f"{seed} weights")  # noqa: S311  no secret
        self._weights: dict[Call, float] = {}

    def run(self, half: int) -> list[Call]:
        """Run the next batch; return the calls that are answered."""
        while delay := self._delay():
            self._sleep(delay)
        batch = self.driver.pop(self.now)
        exact = self._cost.halves[half]([self._weights.pop(call) for call in batch.calls]) / 1000
        self.now += exact * (1 + _NOISE * self._noise.uniform(-1, 1))
        answered = self.driver.finish(batch, self.now)
        for call in answered:
            self._traffic.answer(call, self.now)
        return answered

    def _delay(self) -> float:
        """Return the seconds until the next batch is due, if no other call comes."""
        while True:
            self._let_come(self.now)
            delay = self.driver.delay(self.now)
            if delay is not None:
                return delay
            self.now = self._traffic.time()

    def _sleep(self, seconds: float) -> None:
        """Sleep until then, or until as many calls have come as are worth to wake up for."""
        until = self.now + seconds + _LATE_S
        came = self._let_come(until, self.driver.batcher.wake_after or 1)
        self.now = until if came is None else came

    def _let_come(self, until: float, number: float = math.inf) -> float | None:
        """Have the calls come that come until then; stop, and return when, after so many."""
        while (at := self._traffic.time()) <= until:
            call = self._traffic.call()
            self._weights[call] = self._cost.weight(self._random)
            self.driver.batcher.arrive(call)
            number -= 1
            if number <= 0:
                return at
        return None


def serve(  # noqa: PLR0913  what a run depends on
    options: Options,
    traffic: Traffic,
    cost: Cost,
    *,
    calls: int,
    skip: int,
    fixed: bool = False,
    seed: int = 1,
) -> tuple[float, float]:
    """Return the mean latency, and the calls a second, of `calls` calls after the first `skip`.

    With a `fixed` size the batcher learns all but a size.
    """
    server = _Server(options, traffic, cost, seed)
    if fixed:
        fix_size(server.driver.batcher)
    begun = total = 0.0
    answered = 0
    while answered < skip + calls:
        for call in server.run(answered > skip + calls // 2):
            answered += 1
            if answered > skip:
                total += server.now - call.arrived
            elif answered == skip:
                begun = server.now
        server.now += OVERHEAD_S
    return total / (answered - skip), (answered - skip) / (server.now - begun)
