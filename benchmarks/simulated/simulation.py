"""One server, one clock of its own: what callers get from a batching rule.

The server drives the shipped scheduler as the worker thread does: it empties the inbox, asks when the next
batch is due, sleeps until then or until as many calls have come as the rule waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Protocol

from batched._core.call import Call
from benchmarks.simulated.processes import Traffic

__all__ = ["Outcome", "Rule", "Service", "simulate"]


class Rule(Protocol):
    """Decides when a batch starts and which calls are in it."""

    def push(self, call: Call) -> None:
        """Take a call, which arrives now or did so while the server was busy."""
        ...

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next batch is due if no other call comes; None: no call waits."""
        ...

    def awaited(self) -> int:
        """Return after how many more calls to ask again."""
        ...

    def pop(self, now: float) -> int:
        """Start the next batch; return its size."""
        ...

    def done(self, started: float, now: float) -> Iterable[Call]:
        """End it; return the calls that are answered."""
        ...


@dataclass(frozen=True)
class Service:
    """A batch of n items takes `fixed_s + each_s * n`, give or take `noise` of it."""

    fixed_s: float
    each_s: float
    noise: float = 0.0

    def seconds(self, size: int) -> float:
        """Return what a batch takes on average."""
        return self.fixed_s + self.each_s * size

    def capacity(self, batch_size: int) -> float:
        """Return the items a second of full batches."""
        return batch_size / self.seconds(batch_size)


@dataclass(frozen=True)
class Outcome:
    """What the callers got."""

    latencies: list[float]
    batches: int
    items: int

    @property
    def mean(self) -> float:
        """The mean latency of a call."""
        return fmean(self.latencies)

    @property
    def p99(self) -> float:
        """What one in a hundred calls takes longer than."""
        return sorted(self.latencies)[int(0.99 * len(self.latencies))]


def simulate(  # noqa: PLR0913  what a run depends on
    rule: Rule,
    traffic: Traffic,
    service: Service,
    *,
    calls: int,
    skip: int = 0,
    late_s: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Serve until `calls` calls are answered after the first `skip`; timers wake the server `late_s` late."""
    random = Random(seed)  # noqa: S311  no secret
    latencies: list[float] = []
    now = 0.0
    batches = items = answered = 0
    while len(latencies) < calls:
        while traffic.time() <= now:
            rule.push(traffic.call())
        delay = rule.delay(now)
        if delay is None:
            now = traffic.time()
            if now == math.inf:
                break
            continue
        if delay > 0.0:
            now = _sleep(rule, traffic, now + delay + late_s)
            continue
        started = now
        size = rule.pop(now)
        now += service.seconds(size) * (1 + service.noise * random.uniform(-1, 1))
        batches += 1
        items += size
        for call in rule.done(started, now):
            answered += 1
            if answered > skip:
                latencies.append(now - call.arrived)
            traffic.answer(call, now)
    return Outcome(latencies, batches, items)


def _sleep(rule: Rule, traffic: Traffic, until: float) -> float:
    """Return when the server wakes up: at `until`, or when enough have come."""
    awaited = rule.awaited()
    while (at := traffic.time()) < until:
        rule.push(traffic.call())
        awaited -= 1
        if awaited <= 0:
            return at
    return until
