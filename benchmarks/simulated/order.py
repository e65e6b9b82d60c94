"""Latency and throughput where items of like length share a batch, simulated, beside the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from statistics import fmean

from benchmarks.kit.measure import Effort
from benchmarks.kit.row import SHARE, TIMES, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.simulated.lengths import (
    LONG,
    QueueOf,
    Server,
    by_length,
    capacity,
    in_order_of_arrival,
    run,
    saturated,
)

_PER_LENGTH_MS = (0.02, 0.005, 0.002, 0.0002)  # what a padded unit costs
_LOADS = (0.3, 0.6, 0.9, 1.3)  # of the capacity in order of arrival
_WAITING = (32, 64, 128)

_full = cache(capacity)


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * len(seconds))]


def _under_load(queue: QueueOf, per_length_s: float, load: float, calls: int) -> dict[str, float]:
    outcomes = run(Server(queue, per_length_s), load * _full(per_length_s), calls)
    times = [latency for latency, _ in outcomes]
    long = [latency for latency, length in outcomes if length > LONG]
    return {"mean": fmean(times), "p99": _p99(times), "p99 of long items": _p99(long), "longest": max(times)}


def _always_waiting(queue: QueueOf, per_length_s: float, waiting: int, calls: int) -> dict[str, float]:
    rate, _, longest = saturated(Server(queue, per_length_s), waiting, calls)
    return {"throughput": rate, "longest wait": longest}


def _contender(simulate: Callable[[int], dict[str, float]]) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield lambda: simulate(effort.of(20_000, 200))

    return contender


def _turns(simulate: Callable[..., dict[str, float]], *how: float) -> Turns:
    """Return one round: a simulation gives the same figures every time."""
    queues = {"ours": by_length, "arrival": in_order_of_arrival}
    return Turns(
        {name: _contender(partial(simulate, queue, *how)) for name, queue in queues.items()},
        rounds=1,
    )


def _rows(per_length_ms: float) -> Iterator[Row]:
    where = f"{per_length_ms} ms per padded unit"
    for load in _LOADS:
        turns = _turns(_under_load, per_length_ms / 1000, load)
        for what in ("mean", "p99", "p99 of long items", "longest"):
            words = f"{what} latency, load {load}, {where}"
            yield Row(f"order: {words}", words, turns, f"arrival {what}", TIMES, ours=f"ours {what}")
    for waiting in _WAITING:
        turns = _turns(_always_waiting, per_length_ms / 1000, waiting)
        for what, by in (("throughput", SHARE), ("longest wait", TIMES)):
            words = f"{what}, {waiting} callers, {where}"
            yield Row(f"order: {words}", words, turns, f"arrival {what}", by, ours=f"ours {what}")


ROWS = tuple(row for per_length_ms in _PER_LENGTH_MS for row in _rows(per_length_ms))
