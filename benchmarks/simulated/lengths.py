"""A server on a clock of its own, and items of many lengths that are padded to the longest of their batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from statistics import fmean

from batched._core.batch import Batch
from batched._core.call import Call
from batched._core.length_queue import LengthQueue
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._policy.lengths import Lengths

__all__ = [
    "BATCH_SIZE",
    "FIXED_S",
    "LONG",
    "QueueOf",
    "Server",
    "by_length",
    "call_of",
    "capacity",
    "draw",
    "in_order_of_arrival",
    "run",
    "saturated",
]

QueueOf = Callable[[int, int], LengthQueue]

BATCH_SIZE = 32
FIXED_S = 0.005
MEAN, DEVIATION, LONGEST = 24.0, 20.0, 256
LONG = 80  # the latency of longer items is of interest: they are one in thirty


def draw(random: Random) -> int:
    """Return a length: many are short and a few long, as in text."""
    sigma = math.sqrt(math.log(1 + (DEVIATION / MEAN) ** 2))
    return min(max(round(random.lognormvariate(math.log(MEAN) - sigma**2 / 2, sigma)), 1), LONGEST)


def in_order_of_arrival(batch_size: int, threshold: int) -> LengthQueue:
    """Return a queue that knows the lengths and does not care."""
    return LengthQueue(batch_size, threshold, Lengths(reorders=False, padded=False))


def by_length(batch_size: int, threshold: int) -> LengthQueue:
    """Return what ships."""
    return LengthQueue(batch_size, threshold, Lengths(reorders=True, padded=False))


class Server:
    """The shipped batcher with a clock of its own, and a function that takes what the padding costs."""

    def __init__(  # noqa: PLR0913  what a run depends on
        self,
        queue: QueueOf,
        per_length_s: float,
        *,
        each_s: float = 0.0,
        timeout_ms: float = 0.0,
        noise: float = 0.05,
        seed: int = 1,
    ) -> None:
        self.driver = ManualDriver(Options(batch_size=BATCH_SIZE, timeout_ms=timeout_ms), queue)
        self._per_length_s = per_length_s
        self._each_s = each_s
        self._noise = noise
        self._random = Random(seed)  # noqa: S311  no secret

    def seconds(self, batch: Batch) -> float:
        """Return what the batch takes."""
        longest = max(call.lengths[0] for call, _, _ in batch.slices)  # type: ignore[index]
        size = batch.size
        exact = FIXED_S + self._each_s * size + self._per_length_s * size * longest
        return exact * (1 + self._noise * self._random.uniform(-1, 1))

    def serve(self, now: float) -> tuple[list[Call], float]:
        """Run the next batch; return its calls and when it ends."""
        self.driver.delay(now)
        batch = self.driver.pop(now)
        now += self.seconds(batch)
        return self.driver.finish(batch, now), now


def call_of(length: int, now: float) -> Call:
    """Return a call of one item."""
    call = Call().begin(id, None, 1, False, now)  # noqa: FBT003
    call.lengths = [length]
    return call


def run(server: Server, rate: float, calls: int, seed: int = 2) -> list[tuple[float, int]]:
    """Return latency and length of independent calls, after the first fifth."""
    random = Random(seed)  # noqa: S311  no secret

    def arrivals() -> Iterator[Call]:
        at = 0.0
        for _ in range(calls):
            at += random.expovariate(rate)
            yield call_of(draw(random), at)

    coming = arrivals()
    following = next(coming, None)
    answered: list[tuple[float, int]] = []
    now = 0.0
    while True:
        while following is not None and following.arrived <= now:
            server.driver.push(following)
            following = next(coming, None)
        if not server.driver.queue.items:
            if following is None:
                return answered[calls // 5 :]
            now = following.arrived
            continue
        done, now = server.serve(now)
        answered += [(now - call.arrived, call.lengths[0]) for call in done]  # type: ignore[index, misc]


def saturated(server: Server, waiting: int, calls: int, seed: int = 3) -> tuple[float, float, float]:
    """Return items a second, and mean and longest wait, while always as many calls wait."""
    random = Random(seed)  # noqa: S311  no secret
    now = 0.0
    begun = 0.0
    answered = 0
    waits: list[float] = []
    for _ in range(waiting):
        server.driver.push(call_of(draw(random), now))
    while answered < calls:
        done, now = server.serve(now)
        if answered < calls // 5:
            begun = now
        else:
            waits += [now - call.arrived for call in done]
        answered += len(done)
        for _ in done:
            server.driver.push(call_of(draw(random), now))
    return len(waits) / (now - begun), fmean(waits), max(waits)


def capacity(per_length_s: float) -> float:
    """Return the items a second of full batches in order of arrival, without end."""
    random = Random(5)  # noqa: S311  no secret
    longest = fmean(max(draw(random) for _ in range(BATCH_SIZE)) for _ in range(2000))
    return BATCH_SIZE / (FIXED_S + per_length_s * BATCH_SIZE * longest)
