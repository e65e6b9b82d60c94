"""The CPU of single calls from 64 threads in closed loops, beside a queue and a lock per call."""

from __future__ import annotations

from benchmarks.kit.bare import ThreadHandOff, echo
from benchmarks.kit.callers import Call, closed_threads
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.turns import Turns, using

_THREADS = 64


def _cpu(call: Call, effort: Effort) -> float:
    each = effort.of(300, 3)
    return closed_threads(call, _THREADS, each).cpu / (_THREADS * each)


TURNS = Turns(
    {"ours": using(lambda: dynamically(echo), _cpu), "bare": using(lambda: ThreadHandOff(echo), _cpu)}
)

ROWS = (Row("CPU, 64 threads", "CPU per single, 64 threads", TURNS, "bare", goal=Goal(1.7)),)
