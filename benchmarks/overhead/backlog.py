"""The CPU of single calls of which a thousand, or a million, wait at once, beside the bare hand-off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import truediv
from statistics import median
from typing import Any

from benchmarks.kit.bare import Gate, LoopHandOff
from benchmarks.kit.callers import backlog
from benchmarks.kit.measure import Effort
from benchmarks.kit.ours import dynamically
from benchmarks.kit.row import COUNT, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Samples, Turns

Open = Callable[[Any], AbstractContextManager[Any]]

_FEW, _MANY = (1_000, 100), (1_000_000, 1_000)


def _contender(decorate: Open, waiting: tuple[int, int], repeats: tuple[int, int]) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield lambda: median(_cpu(decorate, effort.of(*waiting)) for _ in range(effort.of(*repeats)))

    return contender


def _cpu(decorate: Open, waiting: int) -> float:
    gate = Gate()
    with decorate(gate.echo) as opened:
        return backlog(opened.acall, gate, waiting).cpu / waiting


def _ratios(samples: Samples) -> Samples:
    """Return ours over the bare hand-off in each round: no call may cost more because more wait."""
    return {
        f"ratio at {size}": list(map(truediv, samples[f"ours at {size}"], samples[f"bare at {size}"]))
        for size in ("1M", "1k")
    }


TURNS = Turns(
    {
        "ours at 1M": _contender(dynamically, _MANY, (1, 1)),
        "bare at 1M": _contender(LoopHandOff, _MANY, (1, 1)),
        "ours at 1k": _contender(dynamically, _FEW, (100, 2)),
        "bare at 1k": _contender(LoopHandOff, _FEW, (100, 2)),
    },
    rounds=3,
    derive=_ratios,
)

_WHAT = "the ratio at 1M waiting, beside that at 1k"
ROWS = (
    Row("CPU, 1k waiting", "CPU per single, 1k waiting", TURNS, "bare at 1k", ours="ours at 1k"),
    Row("CPU, 1M waiting", "CPU per single, 1M waiting", TURNS, "bare at 1M", ours="ours at 1M"),
    Row("backlog of 1M / of 1k", _WHAT, TURNS, "ratio at 1k", COUNT, Goal(1.2), ours="ratio at 1M"),
)
