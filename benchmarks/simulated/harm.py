"""What callers get where full batches may be too large, simulated, beside the best `batch_size` in hindsight.

That is the best of 1, 2, 4 ... 64, the default, once there was time to find it: some seconds, and at a load
of 90 % the minutes in which calls are answered that have waited since then. All meet the same arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from batched._core.options import Options
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import SHARE, TIMES, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Samples, Turns
from benchmarks.simulated.costs import COSTS, SIZES, Cost, capacity, serve
from benchmarks.simulated.processes import Stream, Traffic, closed, exponential, poisson_times

_CALLERS = (1, 8, 32, 128)
_LOADS = (0.3, 0.6, 0.9)  # of the capacity at the best size
_THINK_S = 0.25e-3
_SHARE = 0.95  # of the best that the defaults are to reach
_LEARN, _CALLS = 30_000, 30_000  # before, and while it counts: some 20 s or more each
_BUSY, _LEARN_BUSY = 0.9, 150_000  # at this load, what waits since the size was not known is answered slowly


def _latency(cost: Cost, callers: int, load: float, size: int | None, effort: Effort) -> dict[str, float]:
    """Return the mean latency and the throughput: of the defaults, or of a fixed size."""
    if callers:
        traffic = Traffic(*closed(callers, exponential(_THINK_S), f"{callers}"))
    else:
        traffic = Traffic(Stream(poisson_times(load * capacity(cost), f"{cost.name} {load}")))
    few = 10 if callers == 1 else 1  # of a lone caller, all calls are alike
    mean, rate = serve(
        Options() if size is None else Options(batch_size=size),
        traffic,
        cost,
        calls=effort.of(_CALLS, 50) // few,
        skip=effort.of(_LEARN_BUSY if load >= _BUSY else _LEARN, 50) // few,
        fixed=size is not None,
    )
    return {"latency": mean, "throughput": rate}


def _contender(cost: Cost, callers: int, load: float, size: int | None) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield partial(_latency, cost, callers, load, size, effort)

    return contender


def _best(samples: Samples) -> Samples:
    """Return what the best sizes reach."""
    return {
        "best latency": [min(samples[f"{size} latency"][0] for size in SIZES)],
        "best throughput": [max(samples[f"{size} throughput"][0] for size in SIZES)],
    }


def _rows(cost: Cost, callers: int, load: float) -> Iterator[Row]:
    where = f"{cost.name}, " + (f"{callers} callers" if callers else f"random arrivals at {load:.0%}")
    sizes = {str(size): _contender(cost, callers, load, size) for size in SIZES}
    turns = Turns({"ours": _contender(cost, callers, load, None), **sizes}, rounds=1, derive=_best)
    what = f"mean latency, {where}"
    goal = Goal(round(1 / _SHARE, 3))
    yield Row(f"harm: {what}", what, turns, "best latency", TIMES, goal, "ours latency")
    if callers:
        what = f"throughput, {where}"
        goal = Goal(_SHARE, at_least=True)
        yield Row(f"harm: {what}", what, turns, "best throughput", SHARE, goal, "ours throughput")


def _all_rows() -> Iterator[Row]:
    for cost in COSTS:
        for callers in _CALLERS:
            yield from _rows(cost, callers, 0.0)
        for load in _LOADS:
            yield from _rows(cost, 0, load)


ROWS = tuple(_all_rows())
