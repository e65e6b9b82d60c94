"""How calls come in a simulation: open streams that wait for no answer, and callers that come back.

Every stream and every caller has random numbers of its own, so that all rules meet the same ones.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count, repeat
from random import Random

from batched._core.call import Call

__all__ = [
    "Caller",
    "Draw",
    "Stream",
    "Traffic",
    "always",
    "burst_times",
    "closed",
    "exponential",
    "log_normal",
    "on_off_times",
    "periodic_times",
    "poisson_times",
]

Draw = Callable[[Random], float]


class Caller:
    """Calls, thinks about the answer, and calls again."""

    def __init__(self, think_s: Draw, seed: str, size: int = 1) -> None:
        self.size = size
        self._think_s = think_s
        self._random = Random(seed)  # noqa: S311  no secret

    def back(self) -> float:
        """Return after how many seconds it calls again."""
        return self._think_s(self._random)


class Stream:
    """Calls at given times, whatever becomes of the earlier ones."""

    def __init__(self, times: Iterator[float], sizes: Iterator[int] | None = None) -> None:
        self._times = times
        self._sizes = repeat(1) if sizes is None else sizes
        self.size = 1

    def following(self) -> float:
        """Return when the next call comes."""
        self.size = next(self._sizes)
        return next(self._times)


class Traffic:
    """All that call, in order of time."""

    def __init__(self, *sources: Caller | Stream) -> None:
        self._order = count()
        self._heap: list[tuple[float, int, Caller | Stream]] = []
        for source in sources:
            first = source.following() if isinstance(source, Stream) else source.back()
            self._heap.append((first, next(self._order), source))
        heapq.heapify(self._heap)

    def time(self) -> float:
        """Return when the next call comes: never, if all callers wait for answers."""
        return self._heap[0][0] if self._heap else math.inf

    def call(self) -> Call:
        """Remove and return the next call."""
        at, _, source = self._heap[0]
        call = Call().begin(id, None, source.size, source.size > 1, at)  # nothing runs
        call.waiter = source
        if isinstance(source, Stream):
            heapq.heapreplace(self._heap, (source.following(), next(self._order), source))
        else:
            heapq.heappop(self._heap)
        return call

    def answer(self, call: Call, now: float) -> None:
        """Let the caller go on."""
        source = call.waiter
        if isinstance(source, Caller):
            heapq.heappush(self._heap, (now + source.back(), next(self._order), source))


def closed(callers: int, think_s: Draw, seed: str) -> list[Caller]:
    """Return callers that all think alike."""
    return [Caller(think_s, f"{seed} {number}") for number in range(callers)]


def always(seconds: float) -> Draw:
    """Think for the same time."""
    return lambda _: seconds


def exponential(mean_s: float) -> Draw:
    """Think for a time without memory."""
    return lambda random: random.expovariate(1 / mean_s)


def log_normal(median_s: float, sigma: float) -> Draw:
    """Think as networks do."""
    return lambda random: median_s * math.exp(sigma * random.gauss(0, 1))


def poisson_times(rate: float, seed: str) -> Iterator[float]:
    """Independent arrivals."""
    random, at = Random(seed), 0.0  # noqa: S311  no secret
    while True:
        at += random.expovariate(rate)
        yield at


def periodic_times(rate: float, seed: str) -> Iterator[float]:
    """One after another, evenly."""
    first = Random(seed).random() / rate  # noqa: S311  no secret
    return (first + number / rate for number in count())


def burst_times(rate: float, size: Draw, gap_s: float, seed: str) -> Iterator[float]:
    """Bursts at random moments; inside one, a call every `gap_s`. `rate` is of bursts."""
    random, at, free = Random(seed), 0.0, 0.0  # noqa: S311  no secret
    while True:
        at += random.expovariate(rate)
        start = max(at, free)
        calls = max(1, round(size(random)))
        for number in range(calls):
            yield start + number * gap_s
        free = start + calls * gap_s


def on_off_times(rate: float, factor: float, phase_s: float, seed: str) -> Iterator[float]:
    """Independent arrivals, `factor` times as many in one phase as in the other; `rate` is the mean."""
    random, at = Random(seed), 0.0  # noqa: S311  no secret
    busy = True
    ends = random.expovariate(1 / phase_s)
    high = 2 * rate * factor / (1 + factor)
    while True:
        at += random.expovariate(high if busy else high / factor)
        while at > ends:
            # Without memory: what is left of the gap is drawn anew at the other rate.
            busy = not busy
            at = ends + random.expovariate(high if busy else high / factor)
            ends += random.expovariate(1 / phase_s)
        yield at
