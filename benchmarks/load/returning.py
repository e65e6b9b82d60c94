"""Throughput of few threads that come straight back, with all defaults, beside `timeout_ms=0`."""

from __future__ import annotations

from functools import partial
from typing import Any

import batched
from benchmarks.kit.callers import closed_threads
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Turns, using
from benchmarks.load.device import BATCH, slow


def _throughput(threads: int, fn: Any, effort: Effort) -> float:
    each = effort.of(150, 5)
    return threads * each / closed_threads(fn, threads, each).wall


def _row(threads: int) -> Row:
    measure = partial(_throughput, threads)
    turns = Turns(
        {
            "ours": using(lambda: batched.dynamically(slow(), batch_size=BATCH), measure),
            "timeout_ms=0": using(
                lambda: batched.dynamically(slow(), batch_size=BATCH, timeout_ms=0), measure
            ),
        },
        rounds=6,
    )
    what = f"throughput with all defaults, threads: {threads}"
    goal = _GOALS.get(threads)
    return Row(f"returning, {threads} threads", what, turns, "timeout_ms=0", SHARE, goal)


_GOALS = {20: Goal(1.25, at_least=True)}
ROWS = tuple(map(_row, (1, 2, 20, 40)))
