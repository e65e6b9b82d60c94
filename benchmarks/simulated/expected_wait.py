"""The expected wait beside that which calls had, and how many that come back are admitted, simulated.

The function takes 20 ms + 1 ms an item, give or take a tenth, in batches of 32 at most. Above the capacity
calls have a deadline of ten full batches, and of calls that are refused or dropped there is no wait. Clients
that come back think for a second after each answer; there are so many that they ask for twice the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, takewhile
from random import Random
from statistics import fmean, median

from batched._core.options import Options
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import Comparison, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.simulated.deadlines import Client, End, Server
from benchmarks.simulated.processes import Stream, Traffic, exponential, poisson_times
from benchmarks.simulated.simulation import Service

_SERVICE = Service(0.020, 0.001, noise=0.1)
_BATCH = 32
_FULL_S = _SERVICE.seconds(_BATCH)
_CAPACITY = _SERVICE.capacity(_BATCH)
_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 2.0)
_OF_OVERLOAD = 10.0  # full batches: the deadline there
_DEADLINES = (4.0, 10.0)  # of clients that come back
_THINK_S = 1.0
_WARM_S, _SECONDS = (3.0, 0.5), (60.0, 1.0)

_NUMBER = Comparison("", "", lambda ours, _: ours)
_ERROR, _GOODPUT = Goal(0.2), Goal(0.95, at_least=True)


def _server(traffic: Traffic, deadline_s: float | None, *, asks: bool) -> Server:
    random = Random(1)  # noqa: S311  no secret

    def seconds(size: int, _: float) -> float:
        return _SERVICE.seconds(size) * math.exp(_SERVICE.noise * random.gauss(0, 1))

    return Server(Options(batch_size=_BATCH), traffic, seconds, lambda _: deadline_s, asks=asks)


def _error(load: float, effort: Effort) -> dict[str, float]:
    """Return by how much of the wait that a call had the expected one was off, in the median."""
    warm_s = effort.of(*_WARM_S)
    end = warm_s + effort.of(*_SECONDS)
    times = takewhile(lambda at: at < end, poisson_times(load * _CAPACITY, f"{load}"))
    traffic = Traffic(Stream(chain(times, [math.inf])))
    server = _server(traffic, _OF_OVERLOAD * _FULL_S if load > 1 else None, asks=True)
    server.run()
    off = [
        abs(fate.expected_s / fate.latency - 1)
        for fate in server.fates
        if fate.arrived >= warm_s and fate.end in {End.ON_TIME, End.LATE} and fate.expected_s is not None
    ]
    return {"error": median(off)}


def _returning(times: float, effort: Effort) -> dict[str, float]:
    """Return how many of the calls that come back when told are admitted, and answered on time."""
    deadline_s = times * _FULL_S
    clients = round(2 * _CAPACITY * (_THINK_S + deadline_s))
    think_s = exponential(_THINK_S)
    traffic = Traffic(*(Client(think_s, f"{number}") for number in range(clients)))
    server = _server(traffic, deadline_s, asks=False)
    warm_s = 2 * effort.of(*_WARM_S)
    server.run(warm_s + effort.of(*_SECONDS))
    some = [fate for fate in server.fates if fate.is_returning and fate.arrived >= warm_s]
    admitted = sum(fate.end is not End.REFUSED for fate in some)
    on_time = sum(fate.end is End.ON_TIME for fate in some)
    all_on_time = sum(fate.end is End.ON_TIME and fate.arrived >= warm_s for fate in server.fates)
    return {
        "admitted": admitted / max(1, len(some)),
        "on time": on_time / max(1, len(some)),
        "told": fmean(fate.told_s for fate in server.fates if fate.told_s is not None),
        "goodput": all_on_time / (server.now - warm_s) / _CAPACITY,
    }


def _contender(measure: Callable[[Effort], dict[str, float]]) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield lambda: {**measure(effort), "all": 1.0}

    return contender


def _rows() -> Iterator[Row]:
    for load in _LOADS:
        turns = Turns({"ours": _contender(partial(_error, load))}, rounds=1)
        what = f"expected wait, median error at {load:g} times the capacity"
        yield Row(what, what, turns, "ours all", _NUMBER, _ERROR, "ours error")
    for times in _DEADLINES:
        turns = Turns({"ours": _contender(partial(_returning, times))}, rounds=1)
        where = f"at twice the capacity, deadline of {times:g} full batches"
        for name, words in (
            ("admitted", "admitted of those that come back"),
            ("on time", "on time of those that come back"),
            ("goodput", "on time of the capacity, where clients come back"),
        ):
            what = f"{words} {where}"
            goal = _GOODPUT if name == "goodput" else None
            yield Row(f"expected wait: {what}", what, turns, "ours all", _NUMBER, goal, f"ours {name}")
        what = f"seconds until clients may come back {where}"
        yield Row(f"expected wait: {what}", what, turns, "ours all", _NUMBER, None, "ours told")


ROWS = tuple(_rows())
