"""Throughput of few threads that come straight back, with all defaults, beside `timeout_ms=0`."""

from __future__ import annotations

from functools import partial
from typing import Any

import batched
from benchmarks.kit.callers import closed_threads
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import SHARE, Goal, Row
from benchmarks.kit.turns import Contender, Turns, using
from benchmarks.load.device import BATCH, slow


def _throughput(threads: int, fn: Any, effort: Effort) -> float:
    each = effort.of(150, 5)
    return threads * each / closed_threads(fn, threads, each).wall


def _row(threads: int, workers: int = 1) -> Row:
    measure = partial(_throughput, threads)

    def contender(**options: Any) -> Contender:
        return using(
            lambda: batched.dynamically(slow(), batch_size=BATCH, max_concurrent_batches=workers, **options),
            measure,
        )

    turns = Turns({"ours": contender(), "timeout_ms=0": contender(timeout_ms=0)}, rounds=6)
    where = f"threads: {threads}" + (f", workers: {workers}" if workers > 1 else "")
    name = f"returning, {threads} threads" + (f", {workers} workers" if workers > 1 else "")
    what = f"throughput with all defaults, {where}"
    return Row(name, what, turns, "timeout_ms=0", SHARE, _GOALS.get((threads, workers)))


_GOALS = {(20, 1): Goal(1.25, at_least=True), (40, 2): Goal(1.25, at_least=True)}
ROWS = (*map(_row, (1, 2, 20, 40)), _row(40, 2), _row(80, 4))
