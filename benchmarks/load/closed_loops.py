"""Throughput of tasks and threads that come straight back, beside full batches back to back and 0.1.5."""

from __future__ import annotations

from functools import partial
from typing import Any

import batched
from benchmarks.kit.bare import device
from benchmarks.kit.callers import closed_tasks, closed_threads
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.own_process import beside_rival
from benchmarks.kit.rivals import RIVAL
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.load.device import BATCH, FAST, at_capacity

_TASKS, _EACH_TASK = 1000, (20, 1)
_THREADS, _EACH_THREAD = 64, (250, 2)


def _by_tasks(fn: Any, effort: Effort) -> float:
    each = effort.of(*_EACH_TASK)
    return _TASKS * each / closed_tasks(fn.acall, _TASKS, each).wall


def _by_threads(fn: Any, effort: Effort) -> float:
    each = effort.of(*_EACH_THREAD)
    return _THREADS * each / closed_threads(fn, _THREADS, each).wall


def rate_of_tasks(each: int) -> float:
    """Return the items a second of tasks, of whichever `batched` is found first."""
    fn = batched.dynamically(device(*FAST), batch_size=BATCH, timeout_ms=0)
    return _TASKS * each / closed_tasks(fn.acall, _TASKS, each).wall


def rate_of_threads(each: int) -> float:
    """Return the items a second of threads, of whichever `batched` is found first."""
    fn = batched.dynamically(device(*FAST), batch_size=BATCH, timeout_ms=0)
    return _THREADS * each / closed_threads(fn, _THREADS, each).wall


def _turns(measure: Any) -> Turns:
    return Turns(
        {
            "ours": using(lambda: dynamically(device(*FAST), batch_size=BATCH), measure),
            "capacity": at_capacity(partial(device, *FAST)),
        },
        rounds=5,
    )


_TASKS_BESIDE_RIVAL = beside_rival(rate_of_tasks, _EACH_TASK, rounds=3)
_THREADS_BESIDE_RIVAL = beside_rival(rate_of_threads, _EACH_THREAD, rounds=3)

_OF_TASKS, _OF_THREADS = "throughput of 1,000 tasks", "throughput of 64 threads"
ROWS = (
    Row("capacity, 1,000 tasks", _OF_TASKS, _turns(_by_tasks), "capacity", SHARE, Goal(0.96, at_least=True)),
    Row(
        "capacity, 64 threads", _OF_THREADS, _turns(_by_threads), "capacity", SHARE, Goal(0.93, at_least=True)
    ),
    Row("1,000 tasks / 0.1.5", _OF_TASKS, _TASKS_BESIDE_RIVAL, RIVAL, SHARE),
    Row("64 threads / 0.1.5", _OF_THREADS, _THREADS_BESIDE_RIVAL, RIVAL, SHARE),
)
