"""The least mean latency that any batching rule can give, exactly: a semi-Markov decision process.

A rule decides whenever the server is free and a call comes, or a batch ends: start what waits, up to a full
batch, or wait for one more. Policy iteration finds the best rule and, given one, its exact mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.simulation import Service

__all__ = ["Means", "closed_loop", "poisson"]

Floats: TypeAlias = "NDArray[np.floating[Any]]"
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Means:
    """Mean latencies in seconds."""

    best: float
    greedy: float


@dataclass(frozen=True)
class _Choice:
    """What follows from one choice in each state: where to, how long it takes, what is spent meanwhile."""

    to: Floats
    seconds: Floats
    spent: Floats


def poisson(service: Service, batch_size: int, rate: float) -> Means:
    """Return the means for independent arrivals; the states are how many wait, cut off far in the tail."""
    states = batch_size + int(rate * service.seconds(batch_size)) + 1
    load = rate / service.capacity(batch_size)
    states += int(min(20 / (1 - load), 1000)) + 40
    waiting = np.arange(states)
    taken = np.minimum(waiting, batch_size)
    lasting = service.fixed_s + service.each_s * taken
    start = _Choice(
        np.array(
            [_poisson_row(n - k, rate * s, states) for n, k, s in zip(waiting, taken, lasting, strict=True)]
        ),
        lasting,
        waiting * lasting + rate * lasting**2 / 2,
    )
    wait = _Choice(np.eye(states, k=1), np.full(states, 1 / rate), waiting / rate)
    must_start = waiting >= batch_size
    best, greedy = _iterate(start, wait, must_start)
    return Means(best / rate, greedy / rate)  # Little: those in the system, over those that come a second


def closed_loop(service: Service, batch_size: int, callers: int, think_s: float) -> Means:
    """Return the means for `callers` that think for exponential times; the states are how many wait."""
    waiting = np.arange(callers + 1)
    taken = np.minimum(waiting, batch_size)
    lasting = service.fixed_s + service.each_s * taken
    thinking = callers - waiting
    # Short of certain: else states that only lead to themselves would leave the mean open.
    back = np.minimum(-np.expm1(-lasting / think_s), 1 - 1e-9)
    start = _Choice(
        np.array(
            [
                _binomial_row(int(n - k), int(t), float(p), callers + 1)
                for n, k, t, p in zip(waiting, taken, thinking, back, strict=True)
            ]
        ),
        lasting,
        -taken.astype(float),  # most answered is best
    )
    wait = _Choice(np.eye(callers + 1, k=1), think_s / np.maximum(thinking, 1), np.zeros(callers + 1))
    must_start = waiting >= min(callers, batch_size)
    best, greedy = _iterate(start, wait, must_start)
    # Little for the whole circle: the time around it is the callers over those answered a second.
    return Means(callers / -best - think_s, callers / -greedy - think_s)


def _iterate(start: _Choice, wait: _Choice, must_start: NDArray[np.bool_]) -> tuple[float, float]:
    """Return what is spent a second under the best rule, and under the one that never waits."""
    waits = np.zeros(len(must_start), dtype=bool)
    waits[0] = True  # no call is there
    greedy, values = _evaluate(start, wait, waits)
    rate = greedy
    while True:
        gain = (wait.spent - rate * wait.seconds + wait.to @ values) - (
            start.spent - rate * start.seconds + start.to @ values
        )
        better = (gain < -_ROUNDING) & ~must_start
        better[0] = True
        if (better == waits).all():
            return rate, greedy
        waits = better
        previous = rate
        rate, values = _evaluate(start, wait, waits)
        if abs(rate - previous) <= _ROUNDING * abs(rate):
            return min(rate, previous), greedy


def _evaluate(start: _Choice, wait: _Choice, waits: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return what a rule spends a second, and the relative value of each state."""
    to = np.where(waits[:, None], wait.to, start.to)
    seconds = np.where(waits, wait.seconds, start.seconds)
    spent = np.where(waits, wait.spent, start.spent)
    # values = spent - rate * seconds + to @ values, and the value of state 0 is 0: its column is the rate's.
    system = np.eye(len(spent)) - to
    system[:, 0] = seconds
    solution = np.linalg.solve(system, spent)
    rate = float(solution[0])
    solution[0] = 0.0
    return rate, solution


def _poisson_row(left: int, mean: float, states: int) -> Floats:
    """Return the chances of each state after `left` stayed and a Poisson number came."""
    numbers = np.arange(states - left)
    logs = numbers * np.log(mean) - mean - _log_factorials(states - left)
    return _row(left, np.exp(logs), states)


def _binomial_row(left: int, trials: int, chance: float, states: int) -> Floats:
    """Return the chances of each state after `left` stayed and each of `trials` came with `chance`."""
    numbers = np.arange(trials + 1)
    factorials = _log_factorials(trials + 1)
    logs = factorials[trials] - factorials - factorials[::-1]
    chances = np.exp(logs + numbers * np.log(chance) + (trials - numbers) * np.log1p(-chance))
    return _row(left, chances, states)


def _row(left: int, chances: Floats, states: int) -> Floats:
    """Begin with `left`, and leave to the last state all that is beyond."""
    row = np.zeros(states)
    row[left : left + len(chances)] = chances
    row[-1] += max(0.0, 1.0 - row.sum())
    return row


def _log_factorials(length: int) -> Floats:
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, length)))))
