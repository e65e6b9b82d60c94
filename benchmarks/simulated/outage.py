"""How long callers wait for their error while a function fails after 1 s, beside getting it at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from batched._core.call import Call
from batched._core.collator import Collator
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import COUNT, TIMES, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns

_FAILS_AFTER_S = 1.0
_SIZE = 32
_BATCHES = 200


def _outage(*, isolates: bool) -> dict[str, float]:
    """Return how long callers wait in the first batch of an outage and later, and how often that ran."""
    options = Options(timeout_ms=0, isolate_errors=isolates)
    unused: Any = None  # no batch works, so none is split
    collator: Collator = unused
    driver = ManualDriver(options, Queue, collator)
    now = 0.0
    waits: list[float] = []
    runs: list[int] = []
    for _ in range(_BATCHES):
        came = now
        calls = [Call().begin(None, at, 1, False, now) for at in range(_SIZE)]  # noqa: FBT003
        driver.push(*calls)
        runs.append(0)
        while driver.delay(now) == 0.0:
            batch = driver.pop(now)
            runs[-1] += 1
            now += _FAILS_AFTER_S
            driver.fail(batch, RuntimeError("503"), now)
        waits.append(now - came)
    mean = sum(waits[1:]) / len(waits[1:])
    return {
        "first": waits[0],
        "next": waits[1],
        "mean": mean,
        "longest": max(waits[1:]),
        "further runs of first": runs[0] - 1.0,
        "batch": 1.0,
    }


def _contender(*, isolates: bool) -> Contender:
    @contextmanager
    def contender(_: Effort) -> Iterator[Measure]:
        yield partial(_outage, isolates=isolates)

    return contender


_TURNS = Turns({"ours": _contender(isolates=True), "without": _contender(isolates=False)}, rounds=1)

ROWS = (
    Row(
        "outage: first",
        "the longest wait in its first batch",
        _TURNS,
        "without first",
        TIMES,
        Goal(5.0),
        "ours first",
    ),
    Row(
        "outage: next", "the longest wait in the next", _TURNS, "without next", TIMES, Goal(1.0), "ours next"
    ),
    Row(
        "outage: mean",
        "the mean wait in all that follow, 200",
        _TURNS,
        "without mean",
        TIMES,
        Goal(1.0),
        "ours mean",
    ),
    Row(
        "outage: longest",
        "the longest wait in these",
        _TURNS,
        "without longest",
        TIMES,
        Goal(1.0),
        "ours longest",
    ),
    Row(
        "outage: runs",
        "further runs of the first batch",
        _TURNS,
        "without batch",
        COUNT,
        Goal(8.0),
        "ours further runs of first",
    ),
)
