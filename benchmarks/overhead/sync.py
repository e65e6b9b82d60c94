"""An idle round trip of one thread, beside two bare locks, an executor, a bare hand-off and 0.1.5."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import batched
from benchmarks.kit.bare import ThreadHandOff, TwoLocks, echo
from benchmarks.kit.callers import Call, around_synchronously
from benchmarks.kit.measure import Effort, one_core
from benchmarks.kit.ours import dynamically
from benchmarks.kit.own_process import Alone, beside_rival
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using

_TRIPS = (2_000, 50)


def _trip(call: Call, effort: Effort) -> float:
    return around_synchronously(call, effort.of(*_TRIPS))


@contextmanager
def _executor() -> Iterator[Call]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda item: pool.submit(echo, [item]).result()[0]


def round_trip(contender: str, trips: int) -> float:
    """Return the median idle round trip in seconds, in a process where no other pair of threads is."""
    contenders: dict[str, Any] = {
        "ours": lambda: batched.dynamically(echo, batch_size=32, timeout_ms=0),
        "locks": TwoLocks,
        "executor": _executor,
        "queue + lock": lambda: ThreadHandOff(echo),
    }
    with contenders[contender]() as call:
        return around_synchronously(call, trips)


def ours_or_rival(trips: int) -> float:
    """Return the median idle round trip of whichever `batched` is found first."""
    return around_synchronously(batched.dynamically(echo, batch_size=32, timeout_ms=0), trips)


ONE_CORE = Turns(
    {
        "ours": using(lambda: dynamically(echo), _trip),
        "locks": using(TwoLocks, _trip),
        "executor": using(_executor, _trip),
    },
    quick_rounds=2,
    inside=one_core,
)
# Each in a process of its own: which of several pairs of threads the system leaves on one core, where a
# switch takes a tenth of what it takes to wake another core, is chance.
OWN_PROCESSES = Turns(
    {name: Alone(round_trip, (name, (4_000, 50))) for name in ("ours", "locks", "executor", "queue + lock")},
    rounds=9,
)
BESIDE_RIVAL = beside_rival(ours_or_rival, _TRIPS, rounds=5)

_WHAT = "idle sync round trip"
_ON_ONE_CORE = f"{_WHAT}, one core"
ROWS = (
    Row("sync / two locks, one core", _ON_ONE_CORE, ONE_CORE, "locks", goal=Goal(2.0)),
    Row("sync / executor, one core", _ON_ONE_CORE, ONE_CORE, "executor", goal=Goal(1.0)),
    Row("sync / two locks", _WHAT, OWN_PROCESSES, "locks", goal=Goal(2.0)),
    Row("sync / executor", _WHAT, OWN_PROCESSES, "executor", goal=Goal(1.0)),
    Row("sync / hand-off", _WHAT, OWN_PROCESSES, "queue + lock"),
    Row("sync / 0.1.5", _WHAT, BESIDE_RIVAL, RIVAL),
)
