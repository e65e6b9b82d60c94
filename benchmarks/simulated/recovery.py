"""Callers with deadlines after a flood, or while a function is slow or hangs, simulated, beside the best.

The function takes 20 ms + 1 ms an item, in batches of 32 at most. After a flood, the latency of the calls
that are answered is beside what it was before. Else calls on time are beside the most in hindsight, of those
that come while the function is as it is, and what was learned is beside what each next batch takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, takewhile
from operator import truediv
from random import Random
from statistics import fmean, median

from batched._core.options import Options
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import Comparison, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns
from benchmarks.simulated.deadlines import End, Fate, Server
from benchmarks.simulated.hindsight import most_on_time
from benchmarks.simulated.processes import Stream, Traffic
from benchmarks.simulated.simulation import Service

_SERVICE = Service(0.020, 0.001)
_BATCH = 32
_FULL_S = _SERVICE.seconds(_BATCH)
_USUAL, _FLOOD = 0.6, 3.0  # of the capacity
_FLOOD_S, _PHASE_S = (10.0, 0.5), (10.0, 0.7)
_SEEDS = (8, 1)
_LOOK = 60  # batches after a change
_NEAR = 0.25  # of what a batch takes: what was learned has followed
_BACK = 1.1  # times the usual p50
_SLOWER, _HANGS_S = 4.0, 2.0
_STEPS = 52  # of a full batch: a millisecond each

_NUMBER = Comparison("", "", lambda ours, _: ours)
_OF_MOST = Comparison("", "", truediv)
_SHARE, _TEN = Goal(0.95, at_least=True), Goal(10.0)

Phase = tuple[float, float]  # the seconds, and the load


def _arrivals(phases: list[Phase], seed: int) -> Iterator[float]:
    """Yield when calls come, and that no other will."""
    random = Random(seed)  # noqa: S311  no secret
    begin = 0.0
    for seconds, load in phases:
        rate, end = load * _SERVICE.capacity(_BATCH), begin + seconds
        gaps = iter(partial(random.expovariate, rate), None)
        yield from takewhile(lambda at, end=end: at < end, accumulate(gaps, initial=begin))  # type: ignore[misc]
        begin = end
    yield math.inf


def _served(
    phases: list[Phase], deadline_s: float, seed: int, seconds: Callable[[int, float], float] | None = None
) -> Server:
    """Return a server to which all of these calls will come."""
    options = Options(batch_size=_BATCH)
    traffic = Traffic(Stream(_arrivals(phases, seed)))
    return Server(options, traffic, seconds or (lambda n, _: _SERVICE.seconds(n)), lambda _: deadline_s)


# -- a flood ------------------------------------------------------------------------------------------------


def _flood(deadline_s: float, effort: Effort) -> dict[str, float]:
    """Return how many batches after a flood the latency is above its usual p50."""
    flood_s, phase_s = effort.of(*_FLOOD_S), effort.of(*_PHASE_S)
    usual: list[float] = []
    later: list[list[float]] = [[] for _ in range(_LOOK)]  # of the first, second ... batch after the flood
    for seed in range(effort.of(*_SEEDS)):
        server = _served([(phase_s, _USUAL), (flood_s, _FLOOD), (phase_s, _USUAL)], deadline_s, seed)
        server.run()
        usual += [fate.latency for fate in server.fates if phase_s / 2 < fate.answered < phase_s]
        after = [ran for ran in server.ran if ran.started >= phase_s + flood_s]
        for latencies, ran in zip(later, after, strict=False):
            latencies += [
                fate.latency
                for fate in server.fates
                if fate.answered == ran.ended and fate.end in {End.ON_TIME, End.LATE}
            ]
    most = _BACK * median(usual)
    above = next((at for at, some in enumerate(later) if some and median(some) <= most), _LOOK)
    return {"batches above": above, "usual p50": median(usual) * 1000}


# -- a function that changes --------------------------------------------------------------------------------


def _slower(deadline_s: float, effort: Effort) -> dict[str, float]:
    """Return what becomes of calls while the function is as usual, four times slower, and as usual again."""
    phase_s = effort.of(*_PHASE_S)
    found: dict[str, list[float]] = {}

    def factor(now: float) -> float:
        return _SLOWER if phase_s <= now < 2 * phase_s else 1.0

    for seed in range(effort.of(*_SEEDS)):
        server = _served(
            [(3 * phase_s, _USUAL)], deadline_s, seed, lambda n, now: _SERVICE.seconds(n) * factor(now)
        )
        for number, name in enumerate(("before", "slower", "after")):
            begin, end = number * phase_s, (number + 1) * phase_s
            _note(found, f"until learned {name}", _until_learned(server, end))
            server.run(end)
        server.run()
        for number, name in enumerate(("before", "slower", "after")):
            begin, end = number * phase_s, (number + 1) * phase_s
            some = [fate for fate in server.fates if begin <= fate.arrived < end]
            _note(found, f"on time {name}", _on_time(some, deadline_s, factor(begin)))
    return {name: fmean(values) for name, values in found.items()}


def _hangs(deadline_s: float, effort: Effort) -> dict[str, float]:
    """Return what becomes of calls before and after a batch that takes two seconds more."""
    phase_s = effort.of(*_PHASE_S)
    found: dict[str, list[float]] = {}
    for seed in range(effort.of(*_SEEDS)):
        hung: list[float] = []

        def seconds(size: int, now: float, hung: list[float] = hung) -> float:
            if hung or now < phase_s:
                return _SERVICE.seconds(size)
            hung.append(now + _HANGS_S + _SERVICE.seconds(size))
            return hung[0] - now

        server = _served([(2 * phase_s + _HANGS_S, _USUAL)], deadline_s, seed, seconds)
        server.run(phase_s)
        while not hung:
            server.step()
        _note(found, "until learned", _until_learned(server, 2 * phase_s + _HANGS_S))
        server.run()
        for name, begin, end in (
            ("before", 0.0, phase_s - deadline_s),
            ("in the second after", hung[0], hung[0] + 1.0),
            ("after", hung[0], math.inf),
        ):
            some = [fate for fate in server.fates if begin <= fate.arrived < end]
            _note(found, f"on time {name}", _on_time(some, deadline_s, 1.0))
    return {name: fmean(values) for name, values in found.items()}


def _note(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


def _until_learned(server: Server, until: float) -> float:
    """Run some batches; return after how many it is known, and stays known, what the next one takes."""
    unknown = batches = 0
    while batches < _LOOK and server.now < until:
        known = [server.known_s(size) for size in range(_BATCH + 1)]
        if not server.step():
            break
        batches += 1
        ran = server.ran[-1]
        known_s = known[ran.size]
        if known_s is None or abs(known_s / (ran.ended - ran.started) - 1) > _NEAR:
            unknown = batches
    return _LOOK if unknown == batches else unknown


def _on_time(fates: list[Fate], deadline_s: float, factor: float) -> float:
    """Return the share on time, of the most of a server that is free when the first call comes."""
    arrivals = sorted(fate.arrived for fate in fates)
    most = most_on_time(arrivals, deadline_s, lambda n: factor * _SERVICE.seconds(n), _BATCH, _STEPS)
    return sum(fate.end is End.ON_TIME for fate in fates) / max(1, most)


# -- rows ---------------------------------------------------------------------------------------------------


def _contender(measure: Callable[[float, Effort], dict[str, float]], deadline_s: float) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield lambda: {**measure(deadline_s, effort), "most": 1.0}

    return contender


def _turns(measure: Callable[[float, Effort], dict[str, float]], times: float) -> Turns:
    return Turns({"ours": _contender(measure, times * _FULL_S)}, rounds=1)


def _rows(times: float) -> Iterator[Row]:
    where = f"deadline of {times:g} full batches"
    flood, slower, hangs = (_turns(measure, times) for measure in (_flood, _slower, _hangs))
    what = f"batches above the usual p50 after a flood, {where}"
    yield Row(f"recovery: {what}", what, flood, "ours usual p50", _NUMBER, Goal(2.0), "ours batches above")
    for name, words in (("before", "before"), ("slower", "four times slower"), ("after", "as before again")):
        what = f"on time while the function is {words}, {where}"
        yield Row(f"recovery: {what}", what, slower, "ours most", _OF_MOST, _SHARE, f"ours on time {name}")
        if name != "before":
            what = f"batches until learned that it is {words}, {where}"
            ours = f"ours until learned {name}"
            yield Row(f"recovery: {what}", what, slower, "ours most", _NUMBER, _TEN, ours)
    for name in ("before", "in the second after", "after"):
        what = f"on time {name} a hang of 2 s, {where}"
        yield Row(f"recovery: {what}", what, hangs, "ours most", _OF_MOST, _SHARE, f"ours on time {name}")
    what = f"batches until a hang of 2 s is forgotten, {where}"
    yield Row(f"recovery: {what}", what, hangs, "ours most", _NUMBER, _TEN, "ours until learned")


ROWS = tuple(row for times in (2.0, 4.0, 10.0) for row in _rows(times))
